//! The address space of a cluster: the facts, checked and indexed.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    ops::Range,
};

use ipnet::IpNet;
use podplane_ipam::Family;

use crate::{
    index::{Cover, LayerNumber, StateIndex},
    overlap::{Overlap, OverlapPart, overlaps},
    parts::{AddressClaim, BlockState, Holder, Network, NetworkRole, NodeBlock},
    prefix::{address, bounds, number},
    state::{AddressState, StateCounts},
};

/// The rule about the addresses of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodRule {
    /// A pod's address is in a block of its node.
    #[default]
    InNodeBlock,
    /// A pod can have any address, as in networks with an IPAM of their own.
    Anywhere,
}

/// The facts about an address space, in any order; unknown parts stay empty.
#[derive(Clone, Debug, Default)]
pub struct SpaceParts {
    /// The networks. They may overlap: that is shown.
    pub networks: Vec<Network>,
    /// The blocks. They may overlap, and may be outside of all networks.
    pub blocks: Vec<NodeBlock>,
    /// The addresses that somebody has.
    pub claims: Vec<AddressClaim>,
    /// The rule about the addresses of pods.
    pub rule: PodRule,
    /// The number of orphaned addresses of nodes that report a number alone, by node.
    pub unlocated_orphans: Vec<(String, u64)>,
    /// The only namespace whose pods are known: addresses of others do not count as free then.
    pub only_namespace: Option<String>,
}

impl SpaceParts {
    /// Adds, for each family without a network of pods, the smallest network around all of its
    /// blocks: a dump does not have the flags of its cluster.
    pub fn infer_pod_networks(&mut self) {
        for family in [Family::V4, Family::V6] {
            let is_pods = |network: &Network| {
                network.role() == NetworkRole::Pods && Family::of(&network.cidr()) == family
            };
            if self.networks.iter().any(is_pods) {
                continue;
            }
            let blocks = self.blocks.iter().map(NodeBlock::cidr);
            let mut blocks = blocks.filter(|cidr| Family::of(cidr) == family);
            let Some(first) = blocks.next() else {
                continue;
            };
            let around = blocks.try_fold(first, |mut around, block| {
                while !around.contains(&block) {
                    around = around.supernet()?;
                }
                Some(around)
            });
            let network = around.map(|cidr| {
                Network::new(NetworkRole::Pods, cidr.trunc(), "inferred from the blocks")
            });
            self.networks.extend(network.and_then(Result::ok));
        }
    }
}

/// An address that somebody has, as the index has it.
#[derive(Clone, Debug)]
struct Record {
    number: u128,
    layer: LayerNumber,
    state: AddressState,
    /// Its claims, in the list of all claims.
    claims: Range<usize>,
}

/// The facts of one family.
#[derive(Clone, Debug, Default)]
struct FamilySpace {
    states: StateIndex,
    /// Ascending.
    records: Vec<Record>,
    blocks: BlockTree,
    networks: Cover,
}

/// The blocks of one family by nesting.
#[derive(Clone, Debug, Default)]
struct BlockTree {
    /// First and last address, and the index of the block, by first address and from wide to
    /// narrow.
    nodes: Vec<(u128, u128, usize)>,
    /// For each, the place of the narrowest block around it.
    parents: Vec<Option<usize>>,
}

impl BlockTree {
    /// `blocks` are in the order of [`AddressSpace::blocks`].
    fn new<'a>(blocks: impl Iterator<Item = (usize, &'a NodeBlock)>) -> Self {
        let mut tree = Self::default();
        let mut around: Vec<usize> = Vec::new();
        for (index, block) in blocks {
            let (first, last) = bounds(&block.cidr());
            let ends_before = |place: &usize| tree.nodes[*place].1 < first;
            while around.last().is_some_and(ends_before) {
                around.pop();
            }
            tree.parents.push(around.last().copied());
            around.push(tree.nodes.len());
            tree.nodes.push((first, last, index));
        }
        tree
    }

    /// The narrowest block that contains all addresses from `first` to `last`.
    fn around(&self, first: u128, last: u128) -> Option<usize> {
        let after = self.nodes.partition_point(|(start, ..)| *start <= first);
        let mut place = after.checked_sub(1);
        while let Some(at) = place {
            let (start, end, index) = *self.nodes.get(at)?;
            if start <= first && last <= end {
                return Some(index);
            }
            place = self.parents.get(at).copied().flatten();
        }
        None
    }

    /// The blocks whose first address is from `first` to `last`.
    fn starting_within(&self, first: u128, last: u128) -> impl Iterator<Item = usize> {
        let from = self.nodes.partition_point(|(start, ..)| *start < first);
        let to = self.nodes.partition_point(|(start, ..)| *start <= last);
        let within = self.nodes.get(from..to).unwrap_or_default();
        within.iter().map(|(_, _, index)| *index)
    }
}

/// An address with a state of its own, and its holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRecord<'a> {
    /// The address.
    pub ip: IpAddr,
    /// Its state.
    pub state: AddressState,
    /// Its claims, sorted by holder; empty for the gateway of a block's layout, and for the first
    /// and last address of a service range.
    pub claims: &'a [AddressClaim],
}

/// The address space of a cluster.
#[derive(Clone, Debug)]
pub struct AddressSpace {
    networks: Vec<Network>,
    blocks: Vec<NodeBlock>,
    claims: Vec<AddressClaim>,
    rule: PodRule,
    unlocated_orphans: Vec<(String, u64)>,
    only_namespace: Option<String>,
    overlaps: Vec<Overlap>,
    v4: FamilySpace,
    v6: FamilySpace,
}

fn prefix_order(a: &IpNet, b: &IpNet) -> Ordering {
    (a.network(), a.prefix_len()).cmp(&(b.network(), b.prefix_len()))
}

impl AddressSpace {
    /// Sorts and indexes the facts. A fact that is there twice counts once.
    #[must_use]
    pub fn new(parts: SpaceParts) -> Self {
        let SpaceParts {
            mut networks,
            mut blocks,
            mut claims,
            rule,
            mut unlocated_orphans,
            only_namespace,
        } = parts;
        networks.sort();
        networks.dedup_by(|later, kept| kept.absorbs(later));
        blocks.sort_by(|a, b| {
            prefix_order(&a.cidr(), &b.cidr())
                .then_with(|| (a.state(), a.node()).cmp(&(b.state(), b.node())))
        });
        blocks.dedup();
        // A cluster gives them by address, in a run for each kind of holder, which a stable sort
        // merges.
        claims.sort();
        claims.dedup();
        unlocated_orphans.retain(|(_, count)| *count > 0);
        unlocated_orphans.sort();
        let overlaps = overlaps(&networks, &blocks);
        let mut space = Self {
            networks,
            blocks,
            claims,
            rule,
            unlocated_orphans,
            only_namespace,
            overlaps,
            v4: FamilySpace::default(),
            v6: FamilySpace::default(),
        };
        space.v4 = space.indexed(Family::V4);
        space.v6 = space.indexed(Family::V6);
        space
    }

    /// The networks: those of pods, of Services and of nodes, each by address.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.networks
    }

    /// The blocks by address, the wider first.
    #[must_use]
    pub fn blocks(&self) -> &[NodeBlock] {
        &self.blocks
    }

    /// Networks and blocks that share addresses although they should not, by address.
    #[must_use]
    pub fn overlaps(&self) -> &[Overlap] {
        &self.overlaps
    }

    /// The blocks and networks that the block overlaps.
    pub(crate) fn overlaps_of<'a>(
        &'a self,
        block: &'a NodeBlock,
    ) -> impl Iterator<Item = &'a OverlapPart> {
        let overlaps = self.overlaps.iter();
        overlaps.filter_map(|overlap| overlap.other_than(block))
    }

    /// The nodes that report a number of orphaned addresses without the addresses, by name.
    #[must_use]
    pub fn unlocated_orphans(&self) -> &[(String, u64)] {
        &self.unlocated_orphans
    }

    /// The only namespace whose pods are known; `None` for all.
    #[must_use]
    pub fn only_namespace(&self) -> Option<&str> {
        self.only_namespace.as_deref()
    }

    /// The number of addresses of the prefix in each state, as a part of a network of `role`.
    #[must_use]
    pub fn counts(&self, role: NetworkRole, prefix: &IpNet) -> StateCounts {
        let (first, last) = bounds(prefix);
        let states = &self.family(Family::of(prefix)).states;
        match role {
            NetworkRole::Pods => states.counts_with_blocks(first, last),
            NetworkRole::Services | NetworkRole::Nodes => states.counts_without_blocks(first, last),
        }
    }

    /// The number of addresses of the block that pods can get of it now.
    #[must_use]
    pub fn free_in(&self, block: &NodeBlock) -> u128 {
        let states = &self.family(Family::of(&block.cidr())).states;
        let runs = block.given();
        let free = runs.map(|(first, last)| states.counts_with_blocks(first, last));
        let free = free.map(|counts| counts.of(AddressState::Free));
        free.fold(0, u128::saturating_add)
    }

    /// The state of one address, as a part of a network of `role`.
    #[must_use]
    pub fn state(&self, role: NetworkRole, ip: IpAddr) -> AddressState {
        self.counts(role, &IpNet::from(ip)).dominant()
    }

    /// The address with its holders, if it has a state of its own.
    #[must_use]
    pub fn record(&self, ip: IpAddr) -> Option<AddressRecord<'_>> {
        let family = Family::of_address(ip);
        let records = &self.family(family).records;
        let found = records.binary_search_by_key(&number(ip), |record| record.number);
        Some(self.public(family, records.get(found.ok()?)?))
    }

    /// The addresses of the prefix that have a state of their own, by address.
    pub fn records(&self, prefix: &IpNet) -> impl Iterator<Item = AddressRecord<'_>> {
        let (first, last) = bounds(prefix);
        let family = Family::of(prefix);
        let records = &self.family(family).records;
        let from = records.partition_point(|record| record.number < first);
        let to = records.partition_point(|record| record.number <= last);
        let within = records.get(from..to).unwrap_or_default();
        within.iter().map(move |record| self.public(family, record))
    }

    /// The addresses of the prefix that need attention, the most urgent first. Looks at no others.
    pub fn faults(&self, prefix: &IpNet) -> impl Iterator<Item = AddressRecord<'_>> {
        let (first, last) = bounds(prefix);
        let family = Family::of(prefix);
        let states = &self.family(family).states;
        let numbers = AddressState::FAULTS
            .into_iter()
            .flat_map(move |state| states.points(state, first, last));
        numbers.filter_map(move |number| self.record(address(family, *number)))
    }

    /// The claimed addresses outside of all networks, by address.
    pub fn strays(&self) -> impl Iterator<Item = AddressRecord<'_>> {
        let families = [(Family::V4, &self.v4), (Family::V6, &self.v6)];
        let strays = families.into_iter().flat_map(|(family, space)| {
            let records = space.records.iter();
            let strays = records.filter(|record| !space.networks.contains(record.number));
            strays.map(move |record| (family, record))
        });
        // The gateways of blocks outside are not worth a remark.
        let claimed = strays.filter(|(_, record)| !record.claims.is_empty());
        claimed.map(|(family, record)| self.public(family, record))
    }

    /// The index of the narrowest block that contains the whole prefix.
    #[must_use]
    pub fn block_around(&self, prefix: &IpNet) -> Option<usize> {
        let (first, last) = bounds(prefix);
        let blocks = &self.family(Family::of(prefix)).blocks;
        blocks.around(first, last)
    }

    /// The other nodes that have the same block, by name; without former ones.
    #[must_use]
    pub fn other_nodes_of<'a>(&'a self, block: &NodeBlock) -> BTreeSet<&'a str> {
        let order = |other: &NodeBlock| prefix_order(&other.cidr(), &block.cidr());
        let from = self.blocks.partition_point(|one| order(one).is_lt());
        let to = self.blocks.partition_point(|one| order(one).is_le());
        let equal = self.blocks.get(from..to).unwrap_or_default().iter();
        let live = equal.filter(|one| !one.state().is_withheld());
        let nodes = live.filter_map(NodeBlock::node);
        nodes.filter(|node| Some(*node) != block.node()).collect()
    }

    /// The indexes of the blocks whose first address is in the prefix, by address.
    pub(crate) fn blocks_starting_within<'a>(
        &'a self,
        prefix: &IpNet,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let (first, last) = bounds(prefix);
        let blocks = &self.family(Family::of(prefix)).blocks;
        blocks.starting_within(first, last)
    }

    /// The addresses of the prefix with a state of their own, as numbers in ascending order.
    pub(crate) fn numbers_within(&self, prefix: &IpNet) -> impl Iterator<Item = u128> {
        let (first, last) = bounds(prefix);
        let records = &self.family(Family::of(prefix)).records;
        let from = records.partition_point(|record| record.number < first);
        let to = records.partition_point(|record| record.number <= last);
        let within = records.get(from..to).unwrap_or_default();
        within.iter().map(|record| record.number)
    }

    const fn family(&self, family: Family) -> &FamilySpace {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    fn public(&self, family: Family, record: &Record) -> AddressRecord<'_> {
        AddressRecord {
            ip: address(family, record.number),
            state: record.state,
            claims: self.claims.get(record.claims.clone()).unwrap_or_default(),
        }
    }

    fn blocks_of(&self, family: Family) -> impl Iterator<Item = (usize, &NodeBlock)> {
        let all = self.blocks.iter().enumerate();
        all.filter(move |(_, block)| Family::of(&block.cidr()) == family)
    }

    fn indexed(&self, family: Family) -> FamilySpace {
        let mut states = StateIndex::new(self.layers(family));
        let mut records = self.claimed(family, &states);
        self.add_unclaimed(family, &states, &mut records);
        for record in &records {
            states.push(record.number, record.layer, record.state);
        }
        let networks = self.networks.iter().map(Network::cidr);
        let networks = networks
            .filter(|cidr| Family::of(cidr) == family)
            .map(|cidr| bounds(&cidr));
        FamilySpace {
            states,
            records,
            blocks: BlockTree::new(self.blocks_of(family)),
            networks: Cover::of(networks.collect()),
        }
    }

    /// The parts of each layer of [`StateIndex`].
    fn layers(&self, family: Family) -> [Vec<(u128, u128)>; 4] {
        let (mut usable, mut live, mut withheld) = (Vec::new(), Vec::new(), Vec::new());
        let services = self.networks.iter().filter(|network| {
            network.role() == NetworkRole::Services && Family::of(&network.cidr()) == family
        });
        let mut reserved: Vec<_> = services.map(|network| bounds(&network.cidr())).collect();
        for (_, block) in self.blocks_of(family) {
            let whole = bounds(&block.cidr());
            match block.state() {
                BlockState::Assigned | BlockState::Foreign | BlockState::Unowned => {
                    live.push(whole);
                    usable.extend(block.given());
                }
                BlockState::Draining | BlockState::Held | BlockState::Quarantined => {
                    withheld.push(whole);
                }
                BlockState::Reserved => reserved.push(whole),
            }
        }
        [usable, live, withheld, reserved]
    }

    /// The addresses with claims, ascending.
    fn claimed(&self, family: Family, states: &StateIndex) -> Vec<Record> {
        let judge = ClaimJudge::new(self);
        let mut records = Vec::new();
        let mut start = 0;
        for claims in self.claims.chunk_by(|a, b| a.ip() == b.ip()) {
            let range = start..start + claims.len();
            start = range.end;
            let Some(first) = claims.first() else {
                continue;
            };
            if Family::of_address(first.ip()) == family {
                let number = number(first.ip());
                let layer = states.layer_of(number);
                records.push(Record {
                    number,
                    layer,
                    state: judge.state(first.ip(), layer, claims),
                    claims: range,
                });
            }
        }
        records
    }

    /// Adds the gateways of layouts, and the addresses of service ranges that no Service gets. A
    /// claim wins: networks with an IPAM of their own may give that address to a pod.
    fn add_unclaimed(&self, family: Family, states: &StateIndex, records: &mut Vec<Record>) {
        let networks = self.networks.iter();
        let services = networks.filter(|network| {
            network.role() == NetworkRole::Services && Family::of(&network.cidr()) == family
        });
        let reserved = services.flat_map(Network::reserved).map(number);
        // The node of a block that overlaps the range gives them all the same.
        let reserved = reserved.filter(|number| !states.layer_of(*number).is_in_block());
        let reserved = reserved.map(|number| (number, AddressState::Reserved));
        let live = self
            .blocks_of(family)
            .filter(|(_, block)| block.state().is_live());
        let gateways = live.filter_map(|(_, block)| block.gateway());
        // A block that overlaps this one gives it to pods all the same.
        let is_given = |number: &u128| states.layer_of(*number).state() == AddressState::Free;
        let gateways = gateways.map(number).filter(|number| !is_given(number));
        let gateways = gateways.map(|number| (number, AddressState::Gateway));
        let mut unclaimed: BTreeMap<u128, AddressState> = reserved.chain(gateways).collect();
        let claimed = |number: &u128| records.binary_search_by_key(number, |record| record.number);
        unclaimed.retain(|number, _| claimed(number).is_err());
        records.extend(unclaimed.into_iter().map(|(number, state)| Record {
            number,
            layer: states.layer_of(number),
            state,
            claims: 0..0,
        }));
        // Two ascending runs, which a stable sort merges.
        records.sort_by_key(|record| record.number);
    }
}

/// Gives addresses their states, from their claims and the blocks.
struct ClaimJudge<'a> {
    rule: PodRule,
    /// The blocks of each node, former ones included.
    by_node: HashMap<&'a str, Vec<IpNet>>,
}

impl<'a> ClaimJudge<'a> {
    fn new(space: &'a AddressSpace) -> Self {
        let mut by_node = HashMap::<&str, Vec<IpNet>>::new();
        for block in &space.blocks {
            if let Some(node) = block.node() {
                by_node.entry(node).or_default().push(block.cidr());
            }
        }
        Self {
            rule: space.rule,
            by_node,
        }
    }

    /// The state of an address of a layer.
    fn state(&self, ip: IpAddr, layer: LayerNumber, claims: &[AddressClaim]) -> AddressState {
        let holders = || claims.iter().map(AddressClaim::holder);
        let mut live = holders().filter(|holder| is_live(holder, claims));
        let first = live.next();
        if live.next().is_some() {
            return AddressState::Duplicate;
        }
        if holders().any(|holder| self.is_outside(ip, layer, holder)) {
            return AddressState::Outside;
        }
        if holders().any(|holder| matches!(holder, Holder::Orphan { .. })) {
            return AddressState::Orphaned;
        }
        match first {
            Some(Holder::Node { .. }) => AddressState::Node,
            Some(Holder::Service { .. }) => AddressState::Service,
            Some(Holder::Gateway { .. }) => AddressState::Gateway,
            Some(_) => match layer.state() {
                AddressState::Withheld => AddressState::Draining,
                _ => AddressState::Pod,
            },
            None => AddressState::Reserved,
        }
    }

    fn is_outside(&self, ip: IpAddr, layer: LayerNumber, holder: &Holder) -> bool {
        let (PodRule::InNodeBlock, Holder::Pod { node, .. }) = (self.rule, holder) else {
            return false;
        };
        match node {
            Some(node) => {
                let blocks = self.by_node.get(&**node);
                !blocks.is_some_and(|blocks| blocks.iter().any(|block| block.contains(&ip)))
            }
            // Then any block will do.
            None => !layer.is_in_block(),
        }
    }
}

/// Returns true if the holder uses the address. A sandbox does not count beside a pod of its node:
/// it is the pod's.
fn is_live(holder: &Holder, claims: &[AddressClaim]) -> bool {
    match holder {
        Holder::Pod { .. }
        | Holder::Node { .. }
        | Holder::Service { .. }
        | Holder::Gateway { .. } => true,
        Holder::Sandbox { node, .. } => !claims.iter().any(|claim| {
            matches!(claim.holder(), Holder::Pod { node: of_pod, .. } if of_pod.is_none() || node.is_none() || of_pod == node)
        }),
        Holder::Orphan { .. } | Holder::Reserved { .. } => false,
    }
}

#[cfg(test)]
mod tests;

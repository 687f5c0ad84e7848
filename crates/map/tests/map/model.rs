//! Counts against a model that looks at each address of a small network by itself.

use std::{collections::BTreeSet, net::IpAddr, net::Ipv4Addr};

use ipnet::IpNet;
use podplane_map::{
    AddressClaim, AddressSpace, AddressState, BlockState, GridLimit, Holder, Layout, Network,
    NetworkRole, NodeBlock, SpaceParts, StateCounts, View,
};
use proptest::{prelude::*, sample::select};

/// The network of the model: 1,024 addresses.
const CLUSTER: &str = "10.0.0.0/22";
const NODES: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) blocks: Vec<NodeBlock>,
    pub(crate) claims: Vec<AddressClaim>,
    services: Option<IpNet>,
}

impl Facts {
    pub(crate) fn space(&self) -> AddressSpace {
        let mut networks = vec![self.network()];
        let services = self.services.iter();
        networks
            .extend(services.map(|cidr| Network::new(NetworkRole::Services, *cidr, "").unwrap()));
        AddressSpace::new(SpaceParts {
            networks,
            blocks: self.blocks.clone(),
            claims: self.claims.clone(),
            ..SpaceParts::default()
        })
    }

    pub(crate) fn network(&self) -> Network {
        Network::parse(NetworkRole::Pods, CLUSTER, "").unwrap()
    }

    /// The state of an address, from all facts.
    fn state(&self, ip: Ipv4Addr) -> AddressState {
        let holders: BTreeSet<&Holder> = self
            .claims
            .iter()
            .filter(|claim| claim.ip() == IpAddr::V4(ip))
            .map(AddressClaim::holder)
            .collect();
        let pods: Vec<_> = holders
            .iter()
            .filter(|holder| matches!(holder, Holder::Pod { .. }))
            .collect();
        let own_sandboxes = holders.iter().filter(|holder| {
            matches!(holder, Holder::Sandbox { .. })
                && !pods.iter().any(|pod| pod.node() == holder.node())
        });
        let services = holders
            .iter()
            .filter(|holder| matches!(holder, Holder::Service { .. }));
        let sandboxes = own_sandboxes.count();
        let services = services.count();
        let is_in = |block: &NodeBlock| block.cidr().contains(&IpAddr::V4(ip));
        let blocks: Vec<_> = self.blocks.iter().filter(|block| is_in(block)).collect();
        let has_orphan = holders
            .iter()
            .any(|holder| matches!(holder, Holder::Orphan { .. }));
        let is_old = |block: &&&NodeBlock| {
            matches!(
                block.state(),
                BlockState::Draining | BlockState::Held | BlockState::Quarantined
            )
        };
        let live: Vec<_> = blocks
            .iter()
            .filter(|block| !is_old(block) && block.state() != BlockState::Reserved)
            .collect();
        if pods.len() + sandboxes + services > 1 {
            return AddressState::Duplicate;
        }
        if let [pod] = pods.as_slice()
            && !blocks.iter().any(|block| block.node() == pod.node())
        {
            return AddressState::Outside;
        }
        if has_orphan {
            return AddressState::Orphaned;
        }
        if pods.len() + sandboxes == 1 {
            return match live.is_empty() && blocks.iter().any(|block| is_old(&block)) {
                true => AddressState::Draining,
                false => AddressState::Pod,
            };
        }
        if services == 1 {
            return AddressState::Service;
        }
        // Blocks of one or two addresses have no gateway, and host-local gives none of them.
        let ends = |block: &NodeBlock| match (block.cidr().network(), block.cidr().broadcast()) {
            (IpAddr::V4(first), IpAddr::V4(last)) if block.cidr().prefix_len() < 31 => {
                Some((first.to_bits(), last.to_bits()))
            }
            _ => None,
        };
        let is_gateway =
            |block: &&&&NodeBlock| ends(block).is_some_and(|(first, _)| first + 1 == ip.to_bits());
        let is_end = |block: &&&NodeBlock| {
            ends(block).is_none_or(|(first, last)| [first, last].contains(&ip.to_bits()))
        };
        let is_service = self
            .services
            .is_some_and(|cidr| cidr.contains(&IpAddr::V4(ip)));
        if live
            .iter()
            .any(|block| !is_end(block) && !is_gateway(&block))
        {
            AddressState::Free
        } else if live.iter().any(|block| is_gateway(&block)) {
            AddressState::Gateway
        } else if !live.is_empty() {
            AddressState::Reserved
        } else if blocks.iter().any(|block| is_old(&block)) {
            AddressState::Withheld
        } else if is_service || !blocks.is_empty() {
            AddressState::Reserved
        } else {
            AddressState::Unassigned
        }
    }

    fn counts(&self, prefix: &IpNet) -> Vec<(AddressState, u128)> {
        let (IpAddr::V4(first), IpAddr::V4(last)) = (prefix.network(), prefix.broadcast()) else {
            unreachable!("the model is IPv4");
        };
        let states = (first.to_bits()..=last.to_bits()).map(|ip| self.state(ip.into()));
        let states: Vec<_> = states.collect();
        let count = |state| states.iter().filter(|each| **each == state).count() as u128;
        let counts = AddressState::ALL.map(|state| (state, count(state)));
        counts.into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

fn address() -> impl Strategy<Value = IpAddr> {
    // Few addresses, so that several have the same one; some beyond the network.
    prop_oneof![4 => 0u32..64, 2 => 0u32..1024, 1 => 1020u32..1030]
        .prop_map(|offset| IpAddr::V4((0x0a00_0000 + offset).into()))
}

fn blocks() -> impl Strategy<Value = Vec<NodeBlock>> {
    use BlockState::*;
    let states = select(vec![
        Assigned,
        Assigned,
        Foreign,
        Unowned,
        Draining,
        Held,
        Quarantined,
        Reserved,
    ]);
    let block = (address(), 23u8..=32, states, select(&NODES[..]));
    let block = block.prop_map(|(ip, length, state, node)| {
        let cidr = IpNet::new(ip, length).unwrap().trunc();
        let node = (!matches!(state, Unowned | Reserved)).then_some(node);
        NodeBlock::new(cidr, state, node).unwrap()
    });
    prop::collection::vec(block, 0..7)
}

fn claims() -> impl Strategy<Value = Vec<AddressClaim>> {
    let claim = (address(), 0u8..4, 0u8..3, select(&NODES[..]));
    let claim = claim.prop_map(|(ip, kind, name, node)| {
        let (name, node) = (format!("default/{name}").into(), Some(node.into()));
        let holder = match kind {
            0 => Holder::Pod { name, node },
            1 => Holder::Sandbox { name, node },
            2 => Holder::Orphan { name, node },
            _ => Holder::Service { name },
        };
        AddressClaim::new(ip, holder).unwrap()
    });
    prop::collection::vec(claim, 0..24)
}

pub(crate) fn facts() -> impl Strategy<Value = Facts> {
    let services = select(vec![None, Some("10.0.2.0/24"), Some("10.0.0.0/26")]);
    (blocks(), claims(), services).prop_map(|(blocks, claims, services)| Facts {
        blocks,
        claims,
        services: services.map(|cidr| cidr.parse().unwrap()),
    })
}

/// A prefix of the network.
pub(crate) fn prefix() -> impl Strategy<Value = IpNet> {
    (0u32..1024, 22u8..=32).prop_map(|(offset, length)| {
        let ip = Ipv4Addr::from_bits(0x0a00_0000 + offset);
        IpNet::new(IpAddr::V4(ip), length).unwrap().trunc()
    })
}

pub(crate) fn limit() -> impl Strategy<Value = GridLimit> {
    (1u16..40, 1u16..40).prop_map(|(columns, rows)| GridLimit::new(columns, rows).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn each_cell_has_the_counts_of_its_addresses(
        facts in facts(), prefix in prefix(), limit in limit(),
    ) {
        let space = facts.space();
        let view = View::new(&space, &facts.network(), prefix, limit).unwrap();
        prop_assert_eq!(view.layout(), Layout::Curve);
        let mut sum = StateCounts::default();
        let mut next = u128::from(match prefix.network() {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(_) => unreachable!(),
        });
        for cell in view.cells() {
            // The cells are the prefix, without gaps and without overlaps.
            let IpAddr::V4(first) = cell.prefix.network() else { unreachable!() };
            prop_assert_eq!(u128::from(first.to_bits()), next);
            next += cell.counts.total();
            let present: Vec<_> = cell.counts.present().collect();
            prop_assert_eq!(present, facts.counts(&cell.prefix), "{}", cell.prefix);
            prop_assert_eq!(view.at(cell.x, cell.y), Some(cell));
            prop_assert_eq!(view.cell_of(cell.prefix.broadcast()), Some(cell));
            prop_assert!(cell.x < limit.columns() && cell.y < limit.rows());
            sum.add(&cell.counts);
        }
        prop_assert_eq!(&sum, view.counts());
        prop_assert_eq!(view.counts().total(), 1u128 << (32 - prefix.prefix_len()));
        prop_assert_eq!(view.hidden().total(), 0);
    }

    #[test]
    fn blocks_are_around_their_cells(facts in facts(), prefix in prefix(), limit in limit()) {
        let space = facts.space();
        let view = View::new(&space, &facts.network(), prefix, limit).unwrap();
        for outline in view.outlines() {
            for cell in view.cells() {
                prop_assert_eq!(
                    outline.cidr.contains(&cell.prefix),
                    outline.rect.contains(cell.x, cell.y),
                    "{} and {}", outline.cidr, cell.prefix
                );
            }
        }
        for cell in view.cells() {
            let around = space.blocks().iter().map(NodeBlock::cidr);
            let around = around.filter(|block| block.contains(&cell.prefix));
            let narrowest = around.max_by_key(IpNet::prefix_len);
            let found = cell.block.map(|index| space.blocks()[index].cidr());
            prop_assert_eq!(found, narrowest);
            let inside = space.blocks().iter().filter(|block| {
                cell.prefix.contains(&block.cidr()) && block.cidr() != cell.prefix
            });
            prop_assert_eq!(cell.blocks_inside, inside.count());
        }
    }
}

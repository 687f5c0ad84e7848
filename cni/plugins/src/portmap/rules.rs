//! Rules in nftables, in the layout of the reference's nftables backend.
//!
//! There is a table `cni_hostport` for each family. Packets to the host's own addresses that come
//! by `prerouting` or `output` go through `hostports_all` to `hostports`, which has a rule for each
//! mapping, and to `hostip_hostports`, where earlier versions of the reference kept some of them.
//! `masquerading` has rules for each container. A rule's comment is the container's id, by which
//! the reference finds the rules to delete. Network and interface are in the rule's tag, which the
//! reference does not use.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use podplane_netlink::{
    NetlinkError,
    nft::{
        BaseChain, Batch, Chain, Expr, Family, Hook, Label, MAX_COMMENT, Nft, NftRule, RulePlace,
        Table,
        expr::{self, Side},
    },
};

use super::config::PortmapConfig;
use crate::command::output_of;

const ALL: &str = "hostports_all";
const BY_ADDRESS: &str = "hostip_hostports";
const ANY: &str = "hostports";
const MASQUERADING: &str = "masquerading";
const ENTRANCES: [(&str, Hook); 2] = [("prerouting", Hook::Prerouting), ("output", Hook::Output)];
/// The chains with rules of containers.
const OWNED: [&str; 3] = [ANY, BY_ADDRESS, MASQUERADING];

/// The number of attempts at a change while other processes make theirs.
const ATTEMPTS: u32 = 20;

fn table(v4: bool) -> Table<'static> {
    Table {
        family: if v4 { Family::Ip } else { Family::Ip6 },
        name: "cni_hostport",
    }
}

fn nat(hook: Hook) -> BaseChain {
    let priority = if hook == Hook::Postrouting { 100 } else { -100 };
    BaseChain {
        kind: "nat",
        hook,
        priority,
        policy: false,
    }
}

/// The kind of a rule, in its tag after network and interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RuleKind {
    /// A mapping of one address of the host; these come first.
    OneAddress,
    /// A mapping of all the host's addresses.
    AnyAddress,
    Masquerade,
}

impl RuleKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::OneAddress => "one",
            Self::AnyAddress => "any",
            Self::Masquerade => "snat",
        }
    }
}

/// The attachment that rules belong to.
#[derive(Debug, Clone)]
pub(super) struct MappingOwner {
    comment: String,
    /// Network and interface. A long network name is cut, since tags are short.
    place: String,
}

impl MappingOwner {
    pub(super) fn new(network: &str, container_id: &str, ifname: &str) -> Self {
        const NETWORK: usize = 95;
        // Both are ASCII.
        let first = |text: &str, length| text.get(..length).unwrap_or(text).to_owned();
        Self {
            comment: first(container_id, MAX_COMMENT),
            place: format!("{}/{ifname}", first(network, NETWORK)),
        }
    }

    fn tag(&self, kind: RuleKind) -> String {
        format!("{}/{}", self.place, kind.as_str())
    }

    /// Returns true if the rule is the owner's. A rule without a tag was made by the reference, and
    /// names only its container.
    fn owns(&self, rule: &NftRule) -> bool {
        rule.comment == self.comment && (rule.tag.is_empty() || place(rule) == self.place)
    }
}

fn place(rule: &NftRule) -> &str {
    rule.tag.rsplit_once('/').map_or("", |(place, _)| place)
}

/// Makes the rules for the container's addresses, replacing its present ones.
pub(super) fn forward(
    nft: &mut Nft,
    config: &PortmapConfig,
    owner: &MappingOwner,
) -> Result<(), NetlinkError> {
    retry(|| {
        let mut batch = Batch::default();
        for address in config.addresses.iter().map(IpNet::addr) {
            add_base(&mut batch, config, address.is_ipv4());
            let before = delete_owned(nft, &mut batch, address.is_ipv4(), |rule| owner.owns(rule))?;
            add_rules(&mut batch, config, owner, address, &before);
        }
        nft.apply(batch)
    })
}

fn retry(attempt: impl FnMut() -> Result<(), NetlinkError>) -> Result<(), NetlinkError> {
    let mut attempts = std::iter::repeat_with(attempt).take(ATTEMPTS as usize);
    let mut outcome = Ok(());
    for tried in &mut attempts {
        outcome = tried;
        if !outcome.as_ref().is_err_and(NetlinkError::is_not_found) {
            break;
        }
    }
    outcome
}

/// Adds the chains and rules that all containers share.
fn add_base(batch: &mut Batch, config: &PortmapConfig, v4: bool) {
    let table = table(v4);
    batch.add_table(table, Some("CNI portmap plugin"));
    for name in [ANY, BY_ADDRESS, ALL] {
        batch.add_chain(table.chain(name), None, None);
    }
    batch.flush_chain(table.chain(ALL));
    for name in [BY_ADDRESS, ANY] {
        batch.add_rule(table.chain(ALL), vec![expr::jump(name)], None);
    }
    for (name, hook) in ENTRANCES {
        let entrance = table.chain(name);
        batch.add_chain(entrance, Some(nat(hook)), None);
        if config.conditions(v4).is_empty() {
            batch.flush_chain(entrance);
            let mut rule = expr::destination_is_local();
            rule.push(expr::jump(ALL));
            batch.add_rule(entrance, rule, None);
        }
    }
    if config.snat {
        let chain = table.chain(MASQUERADING);
        batch.add_chain(chain, Some(nat(Hook::Postrouting)), None);
    }
}

/// Deletes the chosen rules, and returns the rules of containers that stay.
fn delete_owned(
    nft: &mut Nft,
    batch: &mut Batch,
    v4: bool,
    is_chosen: impl Fn(&NftRule) -> bool,
) -> Result<Vec<NftRule>, NetlinkError> {
    let mut stay = Vec::new();
    for name in OWNED {
        let chain = table(v4).chain(name);
        for rule in nft.rules(chain)? {
            if is_chosen(&rule) {
                batch.delete_rule(chain, rule.handle);
            } else {
                stay.push(rule);
            }
        }
    }
    Ok(stay)
}

fn add_rules(
    batch: &mut Batch,
    config: &PortmapConfig,
    owner: &MappingOwner,
    address: IpAddr,
    others: &[NftRule],
) {
    let v4 = address.is_ipv4();
    let table = table(v4);
    let hostports = table.chain(ANY);
    // If two containers map one port, the later one gets it: the earlier one may be gone without a
    // DEL. Mappings of one host address come before those of all addresses.
    let one = owner.tag(RuleKind::OneAddress);
    let is_for_one = |rule: &NftRule| rule.tag.ends_with("/one");
    let mut others = others.iter().filter(|rule| rule.chain == ANY);
    let any_place = others
        .find(|rule| !is_for_one(rule))
        .map_or(RulePlace::Last, |rule| RulePlace::Before(rule.handle));
    let any = owner.tag(RuleKind::AnyAddress);
    let label = |tag| Label {
        comment: &owner.comment,
        tag,
    };
    let dnat = |mapping: &super::config::Mapping| {
        let mut rule = expr::destination_port(mapping.transport, mapping.host_port);
        rule.extend(expr::dnat(address, mapping.container_port));
        rule
    };
    for mapping in config.mappings(v4) {
        if mapping.host_ip.is_none() {
            batch.place_rule(hostports, dnat(mapping), any_place, label(&any));
        }
    }
    // Each is placed at the front, so the last one is placed first.
    for mapping in config.mappings(v4).rev() {
        if let Some(ip) = mapping.host_ip {
            let mut rule = expr::address_of_family(Side::Destination, ip);
            rule.extend(dnat(mapping));
            batch.place_rule(hostports, rule, RulePlace::First, label(&one));
        }
    }
    let tag = owner.tag(RuleKind::Masquerade);
    for rule in masquerades(config, address) {
        batch.place_rule(
            table.chain(MASQUERADING),
            rule,
            RulePlace::Last,
            label(&tag),
        );
    }
}

/// The rules that masquerade connections of the container to itself, and of the host from
/// 127.0.0.1.
///
/// The answer finds its way back only if the connection seems to come from the host.
fn masquerades(config: &PortmapConfig, address: IpAddr) -> Vec<Vec<Expr>> {
    if !config.snat {
        return Vec::new();
    }
    let mut sources = vec![Some(address)];
    if config.masquerade_all {
        sources = vec![None];
    } else if address.is_ipv4() {
        sources.push(Some(Ipv4Addr::LOCALHOST.into()));
    }
    let rule = |source: Option<IpAddr>| {
        let source = source.map(|source| expr::address_of_family(Side::Source, source));
        let mut rule = source.unwrap_or_default();
        rule.extend(expr::address_of_family(Side::Destination, address));
        rule.push(expr::masquerade());
        rule
    };
    sources.into_iter().map(rule).collect()
}

/// Sets the conditions of a family by running `nft`, in whose language they are written.
pub(super) fn set_conditions(conditions: &[String], v4: bool) -> Result<(), String> {
    let table = table(v4);
    let conditions = conditions.join(" ");
    let script: String = ENTRANCES
        .iter()
        .map(|(name, _)| {
            let chain = table.chain(name);
            format!("flush chain {chain}\nadd rule {chain} {conditions} fib daddr type local jump {ALL}\n")
        })
        .collect();
    let output = output_of("nft", &["-f", "-"], &script)
        .map_err(|error| format!("conditions need the program nft: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!(
        "nft refuses the conditions {conditions:?}: {}",
        stderr.trim()
    ))
}

/// Deletes an attachment's rules.
pub(super) fn unforward(nft: &mut Nft, owner: &MappingOwner) -> Result<(), NetlinkError> {
    delete(nft, |rule| owner.owns(rule))
}

/// Deletes the rules of a network's attachments, except the valid ones.
pub(super) fn collect_garbage(
    nft: &mut Nft,
    network: &str,
    valid: &[(String, String)],
) -> Result<(), NetlinkError> {
    let valid: Vec<_> = valid
        .iter()
        .map(|(id, ifname)| MappingOwner::new(network, id, ifname))
        .collect();
    let here = MappingOwner::new(network, "", "").place;
    delete(nft, |rule| {
        place(rule).starts_with(&here) && !valid.iter().any(|owner| owner.owns(rule))
    })
}

fn delete(nft: &mut Nft, is_chosen: impl Fn(&NftRule) -> bool) -> Result<(), NetlinkError> {
    let mut emptied = Vec::new();
    retry(|| {
        emptied.clear();
        let mut batch = Batch::default();
        for v4 in [true, false] {
            let before = batch.len();
            let stay = delete_owned(nft, &mut batch, v4, &is_chosen)?;
            if stay.is_empty() && batch.len() > before {
                emptied.push(v4);
            }
        }
        nft.apply(batch)
    })?;
    emptied.into_iter().try_for_each(|v4| prune(nft, v4))
}

/// Deletes a table without mappings. Does nothing if another program has added one meanwhile, or
/// has chains of its own in the table.
fn prune(nft: &mut Nft, v4: bool) -> Result<(), NetlinkError> {
    let table = table(v4);
    let existing = nft.chains(table)?;
    let has = |name: &str| existing.iter().any(|chain| chain.name == name);
    let entrances = ENTRANCES.map(|(name, _)| name);
    let mut batch = Batch::default();
    for name in entrances.into_iter().chain([ALL]).filter(|name| has(name)) {
        batch.flush_chain(table.chain(name));
    }
    let chains = entrances.into_iter().chain([ALL]).chain(OWNED);
    for name in chains.filter(|name| has(name)) {
        batch.delete_unused_chain(table.chain(name));
    }
    batch.delete_unused_table(table);
    match nft.apply(batch) {
        Err(error) if error.is_busy() || error.is_not_found() => Ok(()),
        other => other,
    }
}

/// Returns the text of the first fault.
pub(super) fn find_faults(
    nft: &mut Nft,
    config: &PortmapConfig,
    owner: &MappingOwner,
) -> Result<Option<String>, NetlinkError> {
    for address in config.addresses.iter().map(IpNet::addr) {
        let v4 = address.is_ipv4();
        let table = table(v4);
        let mut count = |chain: Chain<'_>| -> Result<usize, NetlinkError> {
            let rules = nft.rules(chain)?;
            Ok(rules.iter().filter(|rule| owner.owns(rule)).count())
        };
        let forwarding = count(table.chain(ANY))? + count(table.chain(BY_ADDRESS))?;
        let missing = |chain: &str| format!("missing hostport rules in {chain:?} chain");
        if forwarding < config.mappings(v4).count() {
            return Ok(Some(missing(ANY)));
        }
        if count(table.chain(MASQUERADING))? < masquerades(config, address).len() {
            return Ok(Some(missing(MASQUERADING)));
        }
        for (name, _) in ENTRANCES {
            if nft.rules(table.chain(name))?.is_empty() {
                return Ok(Some(missing(name)));
            }
        }
    }
    Ok(None)
}

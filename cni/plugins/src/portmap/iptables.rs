//! Rules made by `iptables`, in the layout of the reference's iptables backend.
//!
//! Packets to the host's own addresses that come by `PREROUTING` or `OUTPUT` go through
//! `CNI-HOSTPORT-DNAT` to the container's chain `CNI-DN-…`. That chain marks the packets that need
//! masquerading, by `CNI-HOSTPORT-SETMARK`, and redirects them to the container;
//! `CNI-HOSTPORT-MASQ` masquerades marked packets.
//!
//! For each family, one process lists the rules, and one applies all changes at once. Rules made by
//! `iptables-nft` are deleted by netlink.

use std::{collections::BTreeMap, fmt::Write as _};

use ipnet::IpNet;
use podplane_cni::types::{CniError, code};
use podplane_netlink::{
    NetlinkError,
    nft::{Nft, expr::Transport},
};

use super::config::PortmapConfig;
use crate::masquerade::{
    self, hash,
    iptables::{
        PROGRAMS, deletions, lock_shared_rules, remove_chain, remove_garbage, remove_legacy_chain,
        restore, run,
    },
};

const DNAT: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// A chain for masquerading, which old versions of the reference also made.
const OLD_MASQUERADE: &str = "CNI-HOSTPORT-SNAT";

/// The number of attempts at a change while other processes make theirs.
const ATTEMPTS: u32 = 20;

/// The reference's default.
const DEFAULT_MARK_BIT: u32 = 13;

/// The name of the container's chain, which is for all its interfaces in the network.
fn chain_of(prefix: &str, network: &str, container_id: &str) -> String {
    const DIGITS: usize = 21;
    let digits = hash(&format!("{network}{container_id}"), DIGITS);
    format!("CNI-{prefix}-{digits}")
}

/// Quotes a word as `iptables-restore` reads it.
fn quote(word: &str) -> String {
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

fn comment(network: &str, container_id: &str) -> String {
    const MAX: usize = 255;
    const CUT: &str = "...";
    let mut comment = format!("dnat name: \"{network}\" id: \"{container_id}\"");
    if comment.len() > MAX {
        comment.truncate(comment.floor_char_boundary(MAX - CUT.len()));
        comment.push_str(CUT);
    }
    quote(&comment)
}

fn protocol(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
        Transport::Sctp => "sctp",
    }
}

fn program(address: IpNet) -> &'static str {
    let [v4, v6] = PROGRAMS;
    if address.addr().is_ipv4() { v4 } else { v6 }
}

/// Makes the rules for the container's addresses, replacing its present ones.
pub(super) fn forward(
    config: &PortmapConfig,
    network: &str,
    container_id: &str,
) -> Result<(), CniError> {
    for address in &config.addresses {
        let program = program(*address);
        let mut present = run(program, &["-S"])?;
        let mut lock = None;
        let mut attempts = 0;
        loop {
            let shared = shared_rules(config, &present);
            if !shared.is_empty() && lock.is_none() {
                // The previous holder of the lock may have made them.
                lock = Some(lock_shared_rules());
                present = run(program, &["-S"])?;
                continue;
            }
            attempts += 1;
            let own = own_rules(config, *address, network, container_id, &present);
            let commands = shared + &own;
            let Err(error) = restore(program, &commands) else {
                break;
            };
            // Another process may have changed the rules since they were listed; then the change
            // did nothing and is tried again.
            let before = std::mem::replace(&mut present, run(program, &["-S"])?);
            if present == before || attempts == ATTEMPTS {
                return Err(CniError {
                    msg: format!("unable to setup DNAT: {}", error.msg),
                    ..error
                });
            }
        }
    }
    Ok(())
}

/// The commands that make the missing chains and rules of all containers, given the present rules
/// as `-S` shows them.
fn shared_rules(config: &PortmapConfig, present: &str) -> String {
    let mut commands = String::new();
    let absent = |line: String, command: String| {
        let is_present = present.lines().any(|other| other == line);
        if is_present { String::new() } else { command }
    };
    // Only what is missing: other containers use the rest, maybe with another mark. `:NAME` would
    // not do: it empties a chain that another process has made since.
    let chain = |name: &str| absent(format!("-N {name}"), format!("-N {name}\n"));
    let rule = |place: &str, chain: &str, rule: &str| {
        let line = format!("-A {chain} {rule}");
        absent(line, format!("{place} {chain} {rule}\n"))
    };
    if config.snat && config.external_mark_chain.is_none() {
        let mark = 1_u32 << config.mark_bit.unwrap_or(DEFAULT_MARK_BIT);
        commands += &chain(SET_MARK);
        commands += &chain(MASQUERADE);
        let set = format!(
            "-m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark {mark:#x}/{mark:#x}"
        );
        commands += &rule("-A", SET_MARK, &set);
        let masquerade = format!("-m mark --mark {mark:#x}/{mark:#x} -j MASQUERADE");
        commands += &rule("-A", MASQUERADE, &masquerade);
        let entrance =
            format!("-m comment --comment \"CNI portfwd requiring masquerade\" -j {MASQUERADE}");
        commands += &rule("-I", "POSTROUTING", &entrance);
    }
    commands += &chain(DNAT);
    let entrance = format!("-m addrtype --dst-type LOCAL -j {DNAT}");
    for from in ["PREROUTING", "OUTPUT"] {
        commands += &rule("-A", from, &entrance);
    }
    commands
}

/// The commands that make the container's own rules in place of its present ones.
fn own_rules(
    config: &PortmapConfig,
    address: IpNet,
    network: &str,
    container_id: &str,
    present: &str,
) -> String {
    let mut commands = String::new();
    // The container's own chain is emptied.
    let own = chain_of("DN", network, container_id);
    _ = writeln!(commands, ":{own} - [0:0]");
    commands += &deletions(present, DNAT, &own);
    for rule in rules(config, address) {
        _ = writeln!(commands, "-A {own} {rule}");
    }
    // A port belongs to the latest container that maps it.
    for rule in entrances(config, address, &comment(network, container_id)) {
        _ = writeln!(commands, "-I {DNAT} {rule} -j {own}");
    }
    commands
}

/// The matches of the rules that jump to the container's chain.
fn entrances(config: &PortmapConfig, address: IpNet, comment: &str) -> Vec<String> {
    /// The number of ports that one rule may have.
    const PORTS: usize = 15;
    let mut by_protocol: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for mapping in &config.mappings {
        let ports = by_protocol.entry(protocol(mapping.transport)).or_default();
        ports.push(mapping.host_port.to_string());
    }
    let conditions = config.conditions(address.addr().is_ipv4());
    let conditions: String = conditions
        .iter()
        .map(|word| format!(" {}", quote(word)))
        .collect();
    let mut entrances = Vec::new();
    for (protocol, ports) in by_protocol {
        for ports in ports.chunks(PORTS) {
            let ports = ports.join(",");
            entrances.push(format!(
                "-m comment --comment {comment} -m multiport -p {protocol} --destination-ports {ports}{conditions}"
            ));
        }
    }
    entrances
}

/// The rules of the container's chain.
fn rules(config: &PortmapConfig, address: IpNet) -> Vec<String> {
    let v4 = address.addr().is_ipv4();
    let mut sources = Vec::new();
    if config.snat && config.masquerade_all {
        sources.push(String::new()); // Any.
    } else if config.snat {
        sources.push(format!(" -s {address}"));
        if v4 {
            sources.push(" -s 127.0.0.1".to_owned());
        }
    }
    let set_mark = quote(config.external_mark_chain.as_deref().unwrap_or(SET_MARK));
    let mut rules = Vec::new();
    for mapping in config.mappings(v4) {
        let protocol = protocol(mapping.transport);
        let mut packets = format!("-p {protocol} --dport {}", mapping.host_port);
        if let Some(ip) = mapping.host_ip {
            _ = write!(packets, " -d {ip}");
        }
        let marks = sources
            .iter()
            .map(|source| format!("{packets}{source} -j {set_mark}"));
        rules.extend(marks);
        let to = std::net::SocketAddr::new(address.addr(), mapping.container_port);
        rules.push(format!("{packets} -j DNAT --to-destination {to}"));
    }
    rules
}

/// Checks that the container's chain, its rules, and the jumps to it exist.
pub(super) fn check(
    config: &PortmapConfig,
    network: &str,
    container_id: &str,
) -> Result<(), CniError> {
    let own = chain_of("DN", network, container_id);
    let comment = comment(network, container_id);
    for address in &config.addresses {
        let program = program(*address);
        let family = if address.addr().is_ipv4() { 4 } else { 6 };
        let fault =
            |why: &str| CniError::internal(format!("could not check ipv{family} dnat: {why}"));
        if run(program, &["-S", &own]).is_err() {
            return Err(fault(&format!(
                "chain {own} not found in iptables table nat"
            )));
        }
        let inside = rules(config, *address).into_iter();
        let inside = inside.map(|rule| format!("-C {own} {rule}\n"));
        let entrances = entrances(config, *address, &comment).into_iter();
        let entrances = entrances.map(|rule| format!("-C {DNAT} {rule} -j {own}\n"));
        let commands: String = inside.chain(entrances).collect();
        restore(program, &commands).map_err(|error| fault(&error.msg))?;
    }
    Ok(())
}

/// Checks that `iptables` exists and that the kernel permits its use.
pub(super) fn probe() -> Result<(), CniError> {
    masquerade::iptables::probe().map_err(|error| {
        CniError::new(code::NOT_AVAILABLE, "iptables cannot be used").with_details(error.msg)
    })
}

/// Deletes the chains of the network's containers that are in no valid attachment. `valid` has
/// container ids and interfaces.
pub(super) fn collect_garbage(network: &str, valid: &[(String, String)]) -> Result<(), CniError> {
    let valid: Vec<_> = valid
        .iter()
        .map(|(id, _)| chain_of("DN", network, id))
        .collect();
    let comment = format!("dnat name: \"{network}\" id: ");
    remove_garbage(DNAT, &comment, |chain| {
        valid.iter().any(|valid| valid == chain)
    })
}

/// The chains of a container, each with the chain that jumps to it.
fn chains(network: &str, container_id: &str) -> [(String, &'static str); 2] {
    [("DN", DNAT), ("SN", OLD_MASQUERADE)]
        .map(|(prefix, from)| (chain_of(prefix, network, container_id), from))
}

/// Deletes a container's rules that `iptables-nft` made.
pub(super) fn remove_by_netlink(
    nft: &mut Nft,
    network: &str,
    container_id: &str,
) -> Result<(), NetlinkError> {
    let mut chains = chains(network, container_id).into_iter();
    chains.try_for_each(|(chain, from)| remove_chain(nft, &chain, from))
}

/// Deletes a container's rules that `iptables-legacy` made.
pub(super) fn remove_legacy(network: &str, container_id: &str) -> Result<(), CniError> {
    let mut chains = chains(network, container_id).into_iter();
    chains.try_for_each(|(chain, from)| remove_legacy_chain(&chain, from))
}

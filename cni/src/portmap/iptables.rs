//! The rules in the kernel by `iptables`, in the layout of the reference's iptables backend.
//!
//! Of packets to one of the host's own addresses, those that come by `PREROUTING` or `OUTPUT` go through
//! `CNI-HOSTPORT-DNAT` to the container's chain `CNI-DN-…`. That one leads them to the container, after it has
//! marked by `CNI-HOSTPORT-SETMARK` what `CNI-HOSTPORT-MASQ` is to masquerade.
//!
//! For each family one process looks, and one changes all at once. What `iptables-nft` made is deleted by netlink.

use std::{collections::BTreeMap, fmt::Write as _};

use ipnet::IpNet;

use super::config::Config;
use crate::{
    masquerade::{
        self, hash,
        iptables::{
            PROGRAMS, deletions, remove_chain, remove_garbage, remove_legacy_chain, restore, run,
        },
    },
    netlink::{
        NetlinkError,
        nft::{Nft, expr::Transport},
    },
    types::{CniError, code},
};

const DNAT: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// Old versions of the reference made a chain for masquerading, too.
const OLD_MASQUERADE: &str = "CNI-HOSTPORT-SNAT";

/// So often a change is tried while others make theirs.
const ATTEMPTS: u32 = 20;

/// The reference's.
const DEFAULT_MARK_BIT: u32 = 13;

/// The container's chain, of all its interfaces in the network.
fn chain_of(prefix: &str, network: &str, container_id: &str) -> String {
    const DIGITS: usize = 21;
    let digits = hash(&format!("{network}{container_id}"), DIGITS);
    format!("CNI-{prefix}-{digits}")
}

/// As `iptables-restore` reads a word.
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

/// Makes the rules for the container's addresses in place of those that it has.
pub(super) fn forward(config: &Config, network: &str, container_id: &str) -> Result<(), CniError> {
    for address in &config.addresses {
        let program = program(*address);
        let mut present = run(program, &["-S"])?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let commands = commands(config, *address, network, container_id, &present);
            let Err(error) = restore(program, &commands) else {
                break;
            };
            // Somebody else may have changed the rules between the look and the change, which then has done nothing.
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

/// What makes the rules, where those that `-S` shows are there.
fn commands(
    config: &Config,
    address: IpNet,
    network: &str,
    container_id: &str,
    present: &str,
) -> String {
    let mut commands = String::new();
    let absent = |line: String, command: String| {
        let is_present = present.lines().any(|other| other == line);
        if is_present { String::new() } else { command }
    };
    // Shared with other containers, and maybe with other marks. Not by `:NAME`, which would empty one that somebody else has made since.
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
    // The container's own is emptied.
    let own = chain_of("DN", network, container_id);
    _ = writeln!(commands, ":{own} - [0:0]");
    commands += &deletions(present, DNAT, &own);
    for rule in rules(config, address) {
        _ = writeln!(commands, "-A {own} {rule}");
    }
    // The latest container with a port gets it.
    for rule in entrances(config, address, &comment(network, container_id)) {
        _ = writeln!(commands, "-I {DNAT} {rule} -j {own}");
    }
    commands
}

/// What leads to the container's chain.
fn entrances(config: &Config, address: IpNet, comment: &str) -> Vec<String> {
    /// So many are allowed.
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

/// What is in the container's chain.
fn rules(config: &Config, address: IpNet) -> Vec<String> {
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

/// Whether the container's chain, all in it and what leads to it are there.
pub(super) fn check(config: &Config, network: &str, container_id: &str) -> Result<(), CniError> {
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

/// Whether there is such a program, and the kernel lets it.
pub(super) fn probe() -> Result<(), CniError> {
    masquerade::iptables::probe().map_err(|error| {
        CniError::new(code::NOT_AVAILABLE, "iptables cannot be used").with_details(error.msg)
    })
}

/// Deletes the chains of the network's containers that are not among the valid attachments, which are ids and interfaces.
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

/// A container's chains, and where the jumps to them are.
fn chains(network: &str, container_id: &str) -> [(String, &'static str); 2] {
    [("DN", DNAT), ("SN", OLD_MASQUERADE)]
        .map(|(prefix, from)| (chain_of(prefix, network, container_id), from))
}

/// Deletes what `iptables-nft` made for a container.
pub(super) fn remove_by_netlink(
    nft: &mut Nft,
    network: &str,
    container_id: &str,
) -> Result<(), NetlinkError> {
    let mut chains = chains(network, container_id).into_iter();
    chains.try_for_each(|(chain, from)| remove_chain(nft, &chain, from))
}

/// Deletes what `iptables-legacy` made for a container.
pub(super) fn remove_legacy(network: &str, container_id: &str) -> Result<(), CniError> {
    let mut chains = chains(network, container_id).into_iter();
    chains.try_for_each(|(chain, from)| remove_legacy_chain(&chain, from))
}

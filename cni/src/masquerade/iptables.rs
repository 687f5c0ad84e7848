//! The reference's rules of iptables: made on request, and removed wherever they are found.
//!
//! For each container the table `nat` has a chain `CNI-…`, and POSTROUTING a jump to it for each address. What `iptables-nft` made is visible as
//! nftables and is removed by netlink; what `iptables-legacy` made only by its own program, which is asked only where the kernel has such a table.

use std::{fs, io, process::Command};

use ipnet::IpNet;

use super::{Owner, hash};
use crate::{
    netlink::{
        NetlinkError,
        nft::{Batch, Family, Nft, Table},
    },
    types::{CniError, json},
};

const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

fn chain_of(owner: Owner<'_>) -> String {
    const LENGTH: usize = 28;
    let prefix = "CNI-";
    let digits = hash(
        &format!("{}{}", owner.network, owner.container_id),
        LENGTH - prefix.len(),
    );
    format!("{prefix}{digits}")
}

fn comment_of(owner: Owner<'_>) -> String {
    let (name, id) = (
        json::go_quote(owner.network),
        json::go_quote(owner.container_id),
    );
    format!("name: {name} id: {id}")
}

/// Runs a program on the table `nat`.
fn run(program: &str, args: &[&str]) -> Result<String, CniError> {
    let mut command = Command::new(program);
    let output = command.args(["-w", "-t", "nat"]).args(args).output();
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CniError::internal(format!(
            "failed to locate iptables: exec: \"{program}\": executable file not found in $PATH"
        )),
        _ => CniError::internal(format!("failed to run {program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(CniError::internal(format!(
        "running [{program} -t nat {}]: {}: {}",
        args.join(" "),
        output.status,
        why.trim_end()
    )))
}

/// Makes the chain and its rules, as the reference does.
pub(super) fn add(addresses: &[IpNet], owner: Owner<'_>) -> Result<(), CniError> {
    let (chain, comment) = (chain_of(owner), comment_of(owner));
    for address in addresses {
        let (program, multicast) = match address {
            IpNet::V4(_) => (PROGRAMS[0], "224.0.0.0/4"),
            IpNet::V6(_) => (PROGRAMS[1], "ff00::/8"),
        };
        if run(program, &["-S", &chain]).is_err() {
            run(program, &["-N", &chain])?;
        }
        let (ip, net) = (address.addr().to_string(), address.to_string());
        let commented = ["-m", "comment", "--comment", &comment];
        let append = |chain: &str, rule: &[&str]| {
            let rule = [&[chain], rule, &commented].concat();
            // One that is there stays the only one.
            if run(program, &[&["-C"], rule.as_slice()].concat()).is_ok() {
                return Ok(());
            }
            run(program, &[&["-A"], rule.as_slice()].concat()).map(drop)
        };
        append(&chain, &["-d", &net, "-j", "ACCEPT"])?;
        append(&chain, &["!", "-d", multicast, "-j", "MASQUERADE"])?;
        append("POSTROUTING", &["-s", &ip, "-j", &chain])?;
    }
    Ok(())
}

/// Removes what `iptables-nft` made.
pub(super) fn remove_by_netlink(nft: &mut Nft, owner: Owner<'_>) -> Result<(), NetlinkError> {
    remove_chain(nft, &chain_of(owner), "POSTROUTING")
}

/// Removes a chain that `iptables-nft` made in the tables `nat`, and the jumps to it from another one.
pub(crate) fn remove_chain(nft: &mut Nft, name: &str, from: &str) -> Result<(), NetlinkError> {
    for family in [Family::Ip, Family::Ip6] {
        let table = Table {
            family,
            name: "nat",
        };
        let mut attempts = 0;
        while nft.chains(table)?.iter().any(|chain| chain.name == name) {
            attempts += 1;
            let from = table.chain(from);
            let mut batch = Batch::default();
            for rule in nft.rules(from)? {
                if rule.target.as_deref() == Some(name) {
                    batch.delete_rule(from, rule.handle);
                }
            }
            batch.delete_chain(table.chain(name));
            match nft.apply(batch) {
                // Somebody else has removed a part since it was listed.
                Err(error) if error.is_not_found() && attempts < 5 => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Removes what `iptables-legacy` made.
pub(super) fn remove_legacy(owner: Owner<'_>) -> Result<(), CniError> {
    const TABLES: [&str; 2] = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let (chain, comment) = (chain_of(owner), comment_of(owner));
    for (tables, program) in TABLES.iter().zip(PROGRAMS) {
        let tables = fs::read_to_string(tables).unwrap_or_default();
        if !tables.lines().any(|table| table == "nat") {
            continue;
        }
        // Where `iptables` is the one for nftables, the other one has a name of its own.
        let legacy = format!("{program}-legacy");
        let program = match Command::new(&legacy).arg("--version").output() {
            Ok(_) => legacy.as_str(),
            Err(_) => program,
        };
        if run(program, &["-S", &chain]).is_err() {
            continue; // There is no such chain.
        }
        for line in run(program, &["-S", "POSTROUTING"])?.lines() {
            let words: Vec<_> = line.split(' ').collect();
            let jumps = words.ends_with(&["-j", &chain]);
            let source = words.iter().position(|word| *word == "-s");
            if let Some(source) = source.and_then(|at| words.get(at + 1)).filter(|_| jumps) {
                let rule = [
                    "-s",
                    source,
                    "-m",
                    "comment",
                    "--comment",
                    &comment,
                    "-j",
                    &chain,
                ];
                run(program, &[&["-D", "POSTROUTING"], rule.as_slice()].concat())?;
            }
        }
        run(program, &["-F", &chain])?;
        run(program, &["-X", &chain])?;
    }
    Ok(())
}

//! The reference's iptables rules: made on request, and removed wherever they are found.
//!
//! For each container the table `nat` has a chain `CNI-…`, and `POSTROUTING` has a jump to it for
//! each address. Rules made by `iptables-nft` are visible as nftables and are removed by netlink.
//! Rules made by `iptables-legacy` are removed by that program, which runs only if the kernel has
//! such a table.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
    process::Command,
};

use ipnet::IpNet;
use podplane_cni::{
    runtime::ValidAttachment,
    skel::text,
    types::{CniError, json},
};
use podplane_netlink::{
    NetlinkError,
    nft::{Batch, Family, Nft, Table},
};
use rustix::{
    fs::{FlockOperation, flock},
    io::retry_on_intr,
};

use super::{MasqueradeOwner, hash};
use crate::command::output_of;

/// The programs for IPv4 and IPv6.
pub(crate) const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

fn chain_of(owner: MasqueradeOwner<'_>) -> String {
    const LENGTH: usize = 28;
    let prefix = "CNI-";
    let digits = hash(
        &format!("{}{}", owner.network, owner.container_id),
        LENGTH - prefix.len(),
    );
    format!("{prefix}{digits}")
}

fn comment_of(owner: MasqueradeOwner<'_>) -> String {
    let (name, id) = (
        json::go_quote(owner.network),
        json::go_quote(owner.container_id),
    );
    format!("name: {name} id: {id}")
}

/// Runs `program` on the table `nat`, and returns what it prints.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<String, CniError> {
    execute(program, &[&["-w", "-t", "nat"], args].concat(), "")
}

/// Changes the table `nat` by commands, one on each line: by all of them, or on failure by none.
pub(crate) fn restore(program: &str, commands: &str) -> Result<(), CniError> {
    let input = format!("*nat\n{commands}COMMIT\n");
    execute(&format!("{program}-restore"), &["-w", "--noflush"], &input).map(drop)
}

/// Takes the lock under which rules that containers share are made, until the file is closed. It is
/// that of this network namespace, as a file: two nodes of one machine do not wait for each other,
/// and nothing is left behind.
///
/// Without it, two processes could both find a rule missing and both make it: `iptables-restore` of
/// the variant for nftables, if the rules have changed while it runs, forgives a `-N` of a chain
/// that exists by then. On failure work goes on without the lock: a duplicate has no effect.
pub(crate) fn lock_shared_rules() -> Option<File> {
    let namespace = File::open("/proc/thread-self/ns/net").ok()?;
    let locked = retry_on_intr(|| flock(&namespace, FlockOperation::LockExclusive));
    locked.ok().map(|()| namespace)
}

/// Runs a program to its end, and returns what it prints.
///
/// # Errors
/// The command, its status, and its text on standard error.
pub(crate) fn execute(program: &str, args: &[&str], input: &str) -> Result<String, CniError> {
    let output = output_of(program, args, input).map_err(|error| match error.kind() {
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
        "running [{program} {}]: {}: {}",
        args.join(" "),
        output.status,
        why.trim_end()
    )))
}

/// Makes the chain and its rules, as the reference does.
pub(super) fn add(addresses: &[IpNet], owner: MasqueradeOwner<'_>) -> Result<(), CniError> {
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
            // A rule that exists is not added again.
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

/// Checks that `iptables` exists and that the kernel permits its use. The command is one that makes
/// nothing.
///
/// # Errors
/// The reason why it cannot be used.
pub(crate) fn probe() -> Result<(), CniError> {
    let [v4, _] = PROGRAMS;
    execute(v4, &["-w", "-t", "filter", "-S", "INPUT"], "").map(drop)
}

/// Removes the network's chains of containers that are not among the valid ones.
pub(super) fn collect_garbage(network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let chain = |attachment: &ValidAttachment| {
        chain_of(MasqueradeOwner {
            network,
            ifname: &attachment.ifname,
            container_id: &attachment.container_id,
        })
    };
    let valid: Vec<_> = valid.iter().map(chain).collect();
    let comment = format!("name: {} id: ", json::go_quote(network));
    remove_garbage("POSTROUTING", &comment, |chain| {
        valid.iter().any(|valid| valid == chain)
    })
}

/// Removes the chains that `from` jumps to by rules whose comments begin with `comment`, except
/// those for which `stays` holds.
pub(crate) fn remove_garbage(
    from: &str,
    comment: &str,
    stays: impl Fn(&str) -> bool,
) -> Result<(), CniError> {
    let comment = comment.replace('"', "\\\"");
    let comment = format!("--comment \"{comment}");
    let mut programs = legacy_programs("nat");
    programs.extend(PROGRAMS.map(str::to_owned));
    let mut chains = BTreeSet::new();
    for program in programs {
        // Without the program or the chain there are no rules.
        let rules = run(&program, &["-S", from]).unwrap_or_default();
        let owned = rules.lines().filter(|rule| rule.contains(&comment));
        let targets = owned.filter_map(|rule| Some(rule.rsplit_once(" -j ")?.1));
        chains.extend(targets.filter(|chain| !stays(chain)).map(str::to_owned));
    }
    chains.iter().try_for_each(|chain| {
        let removed = Nft::open().and_then(|mut nft| remove_chain(&mut nft, chain, from));
        match removed {
            Err(error) if !error.is_unknown_family() => {
                return Err(CniError::internal(text(&error)));
            }
            _ => {}
        }
        remove_legacy_chain(chain, from)
    })
}

/// Removes the owner's rules that `iptables-nft` made.
pub(super) fn remove_by_netlink(
    nft: &mut Nft,
    owner: MasqueradeOwner<'_>,
) -> Result<(), NetlinkError> {
    remove_chain(nft, &chain_of(owner), "POSTROUTING")
}

/// Removes a chain that `iptables-nft` made in the tables `nat`, and the jumps to it from the chain
/// `from`.
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
                // Another process has removed a part since it was listed.
                Err(error) if error.is_not_found() && attempts < 5 => {}
                other => other?,
            }
        }
    }
    Ok(())
}

/// Removes the owner's rules that `iptables-legacy` made.
pub(super) fn remove_legacy(owner: MasqueradeOwner<'_>) -> Result<(), CniError> {
    remove_legacy_chain(&chain_of(owner), "POSTROUTING")
}

/// Removes a chain that `iptables-legacy` made in the tables `nat`, and the jumps to it from the
/// chain `from`.
pub(crate) fn remove_legacy_chain(name: &str, from: &str) -> Result<(), CniError> {
    for program in legacy_programs("nat") {
        if run(&program, &["-S", name]).is_err() {
            continue; // There is no such chain.
        }
        let rules = run(&program, &["-S", from]).unwrap_or_default();
        let jumps = deletions(&rules, from, name);
        restore(&program, &format!("{jumps}-F {name}\n-X {name}\n"))?;
    }
    Ok(())
}

/// The programs for the legacy tables named `table` that the kernel has. Running a program for a
/// missing table would make that table.
pub(crate) fn legacy_programs(table: &str) -> Vec<String> {
    const TABLES: [&str; 2] = ["/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"];
    let mut programs = Vec::new();
    for (tables, program) in TABLES.iter().zip(PROGRAMS) {
        let tables = fs::read_to_string(tables).unwrap_or_default();
        if !tables.lines().any(|line| line == table) {
            continue;
        }
        // Where `iptables` is the variant for nftables, the legacy one has a name of its own.
        let legacy = format!("{program}-legacy");
        programs.push(match Command::new(&legacy).arg("--version").output() {
            Ok(_) => legacy,
            Err(_) => program.to_owned(),
        });
    }
    programs
}

/// The commands that delete the jumps from one chain to another, derived from the output of `-S`.
pub(crate) fn deletions(rules: &str, from: &str, to: &str) -> String {
    let (rule, jump) = (format!("-A {from} "), format!(" -j {to}"));
    let jumps = rules.lines().filter(|line| line.ends_with(&jump));
    let jumps = jumps.filter_map(|line| line.strip_prefix(&rule));
    jumps.map(|jump| format!("-D {from} {jump}\n")).collect()
}

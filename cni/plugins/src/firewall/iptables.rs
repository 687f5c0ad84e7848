//! Rules in the table `filter` by `iptables`, in the reference's layout.
//!
//! `FORWARD` jumps to `CNI-FORWARD`, which first jumps to the operator's chain. Two rules for each
//! address follow: one accepts its traffic, one the answers. For each family, one process lists the
//! rules and one applies all changes at once.

use std::fmt::Write as _;

use ipnet::IpNet;
use podplane_cni::{skel::text, types::CniError};
use podplane_netlink::nft::{self, Nft};

use super::{
    config::{Family, FirewallConfig},
    isolation::{self, Isolation},
};
use crate::masquerade::{
    self,
    iptables::{PROGRAMS, execute, legacy_programs, lock_shared_rules},
};

pub(super) const FORWARD: &str = "FORWARD";
const OWN: &str = "CNI-FORWARD";
const ENTRANCE: &str = r#"-m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD"#;

/// The number of attempts at a change while other processes make theirs.
const ATTEMPTS: u32 = 20;

impl Family {
    fn program(self) -> &'static str {
        let [v4, v6] = PROGRAMS;
        match self {
            Self::V4 => v4,
            Self::V6 => v6,
        }
    }

    fn of_nft(self) -> nft::Family {
        match self {
            Self::V4 => nft::Family::Ip,
            Self::V6 => nft::Family::Ip6,
        }
    }
}

/// The rules of the table: commands as `-S` prints them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilterRules(Vec<String>);

impl FilterRules {
    fn read(program: &str, chain: Option<&str>) -> Result<Self, CniError> {
        let args: Vec<_> = ["-w", "-t", "filter", "-S"]
            .into_iter()
            .chain(chain)
            .collect();
        let shown = execute(program, &args, "")?;
        Ok(Self(shown.lines().map(with_our_addresses).collect()))
    }

    pub(super) fn has_chain(&self, name: &str) -> bool {
        let (made, built_in) = (format!("-N {name}"), format!("-P {name} "));
        let mut lines = self.0.iter();
        lines.any(|line| *line == made || line.starts_with(&built_in))
    }

    /// The rules of a chain, in order.
    pub(super) fn of<'a>(&'a self, chain: &str) -> impl Iterator<Item = &'a str> {
        let start = format!("-A {chain} ");
        let lines = self.0.iter();
        lines.filter_map(move |line| line.strip_prefix(&start))
    }

    fn has(&self, chain: &str, rule: &str) -> bool {
        self.of(chain).any(|other| other == rule)
    }
}

/// Rewrites the addresses of a rule of `-S` in our notation: IPv6 addresses have several.
fn with_our_addresses(line: &str) -> String {
    let mut is_address = false;
    let words = line.split(' ').map(|word| {
        let address = word.parse::<IpNet>().ok().filter(|_| is_address);
        is_address = word == "-s" || word == "-d";
        address.map_or_else(|| word.to_owned(), |address| address.to_string())
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Commands for `iptables-restore`.
#[derive(Debug, Default)]
pub(super) struct RuleCommands {
    text: String,
    /// Set if another ADD may be about to make the same rules.
    is_shared: bool,
}

impl RuleCommands {
    pub(super) fn push(&mut self, command: &str) {
        _ = writeln!(self.text, "{command}");
    }

    pub(super) fn push_shared(&mut self, command: &str) {
        self.is_shared = true;
        self.push(command);
    }

    /// Returns true if the commands insert `rule` as the first of `FORWARD`.
    pub(super) fn inserts_first(&self, rule: &str) -> bool {
        let command = format!("-I {FORWARD} {rule}");
        self.text.lines().any(|line| line == command)
    }

    /// Makes a chain if it is missing. `:NAME` would not do: it empties a chain that another
    /// process has made since.
    pub(super) fn ensure_chain(&mut self, present: &FilterRules, name: &str) {
        if !present.has_chain(name) {
            self.push_shared(&format!("-N {}", quote(name)));
        }
    }
}

/// Quotes a word as `iptables-restore` reads it.
pub(super) fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Changes the table by the commands that `commands` derives from its present rules: by all of
/// them, or on failure by none.
fn change(
    program: &str,
    chain: Option<&str>,
    commands: impl Fn(&FilterRules) -> RuleCommands,
) -> Result<(), CniError> {
    let mut present = FilterRules::read(program, chain)?;
    let mut lock = None;
    let mut attempts = 0;
    loop {
        let commands = commands(&present);
        if commands.text.is_empty() {
            return Ok(());
        }
        if commands.is_shared && lock.is_none() {
            // The previous holder of the lock may have made the rules.
            lock = Some(lock_shared_rules());
            present = FilterRules::read(program, chain)?;
            continue;
        }
        attempts += 1;
        let input = format!("*filter\n{}COMMIT\n", commands.text);
        let changed = execute(&format!("{program}-restore"), &["-w", "--noflush"], &input);
        let Err(error) = changed else {
            return Ok(());
        };
        // Another process may have changed the rules since they were listed; then the change did
        // nothing and is tried again.
        let before = std::mem::replace(&mut present, FilterRules::read(program, chain)?);
        if present == before || attempts == ATTEMPTS {
            return Err(error);
        }
    }
}

/// The two rules of an address.
fn rules_of(address: IpNet) -> [String; 2] {
    [
        format!("-d {address} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
        format!("-s {address} -j ACCEPT"),
    ]
}

fn admin_rule(config: &FirewallConfig) -> [String; 2] {
    let comment = r#"-m comment --comment "CNI firewall plugin admin overrides" -j "#;
    let name = &config.admin_chain;
    [name.clone(), quote(name)].map(|name| format!("{comment}{name}"))
}

/// Accepts traffic of the container's addresses and the answers to it, and isolates its bridge.
pub(super) fn add(config: &FirewallConfig, isolation: Option<&Isolation>) -> Result<(), CniError> {
    let mut families = config.families().into_iter();
    families.try_for_each(|family| {
        let added = change(family.program(), None, |present| {
            let mut commands = accept(config, family, present);
            if let Some(isolation) = isolation {
                isolation.make(present, &mut commands);
            }
            isolation::put_first(present, isolation.is_some(), ENTRANCE, &mut commands);
            commands
        });
        added.map_err(|error| name_protocol(error, family))
    })
}

/// Rewords the error for a missing program as the reference words it.
fn name_protocol(error: CniError, family: Family) -> CniError {
    let number = match family {
        Family::V4 => 0,
        Family::V6 => 1,
    };
    match error.msg.strip_prefix("failed to locate iptables: ") {
        Some(why) => CniError {
            msg: format!("could not initialize iptables protocol {number}: {why}"),
            ..error
        },
        None => error,
    }
}

/// Isolates the container's bridge where firewalld accepts its addresses.
pub(super) fn isolate(
    config: &FirewallConfig,
    isolation: Option<&Isolation>,
) -> Result<(), CniError> {
    let Some(isolation) = isolation else {
        return Ok(());
    };
    let mut families = config.families().into_iter();
    families.try_for_each(|family| {
        change(family.program(), None, |present| {
            let mut commands = RuleCommands::default();
            isolation.make(present, &mut commands);
            isolation::put_first(present, true, ENTRANCE, &mut commands);
            commands
        })
    })
}

fn accept(config: &FirewallConfig, family: Family, present: &FilterRules) -> RuleCommands {
    let mut commands = RuleCommands::default();
    commands.ensure_chain(present, OWN);
    commands.ensure_chain(present, &config.admin_chain);
    if !present.has(FORWARD, ENTRANCE) {
        commands.push_shared(&format!("-I {FORWARD} {ENTRANCE}"));
    }
    let [shown, written] = admin_rule(config);
    if !present.has(OWN, &shown) {
        commands.push_shared(&format!("-I {OWN} {written}"));
    }
    for rule in config.addresses(family).flat_map(rules_of) {
        if !present.has(OWN, &rule) {
            commands.push(&format!("-A {OWN} {rule}"));
        }
    }
    commands
}

/// Deletes the rules of the container's addresses, from nftables and from legacy tables.
pub(super) fn remove(config: &FirewallConfig) -> Result<(), CniError> {
    let mut removed = Ok(());
    for family in config.families() {
        let rules: Vec<_> = config.addresses(family).flat_map(rules_of).collect();
        let deletions = |present: &FilterRules| {
            let mut commands = RuleCommands::default();
            let own = |rule: &&str| rules.iter().any(|own| own == rule);
            for rule in present.of(OWN).filter(own) {
                commands.push(&format!("-D {OWN} {rule}"));
            }
            commands
        };
        if has_nft_chain(family)? {
            let of_nft = format!("{}-nft", family.program());
            let program = if is_in_path(&of_nft) {
                &of_nft
            } else {
                family.program()
            };
            removed = removed.and(change(program, Some(OWN), deletions));
        }
        let legacy = legacy_programs("filter");
        let is_of_family = |program: &&String| program.starts_with(family.program());
        for program in legacy.iter().filter(is_of_family) {
            removed = removed.and(change(program, None, deletions));
        }
    }
    removed
}

/// Returns true if iptables has made our chain in nftables. Netlink is cheaper than running
/// iptables.
fn has_nft_chain(family: Family) -> Result<bool, CniError> {
    let filter = nft::Table {
        family: family.of_nft(),
        name: "filter",
    };
    let chains = Nft::open().and_then(|mut nft| nft.chains(filter));
    match chains {
        Ok(chains) => Ok(chains.iter().any(|chain| chain.name == OWN)),
        Err(error) if error.is_unknown_family() => Ok(false),
        Err(error) => Err(CniError::internal(text(&error))),
    }
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

/// Checks that the rules of the container's addresses exist, and the jumps to them.
pub(super) fn check(config: &FirewallConfig) -> Result<(), CniError> {
    for family in config.families() {
        let present = FilterRules::read(family.program(), None)?;
        let missing = |what: &str, rule: &str| {
            let words = rule.replace('"', "");
            CniError::internal(format!("expected {what}rule [{words}] not found"))
        };
        if !present.has(FORWARD, ENTRANCE) {
            return Err(missing("FORWARD ", ENTRANCE));
        }
        let [admin_rule, _] = admin_rule(config);
        if !present.has(OWN, &admin_rule) {
            return Err(missing("CNI-FORWARD ", &admin_rule));
        }
        for rule in config.addresses(family).flat_map(rules_of) {
            if !present.has(OWN, &rule) {
                return Err(missing("", &rule));
            }
        }
    }
    Ok(())
}

/// Checks that the container's bridge is still isolated.
pub(super) fn check_isolation(
    config: &FirewallConfig,
    isolation: &Isolation,
) -> Result<(), CniError> {
    let mut families = config.families().into_iter();
    families.try_for_each(|family| {
        let present = FilterRules::read(family.program(), None)?;
        isolation.check(&present).map_err(CniError::internal)
    })
}

/// Checks that `iptables` exists and that the kernel permits its use.
pub(super) fn probe() -> Result<(), CniError> {
    masquerade::iptables::probe()
}

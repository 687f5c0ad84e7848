//! Statistics of the outcomes, so that a loss of depth of the sequences is noticed.

use serde_json::Value;

use crate::{
    Tally,
    intended::{IntendedCall, message},
    side::ObservedResult,
};

/// Errors, by a part of their text.
const ERRORS: &[&str] = &[
    "duplicate allocation is not allowed",
    "no IP addresses available in range set",
    "is not available in range set",
    "is subnet's gateway",
    "failed to allocate all requested IPs",
    "Failed to find address added by container",
    "required env variables",
    "unknown CNI_COMMAND",
    "incompatible CNI versions",
    "config version does not allow",
    "plugin version does not allow",
    "version part",
    "too many parts",
    "invalid characters in containerID",
    "interface name",
    "missing network name",
    "invalid characters found in network name",
    "error unmarshall network config",
    "decoding version from network config",
    "json: cannot unmarshal",
    "IPAM config missing 'ipam' key",
    "ARGS: invalid pair",
    "ARGS: error parsing value",
    "ARGS: unknown args",
    "ARGS: cannot unmarshal",
    "cannot understand ip",
    "invalid IP address",
    "invalid CIDR address",
    "no IP ranges specified",
    "empty range set",
    "not v4 nor v6",
    "too small to allocate from",
    "Mask version mismatch",
    "has host bits set",
    "RangeStart",
    "RangeEnd",
    "mixed address families",
    "overlaps with",
    "overlap",
    "does not support more than 1 address per family",
    "no such file or directory",
    "is a directory",
    "not a directory",
];

/// The outcomes that a call of the reference stands for.
pub(crate) fn of(step: &IntendedCall, seen: &ObservedResult) -> Vec<String> {
    let command = step.env("CNI_COMMAND");
    let known = matches!(
        command,
        "ADD" | "DEL" | "CHECK" | "GC" | "STATUS" | "VERSION"
    );
    let command = if known { command } else { "unknown command" };
    match seen.code {
        Some(0) if command == "ADD" => success(step, seen),
        Some(0) if command == "DEL" => {
            let released = step.tree.len() - seen.tree.len().min(step.tree.len());
            vec![format!("DEL released {}", released.min(3))]
        }
        Some(0) => vec![format!("{command} succeeded")],
        Some(1) => {
            let msg = message(seen);
            let known = ERRORS.iter().find(|error| msg.contains(*error));
            vec![format!(
                "{command} failed: {}",
                known.unwrap_or(&msg.as_str())
            )]
        }
        other => vec![format!("{command} ended with {other:?}")],
    }
}

fn success(step: &IntendedCall, seen: &ObservedResult) -> Vec<String> {
    let result: Value = serde_json::from_str(&seen.stdout).unwrap_or_default();
    let version = result["cniVersion"].as_str().unwrap_or_default();
    let mut reached = vec![format!("ADD succeeded in form {version}")];
    let ips = result["ips"].as_array().map_or(1, Vec::len);
    reached.push(format!("ADD gave {} addresses", ips.min(3)));
    let cursor = |tree: &crate::side::Tree| {
        let (_, (node, _)) = tree
            .iter()
            .find(|(path, _)| path.ends_with("/last_reserved_ip.0"))?;
        match node {
            crate::side::FileNode::File(text) => String::from_utf8_lossy(text)
                .parse::<std::net::IpAddr>()
                .ok(),
            _ => None,
        }
    };
    if let (Some(before), Some(after)) = (cursor(&step.tree), cursor(&seen.tree))
        && before.is_ipv4() == after.is_ipv4()
        && after < before
    {
        reached.push("ADD came round".to_owned());
    }
    if result["routes"].is_array() {
        reached.push("ADD with routes".to_owned());
    }
    reached
}

/// The lowest number of each outcome in a hundred sequences, by part of its name: about a third of
/// the usual number.
const FLOORS: &[(&str, usize)] = &[
    ("ADD came round", 4),
    ("ADD ended with", 1),
    ("ADD failed: duplicate allocation", 20),
    ("ADD failed: no IP addresses available", 10),
    ("ADD failed: is not available in range set", 2),
    ("ADD failed: is subnet's gateway", 1),
    ("ADD failed: failed to allocate all", 6),
    ("ADD failed: is a directory", 5),
    ("ADD failed: overlap", 4),
    ("ADD failed: mixed address families", 2),
    ("ADD failed: RangeStart", 1),
    ("ADD failed: too small", 1),
    ("ADD failed: does not support more than", 6),
    ("ADD gave 1 addresses", 35),
    ("ADD gave 2 addresses", 9),
    ("ADD gave 3 addresses", 2),
    ("ADD with routes", 9),
    ("in form 0.1.0", 5),
    ("in form 0.2.0", 1),
    ("in form 0.3.0", 2),
    ("in form 0.3.1", 8),
    ("in form 0.4.0", 10),
    ("in form 1.0.0", 15),
    ("CHECK succeeded", 5),
    ("CHECK failed: Failed to find", 12),
    ("DEL released 0", 35),
    ("DEL released 1", 10),
    ("DEL released 2", 2),
    ("DEL released 3", 1),
    ("error unmarshall network config", 8),
    ("decoding version", 3),
    ("cannot unmarshal", 2),
    ("invalid CIDR address", 6),
    ("invalid IP address", 6),
    ("ARGS: unknown args", 2),
    ("ARGS: invalid pair", 1),
    ("ARGS: error parsing value", 2),
    ("invalid characters in containerID", 1),
    ("interface name", 2),
    ("required env variables", 3),
    ("incompatible CNI versions", 12),
    ("intended: empty leases", 3),
    ("intended: foreign files", 2),
    ("intended: all or nothing", 1),
    ("intended: 1.1.0", 10),
    ("sequence, apart", 30),
    ("sequence, taking turns", 30),
];

/// Panics if an outcome was too rare for the number of sequences.
pub(crate) fn assert_reached(tally: &Tally, sequences: u64) {
    let hundreds = usize::try_from(sequences).expect("few") / 100;
    let seldom: Vec<_> = FLOORS
        .iter()
        .map(|(part, floor)| {
            let times = tally.iter().filter(|(what, _)| what.contains(part));
            (
                part,
                times.map(|(_, times)| times).sum::<usize>(),
                floor * hundreds,
            )
        })
        .filter(|(_, times, floor)| times < floor)
        .collect();
    assert!(
        seldom.is_empty(),
        "reached too seldom (what, times, floor): {seldom:?}"
    );
}

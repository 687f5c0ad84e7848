//! Intended differences between ours and the reference as packaged, 1.1.1. Any other difference is
//! a fault.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use serde_json::Value;

use crate::side::{FileNode, ObservedResult, PluginInput, Tree};

/// A call on a directory whose content is `tree`.
#[derive(Debug, Clone)]
pub(crate) struct IntendedCall {
    pub(crate) call: PluginInput,
    pub(crate) tree: Tree,
}

impl IntendedCall {
    /// A variable of the environment.
    pub(crate) fn env(&self, key: &str) -> &str {
        self.call.env.get(key).map_or("", String::as_str)
    }
}

pub(crate) struct IntendedDifference {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    pub(crate) how: DifferenceRule,
}

/// The condition under which the reference's answer counts as ours.
pub(crate) enum DifferenceRule {
    /// Ours answers as the reference does to a slightly different step.
    Instead(fn(&IntendedCall) -> Option<IntendedCall>),
    /// Ours gives one of the answers that the reference gives by chance.
    Chance(fn(&IntendedCall) -> bool),
    /// The step, the reference's answer and ours satisfy a predicate.
    Answer(fn(&IntendedCall, &ObservedResult, &ObservedResult) -> bool),
}

pub(crate) const DIFFERENCES: &[IntendedDifference] = &[
    IntendedDifference {
        name: "1.1.0",
        why: "1.1.1 knows no cniVersion 1.1.0; the answer is that to 1.0.0",
        how: DifferenceRule::Instead(|step| {
            let mut step = step.clone();
            let config = step.call.config.replace("\"1.1.0\"", "\"1.0.0\"");
            let is_other = config != step.call.config;
            step.call.config = config;
            is_other.then_some(step)
        }),
    },
    IntendedDifference {
        name: "commands without a container",
        why: "1.1.1 checks id and interface of every command",
        how: DifferenceRule::Instead(|step| {
            let mut step = step.clone();
            let command = step.env("CNI_COMMAND");
            if matches!(command, "ADD" | "DEL" | "CHECK" | "") {
                return None;
            }
            step.call.env.insert("CNI_CONTAINERID", "c0".to_owned());
            step.call.env.insert("CNI_IFNAME", "eth0".to_owned());
            Some(step)
        }),
    },
    IntendedDifference {
        name: "empty leases",
        why: "an empty file is what a kill left of a lease; the address is free",
        how: DifferenceRule::Instead(|step| {
            without(step, |path, node| is_address(path) && is_empty(node))
        }),
    },
    IntendedDifference {
        name: "foreign files",
        why: "only a file that is named by an address, and is not below another directory, is a lease",
        how: DifferenceRule::Instead(|step| {
            let mut other = step.clone();
            for (path, (node, _)) in &mut other.tree {
                let is_foreign = matches!(node, FileNode::File(_)) && !is_lease(path, &step.tree);
                let text = content(node);
                let counts = is_address(path) || is_own(&text, step);
                if is_foreign && counts && !text.is_empty() {
                    *node = FileNode::File(b"of no container".to_vec());
                }
            }
            (other.tree != step.tree).then_some(other)
        }),
    },
    IntendedDifference {
        name: "several wishes",
        why: "which of several requested addresses of a set is given is Go's random order of a map",
        how: DifferenceRule::Chance(|step| {
            step.env("CNI_COMMAND") == "ADD"
                && step.call.config.matches("\"ips\"").count()
                    + usize::from(step.env("CNI_ARGS").contains("IP="))
                    > 0
        }),
    },
    IntendedDifference {
        name: "all or nothing",
        why: "a failed ADD takes back what it made; the reference also takes what the container had before, and forgets a lease whose cursor cannot be written",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            let (before, left, kept) =
                (leases(&step.tree), leases(&theirs.tree), leases(&ours.tree));
            let own = owner(step);
            let is_own = |path: &String| {
                let tree = if before.contains(path) {
                    &step.tree
                } else {
                    &theirs.tree
                };
                let content = content(&tree[path].0);
                content == own || content == step.env("CNI_CONTAINERID")
            };
            step.env("CNI_COMMAND") == "ADD"
                && theirs.code == Some(1)
                && same_text(&theirs.stdout, &ours.stdout)
                && kept == before
                && before.difference(&left).all(|path| is_own(path))
                && left
                    .difference(&before)
                    .all(|path| is_own(path) && theirs.stdout.contains("last_reserved_ip."))
                && others(&theirs.tree) == others(&ours.tree)
        }),
    },
    IntendedDifference {
        name: "DEL judges no range",
        why: "a lease is freed although its configuration was changed for the worse; the reference refuses to",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            let mut freed = step.tree.clone();
            freed.retain(|path, (node, _)| {
                !is_lease(path, &step.tree) || content(node) != owner(step)
            });
            step.env("CNI_COMMAND") == "DEL"
                && (theirs.code == Some(1) || panicked(theirs))
                && ours.code == Some(0)
                && leases(&ours.tree).is_subset(&leases(&freed))
                && others(&ours.tree) == others(&with_lock(&step.tree, &ours.tree))
        }),
    },
    IntendedDifference {
        name: "own namespace",
        why: "1.1.1 does not look at CNI_NETNS; ours refuses its own before anything is done",
        how: DifferenceRule::Answer(|step, _, ours| {
            let netns = step.env("CNI_NETNS") == "/proc/self/ns/net";
            let says = code(ours) == Some(8);
            netns && says && same_tree(&step.tree, &ours.tree)
        }),
    },
    IntendedDifference {
        name: "environment first",
        why: "1.1.1 reads the configuration before it checks id and interface",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            code(ours) == Some(4)
                && code(theirs) != Some(4)
                && theirs.code == Some(1)
                && same_tree(&step.tree, &ours.tree)
                && same_tree(&step.tree, &theirs.tree)
        }),
    },
    IntendedDifference {
        name: "GC",
        why: "1.1.1 does not know it; ours releases what has no valid attachment, and nothing without a list",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            let is_done = ours.code == Some(0) && ours.stdout.is_empty();
            step.env("CNI_COMMAND") == "GC"
                && theirs.stdout.contains("unknown CNI_COMMAND")
                && others(&ours.tree) == others(&with_lock(&step.tree, &ours.tree))
                && leases(&ours.tree)
                    == if is_done {
                        valid(step)
                    } else {
                        leases(&step.tree)
                    }
        }),
    },
    IntendedDifference {
        name: "STATUS",
        why: "1.1.1 does not know it; ours changes nothing",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            step.env("CNI_COMMAND") == "STATUS"
                && theirs.stdout.contains("unknown CNI_COMMAND")
                && same_tree(&with_lock(&step.tree, &ours.tree), &ours.tree)
        }),
    },
    IntendedDifference {
        name: "VERSION",
        why: "ours knows one version more",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            let ours = ours
                .stdout
                .replace("{\"cniVersion\":\"1.1.0\"", "{\"cniVersion\":\"1.0.0\"")
                .replace(",\"1.1.0\"]", "]");
            step.env("CNI_COMMAND") == "VERSION" && ours == theirs.stdout
        }),
    },
    IntendedDifference {
        name: "range beyond the subnet",
        why: "the reference does not compare rangeStart with an end that was left out, and walks out of the subnet",
        how: DifferenceRule::Answer(|step, _, ours| {
            matches!(bound(ours), Some((_, "RangeStart", start, net)) if start == net.broadcast())
                && same_tree(&step.tree, &ours.tree)
        }),
    },
    IntendedDifference {
        name: "between 1.0.0 and 1.1.0",
        why: "1.1.1 takes such a version for too new",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            message(theirs) == "plugin version does not allow CHECK"
                && message(ours) == "incompatible CNI versions"
                && same_tree(&step.tree, &ours.tree)
        }),
    },
    IntendedDifference {
        name: "bounds of two families",
        why: "1.1.1 compares a rangeStart of IPv6 with a rangeEnd of IPv4 as numbers, and names the other bound",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            let (Some((set, "RangeStart", start, net)), Some((same, "RangeEnd", end, other))) =
                (bound(theirs), bound(ours))
            else {
                return false;
            };
            (set, net) == (same, other)
                && net.contains(&start)
                && start.is_ipv6()
                && end.is_ipv4()
                && same_tree(&step.tree, &ours.tree)
        }),
    },
    IntendedDifference {
        name: "half a character",
        why: "the reference reads half of a UTF-16 pair as some character; ours takes it for no JSON",
        how: DifferenceRule::Answer(|step, _, ours| {
            code(ours) == Some(6)
                && message(ours).contains("hex escape")
                && step.call.config.contains("\\ud800")
                && same_tree(&step.tree, &ours.tree)
        }),
    },
    IntendedDifference {
        name: "null among wishes",
        why: "the reference panics; ours refuses it",
        how: DifferenceRule::Answer(|step, theirs, ours| {
            panicked(theirs) && code(ours) == Some(999) && same_tree(&step.tree, &ours.tree)
        }),
    },
    IntendedDifference {
        name: "null among routes",
        why: "the reference panics when it prints a result before 0.3.0; ours leaves it out",
        how: DifferenceRule::Answer(|_, theirs, ours| {
            panicked(theirs)
                && theirs.stderr.contains("convertTo02x")
                && ours.code == Some(0)
                && same_tree(&theirs.tree, &ours.tree)
        }),
    },
];

/// Returns true if both print and leave the same. Permanent differences are ignored: the packaged
/// reference's list of versions, its empty `dns` at 1.0.0, routes without the newer keys, routes
/// that are `null`, and the mode of its leases.
pub(crate) fn same(theirs: &ObservedResult, ours: &ObservedResult) -> bool {
    theirs.code == ours.code
        && same_text(&theirs.stdout, &ours.stdout)
        && same_tree(&theirs.tree, &ours.tree)
}

fn same_text(theirs: &str, ours: &str) -> bool {
    let ours = ours.replace("\\\"1.0.0\\\" \\\"1.1.0\\\"]", "\\\"1.0.0\\\"]");
    if theirs == ours {
        return true;
    }
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    let (Some(mut theirs), Some(mut ours)) = (parse(theirs), parse(&ours)) else {
        return false;
    };
    if ours["cniVersion"] == "1.1.0" {
        ours["cniVersion"] = "1.0.0".into();
    }
    if ours["cniVersion"] == "1.0.0" && theirs["dns"] == serde_json::json!({}) {
        theirs.as_object_mut().map(|theirs| theirs.remove("dns"));
    }
    if let Some(routes) = theirs.get_mut("routes").and_then(Value::as_array_mut) {
        routes.retain(|route| !route.is_null());
        if routes.is_empty() {
            theirs.as_object_mut().map(|theirs| theirs.remove("routes"));
        }
    }
    for route in ours
        .get_mut("routes")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Some(route) = route.as_object_mut() {
            route.retain(|key, _| matches!(key.as_str(), "dst" | "gw"));
        }
    }
    if let (Some(a), Some(b)) = (theirs["msg"].as_str(), ours["msg"].as_str()) {
        if is_undecodable(a) && ours["code"] == theirs["code"] {
            return is_undecodable(b);
        }
        // The order in which wishes are left over is that of a map.
        let prefix = "failed to allocate all requested IPs: ";
        if let (Some(a), Some(b)) = (a.strip_prefix(prefix), b.strip_prefix(prefix)) {
            let set = |text: &str| text.split(' ').map(str::to_owned).collect::<BTreeSet<_>>();
            return set(a) == set(b);
        }
    }
    theirs == ours
}

/// True for a message about a configuration that is not JSON, or has a value of a wrong type or
/// form. Ours has words of its own for that, and names the first such field, not the first of a
/// wrong type.
fn is_undecodable(msg: &str) -> bool {
    // Go's, then ours.
    const PARTS: [&str; 8] = [
        "json: cannot unmarshal",
        "invalid character",
        "unexpected end of JSON input",
        "invalid CIDR address",
        "invalid IP address",
        "cannot understand ip",
        " at line ",
        "EOF while parsing",
    ];
    let names_characters = msg.starts_with("invalid characters");
    !names_characters && !msg.starts_with("ARGS") && PARTS.iter().any(|part| msg.contains(part))
}

fn same_tree(theirs: &Tree, ours: &Tree) -> bool {
    theirs.len() == ours.len()
        && theirs
            .iter()
            .zip(ours)
            .all(|((path, (a, a_mode)), (other, (b, b_mode)))| {
                let mode = a_mode == b_mode
                    || (*a_mode == 0o644 && *b_mode == 0o600)
                    || (*a_mode == 0o600 && *b_mode == 0o644);
                path == other && a == b && mode
            })
}

fn without(
    step: &IntendedCall,
    is_hidden: impl Fn(&str, &FileNode) -> bool,
) -> Option<IntendedCall> {
    let mut step = step.clone();
    let before = step.tree.len();
    step.tree.retain(|path, (node, _)| !is_hidden(path, node));
    (step.tree.len() < before).then_some(step)
}

/// Replaces in our result the files that `instead` changes, where ours left them as before.
pub(crate) fn hide(seen: &ObservedResult, before: &Tree, instead: &Tree) -> ObservedResult {
    let mut seen = seen.clone();
    seen.tree.retain(|path, (node, _)| {
        let is_as_before = before.get(path).is_some_and(|(before, _)| before == node);
        match instead.get(path) {
            Some((other, _)) if is_as_before => {
                *node = other.clone();
                true
            }
            None => !is_as_before,
            Some(_) => true,
        }
    });
    seen
}

/// Returns true if the path is that of a lease, which is beside the lock.
fn is_lease(path: &str, tree: &Tree) -> bool {
    let (dir, _) = path.rsplit_once('/').unwrap_or_default();
    is_address(path) && (depth(path) == 2 || tree.contains_key(&format!("{dir}/lock")))
}

/// Returns true if a file's content names the container of the call.
fn is_own(content: &str, step: &IntendedCall) -> bool {
    content == owner(step) || content == step.env("CNI_CONTAINERID")
}

fn depth(path: &str) -> usize {
    path.matches('/').count()
}

fn is_address(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.parse::<IpAddr>().is_ok()
}

fn content(node: &FileNode) -> String {
    match node {
        FileNode::File(content) => String::from_utf8_lossy(content).trim().to_owned(),
        _ => String::new(),
    }
}

fn is_empty(node: &FileNode) -> bool {
    matches!(node, FileNode::File(_)) && content(node).is_empty()
}

fn owner(step: &IntendedCall) -> String {
    format!(
        "{}\r\n{}",
        step.env("CNI_CONTAINERID"),
        step.env("CNI_IFNAME")
    )
}

fn leases(tree: &Tree) -> BTreeSet<&String> {
    tree.iter()
        .filter(|(path, (node, _))| is_address(path) && matches!(node, FileNode::File(_)))
        .map(|(path, _)| path)
        .collect()
}

/// The files that are not leases, with contents.
fn others(tree: &Tree) -> Vec<(&String, &FileNode)> {
    tree.iter()
        .filter(|(path, _)| !is_address(path))
        .map(|(path, (node, _))| (path, node))
        .collect()
}

fn code(seen: &ObservedResult) -> Option<i64> {
    serde_json::from_str::<Value>(&seen.stdout).ok()?["code"].as_i64()
}

/// The leases that a GC leaves: all without a list, otherwise those of the attachments in it.
fn valid(step: &IntendedCall) -> BTreeSet<&String> {
    let config: Value = serde_json::from_str(&step.call.config).unwrap_or_default();
    let all = leases(&step.tree);
    let Some(attachments) = config["cni.dev/valid-attachments"].as_array() else {
        return all;
    };
    let is_valid = |path: &&String| {
        let content = content(&step.tree[*path].0);
        let (id, ifname) = content.split_once("\r\n").unwrap_or((&content, ""));
        let is_there = !is_lease(path, &step.tree);
        is_there
            || attachments.iter().any(|attachment| {
                attachment["containerID"] == id
                    && (attachment["ifname"] == ifname || ifname.is_empty())
            })
    };
    all.into_iter().filter(is_valid).collect()
}

/// The directory with the lock that ours may have made.
fn with_lock(before: &Tree, after: &Tree) -> Tree {
    let locks = after.iter().filter(|(path, _)| path.ends_with("/lock"));
    let mut tree = before.clone();
    for (path, node) in locks {
        tree.entry(path.clone()).or_insert_with(|| node.clone());
    }
    tree
}

/// Parses `invalid range set <index>: <which> <address> not in network <network>`.
fn bound(seen: &ObservedResult) -> Option<(usize, &'static str, IpAddr, IpNet)> {
    let msg = message(seen);
    let (index, rest) = msg.strip_prefix("invalid range set ")?.split_once(": ")?;
    let which = ["RangeStart", "RangeEnd"];
    let which = which.into_iter().find(|which| rest.starts_with(which))?;
    let (ip, net) = rest[which.len()..].trim().split_once(" not in network ")?;
    Some((
        index.parse().ok()?,
        which,
        ip.parse().ok()?,
        net.parse().ok()?,
    ))
}

fn panicked(seen: &ObservedResult) -> bool {
    seen.code == Some(2) && seen.stdout.is_empty() && seen.stderr.contains("goroutine")
}

pub(crate) fn message(seen: &ObservedResult) -> String {
    let error: Value = serde_json::from_str(&seen.stdout).unwrap_or_default();
    error["msg"].as_str().unwrap_or_default().to_owned()
}

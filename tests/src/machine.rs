//! The state of the machine that a cluster must leave unchanged.

use std::{collections::BTreeSet, fs, path::Path};

/// The device that the list of mounts has for a file system which a test makes for itself. No
/// [`Machine`] has it: tests run beside each other.
pub const TEST_DISK: &str = "podplane-test-disk";

/// The machine's own network, mounts and processes, as far as a cluster could touch them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    links: BTreeSet<String>,
    routes: Vec<String>,
    sysctls: Vec<(String, String)>,
    mounts: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

impl Machine {
    /// Observes the machine now.
    ///
    /// # Panics
    ///
    /// If /proc or /sys cannot be read.
    pub fn now() -> Self {
        let sysctls = [
            "net/ipv4/ip_forward",
            "net/ipv6/conf/all/forwarding",
            "net/ipv6/conf/default/disable_ipv6",
        ];
        Self {
            links: names("/sys/class/net"),
            routes: lines("/proc/net/route")
                .into_iter()
                .chain(lines("/proc/net/ipv6_route").iter().map(|l| stable(l)))
                .collect(),
            sysctls: sysctls
                .into_iter()
                .map(|name| (name.into(), text(&format!("/proc/sys/{name}"))))
                .collect(),
            mounts: (lines("/proc/self/mounts").into_iter())
                .filter(|line| line.split(' ').next() != Some(TEST_DISK))
                .collect(),
            namespaces: if Path::new("/run/netns").exists() {
                names("/run/netns")
            } else {
                BTreeSet::new()
            },
        }
    }
}

/// A line of `ipv6_route` without the two columns that count uses.
fn stable(line: &str) -> String {
    let columns: Vec<_> = line.split_whitespace().collect();
    let counted = [6, 7];
    columns
        .iter()
        .enumerate()
        .filter(|(i, _)| !counted.contains(i))
        .map(|(_, c)| *c)
        .collect::<Vec<_>>()
        .join(" ")
}

fn names(dir: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap_or_else(|error| panic!("{dir}: {error}"));
    entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

fn lines(file: &str) -> Vec<String> {
    text(file).lines().map(Into::into).collect()
}

fn text(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

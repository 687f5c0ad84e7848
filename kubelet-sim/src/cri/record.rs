//! Records of sandboxes, kept on disk so that a crash leaves nothing without an owner.

use std::{collections::BTreeMap, fmt, io, net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use super::id::{SandboxId, SandboxIdError};
use super::record_dir::{Record, RecordDir};

/// The identity of a sandbox: its pod and attempt. `uid` and `attempt` together are unique.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxMetadata {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's UID.
    pub uid: String,
    /// 0 for a pod's first sandbox, incremented for each replacement.
    pub attempt: u32,
}

/// The state of a sandbox's life cycle. [`sandboxes`](super::sandboxes) has the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SandboxState {
    /// Being created. A record in this state at the start of a server belongs to a request that was
    /// never answered.
    Creating,
    /// Its network is set up.
    Ready,
    /// Stopped, or a teardown of its network failed.
    NotReady,
}

/// The plugins that made a pod's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginMode {
    /// The whole chain, in a namespace.
    Chain,
    /// The IPAM plugin alone: there is an address but no namespace.
    Ipam,
}

/// The network of a sandbox that is not on its node's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNetwork {
    /// The executed plugins.
    pub plugins: PluginMode,
    /// `CNI_NETNS`. Nothing exists at that path if the IPAM plugin was executed alone.
    pub netns: PathBuf,
    /// The network's configuration list at the time of the ADD. The DEL uses it, even if the node's
    /// configuration has changed since.
    pub config: serde_json::Value,
    /// The addresses that the plugins gave, the primary one first.
    pub ips: Vec<IpAddr>,
    /// True if plugins may hold something for it.
    pub attached: bool,
    /// Capability arguments (`runtimeConfig`), which a DEL must have as the ADD had them.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub runtime_config: Map<String, Value>,
    /// Kernel settings of the namespace, by their path below `/proc/sys`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
}

/// The resolver's configuration of a sandbox, for its `resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// Addresses of servers, in order.
    pub servers: Vec<String>,
    /// Domains to search, in order.
    pub searches: Vec<String>,
    /// Options, as `ndots:5`.
    pub options: Vec<String>,
}

impl fmt::Display for Dns {
    /// The text of `resolv.conf`, in containerd's order.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.searches.is_empty() {
            writeln!(f, "search {}", self.searches.join(" "))?;
        }
        for server in &self.servers {
            writeln!(f, "nameserver {server}")?;
        }
        if !self.options.is_empty() {
            writeln!(f, "options {}", self.options.join(" "))?;
        }
        Ok(())
    }
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRecord {
    /// Its id.
    pub id: SandboxId,
    /// Its pod and attempt.
    pub metadata: SandboxMetadata,
    /// The stage of its life.
    pub state: SandboxState,
    /// The time at which it was made, in nanoseconds since 1970.
    pub created_at: i64,
    /// The labels from the client's request.
    pub labels: BTreeMap<String, String>,
    /// The annotations from the client's request.
    pub annotations: BTreeMap<String, String>,
    /// The runtime handler from the client's request.
    pub runtime_handler: String,
    /// The host name inside; empty for the machine's.
    #[serde(default)]
    pub hostname: String,
    /// The resolver's configuration; absent for the machine's.
    #[serde(default)]
    pub dns: Option<Dns>,
    /// Its network; absent if the pod uses its node's network.
    pub network: Option<PodNetwork>,
}

impl SandboxRecord {
    /// The pod's network, if plugins may hold something for it.
    pub fn attached(&self) -> Option<&PodNetwork> {
        self.network.as_ref().filter(|network| network.attached)
    }
}

impl Record for SandboxRecord {
    const FILE_MODE: u32 = 0o644;

    fn id(&self) -> &str {
        self.id.as_str()
    }
}

/// The records of a node's sandboxes.
pub type SandboxRecords = RecordDir<SandboxRecord>;

impl SandboxRecords {
    /// Applies a power cycle of the machine, which no sandbox outlives. Nothing else may have the
    /// records open.
    ///
    /// A server detects by itself that a namespace is gone. For a sandbox without a namespace, only
    /// the record can tell.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn power_cycle(&self) -> io::Result<()> {
        for mut record in self.load()? {
            if record.state == SandboxState::Ready {
                record.state = SandboxState::NotReady;
                self.write(&record)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use podplane_host::fs;

    use super::*;

    fn record() -> SandboxRecord {
        SandboxRecord {
            id: SandboxId::random(),
            metadata: SandboxMetadata {
                name: "a".into(),
                namespace: "default".into(),
                uid: "u".into(),
                attempt: 1,
            },
            state: SandboxState::Ready,
            created_at: 5,
            labels: BTreeMap::from([("k".into(), "v".into())]),
            annotations: BTreeMap::new(),
            runtime_handler: String::new(),
            hostname: "a".into(),
            dns: Some(Dns::default()),
            network: Some(PodNetwork {
                plugins: PluginMode::Ipam,
                netns: "/run/x".into(),
                config: serde_json::json!({"name": "n"}),
                ips: vec!["10.0.0.2".parse().unwrap()],
                attached: true,
                runtime_config: Map::from_iter([("cgroupPath".into(), "/a".into())]),
                sysctls: BTreeMap::from([("net/core/somaxconn".into(), "1".into())]),
            }),
        }
    }

    #[test]
    fn dns_has_the_format_of_resolv_conf() {
        let dns = Dns {
            servers: vec!["10.0.0.10".into(), "1.1.1.1".into()],
            searches: vec!["default.svc.cluster.local".into(), "svc".into()],
            options: vec!["ndots:5".into()],
        };
        let want = "search default.svc.cluster.local svc\nnameserver 10.0.0.10\n\
                    nameserver 1.1.1.1\noptions ndots:5\n";
        assert_eq!(dns.to_string(), want);
        assert_eq!(Dns::default().to_string(), "");
    }

    #[test]
    fn records_round_trip_and_damaged_ones_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = SandboxRecords::open(dir.path().join("sandboxes")).unwrap();
        let record = record();
        records.write(&record).unwrap();
        records.power_cycle().unwrap();
        let lost = SandboxRecord {
            state: SandboxState::NotReady,
            ..record.clone()
        };
        assert_eq!(records.load().unwrap(), [lost], "what it holds, it holds");
        records.write(&record).unwrap();
        let torn = dir.path().join("sandboxes/0.json");
        fs::write(&torn, "{").unwrap();
        assert_eq!(records.load().unwrap(), std::slice::from_ref(&record));
        assert!(!torn.exists());
        records.remove(record.id.as_str()).unwrap();
        records.remove(record.id.as_str()).unwrap();
        assert!(records.load().unwrap().is_empty());
    }

    #[test]
    fn a_shorter_record_replaces_a_longer_one_completely() {
        let dir = tempfile::tempdir().unwrap();
        let records = SandboxRecords::open(dir.path().join("sandboxes")).unwrap();
        let short = record();
        let mut long = record();
        long.labels.insert("long".into(), "x".repeat(10_000));
        records.write(&long).unwrap();
        records.remove(long.id.as_str()).unwrap();
        records.write(&short).unwrap();
        assert_eq!(records.load().unwrap(), [short]);
    }
}

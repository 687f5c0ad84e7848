//! What is known of a sandbox, and kept on disk so that a crash leaves nothing without an owner.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::node_dir::write_volatile;

/// 64 hexadecimal digits, as other runtimes have them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// Not the id of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no sandbox id: want 64 hexadecimal digits in lower case")]
pub struct SandboxIdError(String);

impl SandboxId {
    /// Digits of an id.
    pub const LEN: usize = 64;

    /// A new id.
    pub fn random() -> Self {
        let half = || uuid::Uuid::new_v4().simple();
        Self(format!("{}{}", half(), half()))
    }

    /// The id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for SandboxId {
    type Error = SandboxIdError;

    fn try_from(text: String) -> Result<Self, SandboxIdError> {
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == Self::LEN && text.as_bytes().iter().all(is_digit) {
            Ok(Self(text))
        } else {
            Err(SandboxIdError(text))
        }
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> Self {
        id.0
    }
}

impl Borrow<str> for SandboxId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which sandbox of which pod. `uid` and `attempt` together are unique.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The pod's name.
    pub name: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's UID.
    pub uid: String,
    /// 0 for a pod's first sandbox, one more for each that replaces one.
    pub attempt: u32,
}

/// How far a sandbox is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Being made. A record found like this at start belongs to a request that was never answered.
    Creating,
    /// Made.
    Ready,
    /// Stopped, or its namespace is gone.
    NotReady,
}

/// Which plugins made a pod's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Plugins {
    /// The whole chain, in a namespace.
    Chain,
    /// The IPAM plugin alone: there is an address but no namespace.
    Ipam,
}

/// The network of a sandbox that is not on its node's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNetwork {
    /// What was executed.
    pub plugins: Plugins,
    /// `CNI_NETNS`. There is nothing at that path where the IPAM plugin is executed alone.
    pub netns: PathBuf,
    /// The network's configuration list, with which it must be taken down even if the node's has changed since.
    pub config: serde_json::Value,
    /// What the plugins gave, the primary address first.
    pub ips: Vec<IpAddr>,
    /// Whether plugins may hold something for it.
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
pub struct Record {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
    pub metadata: Metadata,
    /// How far it is.
    pub state: State,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    /// As given by the client.
    pub labels: BTreeMap<String, String>,
    /// As given by the client.
    pub annotations: BTreeMap<String, String>,
    /// As given by the client.
    pub runtime_handler: String,
    /// The host name inside; empty for the machine's.
    #[serde(default)]
    pub hostname: String,
    /// Absent for the machine's.
    #[serde(default)]
    pub dns: Option<Dns>,
    /// Absent where the pod uses its node's network.
    pub network: Option<PodNetwork>,
}

impl Record {
    /// The pod's network, if plugins may hold something for it.
    pub fn attached(&self) -> Option<&PodNetwork> {
        self.network.as_ref().filter(|network| network.attached)
    }
}

/// The directory of records: a file `ID.json` for each sandbox.
#[derive(Debug)]
pub struct Records(PathBuf);

impl Records {
    /// The records in `dir`, which is made if it is missing.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn open(dir: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }

    /// Stores a record, in one step.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn write(&self, record: &Record) -> io::Result<()> {
        write_volatile(&self.path(&record.id), &serde_json::to_vec_pretty(record)?)
    }

    /// Removes a record; one that is not there is removed already.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn remove(&self, id: &SandboxId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All records. A file that is none is removed with a warning: what its sandbox held has no owner then, and is reclaimed as such.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn load(&self) -> io::Result<Vec<Record>> {
        let mut records = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            let text = fs::read(&path)?;
            match serde_json::from_slice::<Record>(&text) {
                Ok(record) if path == self.path(&record.id) => records.push(record),
                other => {
                    let error = other.err();
                    tracing::warn!(path = %path.display(), ?error, "not a sandbox's record; removing it");
                    remove_any(&path)?;
                }
            }
        }
        records.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(records)
    }

    /// Does what a power cycle of the machine does: no sandbox outlives it. Nothing else may have the records open.
    ///
    /// A server finds out by itself that a namespace is gone. Of a sandbox that has none nothing else would tell.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn power_cycle(&self) -> io::Result<()> {
        for mut record in self.load()? {
            if record.state == State::Ready {
                record.state = State::NotReady;
                self.write(&record)?;
            }
        }
        Ok(())
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }
}

fn remove_any(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            id: SandboxId::random(),
            metadata: Metadata {
                name: "a".into(),
                namespace: "default".into(),
                uid: "u".into(),
                attempt: 1,
            },
            state: State::Ready,
            created_at: 5,
            labels: BTreeMap::from([("k".into(), "v".into())]),
            annotations: BTreeMap::new(),
            runtime_handler: String::new(),
            hostname: "a".into(),
            dns: Some(Dns::default()),
            network: Some(PodNetwork {
                plugins: Plugins::Ipam,
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
    fn the_resolvers_configuration_is_written_as_its_file() {
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
    fn a_record_reads_back_and_what_is_none_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::open(dir.path().join("sandboxes")).unwrap();
        let record = record();
        records.write(&record).unwrap();
        records.power_cycle().unwrap();
        let lost = Record {
            state: State::NotReady,
            ..record.clone()
        };
        assert_eq!(records.load().unwrap(), [lost], "what it holds, it holds");
        records.write(&record).unwrap();
        let torn = dir.path().join("sandboxes/0.json");
        fs::write(&torn, "{").unwrap();
        assert_eq!(records.load().unwrap(), std::slice::from_ref(&record));
        assert!(!torn.exists());
        records.remove(&record.id).unwrap();
        records.remove(&record.id).unwrap();
        assert!(records.load().unwrap().is_empty());
    }

    #[test]
    fn an_id_is_64_digits() {
        let id = SandboxId::random();
        assert_eq!(SandboxId::try_from(id.as_str().to_owned()), Ok(id));
        for bad in [
            "",
            "../x",
            &"g".repeat(64),
            &"A".repeat(64),
            &"a".repeat(63),
        ] {
            assert!(SandboxId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}

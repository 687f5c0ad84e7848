//! The files of a node:
//! `<nodes-dir>/NODE/{net.d,networks,results,sandboxes}`, and `ipam-report.json`, `cri.sock`,
//! `instance.json` and `kubelet.lock` beside them.

use std::{
    fmt, fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use podplane_api::names;
use podplane_cni::types::{ConfigError, NetworkConfigList};
use serde_json::Value;

use crate::cri::template::Template;

/// The name of a node: a DNS subdomain, and so also a file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

/// A name that no node can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no node name: want a DNS subdomain of at most 253 lower case letters, digits, '-' and '.', such as node-1"
)]
pub struct NodeNameError(String);

impl NodeName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = NodeNameError;

    fn from_str(text: &str) -> Result<Self, NodeNameError> {
        if names::dns1123_subdomain(text).is_empty() {
            Ok(Self(text.to_owned()))
        } else {
            Err(NodeNameError(text.to_owned()))
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The directory of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeDir(PathBuf);

impl NodeDir {
    /// The directory of `node` below `nodes_dir`.
    pub fn new(nodes_dir: &Path, node: &NodeName) -> Self {
        Self(nodes_dir.join(node.as_str()))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The id and the secret of the node's instance.
    pub fn identity(&self) -> PathBuf {
        self.0.join("instance.json")
    }

    /// Locked by the kubelet that runs.
    pub fn kubelet_lock(&self) -> PathBuf {
        self.0.join("kubelet.lock")
    }

    /// CNI configurations; the first in lexical order is the node's network.
    pub fn net_d(&self) -> PathBuf {
        self.0.join("net.d")
    }

    /// Where host-local keeps a directory for each network.
    pub fn networks(&self) -> PathBuf {
        self.0.join("networks")
    }

    /// The directory in which the CNI runtime keeps `results`.
    pub fn cni_cache(&self) -> &Path {
        &self.0
    }

    /// Records of sandboxes.
    pub fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes")
    }

    /// The last good report of the network's IPAM plugin.
    pub fn ipam_report(&self) -> PathBuf {
        self.0.join("ipam-report.json")
    }

    /// The CRI server's socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("cri.sock")
    }

    /// Whether the node's network is the one made of its podCIDR. It is not while a configuration that somebody else put into `net.d` comes
    /// first there: that one has ranges of its own, and a node does not need a podCIDR for it.
    pub fn uses_pod_cidr(&self) -> bool {
        let is_configuration = |path: &PathBuf| {
            path.extension().is_some_and(|kind| {
                ["conflist", "conf", "json"]
                    .iter()
                    .any(|known| kind == *known)
            })
        };
        let entries = fs::read_dir(self.net_d()).into_iter().flatten().flatten();
        let first = entries
            .map(|entry| entry.path())
            .filter(is_configuration)
            .min();
        first.is_none_or(|first| {
            Template::ALL
                .iter()
                .any(|template| first.file_name() == Some(template.file_name().as_ref()))
        })
    }

    /// The node's network: the first configuration of `net.d`.
    ///
    /// A host-local section that says nothing of `dataDir` gets [`NodeDir::networks`], where the reference would use a directory of
    /// the whole machine. It is put in here, when the configuration is used, because kubenet's had no such member.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: `NoneFound` until there is a configuration.
    pub fn network(&self) -> Result<NetworkConfigList, ConfigError> {
        let mut list = NetworkConfigList::load_first(&self.net_d())?;
        let networks = self.networks();
        for plugin in &mut list.plugins {
            let Some(Value::Object(ipam)) = plugin.get_mut("ipam") else {
                continue;
            };
            if ipam.get("type").and_then(Value::as_str) == Some("host-local") {
                ipam.entry("dataDir")
                    .or_insert_with(|| networks.to_string_lossy().into());
            }
        }
        list.bytes = serde_json::json!({
            "cniVersion": list.cni_version,
            "name": list.name,
            "disableCheck": list.disable_check,
            "disableGC": list.disable_gc,
            "plugins": list.plugins,
        })
        .to_string()
        .into_bytes();
        Ok(list)
    }
}

/// Writes a file in one step and to the disk: readers find the old text or the new one, after a
/// power failure too.
///
/// # Errors
///
/// The operating system's.
pub fn write_atomically(path: &Path, text: &[u8]) -> io::Result<()> {
    replace(path, text, fs::File::sync_all)?;
    // The file is durable, its name is so with the directory.
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    fs::File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

/// [`write_atomically`], for what does not outlive a power failure and need not be on the disk: records of
/// sandboxes, whose namespaces end with the machine, and what says where processes are.
///
/// # Errors
///
/// The operating system's.
pub fn write_volatile(path: &Path, text: &[u8]) -> io::Result<()> {
    replace(path, text, |_| Ok(()))
}

fn replace(
    path: &Path,
    text: &[u8],
    sync: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let write = || {
        let mut file = fs::File::create(&new)?;
        file.write_all(text)?;
        sync(&file)?;
        fs::rename(&new, path)
    };
    write().inspect_err(|_| _ = fs::remove_file(&new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_name_is_a_file_name() {
        for name in ["a", "node-1", "ip-10-0-0-1.eu.example"] {
            assert!(name.parse::<NodeName>().is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "../a", "A", "-a", "a-", "a..b", "a b"] {
            assert!(name.parse::<NodeName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_configuration_that_comes_before_ours_needs_no_pod_cidr() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeDir::new(dir.path(), &"n".parse().unwrap());
        assert!(node.uses_pod_cidr());
        fs::create_dir_all(node.net_d()).unwrap();
        let write = |name: &str| fs::write(node.net_d().join(name), "{}").unwrap();
        write(Template::Containerd.file_name());
        write("99-later.conflist");
        write("00-readme.txt");
        assert!(node.uses_pod_cidr());
        write("05-pool.conflist");
        assert!(!node.uses_pod_cidr());
        fs::remove_file(node.net_d().join("05-pool.conflist")).unwrap();
        assert!(node.uses_pod_cidr());
    }

    #[test]
    fn the_nodes_own_directory_is_put_in_when_the_configuration_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeDir::new(dir.path(), &"n".parse().unwrap());
        fs::create_dir_all(node.net_d()).unwrap();
        let write = |ipam: &str| {
            let text = format!(r#"{{"name": "x", "type": "bridge", "ipam": {ipam}}}"#);
            fs::write(node.net_d().join("10-x.conf"), text).unwrap();
            node.network().unwrap()
        };
        let list = write(r#"{"type": "host-local"}"#);
        let own = node.networks().to_string_lossy().into_owned();
        assert_eq!(list.plugins[0]["ipam"]["dataDir"], own);
        let cached = NetworkConfigList::from_list(&list.bytes).unwrap();
        assert_eq!(
            cached.plugins, list.plugins,
            "the cache keeps what was used"
        );
        let list = write(r#"{"type": "host-local", "dataDir": "/elsewhere"}"#);
        assert_eq!(list.plugins[0]["ipam"]["dataDir"], "/elsewhere");
        assert!(
            write(r#"{"type": "dhcp"}"#).plugins[0]["ipam"]
                .get("dataDir")
                .is_none()
        );
    }
}

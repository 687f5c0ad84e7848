//! The files of a node:
//! `<nodes-dir>/NODE/{net.d,networks,results,sandboxes,containers,images,pods}`, and `ipam-report.json`, `pod-mtu`,
//! `cri.sock`, `instance.json` and `kubelet.lock` beside them.

use std::{
    io,
    path::{Path, PathBuf},
};

use podplane_api::node::NodeName;
use podplane_cni::types::{ConfigError, NetworkConfigList};
use podplane_host::fs;
use podplane_service_runtime::files::write_volatile;
use serde_json::Value;

use crate::cri::template::NetworkTemplate;

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

    /// The file that the running kubelet has locked.
    pub fn kubelet_lock(&self) -> PathBuf {
        self.0.join("kubelet.lock")
    }

    /// The directory of CNI configurations; the first in lexical order is the node's network.
    pub fn net_d(&self) -> PathBuf {
        self.0.join("net.d")
    }

    /// The directory in which host-local keeps a directory for each network.
    pub fn networks(&self) -> PathBuf {
        self.0.join("networks")
    }

    /// The directory in which the CNI runtime keeps `results`.
    pub fn cni_cache(&self) -> &Path {
        &self.0
    }

    /// The directory of sandboxes' records.
    pub fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes")
    }

    /// The directory of containers' records.
    pub fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    /// The directory of the files of pods whose containers another runtime makes: volumes and logs.
    pub fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// An empty directory, over which each container mounts its files in its own mount namespace.
    pub fn scratch(&self) -> PathBuf {
        self.0.join("container-root")
    }

    /// The directory of pulled images' records.
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// The last good report of the network's IPAM plugin.
    pub fn ipam_report(&self) -> PathBuf {
        self.0.join("ipam-report.json")
    }

    /// The MTU that interfaces of pods must have, in bytes; absent if any will do.
    ///
    /// # Errors
    ///
    /// The operating system's, or that the file has no number.
    pub fn pod_mtu(&self) -> io::Result<Option<u32>> {
        match fs::read_to_string(self.pod_mtu_file()) {
            Ok(text) => {
                let mtu = text.trim().parse();
                mtu.map(Some).map_err(io::Error::other)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes what [`pod_mtu`](Self::pod_mtu) reads.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn write_pod_mtu(&self, mtu: Option<u32>) -> io::Result<()> {
        let path = self.pod_mtu_file();
        match mtu {
            Some(mtu) => write_volatile(&path, format!("{mtu}\n").as_bytes()),
            None => match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        }
    }

    /// The file by which the kubelet tells the CRI server the MTU, like flannel's `subnet.env` for
    /// its CNI plugin.
    fn pod_mtu_file(&self) -> PathBuf {
        self.0.join("pod-mtu")
    }

    /// The CRI server's socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("cri.sock")
    }

    /// Returns true if the node's network is the one made of its podCIDR. It is not while somebody
    /// else's configuration comes first in `net.d`: that one has ranges of its own, and the node
    /// needs no podCIDR for it.
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
            NetworkTemplate::ALL
                .iter()
                .any(|template| first.file_name() == Some(template.file_name().as_ref()))
        })
    }

    /// The node's network: the first configuration of `net.d`.
    ///
    /// A host-local section without `dataDir` gets [`NodeDir::networks`]; the reference would use a
    /// directory of the whole machine. This happens here, when the configuration is used, because
    /// kubenet's had no such member.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_configuration_needs_no_pod_cidr() {
        let dir = tempfile::tempdir().unwrap();
        let node = NodeDir::new(dir.path(), &"n".parse().unwrap());
        assert!(node.uses_pod_cidr());
        fs::create_dir_all(node.net_d()).unwrap();
        let write = |name: &str| fs::write(node.net_d().join(name), "{}").unwrap();
        write(NetworkTemplate::Containerd.file_name());
        write("99-later.conflist");
        write("00-readme.txt");
        assert!(node.uses_pod_cidr());
        write("05-pool.conflist");
        assert!(!node.uses_pod_cidr());
        fs::remove_file(node.net_d().join("05-pool.conflist")).unwrap();
        assert!(node.uses_pod_cidr());
    }

    #[test]
    fn inserts_the_data_dir_of_the_node_into_host_local() {
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

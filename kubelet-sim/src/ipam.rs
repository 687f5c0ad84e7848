//! What a node's network can give, and what it has given: host-local's configuration and files.

use std::{io, path::PathBuf};

use podplane_cni::{
    CniError, NetworkConfigList,
    host_local::{self, Capacity, Lease},
};
use serde_json::Value;

/// The addresses of a network whose IPAM plugin is host-local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    /// Addresses for pods, by family.
    pub capacity: Capacity,
    dir: PathBuf,
}

impl Ipam {
    /// The addresses of a network; `None` if another plugin gives them, which keeps its books elsewhere.
    ///
    /// # Errors
    ///
    /// [`CniError`] as the plugin itself would print it: it can give no address either.
    pub fn of(list: &NetworkConfigList) -> Result<Option<Self>, CniError> {
        let ipam = list.plugins.first().and_then(|plugin| plugin.get("ipam"));
        let plugin = ipam.and_then(|ipam| ipam.get("type"));
        if plugin.and_then(Value::as_str) != Some("host-local") {
            return Ok(None);
        }
        let config = host_local::Config::of_network(list)?;
        Ok(Some(Self {
            capacity: host_local::capacity(&config),
            dir: config.dir(),
        }))
    }

    /// Every allocation file. It blocks.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub fn leases(&self) -> io::Result<Vec<Lease>> {
        host_local::usage(&self.dir)
    }
}

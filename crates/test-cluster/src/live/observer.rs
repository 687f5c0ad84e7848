//! Reads records, network namespaces and leases of nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use podplane_ipam::invariants::Sandbox;
use podplane_netlink::{Netlink, NetlinkError, netns};

use super::{NodesSnapshot, ObservedNamespace, ObservedSandbox};
use crate::{
    Cluster, ClusterError, Result,
    world::{allocations, attached_records, entries, node_dirs, parse},
};

/// The directory of named network namespaces of a cluster in kernel mode.
#[derive(Clone, Debug)]
pub struct NamespaceDir(PathBuf);

/// Takes snapshots of the nodes of a cluster.
#[derive(Clone, Debug)]
pub struct NodesObserver {
    data_dir: PathBuf,
    namespaces: Option<NamespaceDir>,
    /// The directories of a node in which IPAM plugins keep their leases as host-local does: a
    /// directory for each network, with a file for each address.
    lease_dirs: Vec<String>,
}

impl NodesObserver {
    /// Makes an observer of a cluster with host-local. In kernel mode it needs root.
    ///
    /// # Errors
    ///
    /// As [`Cluster::status`].
    pub async fn of(cluster: &Cluster) -> Result<Self> {
        let status = cluster.status().await?;
        let run = cluster.data_dir().join("run");
        let run = run.strip_prefix("/").unwrap_or(&run);
        // The namespaces are on a tmpfs in the supervisor's mount namespace.
        let place = Path::new("/proc")
            .join(status.pid.to_string())
            .join("root")
            .join(run);
        Ok(Self {
            data_dir: cluster.files(),
            namespaces: (status.network == "kernel").then_some(NamespaceDir(place)),
            lease_dirs: vec!["networks".into()],
        })
    }

    /// Adds another directory of leases, which is read on each node.
    #[must_use]
    pub fn lease_dir(mut self, dir: &str) -> Self {
        self.lease_dirs.push(dir.into());
        self
    }

    /// The named namespaces, in kernel mode.
    #[must_use]
    pub fn namespaces(&self) -> Option<&NamespaceDir> {
        self.namespaces.as_ref()
    }

    /// Reads everything on all nodes. Blocks the thread. `blocks` must have been read before.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] or [`ClusterError::Unclear`] if a file cannot be read.
    pub fn snapshot(&self, blocks: Vec<(String, ipnet::IpNet)>) -> Result<NodesSnapshot> {
        let mut snapshot = NodesSnapshot {
            blocks,
            ..NodesSnapshot::default()
        };
        if let Some(place) = &self.namespaces {
            snapshot.namespaces = place.sandboxes()?;
        }
        for (node, dir) in node_dirs(&self.data_dir)? {
            snapshot
                .sandboxes
                .extend(records(&node, &dir.join("sandboxes"))?);
            for leases in &self.lease_dirs {
                snapshot
                    .leases
                    .extend(allocations(&node, &dir.join(leases))?);
            }
        }
        Ok(snapshot)
    }
}

impl NamespaceDir {
    /// Lists the namespaces of sandboxes. If two of them have the same address, both are read
    /// again: an address that has moved from one to the other in between was never in both.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if an existing namespace cannot be entered.
    pub fn sandboxes(&self) -> Result<Vec<ObservedNamespace>> {
        let mut seen = Vec::new();
        for (name, path) in entries(&self.0.join("netns"))? {
            // The name of a node may have dots, an id has none.
            let Some((node, id)) = name.rsplit_once('.') else {
                continue;
            };
            if let Some(ips) = addresses(&path)? {
                let sandbox = Sandbox {
                    node: node.into(),
                    id: id.into(),
                };
                seen.push((path, ObservedNamespace { sandbox, ips }));
            }
        }
        let mut holders = BTreeMap::<IpAddr, u32>::new();
        for ip in seen.iter().flat_map(|(_, seen)| &seen.ips) {
            *holders.entry(*ip).or_default() += 1;
        }
        for (path, seen) in &mut seen {
            if seen.ips.iter().any(|ip| holders.get(ip) > Some(&1)) {
                let still = addresses(path)?.unwrap_or_default();
                seen.ips.retain(|ip| still.contains(ip));
            }
        }
        Ok(seen.into_iter().map(|(_, seen)| seen).collect())
    }

    /// Lists the veth devices of nodes, by node and name: the nodes' ends of the sandboxes' pairs,
    /// without uplinks.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if an existing namespace cannot be entered.
    pub fn veths(&self) -> Result<Vec<(String, String)>> {
        const UPLINK: &str = "eth0";
        let mut found = Vec::new();
        for (node, path) in entries(&self.0.join("nodes"))? {
            let links = in_namespace(&path, Netlink::links)?.unwrap_or_default();
            let veths = links
                .into_iter()
                .filter(|link| link.kind == "veth" && link.name != UPLINK);
            found.extend(veths.map(|link| (node.clone(), link.name)));
        }
        Ok(found)
    }
}

/// Reads the addresses in a namespace; `None` if it is gone, or not yet made.
fn addresses(path: &Path) -> Result<Option<BTreeSet<IpAddr>>> {
    let read = |netlink: &mut Netlink| {
        let mut ips = BTreeSet::new();
        for link in netlink.links()? {
            for address in netlink.addresses(link.index)? {
                ips.insert(address.net.addr());
            }
        }
        ips.retain(|ip| !ip.is_loopback() && !is_link_local(ip));
        Ok(ips)
    };
    in_namespace(path, read)
}

fn is_link_local(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Reads something in a namespace; `None` if it is gone, or not yet made.
fn in_namespace<T>(
    path: &Path,
    read: impl Fn(&mut Netlink) -> Result<T, NetlinkError>,
) -> Result<Option<T>> {
    let attempt = || Netlink::open_in(path).and_then(|mut netlink| read(&mut netlink));
    let entered = attempt().or_else(|error| {
        // The name may have existed before the namespace was mounted on it: try again if it is
        // mounted now.
        if netns::is_netns(path) {
            attempt()
        } else {
            Err(error)
        }
    });
    match entered {
        Ok(read) => Ok(Some(read)),
        Err(_) if !netns::is_netns(path) => Ok(None),
        Err(error) => {
            let step = format!("look into the network namespace {}", path.display());
            Err(ClusterError::io(step)(io::Error::other(error)))
        }
    }
}

/// Reads the sandboxes for which plugins may hold resources.
fn records(node: &str, dir: &Path) -> Result<Vec<ObservedSandbox>> {
    let mut found = Vec::new();
    for (id, record) in attached_records(dir)? {
        let ips = record["network"]["ips"].as_array().into_iter().flatten();
        let ips = ips.filter_map(|ip| ip.as_str());
        let part = |name: &str| {
            record["metadata"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        found.push(ObservedSandbox {
            pod: format!("{}/{}", part("namespace"), part("name")),
            is_ready: record["state"] == "Ready",
            ips: ips
                .map(|ip| parse(format!("an address of sandbox {id}"), ip))
                .collect::<Result<_>>()?,
            sandbox: Sandbox {
                node: node.into(),
                id,
            },
        });
    }
    Ok(found)
}

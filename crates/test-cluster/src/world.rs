//! Observes a cluster for the invariant checker: objects, allocation files and IPAM reports,
//! sandboxes.

use std::{
    collections::BTreeSet,
    env, fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
};

use ipnet::IpNet;
use podplane_api::{
    Object as _,
    core::{Node, Pod},
    pod_ips::{self, POD_RANGES, PodIpResource, holds_address, is_host_network},
};
use podplane_client::{Client, ListParams};
use podplane_cni::ipam_report::{ReportError, ReportNode, ReportSource};
use podplane_ipam::{
    capacity::NodeCapacity,
    invariants::{self, Allocation, DrainingBlock, Sandbox, World},
};
use serde_json::Value;
use tokio::task::{self, JoinSet};

use crate::{ClusterError, Result};

/// The limit of pods on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodLimit {
    Addresses,
    /// No limit, with `--ip-policy=off`.
    None,
}

/// Observes the cluster in `data_dir`.
///
/// # Errors
///
/// [`ClusterError::Api`] if the API server does not answer, [`ClusterError::Io`] or
/// [`ClusterError::Unclear`] if a file cannot be read, [`ClusterError::IpamReport`] if the network
/// of a node names a source of reports and there is none.
pub async fn observe(client: &Client, data_dir: &Path) -> Result<World> {
    let settings = read_json(&data_dir.join("cluster.json"))?["settings"].take();
    let limit = limit(&settings);
    let all = ListParams::default();
    let nodes = client.all::<Node>().list(&all).await?.items;
    let pods = client.all::<Pod>().list(&all).await?.items;
    let mut world = World {
        nodes: nodes
            .iter()
            .map(|node| audited_node(node, limit))
            .collect::<Result<_>>()?,
        pods: pods.iter().map(audited_pod).collect::<Result<_>>()?,
        draining: ranges_of_their_own(&nodes)?,
        ..World::default()
    };
    world
        .draining
        .extend(of_nodes_that_are_gone(client, &nodes).await?);
    // Allocations are read before sandboxes, because a sandbox is recorded before it gets an
    // address: otherwise a new one would look leaked.
    world.allocations = reported(&nodes, data_dir, &settings).await?;
    for (node, dir) in node_dirs(data_dir)? {
        world
            .allocations
            .extend(allocations(&node, &dir.join("networks"))?);
        world
            .sandboxes
            .extend(sandboxes(&node, &dir.join("sandboxes"))?);
    }
    Ok(world)
}

/// Returns the ranges of nodes whose network does not use podCIDRs. Addresses from them are right,
/// no other node's block may overlap them, and two nodes may share a range.
fn ranges_of_their_own(nodes: &[Node]) -> Result<Vec<DrainingBlock>> {
    let mut found = Vec::new();
    for node in nodes {
        let annotations = node.metadata.annotations.as_ref();
        let ranges = annotations.and_then(|all| all.get(POD_RANGES));
        for range in ranges.iter().flat_map(|ranges| ranges.split(',')) {
            found.push(DrainingBlock {
                node: node.name().into(),
                block: parse(format!("a range of {}", node.name()), range)?,
            });
        }
    }
    Ok(found)
}

/// Returns the blocks of removed nodes: pods may have addresses in them until the pods are
/// collected.
async fn of_nodes_that_are_gone(client: &Client, nodes: &[Node]) -> Result<Vec<DrainingBlock>> {
    let there: BTreeSet<_> = nodes.iter().map(|node| node.uid()).collect();
    let records = client.blocks().list().await?.blocks;
    let gone = records
        .into_iter()
        .filter(|record| !record.node_uid.is_empty() && !there.contains(&*record.node_uid));
    gone.map(|record| {
        Ok(DrainingBlock {
            block: parse("the block of a record", &record.cidr)?,
            node: record.node_name,
        })
    })
    .collect()
}

/// Returns the limit, according to the flags of the cluster.
fn limit(settings: &Value) -> PodLimit {
    match settings["ipPolicy"].as_str() {
        Some("off") => PodLimit::None,
        _ => PodLimit::Addresses,
    }
}

/// Reads the addresses that IPAM plugins report as held. The plugins are asked directly and not
/// through the kubelets, which may be dead, paused, or out of date.
async fn reported(nodes: &[Node], data_dir: &Path, settings: &Value) -> Result<Vec<Allocation>> {
    let bin_dirs = settings["cniBinDir"].as_str().unwrap_or_default();
    let bin_dirs: Vec<_> = env::split_paths(bin_dirs).collect();
    let mut reading = JoinSet::new();
    for (node, dir) in node_dirs(data_dir)? {
        let object = nodes.iter().find(|object| object.name() == node);
        let pod_cidrs = object.map(|node| pod_ips::pod_cidrs(node).to_vec());
        let bin_dirs = bin_dirs.clone();
        reading.spawn_blocking(move || {
            let about = ReportNode {
                name: &node,
                dir: &dir,
                pod_cidrs: &pod_cidrs.unwrap_or_default(),
                bin_dirs: &bin_dirs,
            };
            held(&about).map_err(|source| ClusterError::IpamReport {
                node: node.clone(),
                source,
            })
        });
    }
    let mut found = Vec::new();
    while let Some(read) = reading.join_next().await {
        found.extend(read.map_err(task_died)??);
    }
    found.sort();
    Ok(found)
}

fn task_died(error: task::JoinError) -> ClusterError {
    ClusterError::Io {
        step: "read an IPAM report".into(),
        source: error.into(),
    }
}

fn held(node: &ReportNode<'_>) -> Result<Vec<Allocation>, ReportError> {
    let source = match ReportSource::of_first(&node.dir.join("net.d")) {
        // A node without a configuration has no network.
        Ok(None) | Err(ReportError::Config(_)) => return Ok(Vec::new()),
        source => source?,
    };
    let report = source.map(|source| source.read(node)).transpose()?;
    let addresses = report.and_then(|report| report.addresses);
    let allocations = addresses.into_iter().flatten().map(|address| Allocation {
        node: node.name.into(),
        ip: address.address,
        owner: address.container_id,
    });
    Ok(allocations.collect())
}

fn read_json(file: &Path) -> Result<Value> {
    let text = fs::read_to_string(file).map_err(read(file))?;
    serde_json::from_str(&text).map_err(|_| ClusterError::Unclear {
        what: file.display().to_string(),
        found: text,
    })
}

fn read(file: &Path) -> impl FnOnce(io::Error) -> ClusterError {
    ClusterError::io(format!("read {}", file.display()))
}

pub(crate) fn parse<T: FromStr>(what: impl Into<String>, text: &str) -> Result<T> {
    text.parse().map_err(|_| ClusterError::Unclear {
        what: what.into(),
        found: text.into(),
    })
}

pub(crate) fn audited_node(node: &Node, limit: PodLimit) -> Result<invariants::Node> {
    let cidrs = pod_ips::pod_cidrs(node).iter();
    Ok(invariants::Node {
        name: node.name().into(),
        uid: node.uid().into(),
        pod_cidrs: cidrs
            .map(|cidr| parse::<IpNet>(format!("a podCIDR of {}", node.name()), cidr))
            .collect::<Result<_>>()?,
        ip_capacity: match (limit, PodIpResource::of_node(node).capacity(node)) {
            (PodLimit::Addresses, NodeCapacity::Pods { count, .. }) => Some(count),
            // Pods that were bound to the node by name wait there without an address.
            (PodLimit::Addresses, NodeCapacity::AwaitsBlock) | (PodLimit::None, _) => None,
        },
    })
}

pub(crate) fn audited_pod(pod: &Pod) -> Result<invariants::Pod> {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let ips = status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    Ok(invariants::Pod {
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        uid: pod.uid().into(),
        node: spec
            .and_then(|spec| spec.node_name.clone())
            .filter(|node| !node.is_empty()),
        host_network: is_host_network(pod),
        released: !is_host_network(pod) && !holds_address(pod),
        deleting: pod.is_deleting(),
        ips: ips
            .map(|ip| parse(format!("a podIP of {}", pod.name()), &ip.ip))
            .collect::<Result<_>>()?,
    })
}

/// Returns the directory of each node, by name.
///
/// # Errors
///
/// [`ClusterError::Io`] if the directory of nodes cannot be read; a missing one is not an error.
pub fn node_dirs(data_dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    entries(&data_dir.join("nodes"))
}

pub(crate) fn allocations(node: &str, networks: &Path) -> Result<Vec<Allocation>> {
    let mut found = Vec::new();
    for (_, network) in entries(networks)? {
        for (name, file) in entries(&network)? {
            let Ok(ip) = name.parse::<IpAddr>() else {
                continue;
            };
            let text = match fs::read_to_string(&file) {
                // Released after the directory was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(read(&file))?,
            };
            let owner = text.lines().next().unwrap_or_default().trim().into();
            found.push(Allocation {
                node: node.into(),
                ip,
                owner,
            });
        }
    }
    Ok(found)
}

/// Reads the sandboxes that may hold addresses.
fn sandboxes(node: &str, dir: &Path) -> Result<BTreeSet<Sandbox>> {
    let records = attached_records(dir)?.into_iter();
    let sandbox = |(id, _)| Sandbox {
        node: node.into(),
        id,
    };
    Ok(records.map(sandbox).collect())
}

/// Reads the records of sandboxes for which plugins may hold resources, by their ids. Sandboxes that
/// use the node's network, or that were stopped, hold none.
pub(crate) fn attached_records(dir: &Path) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for (name, file) in entries(dir)? {
        let Some(id) = name.strip_suffix(".json") else {
            continue;
        };
        let record = match read_json(&file) {
            // Removed meanwhile.
            Err(ClusterError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                continue;
            }
            record => record?,
        };
        if record["network"]["attached"] == true {
            found.push((id.to_owned(), record));
        }
    }
    Ok(found)
}

/// Lists a directory by name; empty if there is no such directory.
pub(crate) fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(read(dir))?,
    };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
        .collect();
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_sandboxes_without_a_network_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let records = [
            ("runs", r#"{"network": {"attached": true}}"#),
            ("is-stopped", r#"{"network": {"attached": false}}"#),
            ("is-on-the-nodes-network", r#"{"state": "Ready"}"#),
        ];
        for (id, record) in records {
            fs::write(dir.path().join(format!("{id}.json")), record).unwrap();
        }
        let found = sandboxes("a", dir.path()).unwrap();
        let ids: Vec<_> = found.iter().map(|sandbox| sandbox.id.as_str()).collect();
        assert_eq!(ids, ["runs"]);
        fs::write(dir.path().join("runs.json"), "").unwrap();
        assert!(sandboxes("a", dir.path()).is_err());
    }
}

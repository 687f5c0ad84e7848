//! What the invariant checker is asked about: the objects, the allocation files, the sandboxes.

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use podplane_api::{
    Object as _,
    core::{Node, Pod},
    pod_ips::POD_IPS,
    quantity,
};
use podplane_client::{Client, ListParams};
use podplane_ipam::audit::{self, Allocation, Sandbox, World};
use serde_json::Value;

/// Whether the number of pods on a node is limited to its addresses: not with `--ip-policy=off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No node may have more pods than addresses.
    Addresses,
    /// The reference's behaviour.
    None,
}

/// Everything that can be seen of the cluster in `data_dir` now.
///
/// # Errors
///
/// If the apiserver does not answer or a file cannot be read.
pub async fn observe(client: &Client, data_dir: &Path, limit: Limit) -> Result<World> {
    let all = ListParams::default();
    let nodes = client.all::<Node>().list(&all).await?.items;
    let pods = client.all::<Pod>().list(&all).await?.items;
    let mut world = World {
        nodes: nodes
            .iter()
            .map(|node| audited_node(node, limit))
            .collect::<Result<_>>()?,
        pods: pods.iter().map(audited_pod).collect::<Result<_>>()?,
        ..World::default()
    };
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

fn audited_node(node: &Node, limit: Limit) -> Result<audit::Node> {
    let cidrs = node
        .spec
        .iter()
        .flat_map(|spec| spec.pod_cidrs.iter().flatten());
    let capacity = node
        .status
        .as_ref()
        .and_then(|status| status.capacity.as_ref()?.get(POD_IPS));
    Ok(audit::Node {
        name: node.name().into(),
        uid: node.uid().into(),
        pod_cidrs: cidrs
            .map(|cidr| cidr.parse().context("a podCIDR"))
            .collect::<Result<_>>()?,
        ip_capacity: match (limit, capacity) {
            (Limit::Addresses, Some(capacity)) => Some(quantity::units(capacity)?.try_into()?),
            _ => None,
        },
    })
}

fn audited_pod(pod: &Pod) -> Result<audit::Pod> {
    let spec = pod.spec.as_ref();
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let ips = status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten());
    Ok(audit::Pod {
        namespace: pod.namespace().into(),
        name: pod.name().into(),
        uid: pod.uid().into(),
        node: spec
            .and_then(|spec| spec.node_name.clone())
            .filter(|node| !node.is_empty()),
        host_network: spec.and_then(|spec| spec.host_network) == Some(true),
        finished: matches!(phase, Some("Failed" | "Succeeded")),
        deleting: pod.is_deleting(),
        ips: ips
            .map(|ip| ip.ip.parse().context("a podIP"))
            .collect::<Result<_>>()?,
    })
}

/// The directory of each node, by name.
///
/// # Errors
///
/// If the directory of nodes cannot be read; that there is none is none.
pub fn node_dirs(data_dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    entries(&data_dir.join("nodes"))
}

fn allocations(node: &str, networks: &Path) -> Result<Vec<Allocation>> {
    let mut found = Vec::new();
    for (_, network) in entries(networks)? {
        for (name, file) in entries(&network)? {
            let Ok(ip) = name.parse::<IpAddr>() else {
                continue;
            };
            let text = match fs::read_to_string(&file) {
                // Released between the look at the directory and now.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                text => text.with_context(|| file.display().to_string())?,
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

/// The live sandboxes by their records. One that has no network any more owns nothing.
fn sandboxes(node: &str, dir: &Path) -> Result<BTreeSet<Sandbox>> {
    let mut found = BTreeSet::new();
    for (name, file) in entries(dir)? {
        let Some(id) = name.strip_suffix(".json") else {
            continue;
        };
        let Ok(text) = fs::read(&file) else { continue };
        let _: Value = serde_json::from_slice(&text).with_context(|| file.display().to_string())?;
        found.insert(Sandbox {
            node: node.into(),
            id: id.into(),
        });
    }
    Ok(found)
}

/// A directory's entries by name; none if there is no such directory.
fn entries(dir: &Path) -> Result<Vec<(String, PathBuf)>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| dir.display().to_string())?,
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

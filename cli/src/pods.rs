//! Access to a pod's network namespace.

use std::{fs, io, path::PathBuf};

use anyhow::Context as _;
use podplane_api::{Object as _, core::Pod};
use podplane_cluster::{
    data_dir::{DataDir, SupervisorRecord},
    namespaces,
};
use podplane_kubelet::cri::record::{PodNetwork, SandboxRecord, SandboxState};

use crate::report::UnusableInput;

/// Moves the process, which must have one thread, into the mount namespace in which the network
/// namespaces of the cluster's pods have names. Returns a process that is in it.
pub(crate) fn enter_cluster(dir: &DataDir) -> anyhow::Result<i32> {
    let SupervisorRecord {
        pid,
        kernel,
        reason,
        ..
    } = running(dir)?;
    anyhow::ensure!(
        kernel,
        "this cluster is in ledger mode ({reason}): its nodes and pods have addresses but no networks; those need a cluster that is started with `podplane up --network kernel`"
    );
    namespaces::join(pid)?;
    Ok(pid)
}

/// The supervisor of the cluster of a data directory.
///
/// # Errors
///
/// If none runs, as [`not_running`].
pub(crate) fn running(dir: &DataDir) -> anyhow::Result<SupervisorRecord> {
    dir.running()?.ok_or_else(|| not_running(dir))
}

/// The error that no cluster runs in a data directory.
pub(crate) fn not_running(dir: &DataDir) -> anyhow::Error {
    let dir = dir.path().display();
    UnusableInput(anyhow::anyhow!(
        "no cluster runs in {dir}: start one with `podplane up`, or name another with --data-dir"
    ))
    .into()
}

/// The path of a pod's network namespace. The calling process must have entered the cluster.
pub(crate) fn netns(dir: &DataDir, pod: &Pod) -> anyhow::Result<PathBuf> {
    Ok(sandbox(dir, pod)?.1.netns)
}

/// A pod's ready sandbox, and its network.
pub(crate) fn sandbox(dir: &DataDir, pod: &Pod) -> anyhow::Result<(SandboxRecord, PodNetwork)> {
    let name = pod.key();
    let spec = pod.spec.clone().unwrap_or_default();
    anyhow::ensure!(
        spec.host_network != Some(true),
        "pod {name} is hostNetwork: it has its node's network and no namespace of its own"
    );
    let node = spec
        .node_name
        .with_context(|| format!("pod {name} is on no node yet"))?;
    let mut own: Vec<_> = ready_sandboxes(dir, &node)?
        .with_context(|| format!("pod {name} is on node {node}, which is none of this cluster's"))?
        .into_iter()
        .filter(|record| record.metadata.uid == pod.uid())
        .collect();
    own.sort_by_key(|record| record.metadata.attempt);
    let ready = own.pop().and_then(|record| {
        let network = record.network.clone()?;
        Some((record, network))
    });
    ready.with_context(|| format!("pod {name} has no sandbox that is ready"))
}

/// The sandboxes of a node that its CRI server records as ready; `None` if this cluster has no such
/// node.
pub(crate) fn ready_sandboxes(
    dir: &DataDir,
    node: &str,
) -> anyhow::Result<Option<Vec<SandboxRecord>>> {
    let mut records = sandboxes(dir, node)?;
    let found = records.iter_mut();
    found.for_each(|records| records.retain(|record| record.state == SandboxState::Ready));
    Ok(records)
}

/// The sandboxes of a node; `None` if this cluster has no such node.
pub(crate) fn sandboxes(dir: &DataDir, node: &str) -> anyhow::Result<Option<Vec<SandboxRecord>>> {
    let sandboxes = dir.nodes().join(node).join("sandboxes");
    let entries = match fs::read_dir(&sandboxes) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", sandboxes.display())),
    };
    let mut records = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("read {}", sandboxes.display()))?
            .path();
        // A sandbox may be removed meanwhile, and a file that is being written has another name.
        let text = fs::read(&path).ok();
        records.extend(text.and_then(|text| serde_json::from_slice::<SandboxRecord>(&text).ok()));
    }
    Ok(Some(records))
}

//! Removes a node for good: its pods' sandboxes, its object and its files.

use std::{io, time::Duration};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::{
    coordination::Lease,
    core::Node,
    jiff::Timestamp,
    node::{LEASE_NAMESPACE, LEAVING, NodeName},
};
use podplane_client::{
    ApiError, Client, DeleteParams, Endpoint, PatchParams, PatchType, Reason, endpoint,
};
use podplane_host::{clock, fs};
use podplane_proto::{
    cri::{
        ListPodSandboxRequest, RemovePodSandboxRequest, StopPodSandboxRequest,
        runtime_service_client::RuntimeServiceClient,
    },
    ipam::{Block, BlockUpdate, HoldChange, block_update, hold_change::Action},
};
use serde_json::json;

use crate::{data_dir::DataDir, services::ServiceCatalog};

/// The time that a runtime has to remove all sandboxes of a node. A stopped process does not answer
/// at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// [`remove_sandboxes`] with a deadline, for a supervisor that has other work.
pub async fn remove_sandboxes_in_time(endpoint: &str) -> anyhow::Result<()> {
    let removed = clock::timeout(PATIENCE, remove_sandboxes(endpoint)).await;
    removed.with_context(|| {
        format!(
            "the runtime at {endpoint} takes longer than {} s",
            PATIENCE.as_secs()
        )
    })?
}

/// Stops and removes the sandboxes of a node whose runtime is at `endpoint`. The kubelet must be
/// stopped: it would make them again.
pub async fn remove_sandboxes(endpoint: &str) -> anyhow::Result<()> {
    let endpoint: Endpoint = endpoint.parse()?;
    let mut runtime = RuntimeServiceClient::new(endpoint::channel(&endpoint)?);
    let sandboxes = runtime
        .list_pod_sandbox(ListPodSandboxRequest::default())
        .await?;
    for sandbox in sandboxes.into_inner().items {
        let pod_sandbox_id = sandbox.id.clone();
        runtime
            .stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id })
            .await?;
        let pod_sandbox_id = sandbox.id;
        runtime
            .remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id })
            .await?;
    }
    Ok(())
}

/// The sandboxes of a node whose processes have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandboxes {
    /// No sandbox runs: no address of the node's blocks is in use.
    Gone,
    /// Sandboxes may run: the node's blocks stay held, and the files that can end the hold stay.
    Left,
}

/// Removes the rest of a node whose processes have ended: its object and its lease and, if its
/// sandboxes are gone, the hold of its blocks and its files.
pub async fn forget(
    dir: &DataDir,
    server: &Endpoint,
    name: &str,
    sandboxes: Sandboxes,
    services: &dyn ServiceCatalog,
) -> anyhow::Result<()> {
    let client = Client::connect(server)?;
    // The API server may just be restarting: about ten seconds.
    let waits = || {
        ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(1))
            .with_max_times(14)
    };
    let remove = || async { remove(&client, name).await };
    let removed = remove.retry(waits()).when(ApiError::is_unavailable).await;
    removed.with_context(|| format!("failed to delete node {name}"))?;
    if sandboxes == Sandboxes::Left {
        tracing::warn!(
            node = name,
            "the node's blocks stay held: once its sandboxes are gone, `podplane node forget {name}` ends that"
        );
        return Ok(());
    }
    let node = dir.nodes().join(name.parse::<NodeName>()?.as_str());
    let end_hold = |holder: &str| services.end_of_hold(&node, holder);
    let end = || async { end_holds(&client, name, &end_hold).await };
    let ended = end.retry(waits()).when(ApiError::is_unavailable).await;
    ended.with_context(|| format!("failed to end the hold of the blocks of node {name}"))?;
    match fs::remove_dir_all(&node) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", node.display()))
        }
        _ => Ok(()),
    }
}

/// Removes the node's object, and its lease, so that another instance of the node need not wait for
/// the lease to expire.
async fn remove(client: &Client, name: &str) -> Result<(), ApiError> {
    let params = DeleteParams::default();
    let nodes = client.all::<Node>();
    match nodes.delete(name, &params).await {
        // A node by its own certificate: the controller-manager deletes it.
        Err(error) if error.reason == Reason::Forbidden => {
            let marked = nodes
                .patch(name, &mark_of_leaving(clock::timestamp()))
                .await;
            marked.map(drop).or_else(ok_if_gone)?;
        }
        deleted => deleted.map(drop).or_else(ok_if_gone)?,
    }
    let leases = client.namespaced::<Lease>(LEASE_NAMESPACE);
    let lease = leases.delete(name, &params).await;
    lease.map(drop).or_else(ok_if_gone)
}

/// The patch by which a node says that it has left for good.
fn mark_of_leaving(now: Timestamp) -> PatchParams {
    let annotations = json!({ LEAVING: now.to_string() });
    PatchParams {
        patch_type: PatchType::Merge,
        patch: json!({"metadata": {"annotations": annotations}}).to_string(),
        field_manager: String::new(),
        force: false,
    }
}

/// Ends the hold of all blocks of nodes of that name: as its instance, if
/// `end_hold` has the proof, else as an operator.
async fn end_holds(
    client: &Client,
    name: &str,
    end_hold: &impl Fn(&str) -> Option<HoldChange>,
) -> Result<(), ApiError> {
    let listed = client.blocks().list_of(name).await?;
    let is_held = |block: &Block| block.node_name == name && block.hold.is_some();
    for block in listed.blocks.into_iter().filter(is_held) {
        let forget = || HoldChange {
            action: Action::Forget.into(),
            ..HoldChange::default()
        };
        let holder = block.hold.as_ref().map(|hold| hold.instance.as_str());
        // Without proof, the hold is older than identities, or the node's files were lost.
        let change = holder.and_then(end_hold).unwrap_or_else(forget);
        let update = BlockUpdate {
            cidr: block.cidr,
            node_name: block.node_name,
            node_uid: block.node_uid,
            change: Some(block_update::Change::Hold(change)),
            ..BlockUpdate::default()
        };
        for answer in client.blocks().update(vec![update]).await? {
            answer.map(drop).or_else(ok_if_gone)?;
        }
    }
    Ok(())
}

fn ok_if_gone(error: ApiError) -> Result<(), ApiError> {
    if error.is_not_found() {
        Ok(())
    } else {
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn gives_up_on_a_runtime_that_does_not_answer() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cri.sock");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let endpoint = format!("unix:{}", socket.display());
        let error = remove_sandboxes_in_time(&endpoint).await.unwrap_err();
        let error = error.to_string();
        assert!(error.ends_with("takes longer than 30 s"), "{error}");
    }
}

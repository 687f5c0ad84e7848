//! Taking leave of a node for good: its pods' sandboxes, its object and its files.

use std::{fs, io, time::Duration};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::{coordination::Lease, core::Node};
use podplane_client::{ApiError, Client, DeleteParams, Endpoint, endpoint};
use podplane_kubelet::{
    NodeDir,
    kubelet::{instance::Identity, lease},
};
use podplane_proto::{
    cri::{
        ListPodSandboxRequest, RemovePodSandboxRequest, StopPodSandboxRequest,
        runtime_service_client::RuntimeServiceClient,
    },
    ipam::{Block, BlockUpdate, HoldChange, block_update, hold_change::Action},
};

use super::data_dir::DataDir;

/// How long a runtime may take to remove all sandboxes of a node. One that is stopped where it is answers nothing at all.
const PATIENCE: Duration = Duration::from_secs(30);

/// [`remove_sandboxes`], for a supervisor that has other work to do.
pub(crate) async fn remove_sandboxes_in_time(endpoint: &str) -> anyhow::Result<()> {
    let removed = tokio::time::timeout(PATIENCE, remove_sandboxes(endpoint)).await;
    removed.with_context(|| {
        format!(
            "the runtime at {endpoint} takes longer than {} s",
            PATIENCE.as_secs()
        )
    })?
}

/// Stops and removes the sandboxes of a node whose runtime runs at `endpoint`. Its kubelet must not: it would make them again.
pub(crate) async fn remove_sandboxes(endpoint: &str) -> anyhow::Result<()> {
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

/// What is left of a node without processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sandboxes {
    /// None of them runs: nobody uses an address of the node's blocks.
    Gone,
    /// They may run: the node's blocks stay held, and the files stay with which their hold can be
    /// ended.
    Left,
}

/// Removes what is left of a node without processes: its object and its lease and, with its
/// sandboxes, the hold of its blocks and its files.
pub(crate) async fn forget(
    dir: &DataDir,
    server: &str,
    name: &str,
    sandboxes: Sandboxes,
) -> anyhow::Result<()> {
    let client = Client::connect(&server.parse::<Endpoint>()?)?;
    // The API server may just be starting again: about ten seconds.
    let waits = || {
        ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(1))
            .with_max_times(14)
    };
    let delete = || async { delete(&client, name).await };
    let deleted = delete.retry(waits()).when(ApiError::is_unavailable).await;
    deleted.with_context(|| format!("delete node {name}"))?;
    if sandboxes == Sandboxes::Left {
        tracing::warn!(
            node = name,
            "the node's blocks stay held: once its sandboxes are gone, `podplane node forget {name}` ends that"
        );
        return Ok(());
    }
    let node = NodeDir::new(&dir.nodes(), &name.parse()?);
    let identity = match Identity::read(&node) {
        Ok(identity) => identity,
        // Whoever answers for the node's end needs no proof.
        Err(error) => {
            tracing::warn!(node = name, %error, "the node's identity cannot be read");
            None
        }
    };
    let end = || async { end_holds(&client, name, identity.as_ref()).await };
    let ended = end.retry(waits()).when(ApiError::is_unavailable).await;
    ended.with_context(|| format!("end the hold of the blocks of node {name}"))?;
    let dir = dir.nodes().join(name);
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Deletes the node's object, and its lease, so that another instance of the node need not wait for
/// its end.
async fn delete(client: &Client, name: &str) -> Result<(), ApiError> {
    let params = DeleteParams::default();
    let node = client.all::<Node>().delete(name, &params).await;
    node.map(drop).or_else(ok_if_gone)?;
    let leases = client.namespaced::<Lease>(lease::NAMESPACE);
    let lease = leases.delete(name, &params).await;
    lease.map(drop).or_else(ok_if_gone)
}

/// Ends the hold of all blocks of nodes of that name: as its instance, which the identity proves,
/// or else as an operator.
async fn end_holds(
    client: &Client,
    name: &str,
    identity: Option<&Identity>,
) -> Result<(), ApiError> {
    let listed = client.blocks().list().await?;
    let is_held = |block: &Block| block.node_name == name && block.hold.is_some();
    for block in listed.blocks.into_iter().filter(is_held) {
        let forget = || HoldChange {
            action: Action::Forget.into(),
            ..HoldChange::default()
        };
        let of_instance = block.hold.iter().map(|hold| hold.instance.as_str());
        let change = match identity {
            Some(own) if of_instance.eq([own.id()]) => own.hold(Action::End, Vec::new()),
            // It was held before there were identities, or its files were lost meanwhile.
            _ => forget(),
        };
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
    async fn a_runtime_that_answers_nothing_is_not_waited_for_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cri.sock");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let endpoint = format!("unix:{}", socket.display());
        let error = remove_sandboxes_in_time(&endpoint).await.unwrap_err();
        let error = error.to_string();
        assert!(error.ends_with("takes longer than 30 s"), "{error}");
    }
}

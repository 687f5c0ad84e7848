//! Taking leave of a node for good: its pods' sandboxes, its object and its files.

use std::{fs, io, time::Duration};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use podplane_api::core::Node;
use podplane_client::{ApiError, Client, DeleteParams, Endpoint, endpoint};
use podplane_proto::cri::{
    ListPodSandboxRequest, RemovePodSandboxRequest, StopPodSandboxRequest,
    runtime_service_client::RuntimeServiceClient,
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

/// Removes what is left of a node without processes: its object and its files.
pub(crate) async fn forget(dir: &DataDir, server: &str, name: &str) -> anyhow::Result<()> {
    let client = Client::connect(&server.parse::<Endpoint>()?)?;
    let nodes = client.all::<Node>();
    let delete = || async { nodes.delete(name, &DeleteParams::default()).await };
    // The API server may just be starting again: about ten seconds.
    let waits = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(50))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(14);
    let deleted = delete.retry(waits).when(ApiError::is_unavailable).await;
    if let Err(error) = deleted.map(drop).or_else(ok_if_gone) {
        return Err(error).with_context(|| format!("delete node {name}"));
    }
    let dir = dir.nodes().join(name);
    match fs::remove_dir_all(&dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
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

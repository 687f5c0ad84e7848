//! The traces of the pods of a run.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use podplane_api::{Object as _, core::Pod};
use podplane_proto::trace::GetPodTraceResponse;
use podplane_test_cluster::Cluster;
use tokio::time::{sleep, timeout};

/// The most pods of a run whose traces are in its report.
const MOST: usize = 20;
/// Processes send their spans at most this long after they ended.
const EXPORT: Duration = Duration::from_millis(600);
/// The time limit for all of it: a scenario may have paused the API server.
const LIMIT: Duration = Duration::from_secs(10);

/// Returns the traces of the first pods: those that do not run come first, as a failure may be
/// about them. None if the API server does not answer.
pub(crate) async fn of_pods(cluster: &Cluster) -> Vec<GetPodTraceResponse> {
    sleep(EXPORT).await;
    timeout(LIMIT, collect(cluster)).await.unwrap_or_default()
}

async fn collect(cluster: &Cluster) -> Vec<GetPodTraceResponse> {
    let Ok(mut pods) = cluster.pods().await else {
        return Vec::new();
    };
    pods.sort_by_key(|pod| (runs(pod), pod.key()));
    let traces = pods.iter().take(MOST).map(|pod| {
        let key = pod.key();
        async move { cluster.trace(&key.namespace, &key.name).await }
    });
    // A pod that has gone meanwhile, or that no trace was kept of, is left out.
    let traces = stream::iter(traces).buffered(MOST);
    traces.filter_map(async |trace| trace.ok()).collect().await
}

fn runs(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running")
}

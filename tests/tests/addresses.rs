//! Every revision of the pods while the API server dies: at none do two hold the same address.

use anyhow::Result;
use futures::future::join_all;
use podplane_api::{Object as _, core::Pod};
use podplane_client::{ApiError, Client, DeleteParams};
use podplane_test_cluster::{Signal, monitor::RevisionMonitor};
use podplane_tests::{
    Cluster, Network, builder, eventually,
    pods::{pod, running},
};

/// The number of addresses of a /29, so that each is given again at once.
const PODS: usize = 5;

fn rounds() -> usize {
    match std::env::var_os("PODPLANE_SOAK") {
        Some(_) => 100,
        None => 15,
    }
}

/// Repeats a request until it succeeds, or fails with an error by which it is done.
async fn settled(
    what: &str,
    request: impl AsyncFn() -> Result<(), ApiError>,
    is_done: fn(&ApiError) -> bool,
) {
    let ended = |r: &Result<(), ApiError>| r.as_ref().err().is_none_or(is_done);
    eventually(what, || request(), ended).await.ok();
}

async fn create(client: &Client, name: String) {
    let pods = client.namespaced::<Pod>("default");
    let request = async || pods.create(&pod(&name)).await.map(drop);
    settled("a pod is created", request, ApiError::is_already_exists).await;
}

async fn delete(client: &Client, name: String) {
    let pods = client.namespaced::<Pod>("default");
    let request = async || pods.delete(&name, &DeleteParams::default()).await.map(drop);
    settled("a pod is deleted", request, ApiError::is_not_found).await;
}

#[tokio::test]
async fn no_two_pods_hold_an_address_while_the_api_server_is_killed() -> Result<()> {
    let up = builder(Network::Ledger).nodes(1).node_cidr_mask_size(29);
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    let monitor = RevisionMonitor::start(cluster.client(), |_| {});
    for round in 0..rounds() {
        let deletes = (0..PODS).filter_map(|n| {
            let earlier = round.checked_sub(1)?;
            Some(delete(cluster.client(), format!("p{n}-{earlier}")))
        });
        let creates = (0..PODS).map(|n| create(cluster.client(), format!("p{n}-{round}")));
        let (_, _, killed) = tokio::join!(
            join_all(deletes),
            join_all(creates),
            cluster.signal("apiserver", Signal::KILL),
        );
        killed?;
        let suffix = format!("-{round}");
        cluster
            .pods_until("those of this round run, and no others", |pods| {
                running(pods) == PODS && pods.iter().all(|pod| pod.name().ends_with(&suffix))
            })
            .await;
    }
    let listed = monitor.listed().await?;
    let seen = || async { monitor.history().has_reached(&listed) };
    eventually("all revisions are seen", seen, |all| *all).await;
    {
        let history = monitor.history();
        let breaches: Vec<_> = history.breaches().map(ToString::to_string).collect();
        assert_eq!(breaches, [""; 0]);
        assert_eq!(history.problems(), []);
        assert_eq!(history.ran(), PODS * rounds());
    }
    drop(monitor);
    cluster.finish().await
}

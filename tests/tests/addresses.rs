//! A watch of addresses while the API server dies: at no revision do two pods hold the same one.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use futures::future::join_all;
use podplane_api::{Object as _, core::Pod, pod_ips::holds_address};
use podplane_client::{ApiError, CacheChange, Client, DeleteParams, ListParams, reflector};
use podplane_test_cluster::Signal;
use podplane_tests::{
    Cluster, Network, builder, eventually,
    pods::{pod, running},
};
use tokio::task::JoinSet;

/// The number of addresses of a /29, so that each is given again at once.
const PODS: usize = 5;
/// The pod that is created when there is nothing more to see.
const LAST: &str = "last";

fn rounds() -> usize {
    match std::env::var_os("PODPLANE_SOAK") {
        Some(_) => 100,
        None => 15,
    }
}

fn addresses(pod: &Pod) -> Vec<&str> {
    let status = pod.status.as_ref();
    let listed = status.and_then(|status| status.pod_ips.as_deref());
    let listed = listed.unwrap_or_default().iter();
    listed.map(|ip| ip.ip.as_str()).collect()
}

/// Follows all pods until [`LAST`] is there, and notes each address that two pods hold at the same
/// time.
async fn watch_addresses(client: Client) -> Vec<String> {
    let (cache, driver) = reflector(client.all::<Pod>(), ListParams::default());
    let mut changes = cache.subscribe();
    let observe = async {
        let mut pods = BTreeMap::<String, std::sync::Arc<Pod>>::new();
        let mut twice = Vec::new();
        loop {
            match changes.next().await {
                CacheChange::Deleted(old) => {
                    pods.remove(old.uid());
                }
                CacheChange::Applied { new, .. } if new.name() == LAST => return twice,
                CacheChange::Applied { new, .. } => {
                    let holders = pods.values().filter(|other| {
                        other.uid() != new.uid() && holds_address(other) && holds_address(&new)
                    });
                    for other in holders {
                        let new_ips = addresses(&new);
                        let shared = addresses(other).into_iter().find(|ip| new_ips.contains(ip));
                        twice.extend(shared.map(|ip| {
                            let revision = new.resource_version();
                            format!("{ip} of {} and {} at {revision}", new.key(), other.key())
                        }));
                    }
                    pods.insert(new.uid().to_owned(), new);
                }
            }
        }
    };
    tokio::select! {
        () = driver => Vec::new(),
        twice = observe => twice,
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
    let mut watching = JoinSet::new();
    watching.spawn(watch_addresses(cluster.client().clone()));
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
    create(cluster.client(), LAST.into()).await;
    let twice = watching.join_next().await.context("the watch")??;
    assert_eq!(twice, [""; 0]);
    cluster.finish().await
}

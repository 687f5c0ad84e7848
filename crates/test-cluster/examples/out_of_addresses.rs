//! A test as a user would write it: a Deployment of three pods, on a node that has one address.
//!
//! `cargo run -p podplane-test-cluster --example out_of_addresses` runs it as a program, and `cargo
//! test
//! -p podplane-test-cluster --examples` as a test. Both need `podplane`: `cargo xtask build`.

use podplane_test_cluster::{
    Cluster, Result,
    pods::{phase, running, unscheduled},
};

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: nginx}]
";

#[tokio::main]
async fn main() -> Result<()> {
    // A /30 has one address for pods: of its four, the network, the bridge and the broadcast take
    // three.
    let cluster = Cluster::builder()
        .nodes(1)
        .node_cidr_mask_size(30)
        .start()
        .await?;
    cluster.apply(WEB).await?;
    let pods = cluster
        .pods_until("one pod runs, and two say why they wait", |pods| {
            let refused = pods.iter().filter(|pod| !unscheduled(pod).is_empty());
            running(pods) == 1 && refused.count() == 2
        })
        .await?;
    let waiting = pods.iter().find(|pod| phase(pod) == "Pending");
    assert_eq!(
        waiting.map(unscheduled),
        Some("0/1 nodes are available: 1 Insufficient pod IPs.")
    );

    // A second node has an address too, and the scheduler notices it.
    cluster.add_nodes(["node-1"]).await?;
    cluster
        .pods_until("two pods run", |pods| running(pods) == 2)
        .await?;

    // Checks that no address is on two pods and none is leaked, then takes the cluster down.
    cluster.finish().await
}

#[cfg(test)]
#[test]
fn pods_on_a_full_cluster_wait_for_a_new_node() -> Result<()> {
    main()
}

//! A test as a user would write it: a Deployment of three pods, on a node that has one address.
//!
//! `cargo run -p podplane-testkit --example out_of_addresses` runs it as a program, and `cargo test -p podplane-testkit --examples` as a
//! test. Both want `podplane` built: `cargo xtask build`.

use podplane_testkit::{
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
    // A /30 is one address for pods: of four, the network's, the bridge's and the broadcast address are taken.
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

    // A second node has an address too, and the scheduler hears of it.
    cluster.add_nodes(["node-1"]).await?;
    cluster
        .pods_until("two pods run", |pods| running(pods) == 2)
        .await?;

    // No address is on two pods, none is leaked; then all of it goes.
    cluster.finish().await
}

#[cfg(test)]
#[test]
fn a_full_node_says_so_and_a_new_one_helps() -> Result<()> {
    main()
}

//! A test as a user would write it: the API server binds pods, and the scheduler gets no answer.
//!
//! `cargo run -p podplane-test-cluster --example lost_answers` runs it as a program, and `cargo
//! test -p podplane-test-cluster --examples` as a test. Both need `podplane`: `cargo xtask build`.

use podplane_test_cluster::{Cluster, Code, Result, link::CallFault, pods::running};

#[tokio::main]
async fn main() -> Result<()> {
    // All calls between services go through this process.
    let cluster = Cluster::builder().links().start().await?;
    let lost = CallFault::lose_answer(Code::Unavailable).of("BindPod");
    let fault = cluster.disturb("scheduler", &lost.times(2)).await?;
    cluster.podplane(["run", "web", "--replicas", "4"]).await?;
    cluster
        .pods_until("all run", |pods| running(pods) == 4)
        .await?;
    let calls = cluster.calls("scheduler", "BindPod").await?;
    assert!(calls >= 4, "{calls} calls for 4 pods");
    fault.heal();

    // A scheduler that forgot a pod whose answer was lost would have given its address to another
    // pod.
    cluster.finish().await
}

#[cfg(test)]
#[test]
fn pods_run_once_despite_lost_answers_to_their_binding() -> Result<()> {
    main()
}

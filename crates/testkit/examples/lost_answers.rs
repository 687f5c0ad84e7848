//! A test as a user would write it: the API server binds pods, and the scheduler does not hear of it.
//!
//! `cargo run -p podplane-testkit --example lost_answers` runs it as a program, and `cargo test -p podplane-testkit --examples` as a test. Both want
//! `podplane` built: `cargo xtask build`.

use podplane_testkit::{Cluster, Code, Result, link::CallFault, pods::running};

#[tokio::main]
async fn main() -> Result<()> {
    // What the services say to each other goes through this process.
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

    // A scheduler that had forgotten a pod whose answer was lost would have given its address away.
    cluster.finish().await
}

#[cfg(test)]
#[test]
fn pods_whose_binding_was_not_answered_run_once() -> Result<()> {
    main()
}

//! Programs from elsewhere over the Kubernetes API: the official Python client, with its watches,
//! dynamic client and leader election.

use std::process::Command;

use anyhow::Result;
use podplane_tests::{Cluster, Network, builder, peers, programs::finish};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kubernetes_client.py");

#[tokio::test(flavor = "multi_thread")]
async fn the_kubernetes_python_client_works() -> Result<()> {
    let Some(path) = peers::python_kubernetes() else {
        return Ok(());
    };
    let Some(cluster) = Cluster::up(builder(Network::Ledger)).await? else {
        return Ok(());
    };
    let said = finish(
        Command::new("python3")
            .arg(SCRIPT)
            .arg(cluster.data_dir().join("kubeconfig"))
            .arg("from-python")
            .env("PYTHONPATH", path),
    );
    assert_eq!(
        said.ok(),
        "typed\nwatched\nuntyped\nall_kinds\nelected\ndeleted\n"
    );
    cluster.finish().await
}

//! Everyday work of Kubernetes' users, each command as they type it, with stock kubectl of the
//! oldest and the newest version, and with `PODPLANE_SOAK=1` one between them, too.
//!
//! Expected texts are those that kubectl prints of a cluster of the reference.
//! `PODPLANE_CASE=drain` runs only the cases whose name has `drain` in it.

mod access;
mod apps;
mod cluster;
mod looking;
mod manifests;
mod nodes;
mod owners;
mod pods;
mod policy;
mod printing;
mod workloads;
mod writing;

use anyhow::Result;
use podplane_tests::{
    Cluster, Network, builder,
    kubectl::{KubectlCase, VersionOrder, each},
};

async fn run(order: VersionOrder, cases: &'static [KubectlCase]) -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger)).await? else {
        return Ok(());
    };
    tokio::task::block_in_place(|| each(&cluster, order, cases));
    cluster.finish().await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_prints_objects() -> Result<()> {
    run(VersionOrder::Together, printing::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_describes_and_explains_objects() -> Result<()> {
    run(VersionOrder::Together, looking::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_writes_objects() -> Result<()> {
    run(VersionOrder::Together, writing::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_pods() -> Result<()> {
    run(VersionOrder::Together, pods::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_deployments() -> Result<()> {
    run(VersionOrder::Together, apps::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_other_workloads() -> Result<()> {
    run(VersionOrder::Together, workloads::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_deletes_what_custom_objects_own() -> Result<()> {
    run(VersionOrder::Together, owners::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_queries_the_server() -> Result<()> {
    run(VersionOrder::Together, cluster::CASES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_access() -> Result<()> {
    run(VersionOrder::Together, access::CASES).await
}

/// One version after the other: draining a node evicts the pods of all versions.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_manages_nodes() -> Result<()> {
    run(VersionOrder::InTurn, nodes::CASES).await
}

/// One version after the other, for the same reason.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_limits_disruptions() -> Result<()> {
    run(VersionOrder::InTurn, policy::CASES).await
}

/// One version after the other: some of the objects have no namespace.
#[tokio::test(flavor = "multi_thread")]
async fn kubectl_applies_all_kinds() -> Result<()> {
    run(VersionOrder::InTurn, manifests::CASES).await
}

/// The words of a line.
fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// The words of a table's header.
fn header(table: &str) -> Vec<&str> {
    words(table.lines().next().unwrap_or_default())
}

/// The words of the row that begins with `name`.
#[track_caller]
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let mut rows = table.lines().map(words);
    rows.find(|row| row.first() == Some(&name))
        .unwrap_or_else(|| panic!("no row {name} in\n{table}"))
}

/// Fails unless `text` has each of the lines, blanks at both ends aside, in this order.
#[track_caller]
fn has_lines(text: &str, wanted: &[&str]) {
    let mut lines = text.lines().map(str::trim);
    for want in wanted {
        let words = words(want);
        assert!(
            lines.any(|line| self::words(line) == words),
            "no line {want:?}, or not in its place, in\n{text}"
        );
    }
}

//! Checks of the nodes each second, and the conclusion of a churn.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ipnet::IpNet;
use podplane_api::{Object as _, pod_ips::pod_cidrs};
use podplane_test_cluster::live::{NodesSnapshot, Patience, SnapshotChecker};
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{ChurnCluster, ChurnIpam, lock};

/// Takes a snapshot each second, until it is aborted.
pub(super) async fn look_each_second(stage: Arc<ChurnCluster>) {
    let begin = Instant::now();
    let mut patience = Patience::default();
    if stage.ipam == ChurnIpam::Other {
        // Only the plugin could restore its files.
        patience.lease = Duration::MAX;
    }
    let mut checker = SnapshotChecker::new(patience);
    let mut known = BTreeSet::new();
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match snapshot(&stage).await {
            Ok(snapshot) => {
                for violation in checker.check(begin.elapsed(), &snapshot) {
                    stage.journal.find(violation.to_string());
                }
            }
            Err(error) => stage
                .journal
                .note(format!("nodes cannot be seen: {error:#}")),
        }
        overlapping_records(&stage, &mut known).await;
    }
}

/// A snapshot of the nodes, with the blocks that they had both before and after it.
pub(super) async fn snapshot(stage: &Arc<ChurnCluster>) -> anyhow::Result<NodesSnapshot> {
    let before = blocks(stage).await;
    let seen_by = stage.clone();
    let mut snapshot = spawn_blocking(move || seen_by.observer.snapshot(before)).await??;
    let after = blocks(stage).await;
    snapshot.blocks.retain(|block| after.contains(block));
    Ok(snapshot)
}

/// The blocks of nodes; none while the API server is away.
async fn blocks(stage: &ChurnCluster) -> Vec<(String, IpNet)> {
    let nodes = stage.cluster.nodes().await.unwrap_or_default();
    let of_node = |node: &podplane_api::core::Node| {
        let name = node.name().to_owned();
        let blocks = pod_cidrs(node)
            .iter()
            .filter_map(|block| block.parse().ok());
        blocks
            .map(|block| (name.clone(), block))
            .collect::<Vec<_>>()
    };
    nodes.iter().flat_map(of_node).collect()
}

/// Finds overlapping records of blocks. All records, of existing and of removed nodes, are of one
/// revision.
async fn overlapping_records(stage: &ChurnCluster, known: &mut BTreeSet<String>) {
    let Ok(records) = stage.cluster.client().blocks().list().await else {
        return;
    };
    let nets = records.blocks.iter().filter_map(|record| {
        let net: IpNet = record.cidr.parse().ok()?;
        Some((net, &record.node_name))
    });
    let nets: Vec<_> = nets.collect();
    for (at, (net, owner)) in nets.iter().enumerate() {
        for (other, rival) in &nets[at + 1..] {
            if owner != rival && (net.contains(other) || other.contains(net)) {
                let pair = format!("{net} of {owner:?} and {other} of {rival:?}");
                if known.insert(pair.clone()) {
                    let revision = &records.resource_version;
                    let finding = format!("{pair} are both recorded at revision {revision}");
                    stage.journal.find(finding);
                }
            }
        }
    }
}

/// Records what the monitor found, and a finding if it saw too little to prove anything.
pub(super) fn conclude(stage: &ChurnCluster, length: Duration) {
    let history = stage.monitor.history();
    for breach in history.breaches() {
        stage.journal.find_of(breach.from.at, breach.to_string());
    }
    for (at, problem) in history.problems() {
        stage.journal.find_of(*at, problem.clone());
    }
    let created = lock(&stage.created);
    let lost = created
        .values()
        .flatten()
        .filter(|uid| !history.has_seen(uid));
    for uid in lost {
        stage.journal.find(format!(
            "pod {uid} was created and acknowledged, and was never there"
        ));
    }
    let created = created.len();
    for gap in history.gaps() {
        let at = &gap.until;
        stage.journal.note(format!(
            "revisions of {} before {} have expired and were not checked",
            gap.kind, at.revision
        ));
    }
    let ran = history.ran();
    stage.journal.note(format!(
        "{} revisions checked, {created} pods created, {ran} of them ran",
        history.revisions()
    ));
    // A churn in which nothing runs proves nothing.
    let least = created / 5;
    if ran < least {
        stage.journal.find(format!(
            "only {ran} of {created} pods ever ran in {length:?}, and {least} are the least"
        ));
    }
}

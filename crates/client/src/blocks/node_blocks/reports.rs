//! The reports of node agents: how many addresses of a block are allocated on its node.
//!
//! A block whose node is deleted may have pods that the API server does not know any more. While
//! the node's agent reports addresses, the block is held. A machine that was switched off reports
//! nothing more, so that a hold ends a while after the last report.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ipnet::IpNet;
use kube::api::{ListParams, Patch, PatchParams};
use podplane_api::jiff::{SignedDuration, Timestamp};
use podplane_host::clock::{self, Instant};
use podplane_proto::error::ApiError;
use serde_json::json;

use super::object::{NodeBlock, NodeBlockSpec, NodeBlockStatus, net, objects};
use crate::api::{Client, rest::refused};

/// The time for which a report holds the block of a deleted node. Agents report every 10 seconds;
/// Kubernetes waits as long for a silent kubelet.
const VALIDITY: Duration = Duration::from_secs(40);

/// The reports on blocks of deleted nodes that this process has seen. Clocks of nodes are not
/// compared: a report holds from when it was first seen. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentReports(Arc<Mutex<BTreeMap<IpNet, SeenReport>>>);

#[derive(Clone, Debug)]
struct SeenReport {
    status: NodeBlockStatus,
    since: Instant,
    /// The quarantine that the report ended.
    quarantined_until: Option<Timestamp>,
}

/// The effect of the reports on a block whose node is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportVerdict {
    /// Nothing is known of allocated addresses.
    None,
    /// The block is held until then.
    Held(Timestamp),
    /// The agent is silent. A quarantine from before its last report does not count.
    Silent {
        /// True if the block has been quarantined since.
        is_quarantined: bool,
    },
}

impl AgentReports {
    /// Judges the record of a block whose node is deleted.
    pub(super) fn judge(&self, block: IpNet, record: &NodeBlock) -> ReportVerdict {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let status = record.status.clone().unwrap_or_default();
        if status.allocated_addresses == 0 {
            seen.remove(&block);
            return ReportVerdict::None;
        }
        let now = Instant::now();
        let until = record.spec.quarantined_until;
        let new = || SeenReport {
            status: status.clone(),
            since: now,
            quarantined_until: until,
        };
        let report = seen.entry(block).or_insert_with(new);
        if report.status != status {
            *report = new();
        }
        let left = VALIDITY.saturating_sub(now.duration_since(report.since));
        match SignedDuration::try_from(left) {
            Ok(left) if left.is_positive() => ReportVerdict::Held(clock::timestamp() + left),
            _ => ReportVerdict::Silent {
                is_quarantined: until != report.quarantined_until,
            },
        }
    }

    /// Forgets blocks that have no record any more.
    pub(super) fn retain(&self, blocks: &BTreeSet<IpNet>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|block, _| blocks.contains(block));
    }
}

/// Reports the allocated addresses of a node in its NodeBlocks. Those of earlier nodes of its name
/// are reported while they have allocated addresses, and once more if they are among `reported`.
/// Returns the blocks that have addresses.
pub(crate) async fn report(
    client: &Client,
    node_name: &str,
    node_uid: Option<&str>,
    allocated: &[IpAddr],
    reported: &BTreeSet<IpNet>,
) -> Result<BTreeSet<IpNet>, ApiError> {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node_name}"));
    let records = match objects(client).list(&of_node).await {
        Ok(records) => records.items,
        // Nobody gives blocks by NodeBlocks here.
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(BTreeSet::new()),
        Err(error) => return Err(refused(error)),
    };
    let mut used = BTreeSet::new();
    for record in &records {
        let Some(block) = net(record) else { continue };
        let count = allocated.iter().filter(|ip| block.contains(*ip)).count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        if count > 0 {
            used.insert(block);
        }
        if is_due(record, node_uid, count, reported.contains(&block)) {
            write(client, record, count).await?;
        }
    }
    Ok(used)
}

/// Returns whether a report differs from the record in what matters.
fn is_due(record: &NodeBlock, node_uid: Option<&str>, count: u32, is_reported: bool) -> bool {
    let NodeBlockSpec {
        node_uid: owner, ..
    } = &record.spec;
    let stored = record.status.clone().unwrap_or_default();
    let is_changed = (stored.allocated_addresses > 0) != (count > 0);
    match node_uid {
        Some(uid) if uid == owner => is_changed,
        // Another machine of the same name may have been the owner.
        _ if count == 0 => is_changed && is_reported,
        _ => true,
    }
}

async fn write(client: &Client, record: &NodeBlock, count: u32) -> Result<(), ApiError> {
    let status = NodeBlockStatus {
        allocated_addresses: count,
        reported_at: Some(clock::timestamp()),
    };
    // The UID keeps the report from a later block of this name.
    let patch = json!({"metadata": {"uid": record.metadata.uid}, "status": status});
    let name = record.metadata.name.as_deref().unwrap_or_default();
    let patched = objects(client)
        .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    match patched.map_err(refused) {
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::node_blocks::object::{NodeBlockState, resource};

    fn record(addresses: u32, second: i64) -> NodeBlock {
        let spec = NodeBlockSpec {
            cidr: "10.0.0.0/24".into(),
            node_name: "a".into(),
            node_uid: "1".into(),
            state: NodeBlockState::Assigned,
            quarantined_until: None,
        };
        let mut record = NodeBlock::new("10-0-0-0-24", &resource(), spec);
        record.status = Some(NodeBlockStatus {
            allocated_addresses: addresses,
            reported_at: Timestamp::from_second(second).ok(),
        });
        record
    }

    fn block() -> IpNet {
        "10.0.0.0/24".parse().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_report_holds_for_a_while_after_it_was_seen() {
        let reports = AgentReports::default();
        let judge = |record: &NodeBlock| reports.judge(block(), record);
        let is_held = |verdict| matches!(verdict, ReportVerdict::Held(_));
        assert_eq!(judge(&record(0, 1)), ReportVerdict::None);
        // The node's clock is far behind.
        assert!(is_held(judge(&record(2, 1))));
        tokio::time::advance(VALIDITY).await;
        let silent = |is_quarantined| ReportVerdict::Silent { is_quarantined };
        assert_eq!(judge(&record(2, 1)), silent(false));
        assert!(is_held(judge(&record(2, 2))));
        tokio::time::advance(VALIDITY).await;
        let mut quarantined = record(2, 2);
        quarantined.spec.quarantined_until = Timestamp::from_second(9).ok();
        assert_eq!(judge(&quarantined), silent(true));
        // A report in the quarantine ends it.
        quarantined.status = record(1, 3).status;
        assert!(is_held(judge(&quarantined)));
        tokio::time::advance(VALIDITY).await;
        assert_eq!(judge(&quarantined), silent(false));
        reports.retain(&BTreeSet::new());
        assert!(is_held(judge(&quarantined)));
    }

    #[test]
    fn reports_what_matters() {
        let due = |stored, uid, count, reported| is_due(&record(stored, 1), uid, count, reported);
        let own = Some("1");
        for (stored, count, want) in [(0, 0, false), (0, 3, true), (2, 3, false), (2, 0, true)] {
            assert_eq!(due(stored, own, count, false), want, "{stored} to {count}");
        }
        for other in [None, Some("2")] {
            assert!(due(2, other, 3, false));
            assert!(due(2, other, 0, true));
            assert!(!due(2, other, 0, false));
            assert!(!due(0, other, 0, true));
        }
    }
}

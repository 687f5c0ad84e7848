//! Reports of allocated addresses to the IPAM controller, in the NodeBlocks of the node.
//!
//! A Node can be deleted while its pods still have addresses, and its block must not be given to
//! another node then. The agent's annotations are gone with the Node, so it reports to the blocks
//! themselves: when the first address of a block is allocated and when the last one is freed; and,
//! once the Node is gone or another one, every 10 seconds while addresses are left. The controller
//! holds a block for 40 seconds after the last report.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node, pod_ips};
use podplane_client::Client;
use podplane_host::clock::Instant;

/// The time between two reports on the blocks of a deleted node, and after a failure.
const INTERVAL: Duration = Duration::from_secs(10);
/// The time until the next attempt after a report for which there was no block.
const RETRY: Duration = Duration::from_secs(60);

/// The reports of one node.
#[derive(Debug, Default)]
pub(crate) struct BlockReporter {
    last: Option<BlockUse>,
    /// The blocks for which this process has reported addresses.
    reported: BTreeSet<IpNet>,
    /// The time from which a report is repeated although nothing has changed.
    next: Option<Instant>,
    failure: Option<String>,
}

/// The state of a node that makes a report necessary.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BlockUse {
    /// The UID of the Node, if there is one.
    uid: Option<String>,
    /// Its blocks that have allocated addresses.
    used: BTreeSet<IpNet>,
    /// True if addresses are allocated outside its blocks: of an earlier Node, or of no block.
    has_others: bool,
}

impl BlockUse {
    fn of(node: Option<&Node>, allocated: &[IpAddr]) -> Self {
        let blocks = node.into_iter().flat_map(pod_ips::pod_cidrs);
        let blocks: Vec<IpNet> = blocks.filter_map(|block| block.parse().ok()).collect();
        let block_of = |ip: &IpAddr| blocks.iter().find(|block| block.contains(ip)).copied();
        Self {
            uid: node.map(|node| node.uid().to_owned()),
            used: allocated.iter().filter_map(block_of).collect(),
            has_others: allocated.iter().any(|ip| block_of(ip).is_none()),
        }
    }
}

impl BlockReporter {
    /// Reports the allocated addresses of the node if that is due. A failure is logged, and changes
    /// nothing else: the amount is published without it.
    pub(crate) async fn report(
        &mut self,
        client: &Client,
        node_name: &str,
        node: Option<&Node>,
        allocated: &[IpAddr],
        now: Instant,
    ) {
        let found = BlockUse::of(node, allocated);
        if !self.is_due(&found, now) {
            return;
        }
        let uid = found.uid.as_deref();
        let reported = client
            .blocks()
            .report_allocated(node_name, uid, allocated, &self.reported)
            .await;
        match reported {
            Ok(used) => self.done(found, used, now),
            Err(error) => self.failed(node_name, error.message, now),
        }
    }

    fn is_due(&self, found: &BlockUse, now: Instant) -> bool {
        let is_first = self.next.is_none_or(|next| next <= now);
        match &self.last {
            Some(last) if last == found => found.has_others && is_first,
            // The last attempt failed, or the node's blocks have no objects yet.
            None => is_first,
            Some(_) => true,
        }
    }

    /// Notes a report, for which these blocks have addresses.
    fn done(&mut self, found: BlockUse, used: BTreeSet<IpNet>, now: Instant) {
        let wait = match used.is_empty() {
            true => RETRY,
            false => INTERVAL,
        };
        self.next = Some(now + wait);
        self.failure = None;
        self.last = found.used.is_subset(&used).then_some(found);
        self.reported = used;
    }

    fn failed(&mut self, node: &str, error: String, now: Instant) {
        self.last = None;
        self.next = Some(now + INTERVAL);
        if self.failure.as_ref() != Some(&error) {
            tracing::warn!(
                node,
                error,
                retry_in = ?INTERVAL,
                "failed to report the allocated addresses of the node's blocks"
            );
            self.failure = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(uid: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "uid": uid},
            "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24", "fd00::/120"]}}))
        .unwrap()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn nets(texts: &[&str]) -> BTreeSet<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn reports_changes_and_repeats_while_the_node_is_gone() {
        let (present, now) = (node("1"), Instant::now());
        let (one, two) = (ips(&["10.0.0.2"]), ips(&["10.0.0.2", "10.0.0.3"]));
        let block = nets(&["10.0.0.0/24"]);
        let mut reporter = BlockReporter::default();
        let found = |node: Option<&Node>, ips: &[IpAddr]| BlockUse::of(node, ips);
        assert!(reporter.is_due(&found(Some(&present), &one), now));
        reporter.done(found(Some(&present), &one), block.clone(), now);
        let later = now + Duration::from_secs(3600);
        assert!(!reporter.is_due(&found(Some(&present), &two), later));
        assert!(reporter.is_due(&found(Some(&present), &[]), now));
        // Another node of the name has another block.
        for gone in [None, Some(&node("2"))] {
            let mut gone = gone.cloned();
            if let Some(spec) = gone.as_mut().and_then(|node| node.spec.as_mut()) {
                spec.pod_cidrs = Some(vec!["10.9.0.0/24".into()]);
            }
            let left = found(gone.as_ref(), &one);
            assert!(reporter.is_due(&left, now));
            reporter.done(left.clone(), block.clone(), now);
            assert!(!reporter.is_due(&left, now + INTERVAL / 2));
            assert!(reporter.is_due(&left, now + INTERVAL));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_blocks_that_are_not_there() {
        let (present, now) = (node("1"), Instant::now());
        let mut reporter = BlockReporter::default();
        let found = BlockUse::of(Some(&present), &ips(&["fd00::2", "192.0.2.1"]));
        assert_eq!(found.used, nets(&["fd00::/120"]));
        assert!(found.has_others);
        reporter.done(found.clone(), BTreeSet::new(), now);
        assert!(!reporter.is_due(&found, now + INTERVAL));
        assert!(reporter.is_due(&found, now + RETRY));
        reporter.failed("n", "forbidden".into(), now);
        assert!(reporter.is_due(&found, now + INTERVAL));
    }
}

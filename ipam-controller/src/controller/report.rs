//! Events, under the reference's names, and logs.

use podplane_api::{core::Node, meta::ObjectMeta, networking::ClusterCIDR};
use podplane_client::events::EventType;

use super::SyncedController;
use crate::plan::{Allocator, FormerBlocks, PlanOutcome, StarvedNode};

impl SyncedController {
    /// Reports an outcome, and queues the nodes that it concerns.
    pub(super) fn report(&self, outcome: PlanOutcome) {
        let PlanOutcome {
            reconcile,
            foreign,
            resolved,
            draining,
            held,
            released,
            sets,
            unusable,
        } = outcome;
        let (draining, held, released) = match self.options.writes {
            true => (draining, held, released),
            // What another allocator makes of them is not known here.
            false => Default::default(),
        };
        for remains in &draining {
            let message = match remains.owner() {
                Some(_) => "draining node block of a deleted node",
                None => "draining block without a record: pods have addresses of it",
            };
            log_former_blocks(remains, message);
        }
        for remains in &held {
            log_former_blocks(
                remains,
                "node block of a deleted node is held for its sandboxes",
            );
            self.report_held(remains);
        }
        for remains in &released {
            log_former_blocks(remains, "released node block");
        }
        for foreign in &foreign {
            tracing::warn!(node = foreign.node, uid = foreign.uid, problem = %foreign.problem, "node block kept as foreign");
            let message = format!(
                "{}; the block is kept, and nothing else is given there",
                foreign.problem
            );
            let node = (foreign.node.as_str(), foreign.uid.as_str());
            self.event(node, EventType::Warning, "ForeignPodCIDR", message);
        }
        for (node, uid) in &resolved {
            tracing::info!(node, uid, "node block is no longer foreign");
            let message = "the node's blocks fit the configuration now".to_owned();
            self.event((node, uid), EventType::Normal, "PodCIDRFits", message);
        }
        for (set, uid, why) in &unusable {
            tracing::warn!(cluster_cidr = set, uid, why, "ClusterCIDR is unusable");
            self.set_event((set, uid), EventType::Warning, "CIDRSetFailed", why.clone());
        }
        for name in reconcile {
            self.queue.add(name);
        }
        for set in sets {
            self.sets.add(set);
        }
    }

    pub(super) fn starved(&self, starved: &StarvedNode) {
        let StarvedNode { node, uid, error } = starved;
        tracing::warn!(node, uid, %error, "no block left for node");
        self.status(node, uid, "CIDRNotAvailable");
    }

    /// Reports a block that is freed only when its hold is ended.
    fn report_held(&self, remains: &FormerBlocks) {
        let FormerBlocks {
            node,
            uid,
            pod_cidrs,
        } = remains;
        let cidrs: Vec<String> = pod_cidrs.iter().map(ToString::to_string).collect();
        let end = match self.parts.client.blocks().are_atomic() {
            true => format!(
                "when the node reports them gone, or by `podplane node remove {node}` or `podplane node forget {node}`"
            ),
            false => "40 seconds after the last report of the node's agent".to_owned(),
        };
        let message = format!(
            "{} of the deleted node {node} is held, since its sandboxes may have addresses of it; the hold ends {end}",
            cidrs.join(", ")
        );
        self.event((node, uid), EventType::Warning, "PodCIDRHeld", message);
    }

    /// Reports every waiting node and every held block again.
    pub(super) fn remind(&self) {
        let held: Vec<_> = self.decide(|allocator| allocator.held_blocks().collect());
        for remains in held.iter().filter(|_| self.options.writes) {
            self.report_held(remains);
        }
        let names = |allocator: &mut Allocator| -> Vec<(String, String)> {
            let waiting = allocator.waiting();
            waiting
                .map(|(name, uid)| (name.into(), uid.into()))
                .collect()
        };
        for (node, uid) in self.decide(names) {
            self.status(&node, &uid, "CIDRNotAvailable");
        }
    }

    /// Reports a failed write, from the third on, as the reference does.
    pub(super) fn not_assigned(&self, node: &str, uid: &str) {
        if self.queue.failures(&node.to_owned()) < 2 {
            return;
        }
        self.status(node, uid, "CIDRAssignmentFailed");
    }

    /// Records an event in the reference's words.
    fn status(&self, node: &str, uid: &str, reason: &'static str) {
        let message = format!("Node {node} status is now: {reason}");
        self.event((node, uid), EventType::Warning, reason, message);
    }

    fn event(&self, node: (&str, &str), r#type: EventType, reason: &'static str, message: String) {
        let about = Node {
            metadata: metadata(node),
            ..Node::default()
        };
        self.parts
            .events
            .record(&about, r#type, reason, "", message);
    }

    pub(super) fn set_event(
        &self,
        set: (&str, &str),
        r#type: EventType,
        reason: &'static str,
        message: String,
    ) {
        let about = ClusterCIDR {
            metadata: metadata(set),
            ..ClusterCIDR::default()
        };
        self.parts
            .events
            .record(&about, r#type, reason, "", message);
    }
}

fn metadata((name, uid): (&str, &str)) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    }
}

fn log_former_blocks(remains: &FormerBlocks, what: &str) {
    let cidrs: Vec<String> = remains.pod_cidrs.iter().map(ToString::to_string).collect();
    let (node, uid) = remains.owner().unzip();
    tracing::info!(node, uid, pod_cidrs = cidrs.join(","), "{what}");
}

//! What people are told: events under the reference's names, and the log.

use podplane_api::{core::Node, meta::ObjectMeta, networking::ClusterCIDR};
use podplane_client::events::EventType;

use super::Shell;
use crate::plan::{Allocator, Outcome, Remains, Starved};

impl Shell {
    /// Tells of what was learned, and has the nodes looked at that it concerns.
    pub(super) fn tell(&self, outcome: Outcome) {
        let Outcome {
            look,
            foreign,
            fits,
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
            told(remains, "draining node block of a node that is gone");
        }
        for remains in &held {
            told(
                remains,
                "node block of a node that is gone is held for its sandboxes",
            );
            self.held(remains);
        }
        for remains in &released {
            told(remains, "released node block");
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
        for (node, uid) in &fits {
            tracing::info!(node, uid, "node block is foreign no more");
            let message = "the node's blocks fit the configuration now".to_owned();
            self.event((node, uid), EventType::Normal, "PodCIDRFits", message);
        }
        for (set, uid, why) in &unusable {
            tracing::warn!(cluster_cidr = set, uid, why, "ClusterCIDR cannot be used");
            self.set_event((set, uid), EventType::Warning, "CIDRSetFailed", why.clone());
        }
        for name in look {
            self.queue.add(name);
        }
        for set in sets {
            self.sets.add(set);
        }
    }

    pub(super) fn starved(&self, starved: &Starved) {
        let Starved { node, uid, error } = starved;
        tracing::warn!(node, uid, %error, "no block for node");
        self.status(node, uid, "CIDRNotAvailable");
    }

    /// Tells of a block that only somebody's word frees.
    fn held(&self, remains: &Remains) {
        let Remains {
            node,
            uid,
            pod_cidrs,
        } = remains;
        let cidrs: Vec<String> = pod_cidrs.iter().map(ToString::to_string).collect();
        let message = format!(
            "{} of the deleted node {node} is held, since its sandboxes may have addresses of it; the node ends that when they are gone, `podplane node remove {node}` does, or `podplane node forget {node}`",
            cidrs.join(", ")
        );
        self.event((node, uid), EventType::Warning, "PodCIDRHeld", message);
    }

    /// Tells again of every node that waits, and of every block that is held.
    pub(super) fn remind(&self) {
        let held: Vec<_> = self.decide(|allocator| allocator.held().collect());
        for remains in held.iter().filter(|_| self.options.writes) {
            self.held(remains);
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

    /// A write failed. The reference tries three times before it tells.
    pub(super) fn not_assigned(&self, node: &str, uid: &str) {
        if self.queue.failures(&node.to_owned()) < 2 {
            return;
        }
        self.status(node, uid, "CIDRAssignmentFailed");
    }

    /// The reference's words.
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

fn told(remains: &Remains, what: &str) {
    let cidrs: Vec<String> = remains.pod_cidrs.iter().map(ToString::to_string).collect();
    tracing::info!(
        node = remains.node,
        uid = remains.uid,
        pod_cidrs = cidrs.join(","),
        "{what}"
    );
}

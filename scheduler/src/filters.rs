//! Filters: each decides whether one pod can run on one node, and which changes could alter that.
//!
//! They run in a fixed order and the first refusal counts for the node, as in the reference, so
//! that messages have the reference's counts.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use crate::{
    config::IpPolicy,
    event::ClusterEvent,
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
};

pub mod fit;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_unschedulable;
pub mod pod_ips;
pub mod taint_toleration;

#[cfg(test)]
mod tests;

/// A rule that excludes nodes.
pub trait NodeFilter: fmt::Debug + Send + Sync {
    /// The reference's name for it, or ours if it has none.
    fn name(&self) -> &'static str;

    /// Checks the pod against the node.
    ///
    /// # Errors
    ///
    /// The objection of this filter.
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection>;

    /// Returns whether such a change of a node can remove an objection. A new node always can.
    fn heeds(&self, change: NodeChange) -> bool;

    /// Returns whether a pod that left its node can have made room for `pod`.
    fn freed_by(&self, _pod: &PodInfo, _freed: &PodInfo) -> bool {
        false
    }
}

/// The objection of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    /// The reasons in the reference's words; seldom more than one.
    pub reasons: Vec<Cow<'static, str>>,
    /// The events that could help.
    pub resolvable: Resolvability,
    /// The shortage of this node in particular, if the reason does not state it.
    pub detail: Option<NodeShortage>,
}

/// The shortage of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeShortage {
    /// The end of a sentence that begins with the node's name.
    pub text: String,
    /// True if the message of the pod's condition and event has it, too.
    pub is_in_message: bool,
}

/// The possibility that a node fits a pod once other pods have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolvability {
    /// The node may fit.
    ByPreemption,
    /// The node does not fit even if it is empty.
    Never,
}

impl Objection {
    /// An objection because of other pods.
    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: Resolvability::ByPreemption,
            detail: None,
        }
    }

    /// An objection because of the node itself.
    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: Resolvability::Never,
            detail: None,
        }
    }

    /// Adds the shortage of the node.
    #[must_use]
    pub fn with(self, detail: NodeShortage) -> Self {
        Self {
            detail: Some(detail),
            ..self
        }
    }
}

/// An objection with the name of its filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterRefusal {
    /// [`NodeFilter::name`].
    pub by: &'static str,
    /// [`Objection::reasons`].
    pub reasons: Vec<Cow<'static, str>>,
    /// [`Objection::resolvable`].
    pub resolvable: Resolvability,
    /// [`Objection::detail`].
    pub detail: Option<NodeShortage>,
}

/// The filters, in order.
#[derive(Debug)]
pub struct NodeFilters(Vec<Box<dyn NodeFilter>>);

impl NodeFilters {
    /// The reference's filters, and ours if the policy has it.
    pub fn new(policy: IpPolicy) -> Self {
        let mut filters: Vec<Box<dyn NodeFilter>> = vec![
            Box::new(node_unschedulable::NodeUnschedulable),
            Box::new(node_name::NodeName),
            Box::new(taint_toleration::TaintToleration),
            Box::new(node_affinity::NodeAffinity),
            Box::new(node_ports::NodePorts),
            Box::new(fit::Fit::new(policy)),
        ];
        match policy {
            IpPolicy::Resource => filters.push(Box::new(pod_ips::PodIps)),
            IpPolicy::PodCidr | IpPolicy::Off => {}
        }
        Self(filters)
    }

    /// Runs the filters until one objects.
    ///
    /// # Errors
    ///
    /// The first objection.
    pub fn check(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), FilterRefusal> {
        for filter in &self.0 {
            let Err(Objection {
                reasons,
                resolvable,
                detail,
            }) = filter.filter(pod, node)
            else {
                continue;
            };
            return Err(FilterRefusal {
                by: filter.name(),
                reasons,
                resolvable,
                detail,
            });
        }
        Ok(())
    }

    /// Returns whether the event can help a pod that these filters exclude from every node: one of
    /// them must now accept the event's node.
    pub fn may_unblock(
        &self,
        pod: &PodInfo,
        rejected_by: &BTreeSet<&'static str>,
        event: &ClusterEvent,
    ) -> bool {
        // A pod without refusals found no nodes at all.
        if rejected_by.is_empty() {
            return matches!(event, ClusterEvent::NodeChanged { changes, .. } if changes.contains(&NodeChange::Added));
        }
        let rejecting = self.0.iter().filter(|f| rejected_by.contains(f.name()));
        rejecting
            .filter(|filter| match event {
                ClusterEvent::PodFreed { pod: freed, .. } => filter.freed_by(pod, freed),
                ClusterEvent::NodeChanged { changes, .. } => changes
                    .iter()
                    .any(|change| *change == NodeChange::Added || filter.heeds(*change)),
            })
            .any(|filter| match event {
                ClusterEvent::PodFreed { node, .. } | ClusterEvent::NodeChanged { node, .. } => {
                    filter.filter(pod, node).is_ok()
                }
            })
    }
}

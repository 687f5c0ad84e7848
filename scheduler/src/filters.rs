//! Filters: each says of one pod and one node whether it objects, and what could change its mind.
//!
//! They are asked in a fixed order and the first to object speaks for the node, as in the reference, so that a message counts
//! what the reference's would.

use std::{borrow::Cow, collections::BTreeSet, fmt};

use crate::{
    config::IpPolicy,
    event::Event,
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

/// One reason to refuse nodes.
pub trait Filter: fmt::Debug + Send + Sync {
    /// The reference's name for it, or ours where it has none.
    fn name(&self) -> &'static str;

    /// Whether the pod can go on the node, as far as this filter is concerned.
    ///
    /// # Errors
    ///
    /// Why not.
    fn filter(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Objection>;

    /// Whether such a change of a node can turn an objection into consent. A new node always can.
    fn heeds(&self, change: NodeChange) -> bool;

    /// Whether a pod that left its node can have made room for `pod`.
    fn freed_by(&self, _pod: &PodInfo, _freed: &PodInfo) -> bool {
        false
    }
}

/// Why a filter objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    /// In the reference's words; seldom more than one.
    pub reasons: Vec<Cow<'static, str>>,
    /// What could help.
    pub resolvable: Resolvable,
    /// The shortage of this node in particular, where the reason does not have it.
    pub detail: Option<Detail>,
}

/// The shortage of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detail {
    /// The end of a sentence that begins with the node's name.
    pub text: String,
    /// The message of the pod's condition and event has it, too.
    pub is_in_message: bool,
}

/// Whether a node that refuses a pod would take it if others left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolvable {
    /// It might.
    ByPreemption,
    /// Not even if it were empty.
    Never,
}

impl Objection {
    /// Other pods are in the way.
    pub fn unschedulable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: Resolvable::ByPreemption,
            detail: None,
        }
    }

    /// The node itself is in the way.
    pub fn unresolvable(reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reasons: vec![reason.into()],
            resolvable: Resolvable::Never,
            detail: None,
        }
    }

    /// The same, with what the node in particular lacks.
    #[must_use]
    pub fn with(self, detail: Detail) -> Self {
        Self {
            detail: Some(detail),
            ..self
        }
    }
}

/// An objection and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// [`Filter::name`].
    pub by: &'static str,
    /// [`Objection::reasons`].
    pub reasons: Vec<Cow<'static, str>>,
    /// [`Objection::resolvable`].
    pub resolvable: Resolvable,
    /// [`Objection::detail`].
    pub detail: Option<Detail>,
}

/// The filters in the order in which they are asked.
#[derive(Debug)]
pub struct Filters(Vec<Box<dyn Filter>>);

impl Filters {
    /// The reference's, and ours where the policy wants it.
    pub fn new(policy: IpPolicy) -> Self {
        let mut filters: Vec<Box<dyn Filter>> = vec![
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

    /// Asks all, until one objects.
    ///
    /// # Errors
    ///
    /// The first objection.
    pub fn check(&self, pod: &PodInfo, node: &NodeInfo) -> Result<(), Refusal> {
        for filter in &self.0 {
            let Err(Objection {
                reasons,
                resolvable,
                detail,
            }) = filter.filter(pod, node)
            else {
                continue;
            };
            return Err(Refusal {
                by: filter.name(),
                reasons,
                resolvable,
                detail,
            });
        }
        Ok(())
    }

    /// Whether the event can help a pod that these filters keep from every node: if one of them now consents to the node at hand.
    pub fn helped_by(
        &self,
        pod: &PodInfo,
        rejected_by: &BTreeSet<&'static str>,
        event: &Event,
    ) -> bool {
        // A pod that was refused by nobody found no node at all.
        if rejected_by.is_empty() {
            return matches!(event, Event::NodeChanged { changes, .. } if changes.contains(&NodeChange::Added));
        }
        let rejecting = self.0.iter().filter(|f| rejected_by.contains(f.name()));
        rejecting
            .filter(|filter| match event {
                Event::PodFreed { pod: freed, .. } => filter.freed_by(pod, freed),
                Event::NodeChanged { changes, .. } => changes
                    .iter()
                    .any(|change| *change == NodeChange::Added || filter.heeds(*change)),
            })
            .any(|filter| match event {
                Event::PodFreed { node, .. } | Event::NodeChanged { node, .. } => {
                    filter.filter(pod, node).is_ok()
                }
            })
    }
}

//! `spec.topologySpreadConstraints`.

use podplane_api::{core::TopologySpreadConstraint, selector::LabelSelector};

use super::{LabelMap, pod_selector};

/// The label of domains that are single nodes.
pub const HOSTNAME: &str = "kubernetes.io/hostname";

/// The key and `maxSkew` of the constraints that the reference gives to a pod of a workload that
/// has none of its own (its `defaultingType: System`).
pub const DEFAULTS: [(&str, i64); 2] = [(HOSTNAME, 3), ("topology.kubernetes.io/zone", 5)];

/// A limit on the difference in the number of pods between domains.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadConstraint {
    /// `maxSkew`.
    pub max_skew: i64,
    /// The key of the node label whose values are the domains.
    pub topology_key: String,
    /// The pods that count. `None` selects none.
    pub selector: Option<LabelSelector>,
    /// `minDomains`: with fewer domains the least number of pods counts as 0.
    pub min_domains: usize,
    /// `nodeAffinityPolicy` Honor, the default: nodes that the pod's node affinity and selector
    /// exclude do not count.
    pub honors_affinity: bool,
    /// `nodeTaintsPolicy` Honor: nodes with untolerated taints do not count.
    pub honors_taints: bool,
    /// `whenUnsatisfiable` DoNotSchedule, which excludes nodes; otherwise ScheduleAnyway, which
    /// only affects scores.
    pub is_required: bool,
}

impl SpreadConstraint {
    pub(crate) fn new(constraint: &TopologySpreadConstraint, labels: Option<&LabelMap>) -> Self {
        let is = |policy: &Option<String>, word: &str| policy.as_deref() == Some(word);
        Self {
            max_skew: constraint.max_skew.into(),
            topology_key: constraint.topology_key.clone(),
            selector: pod_selector(
                constraint.label_selector.as_ref(),
                labels,
                constraint.match_label_keys.as_deref(),
                None,
            ),
            min_domains: constraint
                .min_domains
                .map_or(1, |least| usize::try_from(least).unwrap_or(0)),
            honors_affinity: !is(&constraint.node_affinity_policy, "Ignore"),
            honors_taints: is(&constraint.node_taints_policy, "Honor"),
            is_required: constraint.when_unsatisfiable == "DoNotSchedule",
        }
    }

    /// The default constraints, which only affect scores, with this selector.
    pub fn defaults(selector: &LabelSelector) -> Vec<Self> {
        let default = |(key, max_skew): (&str, i64)| Self {
            max_skew,
            topology_key: key.to_owned(),
            selector: Some(selector.clone()),
            min_domains: 1,
            honors_affinity: true,
            honors_taints: false,
            is_required: false,
        };
        DEFAULTS.into_iter().map(default).collect()
    }

    /// Returns whether the constraint's selector selects a pod with these labels.
    pub fn selects(&self, labels: &LabelMap) -> bool {
        let selector = self.selector.as_ref();
        selector.is_some_and(|selector| selector.matches(labels))
    }

    /// The selector of the existing pods that count. As in the reference an empty selector counts
    /// none of them, although it selects the pod itself.
    pub fn counted(&self) -> Option<&LabelSelector> {
        self.selector
            .as_ref()
            .filter(|selector| !selector.is_empty())
    }
}

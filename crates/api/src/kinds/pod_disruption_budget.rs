//! PodDisruptionBudgets: limits for the pods that evictions may take away at the same time.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use crate::{
    IntOrString,
    meta::{Condition, Time},
    names,
    object::{Object, Scope, json_conversions},
    policy::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus},
    selector::{FieldSelectable, LabelSelector},
    strategy::{Strategy, Subresource},
    table::{Column, TableRow, always, created, integer},
    validation::{ErrorList, FieldPath, Validate, conditions, metadata, workload},
};

/// The type of the condition that evictions depend on.
const DISRUPTION_ALLOWED: &str = "DisruptionAllowed";
/// The value of `unhealthyPodEvictionPolicy` with which pods that are not ready can always be
/// evicted.
pub const ALWAYS_ALLOW: &str = "AlwaysAllow";
const POLICIES: [&str; 2] = [ALWAYS_ALLOW, "IfHealthyBudget"];
/// The text of an absent limit.
const ABSENT: &str = "N/A";

/// The state of the condition `DisruptionAllowed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisruptionState {
    /// The status says how many disruptions are allowed.
    Counted,
    /// The status could not be computed, for this reason.
    SyncFailed(String),
}

/// Returns true if the budget selects pods with these labels. A budget without a selector selects
/// no pod, one with an empty selector every pod of its namespace.
pub fn selects_labels(
    budget: &PodDisruptionBudget,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        LabelSelector::from(selector).matches(labels.unwrap_or(&BTreeMap::new()))
    })
}

/// Sets the condition `DisruptionAllowed` by the other fields of the status (source:
/// `UpdateDisruptionAllowedCondition` of `component-helpers`). The time of the last transition
/// changes only with the condition's status.
pub fn set_disruption_allowed(
    status: &mut PodDisruptionBudgetStatus,
    state: &DisruptionState,
    now: Timestamp,
) {
    let (allowed, reason, message) = match state {
        DisruptionState::SyncFailed(why) => ("False", "SyncFailed", why.as_str()),
        DisruptionState::Counted if status.disruptions_allowed > Some(0) => {
            ("True", "SufficientPods", "")
        }
        DisruptionState::Counted => ("False", "InsufficientPods", ""),
    };
    let mut condition = Condition {
        type_: DISRUPTION_ALLOWED.to_owned(),
        status: allowed.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: status.observed_generation,
        last_transition_time: Time(now),
    };
    let conditions = status.conditions.get_or_insert_default();
    let mut present = conditions.iter_mut();
    match present.find(|present| present.type_ == condition.type_) {
        None => conditions.push(condition),
        Some(present) => {
            if present.status == condition.status {
                condition.last_transition_time = present.last_transition_time.clone();
            }
            *present = condition;
        }
    }
}

/// The condition `DisruptionAllowed`.
pub fn disruption_allowed(status: &PodDisruptionBudgetStatus) -> Option<&Condition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == DISRUPTION_ALLOWED)
}

/// The cause, if the condition says that the status could not be computed.
pub fn sync_failure(status: &PodDisruptionBudgetStatus) -> Option<&str> {
    disruption_allowed(status)
        .filter(|condition| condition.status == "False" && condition.reason == "SyncFailed")
        .map(|condition| condition.message.as_str())
}

impl Object for PodDisruptionBudget {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "poddisruptionbudget";
    const SHORT_NAMES: &'static [&'static str] = &["pdb"];

    json_conversions!();
}

impl FieldSelectable for PodDisruptionBudget {}

impl Validate for PodDisruptionBudget {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if let Some(status) = &self.status {
            validate_status(&FieldPath::new("status"), status, &mut errors);
        }
        errors
    }
}

fn validate_spec(path: &FieldPath, spec: &PodDisruptionBudgetSpec, errors: &mut ErrorList) {
    let PodDisruptionBudgetSpec {
        max_unavailable,
        min_available,
        selector,
        unhealthy_pod_eviction_policy: policy,
    } = spec;
    if min_available.is_some() && max_unavailable.is_some() {
        let detail = "minAvailable and maxUnavailable cannot be both set";
        errors.invalid(path, json!(spec), detail);
    }
    for (field, limit) in [
        ("minAvailable", min_available),
        ("maxUnavailable", max_unavailable),
    ] {
        if let Some(limit) = limit {
            workload::int_or_percent(&path.child(field), limit, errors);
            workload::at_most_100_percent(&path.child(field), limit, errors);
        }
    }
    if let Some(selector) = selector {
        workload::label_selector(&path.child("selector"), selector, errors);
    }
    if let Some(policy) = policy
        .as_deref()
        .filter(|policy| !POLICIES.contains(policy))
    {
        let path = path.child("unhealthyPodEvictionPolicy");
        errors.not_supported(&path, policy, &POLICIES);
    }
}

fn validate_status(path: &FieldPath, status: &PodDisruptionBudgetStatus, errors: &mut ErrorList) {
    let PodDisruptionBudgetStatus {
        conditions,
        current_healthy,
        desired_healthy,
        disrupted_pods: _,
        disruptions_allowed,
        expected_pods,
        observed_generation: _,
    } = status;
    let path_of_conditions = path.child("conditions");
    conditions::validate(
        &path_of_conditions,
        conditions.as_deref().unwrap_or_default(),
        errors,
    );
    for (field, number) in [
        ("disruptionsAllowed", disruptions_allowed),
        ("currentHealthy", current_healthy),
        ("desiredHealthy", desired_healthy),
        ("expectedPods", expected_pods),
    ] {
        workload::non_negative(&path.child(field), *number, errors);
    }
}

impl TableRow for PodDisruptionBudget {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("MIN AVAILABLE"),
        always("MAX UNAVAILABLE"),
        integer("ALLOWED DISRUPTIONS"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.as_ref();
        let limit = |limit: Option<&IntOrString>| match limit {
            None => ABSENT.to_owned(),
            Some(IntOrString::Int(number)) => number.to_string(),
            Some(IntOrString::String(text)) => text.clone(),
        };
        let status = self.status.as_ref();
        vec![
            self.name().into(),
            limit(spec.and_then(|spec| spec.min_available.as_ref())),
            limit(spec.and_then(|spec| spec.max_unavailable.as_ref())),
            status
                .and_then(|status| status.disruptions_allowed)
                .unwrap_or_default()
                .to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for PodDisruptionBudget {
    const SERVICE: &'static str = "podplane.policy.v1.PodDisruptionBudgetService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const UNCONDITIONAL_UPDATE: bool = false;

    fn prepare_for_create(&mut self) {
        // The numbers are written also where they are 0.
        self.status = Some(PodDisruptionBudgetStatus {
            current_healthy: Some(0),
            desired_healthy: Some(0),
            disruptions_allowed: Some(0),
            expected_pods: Some(0),
            ..PodDisruptionBudgetStatus::default()
        });
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }

    fn first_generation() -> Option<i64> {
        Some(1)
    }

    fn spec_differs(&self, old: &Self) -> bool {
        self.spec != old.spec
    }
}

#[cfg(test)]
mod tests;

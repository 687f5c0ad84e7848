//! The policies of a Job on failed pods and on success.

use podplane_api::{
    Object as _,
    batch::{PodFailurePolicy, PodFailurePolicyRule, SuccessPolicy},
    core::{ContainerStatus, Pod},
};

use super::indexes::Indexes;

/// The consequence of a pod's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FailureVerdict {
    /// It counts towards the limits.
    Count,
    /// It does not count.
    Ignore,
    /// The index of the pod has failed.
    FailIndex,
    /// The Job has failed, for this reason.
    FailJob(String),
}

/// Judges a failed pod by the first rule that matches it.
pub(super) fn judge(policy: Option<&PodFailurePolicy>, pod: &Pod) -> FailureVerdict {
    let rules = policy.into_iter().flat_map(|policy| &policy.rules);
    for (number, rule) in rules.enumerate() {
        let Some(found) = matching(rule, pod) else {
            continue;
        };
        return match rule.action.as_str() {
            "Ignore" => FailureVerdict::Ignore,
            "FailIndex" => FailureVerdict::FailIndex,
            "FailJob" => {
                FailureVerdict::FailJob(format!("{found} matching FailJob rule at index {number}"))
            }
            _ => FailureVerdict::Count,
        };
    }
    FailureVerdict::Count
}

/// Describes the fact of the pod that the rule matches.
fn matching(rule: &PodFailurePolicyRule, pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if let Some(codes) = &rule.on_exit_codes {
        let containers = status.container_statuses.iter().flatten();
        let containers = containers.chain(status.init_container_statuses.iter().flatten());
        let is_meant = |container: &&ContainerStatus| {
            let name = codes.container_name.as_ref();
            name.is_none_or(|name| *name == container.name)
        };
        return containers.filter(is_meant).find_map(|container| {
            let code = container.state.as_ref()?.terminated.as_ref()?.exit_code;
            let is_listed = codes.values.contains(&code);
            let is_match = code != 0 && is_listed == (codes.operator == "In");
            is_match.then(|| {
                format!(
                    "Container {} for pod {} failed with exit code {code}",
                    container.name,
                    pod.key()
                )
            })
        });
    }
    let patterns = rule.on_pod_conditions.iter().flatten();
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions.find(|condition| {
        let mut patterns = patterns.clone();
        patterns.any(|wanted| {
            wanted.type_ == condition.type_
                && wanted.status.as_deref().unwrap_or("True") == condition.status
        })
    })?;
    Some(format!("Pod {} has condition {}", pod.key(), found.type_))
}

/// The number of the first rule of success that the indexes meet.
pub(super) fn success(
    policy: Option<&SuccessPolicy>,
    succeeded: &Indexes,
    completions: i32,
) -> Option<usize> {
    let mut rules = policy.into_iter().flat_map(|policy| &policy.rules);
    rules.position(|rule| {
        let wanted = rule.succeeded_indexes.as_deref();
        let wanted = wanted.map(|wanted| Indexes::parse(wanted, completions));
        let counted = match &wanted {
            None => succeeded.count(),
            Some(wanted) => {
                let met = wanted.0.intersection(&succeeded.0).count();
                i32::try_from(met).unwrap_or(i32::MAX)
            }
        };
        match (rule.succeeded_count, &wanted) {
            (Some(count), _) => counted >= count,
            (None, Some(wanted)) => counted >= wanted.count(),
            (None, None) => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(code: i32, condition: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "a"},
            "status": {
                "phase": "Failed",
                "conditions": [{"type": condition, "status": "True"}],
                "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}}}],
            },
        }))
        .unwrap()
    }

    fn rules(rules: Value) -> PodFailurePolicy {
        serde_json::from_value(json!({"rules": rules})).unwrap()
    }

    #[test]
    fn first_matching_rule_decides() {
        let policy = rules(json!([
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}},
            {"action": "FailIndex", "onExitCodes": {"operator": "NotIn", "values": [1, 42]}},
            {"action": "Count", "onExitCodes": {"containerName": "d", "operator": "In", "values": [1]}},
        ]));
        let judge = |code, condition| judge(Some(&policy), &pod(code, condition));
        assert_eq!(judge(42, "DisruptionTarget"), FailureVerdict::Ignore);
        let message =
            "Container c for pod ns/a failed with exit code 42 matching FailJob rule at index 1";
        assert_eq!(judge(42, "x"), FailureVerdict::FailJob(message.into()));
        assert_eq!(judge(7, "x"), FailureVerdict::FailIndex);
        assert_eq!(judge(1, "x"), FailureVerdict::Count);
        assert_eq!(judge(0, "x"), FailureVerdict::Count);
    }

    #[test]
    fn success_needs_a_rule_that_is_met() {
        let policy: SuccessPolicy = serde_json::from_value(json!({"rules": [
            {"succeededIndexes": "0,2"},
            {"succeededIndexes": "1-3", "succeededCount": 2},
            {"succeededCount": 4},
        ]}))
        .unwrap();
        let met = |text: &str| success(Some(&policy), &Indexes::parse(text, 9), 9);
        for (succeeded, want) in [
            ("", None),
            ("0,1", None),
            ("0,2", Some(0)),
            ("1,3", Some(1)),
            ("0,5-7", Some(2)),
        ] {
            assert_eq!(met(succeeded), want, "{succeeded}");
        }
        assert_eq!(success(None, &Indexes::parse("0-8", 9), 9), None);
    }
}

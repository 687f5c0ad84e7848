//! The decision about a node that is silent, or that is heard of again. Pure.

use std::{sync::Arc, time::Duration};

use podplane_api::{
    Object as _,
    core::{Node, NodeCondition, NodeStatus, Pod, Taint},
    jiff::{SignedDuration, Timestamp},
    meta::Time,
    taints::{UNREACHABLE, tolerates},
};

/// Conditions that the kubelet reports.
const ITS_WORD: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];
const NO_SCHEDULE: &str = "NoSchedule";
const NO_EXECUTE: &str = "NoExecute";

/// The writes and evictions to do.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LifecyclePlan {
    /// The new status, if it differs.
    pub(super) status: Option<NodeStatus>,
    /// The new taints, if they differ.
    pub(super) taints: Option<Option<Vec<Taint>>>,
    /// Pods that no longer tolerate the node's silence.
    pub(super) evicted: Vec<Arc<Pod>>,
    /// The delay until the next pod no longer tolerates it.
    pub(super) again: Option<Duration>,
}

/// A condition of a node.
pub(super) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind)
}

/// Decides about a node with these `pods`. Without `evicting`, a silent node is only closed to new
/// pods.
pub(super) fn plan<'a>(
    node: &Node,
    pods: impl Iterator<Item = &'a Arc<Pod>>,
    is_silent: bool,
    evicting: bool,
    now: Timestamp,
) -> LifecyclePlan {
    let mut plan = LifecyclePlan {
        status: is_silent.then(|| unknown(node, now)).flatten(),
        ..LifecyclePlan::default()
    };
    let effects: &[&str] = match (is_silent, evicting) {
        (false, _) => &[],
        (true, false) => &[NO_SCHEDULE],
        (true, true) => &[NO_SCHEDULE, NO_EXECUTE],
    };
    let old = node.spec.iter().flat_map(|spec| &spec.taints).flatten();
    let (own, others): (Vec<_>, Vec<_>) = old.cloned().partition(|taint| taint.key == UNREACHABLE);
    let wanted = effects.iter().map(|effect| {
        let kept = own.iter().find(|taint| taint.effect == *effect);
        kept.cloned().unwrap_or_else(|| Taint {
            key: UNREACHABLE.into(),
            effect: (*effect).into(),
            time_added: Some(Time(now)),
            value: None,
        })
    });
    let wanted: Vec<_> = wanted.collect();
    let executes = wanted.iter().find(|taint| taint.effect == NO_EXECUTE);
    if let Some(taint) = executes {
        for pod in pods.filter(|pod| !pod.is_deleting()) {
            match patience(pod, taint, now) {
                None => {}
                Some(Duration::ZERO) => plan.evicted.push(pod.clone()),
                Some(left) => plan.again = Some(plan.again.map_or(left, |again| again.min(left))),
            }
        }
    }
    if own != wanted {
        let taints: Vec<_> = others.into_iter().chain(wanted).collect();
        plan.taints = Some((!taints.is_empty()).then_some(taints));
    }
    plan
}

/// The status of a silent node: the kubelet's conditions are Unknown. `None` if they are already.
fn unknown(node: &Node, now: Timestamp) -> Option<NodeStatus> {
    let mut status = node.status.clone()?;
    let mut changed = false;
    for condition in status.conditions.iter_mut().flatten() {
        if ITS_WORD.contains(&condition.type_.as_str()) && condition.status != "Unknown" {
            condition.status = "Unknown".into();
            condition.reason = Some("NodeStatusUnknown".into());
            condition.message = Some("Kubelet stopped posting node status.".into());
            condition.last_transition_time = Some(Time(now));
            changed = true;
        }
    }
    changed.then_some(status)
}

/// The time for which the pod still tolerates the taint; `None` if for ever.
fn patience(pod: &Pod, taint: &Taint, now: Timestamp) -> Option<Duration> {
    let tolerations = pod.spec.iter().flat_map(|spec| &spec.tolerations).flatten();
    let matching: Vec<_> = tolerations
        .filter(|toleration| tolerates(toleration, taint))
        .collect();
    if matching.is_empty() {
        return Some(Duration::ZERO);
    }
    // The shortest of the limited ones.
    let seconds = matching
        .iter()
        .filter_map(|one| one.toleration_seconds)
        .min()?;
    let since = taint.time_added.as_ref().map_or(now, |time| time.0);
    // The API server accepts any number of seconds.
    let left = SignedDuration::from_secs(seconds).saturating_sub(now.duration_since(since));
    Some(left.try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use podplane_api::core::{NodeSpec, PodSpec, Toleration};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node() -> Node {
        let condition = |kind: &str, value: &str| NodeCondition {
            type_: kind.into(),
            status: value.into(),
            ..NodeCondition::default()
        };
        Node {
            spec: Some(NodeSpec {
                taints: Some(vec![Taint {
                    key: "theirs".into(),
                    effect: NO_SCHEDULE.into(),
                    ..Taint::default()
                }]),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                conditions: Some(vec![
                    condition("Ready", "True"),
                    condition("NetworkUnavailable", "False"),
                ]),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    fn pod(tolerations: &[Option<i64>]) -> Arc<Pod> {
        let tolerations = tolerations.iter().map(|seconds| Toleration {
            key: Some(UNREACHABLE.into()),
            operator: Some("Exists".into()),
            toleration_seconds: *seconds,
            ..Toleration::default()
        });
        Arc::new(Pod {
            spec: Some(PodSpec {
                tolerations: Some(tolerations.collect()),
                ..PodSpec::default()
            }),
            ..Pod::default()
        })
    }

    fn keys(plan: &LifecyclePlan) -> Vec<(String, String)> {
        let taints = plan.taints.iter().flatten().flatten();
        taints
            .map(|taint| (taint.key.clone(), taint.effect.clone()))
            .collect()
    }

    /// The node after the plan was carried out.
    fn after(mut node: Node, plan: &LifecyclePlan) -> Node {
        if let Some(status) = &plan.status {
            node.status = Some(status.clone());
        }
        if let Some(taints) = &plan.taints {
            node.spec.get_or_insert_default().taints = taints.clone();
        }
        node
    }

    #[test]
    fn taints_a_silent_node_once_and_untaints_it_when_heard_of() {
        let first = plan(&node(), [].iter(), true, true, at(100));
        let ready = first.status.as_ref().unwrap().conditions.as_ref().unwrap();
        assert_eq!(
            (ready[0].status.as_str(), ready[0].reason.as_deref()),
            ("Unknown", Some("NodeStatusUnknown"))
        );
        assert_eq!(ready[1].status, "False", "not the kubelet's condition");
        let pair = |key: &str, effect: &str| (key.to_owned(), effect.to_owned());
        let all = [
            pair("theirs", NO_SCHEDULE),
            pair(UNREACHABLE, NO_SCHEDULE),
            pair(UNREACHABLE, NO_EXECUTE),
        ];
        assert_eq!(keys(&first), all);

        let marked = after(node(), &first);
        assert_eq!(
            plan(&marked, [].iter(), true, true, at(200)),
            LifecyclePlan::default()
        );

        let back = plan(&marked, [].iter(), false, true, at(300));
        assert_eq!(
            back.status, None,
            "the kubelet reports its conditions itself"
        );
        assert_eq!(keys(&back), [pair("theirs", NO_SCHEDULE)]);
    }

    #[test]
    fn evicts_pods_when_their_toleration_ends() {
        let (at_once, soon, twice) = (pod(&[]), pod(&[Some(30)]), pod(&[None, Some(10)]));
        let pods = [at_once.clone(), soon.clone(), twice.clone(), pod(&[None])];
        let first = plan(&node(), pods.iter(), true, true, at(100));
        assert_eq!(first.evicted, std::slice::from_ref(&at_once));
        assert_eq!(first.again, Some(Duration::from_secs(10)));

        let marked = after(node(), &first);
        let later = plan(&marked, pods.iter(), true, true, at(110));
        assert_eq!(later.evicted, [at_once.clone(), twice.clone()]);
        assert_eq!(later.again, Some(Duration::from_secs(20)));
        let last = plan(&marked, pods.iter(), true, true, at(500));
        assert_eq!(last.evicted, [at_once, soon, twice]);
        assert_eq!(last.again, None);
    }

    #[test]
    fn accepts_any_toleration_seconds() {
        let (never, long_ago) = (pod(&[Some(i64::MAX)]), pod(&[Some(i64::MIN)]));
        let pods = [never, long_ago.clone()];
        let first = plan(&node(), pods.iter(), true, true, at(100));
        assert_eq!(first.evicted, std::slice::from_ref(&long_ago));
        assert!(first.again > Some(Duration::from_secs(1 << 60)));
        let marked = after(node(), &first);
        let later = plan(&marked, pods.iter(), true, true, at(500));
        assert_eq!(later.evicted, [long_ago]);
    }

    #[test]
    fn evicts_no_pod_while_all_nodes_are_silent() {
        let alone = plan(&node(), [pod(&[])].iter(), true, false, at(100));
        assert_eq!(alone.evicted, []);
        let effects: Vec<_> = keys(&alone).into_iter().map(|(_, effect)| effect).collect();
        assert_eq!(effects, [NO_SCHEDULE, NO_SCHEDULE]);
    }
}

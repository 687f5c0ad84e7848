//! The explanation of a pod from lists of a cluster's objects: the answer of [`super`], where no
//! scheduler of ours runs.

use std::{sync::Arc, time::Duration};

use podplane_api::{
    ObjectKey,
    apps::ReplicaSet,
    core::{Namespace, Node, Service},
    jiff::Timestamp,
    policy::PodDisruptionBudget,
};
use podplane_proto::scheduler::{ExplainPodResponse, PodState};

use super::{hypothetical, response};
use crate::{config::PlacementPolicy, pod::PodInfo, scheduler::Scheduler};

/// The time of everything that happens to a snapshot.
const NOW: Duration = Duration::ZERO;

/// The objects of a cluster that decide on the place of a pod.
#[derive(Debug, Default)]
pub struct ClusterSnapshot {
    /// All nodes.
    pub nodes: Vec<Node>,
    /// All pods.
    pub pods: Vec<PodInfo>,
    /// All namespaces.
    pub namespaces: Vec<Namespace>,
    /// All services.
    pub services: Vec<Service>,
    /// All ReplicaSets.
    pub replica_sets: Vec<ReplicaSet>,
    /// All disruption budgets.
    pub budgets: Vec<PodDisruptionBudget>,
}

/// The explanation of a pod from a snapshot.
#[derive(Debug)]
pub struct SnapshotExplanation {
    /// The explanation. It has no attempts and no decision: a snapshot does not have them.
    pub response: ExplainPodResponse,
    /// The rules and settings that may decide on the place of the pod, and were not examined.
    pub not_considered: Vec<String>,
}

impl ClusterSnapshot {
    /// Explains the pod of the snapshot with that key; `None` if there is none. A pod that waits is
    /// explained as if it were tried now, whichever scheduler it is for.
    #[must_use]
    pub fn explain(self, key: &ObjectKey, policy: PlacementPolicy) -> Option<SnapshotExplanation> {
        let pod = self.pods.iter().find(|pod| pod.key == *key)?.clone();
        let (pod, not_considered) = without_claims(pod);
        let mut scheduler = self.scheduler_of(&pod, policy);
        let mut answer = response(&pod, &mut scheduler, NOW, Timestamp::UNIX_EPOCH);
        match answer.state() {
            // In a queue of ours it has not been tried.
            PodState::Queued | PodState::BackingOff | PodState::Unschedulable => {
                answer = hypothetical::response(&pod, &mut scheduler);
                answer.set_state(match answer.node_name.as_str() {
                    "" => PodState::Unschedulable,
                    _ => PodState::Queued,
                });
            }
            PodState::Bound | PodState::Assumed => {
                answer.message = format!(
                    "on {}; its scores at the decision are known to no one but its scheduler",
                    answer.node_name
                );
            }
            PodState::Unspecified | PodState::Unknown | PodState::Hypothetical => {}
        }
        answer.pod_uid = pod.uid.to_string();
        Some(SnapshotExplanation {
            response: answer,
            not_considered,
        })
    }

    /// Explains a pod that need not exist.
    #[must_use]
    pub fn explain_hypothetical(
        self,
        pod: PodInfo,
        policy: PlacementPolicy,
    ) -> SnapshotExplanation {
        let (pod, not_considered) = without_claims(pod);
        let mut scheduler = self.scheduler_of(&pod, policy);
        SnapshotExplanation {
            response: hypothetical::response(&pod, &mut scheduler),
            not_considered,
        }
    }

    /// A scheduler for pods like this one, which has observed the cluster and attempted nothing.
    fn scheduler_of(self, pod: &PodInfo, policy: PlacementPolicy) -> Scheduler {
        let Self {
            nodes,
            pods,
            namespaces,
            services,
            replica_sets,
            budgets,
        } = self;
        let mut scheduler = Scheduler::new(PlacementPolicy {
            scheduler_name: pod.scheduler_name().to_owned(),
            ..policy
        });
        for namespace in &namespaces {
            scheduler.apply_namespace(namespace, NOW);
        }
        for budget in &budgets {
            scheduler.apply_budget(budget);
        }
        for service in &services {
            scheduler.apply_service(service);
        }
        for set in &replica_sets {
            scheduler.apply_replica_set(set);
        }
        for node in nodes {
            scheduler.apply_node(Arc::new(node), NOW);
        }
        for other in pods {
            scheduler.apply_pod(Arc::new(other), NOW);
        }
        scheduler
    }
}

/// The pod without the volumes and claims that our scheduler does not place, so that the other
/// rules are seen; and what was not considered. Another scheduler may well place it.
fn without_claims(mut pod: PodInfo) -> (PodInfo, Vec<String>) {
    let mut not_considered = vec![format!(
        "the configuration of the scheduler {:?}, and rules that podplane's does not have: volumes, resource claims, extenders, other plugins",
        pod.scheduler_name()
    )];
    if let Some(reason) = Arc::make_mut(&mut pod.needs).unsupported.take() {
        not_considered.push(format!(
            "the pod's volume claims and resource claims, for which podplane's scheduler would refuse it: {reason}"
        ));
    }
    (pod, not_considered)
}

#[cfg(test)]
mod tests {
    use podplane_test_support::{NodeBuilder, PodBuilder};
    use serde_json::json;

    use super::*;
    use crate::{config::IpPolicy, testing::AsInfo as _};

    fn node(name: &str, block: &str, ips: u32) -> Node {
        NodeBuilder::new(name).block(block, ips).node()
    }

    fn explained(snapshot: ClusterSnapshot, name: &str) -> SnapshotExplanation {
        let key = ObjectKey::new("default", name);
        snapshot.explain(&key, IpPolicy::Resource.into()).unwrap()
    }

    fn snapshot(pods: Vec<PodBuilder>) -> ClusterSnapshot {
        let pods = pods.into_iter();
        ClusterSnapshot {
            nodes: vec![node("a", "10.0.0.0/30", 1), node("b", "10.0.0.4/30", 1)],
            pods: pods.map(|pod| (*pod.info()).clone()).collect(),
            ..ClusterSnapshot::default()
        }
    }

    #[test]
    fn waiting_pods_of_any_scheduler_are_explained() {
        let of = |name: &str| {
            let pod = PodBuilder::new(name).set("/metadata/uid", json!(name));
            pod.set("/spec/schedulerName", json!("stock"))
        };
        let found = explained(snapshot(vec![of("on-a").on("a"), of("waits")]), "waits");
        assert_eq!(found.response.state(), PodState::Queued);
        assert_eq!(found.response.node_name, "b");
        assert_eq!(found.response.verdicts[0].plugin, "PodIPs");
        assert_eq!(found.response.pod_uid, "waits");
        assert!(
            found.not_considered[0].contains("\"stock\""),
            "{:?}",
            found.not_considered
        );

        let full = vec![of("on-a").on("a"), of("on-b").on("b"), of("waits")];
        let found = explained(snapshot(full), "waits").response;
        assert_eq!(found.state(), PodState::Unschedulable);
        assert_eq!(
            found.message,
            "0/2 nodes are available: 2 Insufficient pod IPs."
        );
        assert_eq!(found.suggestions.len(), 1);
    }

    #[test]
    fn claims_are_named_and_the_other_rules_examined() {
        let volume = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}]);
        let pod = PodBuilder::new("db-0").set("/spec/volumes", volume);
        let found = explained(snapshot(vec![pod]), "db-0");
        assert_eq!(found.response.state(), PodState::Queued);
        assert!(
            found.not_considered[1].contains("data-db-0"),
            "{:?}",
            found.not_considered
        );
    }

    #[test]
    fn a_bound_pod_has_its_node_examined() {
        let found = explained(snapshot(vec![PodBuilder::new("p").on("a")]), "p").response;
        assert_eq!(found.state(), PodState::Bound);
        assert_eq!(found.scores[0].node_name, "a");
        assert!(found.message.starts_with("on a;"), "{}", found.message);
        let key = ObjectKey::new("default", "nobody");
        let none = snapshot(Vec::new()).explain(&key, IpPolicy::Resource.into());
        assert!(none.is_none());
    }
}

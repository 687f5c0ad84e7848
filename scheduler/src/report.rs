//! Reports: an event for each attempt, and the PodScheduled condition of waiting pods.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use podplane_api::{
    Object as _, ObjectKey,
    core::{Pod, PodCondition},
    jiff::Timestamp,
    meta::Time,
};
use podplane_client::{ApiError, Client, EventRecorder, WorkQueue, events::EventType};
use podplane_host::clock;

use crate::{
    names::{NodeName, PodUid},
    pod::PodInfo,
};

/// The reason of the condition when no node fits the pod.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// The reason of the condition after an error.
pub const SCHEDULER_ERROR: &str = "SchedulerError";

const CONDITION: &str = "PodScheduled";
/// The most conditions written at once.
const WORKERS: usize = 4;

/// Writes events and conditions without delaying the scheduler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reporter {
    client: Client,
    events: EventRecorder,
    shared: Arc<ReporterState>,
}

/// The latest verdict of each pod, so that an older one never overwrites it.
#[derive(Debug, Default)]
struct ReporterState {
    queue: WorkQueue<ObjectKey>,
    verdicts: Mutex<BTreeMap<ObjectKey, PodVerdict>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PodVerdict {
    uid: PodUid,
    /// The reason and the message of the condition; `None` to leave it as it is.
    condition: Option<(&'static str, String)>,
    /// The node on which the pod is to fit once others have left.
    nominated: Option<NodeName>,
}

impl Reporter {
    /// Creates a reporter; its [`Reporter::run`] does the writing.
    pub fn new(client: Client, events: EventRecorder) -> Self {
        Self {
            client,
            events,
            shared: Arc::default(),
        }
    }

    /// Reports that the pod was bound. The API server writes the condition.
    pub fn scheduled(&self, pod: &PodInfo, node: &NodeName) {
        self.verdicts().remove(&pod.key);
        let message = format!("Successfully assigned {} to {node}", pod.key);
        self.events.record_about(
            pod.reference(),
            EventType::Normal,
            "Scheduled",
            "Binding",
            message,
        );
    }

    /// Reports that the pod is evicted in favour of another.
    pub fn preempted(&self, victim: &PodInfo, by: &PodInfo, node: &NodeName) {
        self.events.record_about(
            victim.reference(),
            EventType::Normal,
            "Preempted",
            "Preempting",
            format!("Preempted by pod {} on node {node}", by.uid),
        );
    }

    /// Reports that the attempt failed, and the node that is nominated for the pod.
    pub fn unscheduled(
        &self,
        pod: &PodInfo,
        reason: &'static str,
        message: String,
        nominated: Option<NodeName>,
    ) {
        let (pod, key) = (pod, pod.key.clone());
        self.events.record_about(
            pod.reference(),
            EventType::Warning,
            "FailedScheduling",
            "Scheduling",
            message.clone(),
        );
        let verdict = PodVerdict {
            uid: pod.uid.clone(),
            condition: Some((reason, message)),
            nominated,
        };
        self.verdicts().insert(key.clone(), verdict);
        self.shared.queue.add(key);
    }

    /// Reports that no node is nominated for the pod any more.
    pub fn not_nominated(&self, pod: &PodInfo) {
        let mut verdicts = self.verdicts();
        match verdicts.get_mut(&pod.key) {
            Some(verdict) if verdict.uid == pod.uid => verdict.nominated = None,
            _ => {
                let verdict = PodVerdict {
                    uid: pod.uid.clone(),
                    condition: None,
                    nominated: None,
                };
                verdicts.insert(pod.key.clone(), verdict);
            }
        }
        drop(verdicts);
        self.shared.queue.add(pod.key.clone());
    }

    /// Writes conditions, for ever. The next scheduler computes again those that were not written
    /// when this is dropped.
    pub async fn run(self) {
        let workers = (0..WORKERS).map(|_| self.work());
        futures::future::join_all(workers).await;
    }

    async fn work(&self) {
        loop {
            let key = self.shared.queue.get().await;
            let verdict = self.verdicts().get(&key).cloned();
            let written = match &verdict {
                Some(verdict) => self.write(&key, verdict).await,
                None => Ok(()),
            };
            match written {
                Err(error) if error.is_conflict() || error.is_unavailable() => {
                    self.shared.queue.add_rate_limited(key.clone());
                }
                written => {
                    if let Err(error) = written {
                        tracing::warn!(pod = %key, %error, "failed to write condition");
                    }
                    self.shared.queue.forget(&key);
                    let mut verdicts = self.verdicts();
                    // Unless there is a newer verdict by now.
                    if verdicts.get(&key) == verdict.as_ref() {
                        verdicts.remove(&key);
                    }
                }
            }
            self.shared.queue.done(&key);
        }
    }

    async fn write(&self, key: &ObjectKey, verdict: &PodVerdict) -> Result<(), ApiError> {
        let pods = self.client.namespaced::<Pod>(key.namespace.as_str());
        let pod = match pods.get(&key.name).await {
            Err(error) if error.is_not_found() => return Ok(()),
            pod => pod?,
        };
        match with_condition(pod, verdict, clock::timestamp()) {
            Some(pod) => pods.update_status(&pod).await.map(|_| ()),
            None => Ok(()),
        }
    }

    fn verdicts(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, PodVerdict>> {
        // The map is consistent whenever the lock is free, so a poisoned lock can be used.
        let verdicts = self.shared.verdicts.lock();
        verdicts.unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pod with the verdict as its condition, or `None` if there is nothing to write: the condition
/// is unchanged, the pod has a node by now, or it is another pod.
fn with_condition(mut pod: Pod, verdict: &PodVerdict, now: Timestamp) -> Option<Pod> {
    let placed = pod.spec.as_ref().and_then(|s| s.node_name.as_deref());
    if pod.uid() != verdict.uid.as_str() || placed.is_some_and(|node| !node.is_empty()) {
        return None;
    }
    let status = pod.status.get_or_insert_default();
    let nominated = verdict.nominated.as_ref().map(ToString::to_string);
    let is_nominated = status.nominated_node_name == nominated;
    status.nominated_node_name = nominated;
    let Some((reason, message)) = &verdict.condition else {
        return (!is_nominated).then_some(pod);
    };
    let conditions = status.conditions.get_or_insert_default();
    let known = conditions.iter().position(|c| c.type_ == CONDITION);
    let old = known.and_then(|at| conditions.get(at)).cloned();
    let old = old.unwrap_or_default();
    let was_false = old.status == "False";
    let new = PodCondition {
        type_: CONDITION.to_owned(),
        status: "False".to_owned(),
        reason: Some((*reason).to_owned()),
        message: Some(message.clone()),
        last_transition_time: match &old.last_transition_time {
            Some(since) if was_false => Some(since.clone()),
            _ => Some(Time(now)),
        },
        ..old.clone()
    };
    if new == old && is_nominated {
        return None;
    }
    match known.and_then(|at| conditions.get_mut(at)) {
        Some(condition) => *condition = new,
        None => conditions.push(new),
    }
    Some(pod)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::PodBuilder;

    fn verdict(message: &str) -> PodVerdict {
        PodVerdict {
            uid: "p".into(),
            condition: Some((UNSCHEDULABLE, message.to_owned())),
            nominated: None,
        }
    }

    fn write(pod: &Pod, message: &str, second: i64) -> Option<Pod> {
        let now = Timestamp::from_second(second).unwrap();
        with_condition(pod.clone(), &verdict(message), now)
    }

    #[test]
    fn writes_a_condition_only_if_it_changes() {
        let pod = PodBuilder::new("p").pod();
        let first = write(&pod, "full", 1).unwrap();
        let conditions = first.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let [condition] = conditions.as_slice() else {
            panic!("{conditions:?}");
        };
        assert_eq!(condition.type_, "PodScheduled");
        assert_eq!(condition.status, "False");
        assert_eq!(condition.reason.as_deref(), Some("Unschedulable"));
        assert_eq!(condition.message.as_deref(), Some("full"));
        assert_eq!(write(&first, "full", 2), None);

        let second = write(&first, "fuller", 3).unwrap();
        let conditions = second.status.unwrap().conditions.unwrap();
        assert_eq!(conditions.len(), 1);
        let since = conditions[0].last_transition_time.clone();
        let since = since.unwrap().0.as_second();
        assert_eq!(since, 1, "the status stayed False");
    }

    #[test]
    fn writes_the_nominated_node_with_the_condition() {
        let pod = PodBuilder::new("p").pod();
        let first = write(&pod, "full", 1).unwrap();
        let nominated = PodVerdict {
            nominated: Some("n".into()),
            ..verdict("full")
        };
        let now = Timestamp::from_second(2).unwrap();
        let second = with_condition(first, &nominated, now).unwrap();
        let name = |pod: &Pod| pod.status.as_ref()?.nominated_node_name.clone();
        assert_eq!(name(&second).as_deref(), Some("n"));
        assert_eq!(with_condition(second.clone(), &nominated, now), None);
        assert_eq!(name(&write(&second, "full", 3).unwrap()), None);

        // The end of a nomination leaves the condition.
        let ended = PodVerdict {
            condition: None,
            ..verdict("")
        };
        let third = with_condition(second.clone(), &ended, now).unwrap();
        assert_eq!(name(&third), None);
        let conditions = |pod: &Pod| pod.status.clone().unwrap().conditions;
        assert_eq!(conditions(&third), conditions(&second));
        assert_eq!(with_condition(third, &ended, now), None);
    }

    #[test]
    fn writes_no_condition_for_bound_or_recreated_pods() {
        let pod = PodBuilder::new("p");
        assert_eq!(write(&pod.clone().on("n").pod(), "full", 1), None);
        let another = pod.set("/metadata/uid", "q".into());
        assert_eq!(write(&another.pod(), "full", 1), None);
    }
}

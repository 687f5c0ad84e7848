use std::{collections::BTreeMap, sync::Arc};

use podplane_api::{
    Object as _,
    batch::{Job, JobStatus},
    core::Pod,
    jiff::{SignedDuration, Timestamp},
    meta::Time,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    plan::{JobInput, JobPlan, plan},
    pods::{INDEX, INDEX_FAILURES, build, is_tracked, untracked},
};

const START: i64 = 1_000_000;

/// A Job with its pods, driven by plans; the writes of each step happen at once.
struct Simulation {
    job: Job,
    pods: BTreeMap<String, Arc<Pod>>,
    now: Timestamp,
    made: usize,
    events: Vec<&'static str>,
}

impl Simulation {
    fn new(spec: Value) -> Self {
        let mut job: Job = serde_json::from_value(json!({
            "metadata": {"name": "job", "namespace": "ns", "uid": "job"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}}},
        }))
        .unwrap();
        let mut merged = serde_json::to_value(&job.spec).unwrap();
        for (key, value) in spec.as_object().unwrap() {
            merged[key] = value.clone();
        }
        job.spec = serde_json::from_value(merged).unwrap();
        Self {
            job,
            pods: BTreeMap::new(),
            now: Timestamp::from_second(START).unwrap(),
            made: 0,
            events: Vec::new(),
        }
    }

    fn status(&self) -> JobStatus {
        self.job.status.clone().unwrap_or_default()
    }

    fn plan(&self) -> JobPlan {
        let pods: Vec<_> = self.pods.values().cloned().collect();
        plan(JobInput {
            job: &self.job,
            pods: &pods,
            may_manage: true,
            now: self.now,
        })
    }

    /// Carries out one step; returns whether it changed anything.
    fn step(&mut self) -> bool {
        let plan = self.plan();
        let before = (self.job.status.clone(), self.pods.clone());
        for pod in &plan.release {
            self.change(pod.name(), |pod| *pod = untracked(pod));
        }
        for pod in plan.release.iter().chain(&plan.delete) {
            let now = self.now;
            self.change(pod.name(), |pod| {
                pod.metadata.deletion_timestamp = Some(Time(now))
            });
        }
        let spec = self.job.spec.clone().unwrap();
        for new in plan.create {
            let mut pod = build(&self.job, &spec, new);
            pod.metadata.name = Some(format!("pod-{:03}", self.made));
            pod.metadata.uid = Some(format!("uid-{:03}", self.made));
            self.made += 1;
            self.pods.insert(pod.name().to_owned(), Arc::new(pod));
        }
        self.job.status = Some(plan.status);
        for pod in plan.untrack {
            self.change(pod.name(), |pod| *pod = untracked(pod));
        }
        self.events
            .extend(plan.events.iter().map(|event| event.reason));
        before != (self.job.status.clone(), self.pods.clone())
    }

    /// Steps until nothing changes any more. Deleted pods go when nobody holds them.
    fn settle(&mut self) {
        for _ in 0..50 {
            let changed = self.step();
            let before = self.pods.len();
            self.pods
                .retain(|_, pod| !pod.is_deleting() || is_tracked(pod));
            if !changed && before == self.pods.len() {
                return;
            }
        }
        panic!("does not settle: {:?}", self.status());
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut Pod)) {
        if let Some(pod) = self.pods.get_mut(name) {
            change(Arc::make_mut(pod));
        }
    }

    /// Ends a pod with that code.
    fn exit(&mut self, name: &str, code: i32) {
        let now = self.now;
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        self.change(name, |pod| {
            pod.status = serde_json::from_value(json!({"phase": phase, "containerStatuses": [
                {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                 "state": {"terminated": {"exitCode": code, "finishedAt": now}}}]}))
            .unwrap();
        });
    }

    /// The active pods, by index if they have one.
    fn active(&self) -> Vec<String> {
        let active = self.pods.values().filter(|pod| crate::pods::is_active(pod));
        active.map(|pod| pod.name().to_owned()).collect()
    }

    fn with_index(&self, index: i32) -> String {
        let wanted = index.to_string();
        let mut active = self.pods.values().filter(|pod| crate::pods::is_active(pod));
        let found = active.find(|pod| {
            pod.metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(INDEX))
                == Some(&wanted)
        });
        found.unwrap().name().to_owned()
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
        self.settle();
    }

    /// The types of the conditions that hold, with their reasons.
    fn conditions(&self) -> Vec<(String, String)> {
        let conditions = self.status().conditions.unwrap_or_default();
        let holding = conditions.into_iter().filter(|one| one.status == "True");
        holding
            .map(|one| (one.type_, one.reason.unwrap_or_default()))
            .collect()
    }
}

fn pairs(conditions: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |text: &str| text.to_owned();
    conditions
        .iter()
        .map(|(a, b)| (owned(a), owned(b)))
        .collect()
}

#[test]
fn runs_until_it_has_its_completions() {
    let mut job = Simulation::new(json!({"completions": 3, "parallelism": 2}));
    job.settle();
    assert_eq!(job.active(), ["pod-000", "pod-001"]);
    assert_eq!(job.status().active, Some(2));
    job.exit("pod-000", 0);
    job.settle();
    assert_eq!(job.active(), ["pod-001", "pod-002"]);
    assert_eq!(job.status().succeeded, Some(1));
    job.exit("pod-001", 0);
    job.settle();
    assert_eq!(job.active(), ["pod-002"], "one is missing");
    job.exit("pod-002", 0);
    job.settle();
    let status = job.status();
    assert_eq!(
        (status.succeeded, status.failed, status.active),
        (Some(3), None, None)
    );
    assert_eq!(status.uncounted_terminated_pods, Some(Default::default()));
    assert!(status.completion_time.is_some());
    let reached = "CompletionsReached";
    let want = pairs(&[("SuccessCriteriaMet", reached), ("Complete", reached)]);
    assert_eq!(job.conditions(), want);
    assert_eq!(job.events, ["Completed"]);
    assert!(job.pods.values().all(|pod| !is_tracked(pod)));
}

/// More pods than one step writes end at once: none of them is made again.
#[test]
fn counts_more_pods_than_a_step_writes() {
    for mode in ["NonIndexed", "Indexed"] {
        let mut job = Simulation::new(
            json!({"completions": 600, "parallelism": 600, "completionMode": mode}),
        );
        job.settle();
        for name in job.active() {
            job.exit(&name, 0);
        }
        job.settle();
        assert_eq!(job.made, 600, "{mode}");
        assert_eq!(job.status().succeeded, Some(600), "{mode}");
        assert!(job.pods.values().all(|pod| !is_tracked(pod)), "{mode}");
    }
}

#[test]
fn waits_longer_after_each_failure_and_gives_up_at_the_limit() {
    let mut job = Simulation::new(json!({"completions": 1, "parallelism": 1, "backoffLimit": 2}));
    job.settle();
    for (failures, wait) in [(1, 10), (2, 20)] {
        let pod = job.active().remove(0);
        job.exit(&pod, 1);
        job.settle();
        assert_eq!(job.status().failed, Some(failures));
        assert_eq!(job.plan().wake, Some(SignedDuration::from_secs(wait)));
        job.pass(wait - 1);
        assert_eq!(job.active().len(), 0, "{failures}");
        job.pass(1);
        assert_eq!(job.active().len(), 1, "{failures}");
    }
    let pod = job.active().remove(0);
    job.exit(&pod, 1);
    job.settle();
    let reason = "BackoffLimitExceeded";
    assert_eq!(
        job.conditions(),
        pairs(&[("FailureTarget", reason), ("Failed", reason)])
    );
    assert_eq!(job.status().failed, Some(3));
    assert_eq!(job.status().completion_time, None);
    assert_eq!(job.events, [reason]);
}

#[test]
fn each_index_completes_once() {
    let spec = json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"});
    let mut job = Simulation::new(spec);
    job.settle();
    let pod = job.pods[&job.with_index(2)].clone();
    let pod_spec = pod.spec.as_ref().unwrap();
    assert_eq!(pod_spec.hostname.as_deref(), Some("job-2"));
    let variable = &pod_spec.containers[0].env.as_ref().unwrap()[0];
    assert_eq!(variable.name, "JOB_COMPLETION_INDEX");
    for index in [3, 0, 1] {
        let pod = job.with_index(index);
        job.exit(&pod, 0);
        job.settle();
    }
    assert_eq!(job.status().completed_indexes.as_deref(), Some("0,1,3"));
    assert_eq!(job.active().len(), 1);
    let pod = job.with_index(2);
    job.exit(&pod, 1);
    job.settle();
    job.pass(10);
    let pod = job.with_index(2);
    job.exit(&pod, 0);
    job.settle();
    let status = job.status();
    assert_eq!(status.completed_indexes.as_deref(), Some("0-3"));
    assert_eq!((status.succeeded, status.failed), (Some(4), Some(1)));
    assert_eq!(job.conditions()[1].0, "Complete");
}

#[test]
fn an_index_fails_by_itself() {
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "backoffLimit": i32::MAX});
    let mut job = Simulation::new(spec);
    job.settle();
    let pod = job.with_index(0);
    job.exit(&pod, 1);
    job.settle();
    assert!(
        is_tracked(&job.pods[&pod]),
        "its successor counts its failure"
    );
    job.pass(10);
    assert!(!is_tracked(&job.pods[&pod]));
    let again = job.with_index(0);
    let annotations = job.pods[&again].metadata.annotations.clone().unwrap();
    assert_eq!(annotations[INDEX_FAILURES], "1");
    job.exit(&again, 1);
    job.settle();
    assert_eq!(job.status().failed_indexes.as_deref(), Some("0"));
    assert_eq!(job.conditions(), [], "the other index goes on");
    let pod = job.with_index(1);
    job.exit(&pod, 0);
    job.settle();
    let reason = "FailedIndexes";
    assert_eq!(
        job.conditions(),
        pairs(&[("FailureTarget", reason), ("Failed", reason)])
    );
    assert_eq!(job.status().completed_indexes.as_deref(), Some("1"));
}

#[test]
fn policies_decide_on_failures_and_success() {
    let rules = json!({"rules": [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [9]}},
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}},
    ]});
    let mut job = Simulation::new(
        json!({"completions": 2, "parallelism": 2, "backoffLimit": 0, "podFailurePolicy": rules}),
    );
    job.settle();
    job.exit("pod-000", 9);
    job.pass(10);
    assert_eq!(job.status().failed, None);
    assert_eq!(job.active(), ["pod-001", "pod-002"]);
    job.exit("pod-001", 42);
    job.settle();
    let reason = "PodFailurePolicy";
    assert_eq!(
        job.conditions(),
        pairs(&[("FailureTarget", reason), ("Failed", reason)])
    );
    assert_eq!(job.active(), [""; 0], "the others are ended");

    let success = json!({"rules": [{"succeededIndexes": "1"}]});
    let mut job = Simulation::new(
        json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed", "successPolicy": success}),
    );
    job.settle();
    let pod = job.with_index(1);
    job.exit(&pod, 0);
    job.settle();
    let reason = "SuccessPolicy";
    assert_eq!(
        job.conditions(),
        pairs(&[("SuccessCriteriaMet", reason), ("Complete", reason)])
    );
    assert_eq!(
        (job.status().succeeded, job.status().failed),
        (Some(1), None)
    );
}

#[test]
fn suspension_ends_pods_without_counting_them() {
    let mut job = Simulation::new(json!({"completions": 2, "parallelism": 2, "suspend": true}));
    job.settle();
    assert_eq!(job.active(), [""; 0]);
    assert_eq!(job.status().start_time, None);
    let suspend = |job: &mut Simulation, to| {
        job.job.spec.as_mut().unwrap().suspend = Some(to);
        job.settle();
    };
    suspend(&mut job, false);
    assert_eq!(job.active().len(), 2);
    assert!(job.status().start_time.is_some());
    suspend(&mut job, true);
    assert_eq!(job.active(), [""; 0]);
    assert_eq!(job.status().failed, None);
    assert_eq!(job.conditions(), pairs(&[("Suspended", "JobSuspended")]));
    assert_eq!(job.events, ["Suspended", "Resumed", "Suspended"]);
}

#[test]
fn ends_at_its_deadline_and_is_deleted_in_time() {
    let mut job = Simulation::new(
        json!({"completions": 1, "parallelism": 1, "activeDeadlineSeconds": 30, "ttlSecondsAfterFinished": 5}),
    );
    job.settle();
    assert_eq!(job.plan().wake, Some(SignedDuration::from_secs(30)));
    job.pass(30);
    let reason = "DeadlineExceeded";
    assert_eq!(
        job.conditions(),
        pairs(&[("FailureTarget", reason), ("Failed", reason)])
    );
    assert!(!job.plan().is_expired);
    assert_eq!(job.plan().wake, Some(SignedDuration::from_secs(5)));
    job.pass(5);
    assert!(job.plan().is_expired);
}

#[test]
fn a_deleted_pod_is_replaced_at_once_or_after_its_end() {
    for (policy, at_once) in [("TerminatingOrFailed", 1), ("Failed", 0)] {
        let mut job = Simulation::new(
            json!({"completions": 1, "parallelism": 1, "podReplacementPolicy": policy}),
        );
        job.settle();
        let now = job.now;
        job.change("pod-000", |pod| {
            pod.metadata.deletion_timestamp = Some(Time(now))
        });
        // The pod ends a while after its deletion.
        job.now += SignedDuration::from_secs(10);
        job.step();
        assert_eq!(job.active().len(), at_once, "{policy}");
        assert_eq!(job.status().terminating, Some(1), "{policy}");
        job.exit("pod-000", 1);
        job.pass(10);
        assert_eq!(job.active().len(), 1, "{policy}");
        assert_eq!(job.status().failed, Some(1), "{policy}");
    }
}

proptest! {
    /// Whatever ends in whatever order, every pod counts once, there are never too many, and the
    /// Job ends.
    #[test]
    fn counts_every_pod_once(
        completions in 1..6_i32,
        parallelism in 1..5_i32,
        indexed in any::<bool>(),
        ends in prop::collection::vec((any::<prop::sample::Index>(), 0..3_i32, any::<bool>()), 0..60),
    ) {
        let mode = if indexed { "Indexed" } else { "NonIndexed" };
        let mut job = Simulation::new(json!({
            "completions": completions, "parallelism": parallelism, "completionMode": mode, "backoffLimit": 1000,
        }));
        let (mut succeeded, mut failed) = (0, 0);
        job.settle();
        for (which, code, restart) in ends {
            let active = job.active();
            prop_assert!(active.len() <= usize::try_from(parallelism).unwrap());
            if active.is_empty() {
                break;
            }
            let code = i32::from(code != 0);
            job.exit(&active[which.index(active.len())], code);
            if code == 0 { succeeded += 1 } else { failed += 1 }
            if restart {
                // A process that ends after its first write of the status: the finalizers stay.
                job.job.status = Some(job.plan().status);
            }
            job.settle();
            job.pass(1000);
        }
        let status = job.status();
        prop_assert_eq!(status.succeeded.unwrap_or_default(), succeeded);
        prop_assert_eq!(status.failed.unwrap_or_default(), failed);
        let is_complete = job.conditions().iter().any(|(kind, _)| kind == "Complete");
        prop_assert_eq!(is_complete, succeeded == completions);
    }
}

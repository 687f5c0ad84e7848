//! One step of a Job: a function of the Job, its pods and the time.
//!
//! A pod of a Job keeps a finalizer until it is counted. Its UID is first written to
//! `status.uncountedTerminatedPods`, then the finalizer is removed, then the counter is raised with
//! the removal of the UID: no end of the process between two writes counts a pod twice or never.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podplane_api::{
    Object as _,
    batch::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods},
    core::Pod,
    jiff::{SignedDuration, Timestamp},
    meta::Time,
    pod_ips,
};
use podplane_client::events::EventType;

use super::{
    indexes::Indexes,
    pods::{
        INDEX_FAILURES, INDEX_IGNORED, NewPod, backoff_until, counted, index, index_backoff_until,
        is_tracked, restarts,
    },
    policy::{FailureVerdict, judge, success},
};
use crate::{
    pods::{is_active, phase, ready_since},
    rank,
};

/// The most pods created, deleted or counted in one step, as in Kubernetes.
const BURST: usize = 500;

const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";
const FAILURE_TARGET: &str = "FailureTarget";
const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
const SUSPENDED: &str = "Suspended";

/// The facts that a step depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobInput<'a> {
    pub(super) job: &'a Job,
    /// The pods of the Job, ended ones too.
    pub(super) pods: &'a [Arc<Pod>],
    /// False while writes of this controller are not observed: then no pod is created or deleted.
    pub(super) may_manage: bool,
    pub(super) now: Timestamp,
}

/// The writes of a step, in this order.
#[derive(Debug, Default, PartialEq)]
pub(super) struct JobPlan {
    /// Active pods to delete that do not count: their finalizer is removed first.
    pub(super) release: Vec<Arc<Pod>>,
    /// Active pods to delete because the Job ends.
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) create: Vec<NewPod>,
    pub(super) status: JobStatus,
    /// Pods whose finalizer is removed once the status is written.
    pub(super) untrack: Vec<Arc<Pod>>,
    pub(super) events: Vec<JobEvent>,
    /// True if the Job has been finished for as long as it is kept.
    pub(super) is_expired: bool,
    /// The time until something changes without an event.
    pub(super) wake: Option<SignedDuration>,
}

/// An event of the Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobEvent {
    pub(super) r#type: EventType,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// Plans the next step of a Job.
pub(super) fn plan(input: JobInput<'_>) -> JobPlan {
    let spec = input.job.spec.clone().unwrap_or_default();
    let status = input.job.status.clone().unwrap_or_default();
    if let Some(end) = condition(&status, COMPLETE).or_else(|| condition(&status, FAILED)) {
        let since = end.last_transition_time.as_ref().map(|time| time.0);
        return finished(input, &spec, status.clone(), since);
    }
    let mut planner = Planner::new(input, &spec, status);
    planner.count_former();
    planner.start();
    planner.judge_end();
    planner.manage();
    planner.track();
    planner.finish();
    planner.plan
}

/// The step of a Job that is over: it is deleted in time, and lets go of its pods.
fn finished(
    input: JobInput<'_>,
    spec: &JobSpec,
    status: JobStatus,
    since: Option<Timestamp>,
) -> JobPlan {
    let mut plan = JobPlan {
        status,
        ..JobPlan::default()
    };
    let tracked = input.pods.iter().filter(|pod| is_tracked(pod));
    plan.untrack = tracked.cloned().collect();
    if let (Some(ttl), Some(since)) = (spec.ttl_seconds_after_finished, since) {
        let kept = SignedDuration::from_secs(ttl.into());
        let left = kept.saturating_sub(input.now.duration_since(since));
        plan.is_expired = !left.is_positive() && !input.job.is_deleting();
        plan.wake = Some(left).filter(SignedDuration::is_positive);
    }
    plan
}

fn condition<'a>(status: &'a JobStatus, kind: &str) -> Option<&'a JobCondition> {
    let mut conditions = status.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == kind && condition.status == "True")
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn size(number: i32) -> usize {
    usize::try_from(number).unwrap_or_default()
}

/// A step that is being planned.
struct Planner<'a> {
    input: JobInput<'a>,
    spec: &'a JobSpec,
    plan: JobPlan,
    /// Pods of `status.uncountedTerminatedPods`, by UID.
    uncounted: UncountedTerminatedPods,
    /// The completed and failed indexes, those of this step included.
    completed: Indexes,
    failed_indexes: Indexes,
    /// Pods that count in this step for the first time.
    new_succeeded: Vec<Arc<Pod>>,
    new_failed: Vec<Arc<Pod>>,
    /// Pods that end with this step uncounted: by a policy, or as a second success of an index.
    ignored: Vec<Arc<Pod>>,
    active: Vec<Arc<Pod>>,
    terminating: usize,
    /// The condition because of which the Job ends.
    end: Option<JobCondition>,
}

impl<'a> Planner<'a> {
    fn new(input: JobInput<'a>, spec: &'a JobSpec, status: JobStatus) -> Self {
        let uncounted = status.uncounted_terminated_pods.clone().unwrap_or_default();
        let completions = spec.completions.unwrap_or(i32::MAX);
        let indexes = |text: &Option<String>| {
            Indexes::parse(text.as_deref().unwrap_or_default(), completions)
        };
        let (completed, failed_indexes) = match is_indexed(spec) {
            true => (
                indexes(&status.completed_indexes),
                indexes(&status.failed_indexes),
            ),
            false => Default::default(),
        };
        let active = input.pods.iter().filter(|pod| is_active(pod));
        let terminating = input.pods.iter();
        let terminating = terminating.filter(|pod| pod.is_deleting() && !is_ended(pod));
        let end = condition(&status, FAILURE_TARGET)
            .or_else(|| condition(&status, SUCCESS_CRITERIA_MET))
            .cloned();
        Self {
            input,
            spec,
            uncounted,
            completed,
            failed_indexes,
            new_succeeded: Vec::new(),
            new_failed: Vec::new(),
            ignored: Vec::new(),
            active: active.cloned().collect(),
            terminating: terminating.count(),
            end,
            plan: JobPlan {
                status,
                ..JobPlan::default()
            },
        }
    }

    fn completions(&self) -> i32 {
        self.spec.completions.unwrap_or(i32::MAX)
    }

    fn is_suspended(&self) -> bool {
        self.spec.suspend == Some(true)
    }

    /// Returns whether a pod that is being deleted is replaced only when it has ended.
    fn replaces_ended_only(&self) -> bool {
        self.spec.pod_replacement_policy.as_deref() == Some("Failed")
    }

    fn index(&self, pod: &Pod) -> Option<i32> {
        index(pod, self.completions())
    }

    /// Returns whether a pod counts as failed.
    fn is_failed(&self, pod: &Pod) -> bool {
        match phase(pod) {
            "Failed" => true,
            "Succeeded" => false,
            // A deleted pod may never report its end.
            _ => pod.is_deleting() && !self.replaces_ended_only(),
        }
    }

    fn wake_at(&mut self, time: Timestamp) {
        let wait = time.duration_since(self.input.now);
        let wait = wait.max(SignedDuration::from_millis(100));
        self.plan.wake = Some(self.plan.wake.map_or(wait, |wake| wake.min(wait)));
    }

    /// Counts pods whose finalizer is gone, and finds those that ended since.
    fn count_former(&mut self) {
        let tracked = self.input.pods.iter().filter(|pod| is_tracked(pod));
        let tracked: BTreeSet<&str> = tracked.map(|pod| pod.uid()).collect();
        let settle = |uids: &mut Option<Vec<String>>| {
            let before = uids.as_ref().map_or(0, Vec::len);
            uids.iter_mut()
                .for_each(|uids| uids.retain(|uid| tracked.contains(uid.as_str())));
            uids.take_if(|uids| uids.is_empty());
            number(before - uids.as_ref().map_or(0, Vec::len))
        };
        let succeeded = settle(&mut self.uncounted.succeeded);
        let failed = settle(&mut self.uncounted.failed);
        let add = |count: &mut Option<i32>, more| {
            *count = Some(count.unwrap_or_default().saturating_add(more)).filter(|all| *all > 0);
        };
        if !is_indexed(self.spec) {
            add(&mut self.plan.status.succeeded, succeeded);
        }
        add(&mut self.plan.status.failed, failed);
        let uncounted = [&self.uncounted.succeeded, &self.uncounted.failed];
        let uncounted: BTreeSet<String> =
            uncounted.into_iter().flatten().flatten().cloned().collect();
        // Every ended pod counts in what follows; `track` bounds what is written.
        for pod in self.input.pods.iter().filter(|pod| is_tracked(pod)) {
            if uncounted.contains(pod.uid()) {
                self.plan.untrack.push(pod.clone());
            } else if phase(pod) == "Succeeded" {
                self.succeeded(pod);
            } else if self.is_failed(pod) {
                match self.verdict(pod) {
                    FailureVerdict::Ignore => self.ignored.push(pod.clone()),
                    _ => self.new_failed.push(pod.clone()),
                }
            }
        }
    }

    fn succeeded(&mut self, pod: &Arc<Pod>) {
        if !is_indexed(self.spec) {
            return self.new_succeeded.push(pod.clone());
        }
        if let Some(index) = self.index(pod) {
            self.completed.0.insert(index);
        }
        // Its index is its count.
        self.ignored.push(pod.clone());
    }

    fn verdict(&self, pod: &Pod) -> FailureVerdict {
        match phase(pod) {
            "Failed" => judge(self.spec.pod_failure_policy.as_ref(), pod),
            _ => FailureVerdict::Count,
        }
    }

    fn start(&mut self) {
        if self.plan.status.start_time.is_none() && !self.is_suspended() {
            self.plan.status.start_time = Some(Time(self.input.now));
        }
    }

    fn succeeded_count(&self) -> i32 {
        if is_indexed(self.spec) {
            return self.completed.count();
        }
        let uncounted = self.uncounted.succeeded.as_ref().map_or(0, Vec::len);
        let new = number(uncounted + self.new_succeeded.len());
        self.plan
            .status
            .succeeded
            .unwrap_or_default()
            .saturating_add(new)
    }

    fn failed_count(&self) -> i32 {
        let uncounted = self.uncounted.failed.as_ref().map_or(0, Vec::len);
        let new = number(uncounted + self.new_failed.len());
        self.plan
            .status
            .failed
            .unwrap_or_default()
            .saturating_add(new)
    }

    /// Decides whether the Job ends, and why.
    fn judge_end(&mut self) {
        if is_indexed(self.spec) && self.spec.backoff_limit_per_index.is_some() {
            self.fail_indexes();
        }
        if self.end.is_some() || self.input.job.is_deleting() {
            return;
        }
        if let Some((kind, reason, message)) = self.reason_to_end() {
            let condition = self.condition(kind, reason, &message);
            self.set_condition(condition.clone());
            self.end = Some(condition);
        }
    }

    fn reason_to_end(&mut self) -> Option<(&'static str, &'static str, String)> {
        let failed = |reason, message: &str| Some((FAILURE_TARGET, reason, message.to_owned()));
        let by_policy = self
            .new_failed
            .iter()
            .find_map(|pod| match self.verdict(pod) {
                FailureVerdict::FailJob(message) => Some(message),
                _ => None,
            });
        if let Some(message) = by_policy {
            return failed("PodFailurePolicy", &message);
        }
        let limit = self.spec.backoff_limit.unwrap_or(6);
        if self.failed_count() > limit || self.restarts_exceed(limit) {
            let message = "Job has reached the specified backoff limit";
            return failed("BackoffLimitExceeded", message);
        }
        if let Some(end) = self.deadline() {
            if end <= self.input.now {
                let message = "Job was active longer than specified deadline";
                return failed("DeadlineExceeded", message);
            }
            self.wake_at(end);
        }
        if self
            .spec
            .max_failed_indexes
            .is_some_and(|max| self.failed_indexes.count() > max)
        {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return failed("MaxFailedIndexesExceeded", message);
        }
        if is_indexed(self.spec) {
            let policy = self.spec.success_policy.as_ref();
            if let Some(rule) = success(policy, &self.completed, self.completions()) {
                let message = format!("Matched rules at index {rule}");
                return Some((SUCCESS_CRITERIA_MET, "SuccessPolicy", message));
            }
        }
        self.completed_reason()
    }

    /// The reason of the end of a Job that has as many completions as it needs.
    fn completed_reason(&self) -> Option<(&'static str, &'static str, String)> {
        let (succeeded, failed) = (self.succeeded_count(), self.failed_indexes.count());
        let is_complete = match self.spec.completions {
            // One success is enough, once all other pods have ended.
            None => succeeded > 0 && self.active.is_empty(),
            Some(completions) => succeeded.saturating_add(failed) >= completions,
        };
        if !is_complete {
            return None;
        }
        if failed > 0 {
            let message = "Job has failed indexes".to_owned();
            return Some((FAILURE_TARGET, "FailedIndexes", message));
        }
        let message = "Reached expected number of succeeded pods".to_owned();
        Some((SUCCESS_CRITERIA_MET, "CompletionsReached", message))
    }

    fn restarts_exceed(&self, limit: i32) -> bool {
        let template = self.spec.template.spec.as_ref();
        let policy = template.and_then(|spec| spec.restart_policy.as_deref());
        if policy != Some("OnFailure") {
            return false;
        }
        let restarts = self
            .active
            .iter()
            .fold(0, |sum: i32, pod| sum.saturating_add(restarts(pod)));
        match limit {
            0 => restarts > 0,
            _ => restarts >= limit,
        }
    }

    fn deadline(&self) -> Option<Timestamp> {
        let seconds = self
            .spec
            .active_deadline_seconds
            .filter(|_| !self.is_suspended())?;
        let start = self.plan.status.start_time.as_ref()?.0;
        start.checked_add(SignedDuration::from_secs(seconds)).ok()
    }

    /// Adds the indexes that have failed as often as they may, or by the policy.
    fn fail_indexes(&mut self) {
        let limit = self.spec.backoff_limit_per_index.unwrap_or_default();
        for pod in &self.new_failed {
            let Some(index) = self.index(pod).filter(|index| !self.completed.has(*index)) else {
                continue;
            };
            let is_over = counted(pod, INDEX_FAILURES) >= limit;
            if is_over || self.verdict(pod) == FailureVerdict::FailIndex {
                self.failed_indexes.0.insert(index);
            }
        }
    }

    /// Creates and deletes pods.
    fn manage(&mut self) {
        if !self.input.may_manage {
            return;
        }
        if self.end.is_some() {
            let deleted = std::mem::take(&mut self.active);
            self.terminating += deleted.len();
            self.plan.delete = deleted;
            return;
        }
        if self.input.job.is_deleting() {
            return;
        }
        self.suspend_or_resume();
        let wanted = self.wanted();
        let surplus = match self.is_suspended() {
            true => self.active.clone(),
            false => self.surplus(self.active.len().saturating_sub(wanted)),
        };
        if !surplus.is_empty() || self.is_suspended() {
            let uids: BTreeSet<&str> = surplus.iter().map(|pod| pod.uid()).collect();
            self.active.retain(|pod| !uids.contains(pod.uid()));
            self.terminating += surplus.len();
            self.plan.release = surplus;
            return;
        }
        let held = match self.replaces_ended_only() {
            true => self.terminating,
            false => 0,
        };
        let missing = wanted.saturating_sub(self.active.len() + held).min(BURST);
        if missing > 0 {
            self.plan.create = self.new_pods(missing);
        }
    }

    fn suspend_or_resume(&mut self) {
        let conditions = self.plan.status.conditions.iter().flatten();
        let mut conditions = conditions.filter(|condition| condition.type_ == SUSPENDED);
        let told = conditions
            .next()
            .map(|condition| condition.status == "True");
        let (value, reason, event, message) = match (self.is_suspended(), told) {
            (true, None | Some(false)) => ("True", "JobSuspended", "Suspended", "Job suspended"),
            (false, Some(true)) => ("False", "JobResumed", "Resumed", "Job resumed"),
            _ => return,
        };
        let condition = JobCondition {
            status: value.to_owned(),
            ..self.condition(SUSPENDED, reason, message)
        };
        self.set_condition(condition);
        self.event(EventType::Normal, event, message);
        self.plan.status.start_time = match self.is_suspended() {
            true => None,
            false => Some(Time(self.input.now)),
        };
    }

    /// The number of pods that should be active.
    fn wanted(&self) -> usize {
        let parallelism = size(self.spec.parallelism.unwrap_or(1));
        let done = self.succeeded_count();
        match self.spec.completions {
            None if done > 0 => self.active.len(),
            None => parallelism,
            Some(completions) => {
                let done = done.saturating_add(self.failed_indexes.count());
                parallelism.min(size(completions.saturating_sub(done)))
            }
        }
    }

    /// Active pods to delete: those without an index of use, and of the rest as many as needed to
    /// delete `at_least`.
    fn surplus(&self, at_least: usize) -> Vec<Arc<Pod>> {
        let ranked = rank::ranked(self.active.iter().cloned(), &self.active, self.input.now);
        let (mut surplus, mut kept) = (Vec::new(), Vec::new());
        let mut taken = BTreeSet::new();
        // The most valuable pod of an index stays.
        for pod in ranked.into_iter().rev() {
            let is_of_use = !is_indexed(self.spec)
                || self.index(&pod).is_some_and(|index| {
                    !self.completed.has(index)
                        && !self.failed_indexes.has(index)
                        && taken.insert(index)
                });
            if is_of_use {
                kept.push(pod);
            } else {
                surplus.push(pod);
            }
        }
        while surplus.len() < at_least
            && let Some(pod) = kept.pop()
        {
            surplus.push(pod);
        }
        surplus.truncate(BURST);
        surplus
    }

    fn new_pods(&mut self, missing: usize) -> Vec<NewPod> {
        if self.spec.backoff_limit_per_index.is_none() {
            let pods = self.input.pods.iter().map(AsRef::as_ref);
            let until = backoff_until(pods, |pod| self.is_failed(pod));
            if let Some(until) = until.filter(|until| *until > self.input.now) {
                self.wake_at(until);
                return Vec::new();
            }
        }
        if !is_indexed(self.spec) {
            let new = NewPod {
                index: None,
                failures: None,
            };
            return vec![new; missing];
        }
        let mut taken = BTreeSet::new();
        for pod in self.input.pods {
            let is_going = pod.is_deleting() && !is_ended(pod) && self.replaces_ended_only();
            if is_active(pod) || is_going {
                taken.extend(self.index(pod));
            }
        }
        let last = self.last_failed();
        let mut new = Vec::new();
        for index in 0..self.completions() {
            if new.len() == missing {
                break;
            }
            let is_free = !taken.contains(&index)
                && !self.completed.has(index)
                && !self.failed_indexes.has(index);
            if is_free {
                new.extend(self.new_pod(index, last.get(&index)));
            }
        }
        new
    }

    /// The next pod of an index, unless it has to wait.
    fn new_pod(&mut self, index: i32, last: Option<&Arc<Pod>>) -> Option<NewPod> {
        let mut new = NewPod {
            index: Some(index),
            failures: None,
        };
        if self.spec.backoff_limit_per_index.is_none() {
            return Some(new);
        }
        new.failures = Some((0, 0));
        let Some(last) = last else {
            return Some(new);
        };
        if let Some(until) = index_backoff_until(last).filter(|until| *until > self.input.now) {
            self.wake_at(until);
            return None;
        }
        let (failures, ignored) = (counted(last, INDEX_FAILURES), counted(last, INDEX_IGNORED));
        new.failures = Some(match self.verdict(last) {
            FailureVerdict::Ignore => (failures, ignored + 1),
            _ => (failures + 1, ignored),
        });
        Some(new)
    }

    /// The failed pod with the most failures before it, by index.
    fn last_failed(&self) -> BTreeMap<i32, Arc<Pod>> {
        let failures =
            |pod: &Pod| counted(pod, INDEX_FAILURES).saturating_add(counted(pod, INDEX_IGNORED));
        let mut last = BTreeMap::<i32, Arc<Pod>>::new();
        for pod in self.input.pods.iter().filter(|pod| self.is_failed(pod)) {
            let Some(index) = self.index(pod) else {
                continue;
            };
            let most = last.entry(index).or_insert_with(|| pod.clone());
            if failures(pod) >= failures(most) {
                *most = pod.clone();
            }
        }
        last
    }

    /// Records the pods that ended, and lets go of those that are recorded.
    fn track(&mut self) {
        if self.end.is_some() || self.input.job.is_deleting() {
            self.abandon();
        }
        let kept = self.kept_for_replacement();
        let mut succeeded = std::mem::take(&mut self.new_succeeded);
        let mut failed = std::mem::take(&mut self.new_failed);
        let mut ignored = std::mem::take(&mut self.ignored);
        failed.retain(|pod| !kept.contains(pod.uid()));
        ignored.retain(|pod| !kept.contains(pod.uid()));
        // The next step counts the others.
        let room = BURST.saturating_sub(self.plan.untrack.len());
        succeeded.truncate(room);
        failed.truncate(room - succeeded.len());
        ignored.truncate(BURST);
        let add = |uids: &mut Option<Vec<String>>, pods: &[Arc<Pod>]| {
            if !pods.is_empty() {
                let pods = pods.iter().map(|pod| pod.uid().to_owned());
                uids.get_or_insert_default().extend(pods);
            }
        };
        add(&mut self.uncounted.succeeded, &succeeded);
        add(&mut self.uncounted.failed, &failed);
        let let_go = succeeded.into_iter().chain(failed).chain(ignored);
        self.plan.untrack.extend(let_go);
        self.write_counts();
    }

    /// Counts the pods that the end of the Job cuts off as failed, except after a success: they
    /// were not needed.
    fn abandon(&mut self) {
        let is_success = self
            .end
            .as_ref()
            .is_some_and(|end| end.type_ == SUCCESS_CRITERIA_MET);
        let pods = self.input.pods.iter();
        let pods = pods.filter(|pod| is_tracked(pod) && pod.is_deleting() && !is_ended(pod));
        if is_success {
            let failed = std::mem::take(&mut self.new_failed).into_iter();
            let (ended, cut_off): (Vec<_>, Vec<_>) = failed.partition(|pod| is_ended(pod));
            self.new_failed = ended;
            self.ignored.extend(cut_off);
            return;
        }
        for pod in pods {
            let is_known = |pods: &[Arc<Pod>]| pods.iter().any(|known| known.uid() == pod.uid());
            if !is_known(&self.new_failed) && !is_known(&self.plan.untrack) {
                self.new_failed.push(pod.clone());
            }
        }
    }

    /// The failed pods whose count of failures their successor needs: they keep their finalizer
    /// until it exists, so that nobody removes them.
    fn kept_for_replacement(&self) -> BTreeSet<String> {
        let mut kept = BTreeSet::new();
        let has_limit = is_indexed(self.spec) && self.spec.backoff_limit_per_index.is_some();
        if !has_limit || self.end.is_some() || self.input.job.is_deleting() {
            return kept;
        }
        let last = self.last_failed();
        for pod in self.new_failed.iter().chain(&self.ignored) {
            let Some(index) = self.index(pod).filter(|_| self.is_failed(pod)) else {
                continue;
            };
            let is_open = !self.completed.has(index) && !self.failed_indexes.has(index);
            let is_last = last.get(&index).is_some_and(|last| last.uid() == pod.uid());
            let mut pods = self.active.iter();
            let is_replaced = pods.any(|active| self.index(active) == Some(index));
            if is_open && is_last && !is_replaced {
                kept.insert(pod.uid().to_owned());
            }
        }
        kept
    }

    fn write_counts(&mut self) {
        let ready = self.active.iter();
        let ready = ready.filter(|pod| ready_since(pod).is_some()).count();
        let status = &mut self.plan.status;
        let active = self.active.len() + self.plan.create.len();
        status.active = Some(number(active)).filter(|active| *active > 0);
        status.ready = Some(number(ready));
        status.terminating = Some(number(self.terminating));
        status.uncounted_terminated_pods = Some(self.uncounted.clone());
        if is_indexed(self.spec) {
            let completed = self.completed.to_string();
            status.completed_indexes = Some(completed).filter(|text| !text.is_empty());
            status.succeeded = Some(self.completed.count()).filter(|count| *count > 0);
            if self.spec.backoff_limit_per_index.is_some() {
                status.failed_indexes = Some(self.failed_indexes.to_string());
            }
        }
    }

    /// Sets the last condition, once no pod is left that has to be counted or ends still.
    fn finish(&mut self) {
        let Some(end) = self.end.clone() else {
            return;
        };
        let is_counted =
            self.plan.untrack.is_empty() && self.uncounted == UncountedTerminatedPods::default();
        let is_gone = self.active.is_empty() && self.terminating == 0;
        if !is_counted || !is_gone {
            return;
        }
        let (reason, message) = (
            end.reason.unwrap_or_default(),
            end.message.unwrap_or_default(),
        );
        let kind = match end.type_.as_str() {
            SUCCESS_CRITERIA_MET => COMPLETE,
            _ => FAILED,
        };
        let condition = self.condition(kind, &reason, &message);
        self.set_condition(condition);
        if kind == COMPLETE {
            self.plan.status.completion_time = Some(Time(self.input.now));
            self.event(EventType::Normal, "Completed", "Job completed");
        } else {
            self.event(EventType::Warning, failure_reason(&reason), &message);
        }
        self.plan.wake = self
            .spec
            .ttl_seconds_after_finished
            .map(|seconds| SignedDuration::from_secs(seconds.max(1).into()));
    }

    fn condition(&self, kind: &str, reason: &str, message: &str) -> JobCondition {
        JobCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            last_probe_time: Some(Time(self.input.now)),
            last_transition_time: Some(Time(self.input.now)),
        }
    }

    fn set_condition(&mut self, condition: JobCondition) {
        let conditions = self.plan.status.conditions.get_or_insert_default();
        conditions.retain(|old| old.type_ != condition.type_);
        conditions.push(condition);
    }

    fn event(&mut self, r#type: EventType, reason: &'static str, message: &str) {
        self.plan.events.push(JobEvent {
            r#type,
            reason,
            message: message.to_owned(),
        });
    }
}

/// The reason of an event on a failed Job, from that of its condition, which may be another
/// version's.
fn failure_reason(reason: &str) -> &'static str {
    let known = [
        "BackoffLimitExceeded",
        "DeadlineExceeded",
        "FailedIndexes",
        "MaxFailedIndexesExceeded",
        "PodFailurePolicy",
    ];
    let found = known.into_iter().find(|known| *known == reason);
    found.unwrap_or("JobFailed")
}

fn is_ended(pod: &Pod) -> bool {
    pod_ips::is_terminal(pod)
}

fn is_indexed(spec: &JobSpec) -> bool {
    spec.completion_mode.as_deref() == Some("Indexed")
}

//! The next step for a pod: a function of the pod and its sandboxes.

use podplane_api::{
    Object as _,
    core::Pod,
    pod_ips::{has_no_sandbox, is_terminal},
};

/// A sandbox of a pod, as the runtime lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: String,
    /// The pod's namespace and name.
    pub pod: podplane_api::ObjectKey,
    /// The pod's UID.
    pub uid: String,
    /// The number of the sandbox among the pod's.
    pub attempt: u32,
    /// True if it is ready.
    pub ready: bool,
}

impl Sandbox {
    /// A pod's only sandbox, which has just been created.
    pub fn newly_created(id: &str, pod: &Pod) -> Self {
        Self {
            id: id.to_owned(),
            pod: pod.key(),
            uid: pod.uid().to_owned(),
            attempt: 0,
            ready: true,
        }
    }
}

/// The next step for a pod. After all but `Rest` and `Forget`, plan again with the changed pod or
/// sandboxes: immediately, or after `Finish` and `Report` with the next change. See
/// [`worker`](super::worker).
///
/// The API server learns of a change of an address before it happens (ADR 0019): a pod that loses
/// its sandbox no longer counts as running when the address is freed, and holds the address until
/// the kubelet reports that it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodStep {
    /// Report that the pod has ended and that its sandboxes are still there.
    Terminate,
    /// Report that the pod waits for a sandbox: its reported sandbox is dead or gone.
    Withdraw,
    /// Stop and remove these sandboxes.
    Remove(Vec<String>),
    /// Report that the pod has ended and has no sandbox any more. This is left out if the object
    /// can be deleted at once.
    Release,
    /// Admit the pod and run a sandbox for it.
    Run,
    /// Delete the pod's object: the pod has left this node.
    Finish,
    /// Report that the pod runs in the sandbox of this id.
    Report(String),
    /// Nothing, until something changes.
    Rest,
    /// End the worker: there is neither pod nor sandbox.
    Forget,
}

/// Plans the next step for a pod; `pod` is `None` if the API server does not have it any more.
pub fn plan(pod: Option<&Pod>, sandboxes: &[Sandbox]) -> PodStep {
    let all = || sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    let Some(pod) = pod else {
        return match sandboxes {
            [] => PodStep::Forget,
            _ => PodStep::Remove(all()),
        };
    };
    let is_ended = is_terminal(pod);
    if is_ended || pod.is_deleting() {
        let is_released = is_ended && has_no_sandbox(pod);
        let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
        return match sandboxes {
            // The object's report of an address is deleted with it.
            [] if is_ended && pod.is_deleting() && finalizers.is_empty() => PodStep::Finish,
            [] if !is_released => PodStep::Release,
            [] if pod.is_deleting() => PodStep::Finish,
            [] => PodStep::Rest,
            _ if !is_ended || is_released => PodStep::Terminate,
            _ => PodStep::Remove(all()),
        };
    }
    let newest_ready = sandboxes
        .iter()
        .filter(|sandbox| sandbox.ready)
        .max_by_key(|sandbox| sandbox.attempt);
    let others: Vec<_> = sandboxes
        .iter()
        .filter(|sandbox| newest_ready.is_none_or(|keep| keep.id != sandbox.id))
        .map(|sandbox| sandbox.id.clone())
        .collect();
    match newest_ready {
        Some(keep) if others.is_empty() => PodStep::Report(keep.id.clone()),
        Some(_) => PodStep::Remove(others),
        None if has_ip(pod) => PodStep::Withdraw,
        // The old ones go first, since they may hold the node's last address.
        None if !others.is_empty() => PodStep::Remove(others),
        None => PodStep::Run,
    }
}

/// Returns true if the pod is reported with an address.
pub fn has_ip(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_some_and(|status| status.pod_ip.is_some())
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        ObjectKey,
        core::{PodCondition, PodStatus},
        jiff::Timestamp,
        meta::{ObjectMeta, Time},
        pod_ips::POD_READY_TO_START_CONTAINERS,
    };

    use super::*;

    fn pod(phase: &str, deleting: bool) -> Pod {
        Pod {
            metadata: ObjectMeta {
                deletion_timestamp: deleting.then_some(Time(Timestamp::UNIX_EPOCH)),
                ..ObjectMeta::default()
            },
            status: Some(PodStatus {
                phase: Some(phase.into()),
                ..PodStatus::default()
            }),
            ..Pod::default()
        }
    }

    /// The pod with the kubelet's report on its sandbox.
    fn with_report(mut pod: Pod, sandbox: &str) -> Pod {
        let status = pod.status.get_or_insert_default();
        status.conditions = Some(vec![PodCondition {
            type_: POD_READY_TO_START_CONTAINERS.into(),
            status: sandbox.into(),
            ..PodCondition::default()
        }]);
        pod
    }

    fn sandbox(id: &str, attempt: u32, ready: bool) -> Sandbox {
        Sandbox {
            id: id.into(),
            pod: ObjectKey::new("default", "a"),
            uid: "u".into(),
            attempt,
            ready,
        }
    }

    #[test]
    fn the_next_step_follows_from_pod_and_sandboxes() {
        let (ready, stopped) = (sandbox("r", 1, true), sandbox("s", 0, false));
        let remove =
            |ids: &[&str]| PodStep::Remove(ids.iter().map(|id| (*id).to_owned()).collect());
        let alive = pod("Pending", false);
        let kept = |mut pod: Pod| {
            pod.metadata.finalizers = Some(vec!["example.com/wait".into()]);
            pod
        };
        let mut reported = with_report(pod("Running", false), "True");
        reported.status.get_or_insert_default().pod_ip = Some("10.0.0.2".into());
        let cases = [
            ("new", Some(&alive), vec![], PodStep::Run),
            (
                "made",
                Some(&alive),
                vec![ready.clone()],
                PodStep::Report("r".into()),
            ),
            ("dead", Some(&alive), vec![stopped.clone()], remove(&["s"])),
            (
                "dead, and its address reported",
                Some(&reported),
                vec![stopped.clone()],
                PodStep::Withdraw,
            ),
            (
                "vanished, and its address reported",
                Some(&reported),
                vec![],
                PodStep::Withdraw,
            ),
            (
                "both",
                Some(&alive),
                vec![stopped.clone(), ready.clone()],
                remove(&["s"]),
            ),
            (
                "two ready",
                Some(&alive),
                vec![ready.clone(), sandbox("n", 2, true)],
                remove(&["r"]),
            ),
            (
                "gone",
                None,
                vec![ready.clone(), stopped.clone()],
                remove(&["r", "s"]),
            ),
            ("gone and clean", None, vec![], PodStep::Forget),
            (
                "deleting",
                Some(&pod("Running", true)),
                vec![ready.clone()],
                PodStep::Terminate,
            ),
            (
                "deleting and ended",
                Some(&with_report(pod("Succeeded", true), "True")),
                vec![ready.clone()],
                remove(&["r"]),
            ),
            (
                "deleting, ended and clean",
                Some(&with_report(pod("Succeeded", true), "True")),
                vec![],
                PodStep::Finish,
            ),
            (
                "deleting, ended and clean, and it stays",
                Some(&kept(with_report(pod("Succeeded", true), "True"))),
                vec![],
                PodStep::Release,
            ),
            (
                "deleting and released, and it stays",
                Some(&kept(with_report(pod("Succeeded", true), "False"))),
                vec![],
                PodStep::Finish,
            ),
            (
                "deleting and released",
                Some(&with_report(pod("Succeeded", true), "False")),
                vec![],
                PodStep::Finish,
            ),
            (
                "deleting and never run",
                Some(&with_report(pod("Pending", true), "False")),
                vec![],
                PodStep::Release,
            ),
            (
                "failed",
                Some(&pod("Failed", false)),
                vec![ready.clone()],
                remove(&["r"]),
            ),
            (
                "released, and a sandbox turns up",
                Some(&with_report(pod("Failed", false), "False")),
                vec![ready],
                PodStep::Terminate,
            ),
            (
                "failed and clean",
                Some(&pod("Failed", false)),
                vec![],
                PodStep::Release,
            ),
            (
                "failed and released",
                Some(&with_report(pod("Failed", false), "False")),
                vec![],
                PodStep::Rest,
            ),
        ];
        for (name, pod, sandboxes, want) in cases {
            assert_eq!(plan(pod, &sandboxes), want, "{name}");
        }
    }
}

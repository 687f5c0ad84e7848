//! What to do next for a pod: a function of the pod and its sandboxes.

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
    /// Which of the pod's sandboxes.
    pub attempt: u32,
    /// Whether it is ready.
    pub ready: bool,
}

/// The next step for a pod. After each but the last three, look again.
///
/// What the API server is told of an address goes before what is done to it (ADR 0019): a pod that loses its sandbox no longer
/// counts as running when the address is freed, and holds the address until the kubelet says that it is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Report that the pod has ended and that its sandboxes are still there.
    Terminate,
    /// Report that the pod waits for a sandbox: the one that it was reported with is dead or gone.
    Withdraw,
    /// Stop and remove these sandboxes.
    Remove(Vec<String>),
    /// Report that the pod has ended and has no sandbox any more.
    Release,
    /// Admit the pod and run a sandbox for it.
    Run,
    /// Tell the API server that the pod is gone from here.
    Finish,
    /// Report the sandbox of this id as what runs.
    Report(String),
    /// Nothing, until something changes.
    Rest,
    /// Nothing any more: there is neither pod nor sandbox.
    Forget,
}

/// Plans the next step for a pod, which is `None` when the API server has it no more.
pub fn plan(pod: Option<&Pod>, sandboxes: &[Sandbox]) -> Step {
    let all = || sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    let Some(pod) = pod else {
        return match sandboxes {
            [] => Step::Forget,
            _ => Step::Remove(all()),
        };
    };
    let is_ended = is_terminal(pod);
    if is_ended || pod.is_deleting() {
        let is_released = is_ended && has_no_sandbox(pod);
        return match sandboxes {
            [] if !is_released => Step::Release,
            [] if pod.is_deleting() => Step::Finish,
            [] => Step::Rest,
            _ if !is_ended || is_released => Step::Terminate,
            _ => Step::Remove(all()),
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
        Some(keep) if others.is_empty() => Step::Report(keep.id.clone()),
        Some(_) => Step::Remove(others),
        None if has_ip(pod) => Step::Withdraw,
        // The old ones go first, since they may hold the node's last address.
        None if !others.is_empty() => Step::Remove(others),
        None => Step::Run,
    }
}

/// Whether the pod is reported with an address.
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

    /// The kubelet has said whether there is a sandbox.
    fn said(mut pod: Pod, sandbox: &str) -> Pod {
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
        let remove = |ids: &[&str]| Step::Remove(ids.iter().map(|id| (*id).to_owned()).collect());
        let alive = pod("Pending", false);
        let mut reported = said(pod("Running", false), "True");
        reported.status.get_or_insert_default().pod_ip = Some("10.0.0.2".into());
        let cases = [
            ("new", Some(&alive), vec![], Step::Run),
            (
                "made",
                Some(&alive),
                vec![ready.clone()],
                Step::Report("r".into()),
            ),
            ("dead", Some(&alive), vec![stopped.clone()], remove(&["s"])),
            (
                "dead, and its address reported",
                Some(&reported),
                vec![stopped.clone()],
                Step::Withdraw,
            ),
            (
                "vanished, and its address reported",
                Some(&reported),
                vec![],
                Step::Withdraw,
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
            ("gone and clean", None, vec![], Step::Forget),
            (
                "deleting",
                Some(&pod("Running", true)),
                vec![ready.clone()],
                Step::Terminate,
            ),
            (
                "deleting and ended",
                Some(&said(pod("Succeeded", true), "True")),
                vec![ready.clone()],
                remove(&["r"]),
            ),
            (
                "deleting, ended and clean",
                Some(&said(pod("Succeeded", true), "True")),
                vec![],
                Step::Release,
            ),
            (
                "deleting and released",
                Some(&said(pod("Succeeded", true), "False")),
                vec![],
                Step::Finish,
            ),
            (
                "deleting and never run",
                Some(&said(pod("Pending", true), "False")),
                vec![],
                Step::Release,
            ),
            (
                "failed",
                Some(&pod("Failed", false)),
                vec![ready.clone()],
                remove(&["r"]),
            ),
            (
                "released, and a sandbox turns up",
                Some(&said(pod("Failed", false), "False")),
                vec![ready],
                Step::Terminate,
            ),
            (
                "failed and clean",
                Some(&pod("Failed", false)),
                vec![],
                Step::Release,
            ),
            (
                "failed and released",
                Some(&said(pod("Failed", false), "False")),
                vec![],
                Step::Rest,
            ),
        ];
        for (name, pod, sandboxes, want) in cases {
            assert_eq!(plan(pod, &sandboxes), want, "{name}");
        }
    }
}

//! What to do next for a pod: a function of the pod and its sandboxes.

use podplane_api::{Object as _, core::Pod, pod_ips::is_terminal};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stop and remove these sandboxes.
    Remove(Vec<String>),
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
    let is_deleting = pod.is_some_and(Pod::is_deleting);
    let is_over = pod.is_none_or(|pod| is_deleting || is_terminal(pod));
    if is_over {
        return match pod {
            _ if !sandboxes.is_empty() => Step::Remove(all()),
            None => Step::Forget,
            Some(_) if is_deleting => Step::Finish,
            Some(_) => Step::Rest,
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
        // The old ones go first, since they may hold the node's last address.
        None if !others.is_empty() => Step::Remove(others),
        None => Step::Run,
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        ObjectKey,
        core::PodStatus,
        jiff::Timestamp,
        meta::{ObjectMeta, Time},
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
                remove(&["r"]),
            ),
            (
                "deleted here",
                Some(&pod("Running", true)),
                vec![],
                Step::Finish,
            ),
            (
                "failed",
                Some(&pod("Failed", false)),
                vec![ready],
                remove(&["r"]),
            ),
            (
                "failed and clean",
                Some(&pod("Failed", false)),
                vec![],
                Step::Rest,
            ),
            (
                "failed and deleted",
                Some(&pod("Failed", true)),
                vec![],
                Step::Finish,
            ),
        ];
        for (name, pod, sandboxes, want) in cases {
            assert_eq!(plan(pod, &sandboxes), want, "{name}");
        }
    }
}

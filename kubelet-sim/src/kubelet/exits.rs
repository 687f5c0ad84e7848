//! The ends and restarts of a pod's containers, which its annotations ask for
//! ([`podplane_api::pod_exit`]). All containers of a pod start and end together.
//!
//! The state is in the pod's status alone, so a kubelet that starts goes on where the last one was.

use std::time::Duration;

use podplane_api::{
    Object as _,
    core::{
        ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod,
        PodStatus,
    },
    jiff::{SignedDuration, Timestamp},
    meta::Time,
    pod_exit::container_exit,
};

use super::status::{ContainerStart, PodRemains, ended, set_unready};

/// The delay before the second restart; each further restart waits twice as long, as with
/// Kubernetes' kubelet. The first one follows immediately.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
/// The longest delay before a restart.
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// The reason of containers that wait for their restart.
const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The next change of the containers of a pod whose sandbox is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerRun {
    /// They run, until `end` if they ever end.
    Running {
        /// Their last start.
        start: ContainerStart,
        /// The time at which they end.
        end: Option<Timestamp>,
    },
    /// They exit now.
    Exit {
        /// Their last start.
        started: Timestamp,
        /// Their exit code.
        code: i32,
        /// The delay before their next start; `None` if the pod has ended with them.
        restart: Option<Duration>,
    },
    /// They have exited, and start again at this time.
    Waiting(Timestamp),
}

/// The next change of the pod's containers at `now`, in a sandbox that was made at `created`.
pub fn containers(pod: &Pod, created: Timestamp, now: Timestamp) -> ContainerRun {
    let status = first(pod);
    let restarts = status.map_or(0, |status| status.restart_count);
    let exit = container_exit(pod);
    if let Some(last) = status.and_then(last_exit) {
        let finished = last.finished_at.as_ref().map_or(now, |time| time.0);
        let until = after(finished, backoff(restarts));
        if now < until {
            return ContainerRun::Waiting(until);
        }
        return ContainerRun::Running {
            start: ContainerStart {
                at: now,
                restarts: restarts.saturating_add(1),
            },
            end: exit.map(|exit| after(now, exit.after)),
        };
    }
    let recorded = status.and_then(|status| {
        let running = status.state.as_ref()?.running.as_ref()?;
        Some(running.started_at.as_ref()?.0)
    });
    // A status has whole seconds, so the first start is the sandbox's.
    let started = match recorded {
        Some(recorded) if restarts > 0 => recorded.max(created),
        _ => created,
    };
    let start = ContainerStart {
        at: started,
        restarts,
    };
    match exit {
        None => ContainerRun::Running { start, end: None },
        // Containers that are over already are reported once: their end is written over that.
        Some(exit) if recorded.is_none() || now < after(started, exit.after) => {
            ContainerRun::Running {
                start,
                end: Some(after(started, exit.after)),
            }
        }
        Some(exit) => ContainerRun::Exit {
            started,
            code: exit.code,
            restart: restarts_after(pod, exit.code).then(|| backoff(restarts)),
        },
    }
}

fn restarts_after(pod: &Pod, code: i32) -> bool {
    let policy = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
    match policy {
        Some("Never") => false,
        Some("OnFailure") => code != 0,
        _ => true,
    }
}

fn first(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

/// The end of containers that have not started again.
fn last_exit(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let state = status.state.as_ref()?;
    match &state.waiting {
        Some(waiting) if waiting.reason.as_deref() == Some(CRASH_LOOP) => {
            status.last_state.as_ref()?.terminated.as_ref()
        }
        _ => state.terminated.as_ref(),
    }
}

/// The delay before the restart that follows on so many restarts.
fn backoff(restarts: i32) -> Duration {
    let Ok(doubled) = u32::try_from(restarts.saturating_sub(1)) else {
        return Duration::ZERO;
    };
    let factor = 2_u32.checked_pow(doubled).unwrap_or(u32::MAX);
    FIRST_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF)
}

fn after(time: Timestamp, wait: Duration) -> Timestamp {
    SignedDuration::try_from(wait)
        .ok()
        .and_then(|wait| time.checked_add(wait).ok())
        .unwrap_or(Timestamp::MAX)
}

/// The status of a pod whose containers exit now. Without a restart the pod has ended, and has its
/// sandbox still.
pub fn exited(
    pod: &Pod,
    started: Timestamp,
    code: i32,
    restart: Option<Duration>,
    now: Timestamp,
) -> PodStatus {
    let mut status = pod.status.clone().unwrap_or_default();
    let reason = if code == 0 { "Completed" } else { "Error" };
    let end = ContainerStateTerminated {
        exit_code: code,
        reason: Some(reason.into()),
        started_at: Some(Time(started)),
        finished_at: Some(Time(now)),
        ..ContainerStateTerminated::default()
    };
    for container in status.container_statuses.iter_mut().flatten() {
        container.ready = false;
        container.started = Some(false);
        set_end(container, end.clone(), restart, pod);
    }
    if restart.is_some() {
        set_unready(&mut status, pod, now);
        return status;
    }
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    status.phase = Some(phase.into());
    let ended_pod = Pod {
        status: Some(status),
        ..pod.clone()
    };
    ended(&ended_pod, PodRemains::Sandbox, now)
}

/// Sets the state of a container that ended. One that starts again immediately is shown as
/// terminated until then.
fn set_end(
    container: &mut ContainerStatus,
    end: ContainerStateTerminated,
    restart: Option<Duration>,
    pod: &Pod,
) {
    let terminated = ContainerState {
        terminated: Some(end),
        ..ContainerState::default()
    };
    match restart.filter(|wait| !wait.is_zero()) {
        None => container.state = Some(terminated),
        Some(wait) => {
            let message = format!(
                "back-off {} restarting failed container={} pod={}_{}({})",
                go_duration(wait),
                container.name,
                pod.name(),
                pod.namespace(),
                pod.uid()
            );
            container.last_state = Some(terminated);
            container.state = Some(ContainerState {
                waiting: Some(ContainerStateWaiting {
                    reason: Some(CRASH_LOOP.into()),
                    message: Some(message),
                }),
                ..ContainerState::default()
            });
        }
    }
}

/// A delay of whole seconds as Go writes it, such as `2m40s`.
pub(super) fn go_duration(wait: Duration) -> String {
    match (wait.as_secs() / 60, wait.as_secs() % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::pod_exit::{EXIT_AFTER, EXIT_CODE};
    use serde_json::json;

    use super::{super::status::ReadySandbox, *};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(policy: &str, after: &str, code: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "ns", "uid": "u", "annotations": {EXIT_AFTER: after, EXIT_CODE: code}},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c"}, {"name": "d"}]},
        }))
        .unwrap()
    }

    /// The times and texts of a pod's life, until it ends or `end`, as a kubelet with a sandbox of
    /// second 100 writes them.
    fn life(mut pod: Pod, end: i64) -> Vec<(i64, String)> {
        let sandbox = ReadySandbox {
            ips: vec!["10.0.0.2".parse().unwrap()],
            created: at(100),
        };
        let (mut now, mut seen) = (at(100), Vec::new());
        while now.as_second() < end {
            let next = match containers(&pod, sandbox.created, now) {
                ContainerRun::Running { start, end } => {
                    pod.status = Some(super::super::status::running(
                        &pod,
                        &sandbox,
                        start,
                        &[],
                        now,
                    ));
                    seen.push((now.as_second(), format!("runs {}", start.restarts)));
                    end.unwrap_or(Timestamp::MAX)
                }
                ContainerRun::Exit {
                    started,
                    code,
                    restart,
                } => {
                    let status = exited(&pod, started, code, restart, now);
                    let phase = status.phase.clone().unwrap();
                    pod.status = Some(status);
                    seen.push((now.as_second(), format!("exits {code} {phase}")));
                    if restart.is_none() {
                        break;
                    }
                    now
                }
                ContainerRun::Waiting(until) => until,
            };
            now = next;
        }
        seen
    }

    fn lines(seen: &[(i64, &str)]) -> Vec<(i64, String)> {
        seen.iter()
            .map(|(at, what)| (*at, (*what).to_owned()))
            .collect()
    }

    #[test]
    fn restart_policy_decides_at_each_exit() {
        assert_eq!(
            life(pod("Never", "2s", "3"), 200),
            lines(&[(100, "runs 0"), (102, "exits 3 Failed")])
        );
        assert_eq!(
            life(pod("Never", "0s", "42"), 200),
            lines(&[(100, "runs 0"), (100, "exits 42 Failed")]),
            "its containers have a status to end"
        );
        assert_eq!(
            life(pod("OnFailure", "2s", "0"), 200),
            lines(&[(100, "runs 0"), (102, "exits 0 Succeeded")])
        );
        for (policy, code) in [("OnFailure", "1"), ("Always", "0")] {
            let exit = format!("exits {code} Running");
            let want = [
                (100, "runs 0"),
                (102, &exit),
                (102, "runs 1"),
                (104, &exit),
                (114, "runs 2"),
                (116, &exit),
                (136, "runs 3"),
                (138, &exit),
            ];
            assert_eq!(life(pod(policy, "2s", code), 170), lines(&want), "{policy}");
        }
    }

    #[test]
    fn shows_the_last_exit_and_the_delay() {
        let mut pod = pod("Always", "2s", "7");
        pod.status = serde_json::from_value(json!({"phase": "Running", "containerStatuses": [
            {"name": "c", "restartCount": 4, "ready": true, "image": "", "imageID": "", "state": {"running": {"startedAt": at(120)}}}]}))
        .unwrap();
        let wait = Some(Duration::from_secs(80));
        assert_eq!(
            containers(&pod, at(100), at(122)),
            ContainerRun::Exit {
                started: at(120),
                code: 7,
                restart: wait
            }
        );
        let status = exited(&pod, at(120), 7, wait, at(122));
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let container = &status.container_statuses.as_ref().unwrap()[0];
        let waiting = container.state.as_ref().unwrap().waiting.as_ref().unwrap();
        assert_eq!(waiting.reason.as_deref(), Some("CrashLoopBackOff"));
        assert_eq!(
            waiting.message.as_deref(),
            Some("back-off 1m20s restarting failed container=c pod=a_ns(u)")
        );
        let last = container.last_state.as_ref().unwrap().terminated.as_ref();
        let last = last.unwrap();
        assert_eq!((last.exit_code, last.reason.as_deref()), (7, Some("Error")));
        let ready = status.conditions.as_ref().unwrap().iter();
        let ready: Vec<_> = ready.filter(|c| c.type_ == "Ready").collect();
        assert_eq!(ready[0].status, "False");
    }

    #[test]
    fn delays_grow_to_five_minutes() {
        let delays = [0, 1, 2, 5, 6, 7, 40, i32::MAX].map(|restarts| backoff(restarts).as_secs());
        assert_eq!(delays, [0, 10, 20, 160, 300, 300, 300, 300]);
    }
}

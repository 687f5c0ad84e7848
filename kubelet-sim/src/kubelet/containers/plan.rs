//! The next changes of a pod's containers, by the rules of Kubernetes' kubelet: init containers run
//! one after another to their end, sidecars start in that order and stay, the others then run
//! together, and the pod's `restartPolicy` decides what follows on an exit.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podplane_api::{
    core::{Container, Pod},
    jiff::{SignedDuration, Timestamp},
};

use super::{ContainerPhase, PodContainer, app_containers, init_containers, is_sidecar, newest};

/// The delay before the second restart; each further one is twice as long.
const FIRST_DELAY: Duration = Duration::from_secs(10);
/// The longest delay before a restart.
const MAX_DELAY: Duration = Duration::from_secs(300);
/// A container that ran for this long after its last restart starts again without a delay.
const RESET_AFTER: SignedDuration = SignedDuration::from_secs(2 * 300);

/// The delays before the next restarts, by name of the container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RestartDelays(BTreeMap<String, RestartDelay>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RestartDelay {
    delay: Duration,
    /// The time of the last restart.
    restarted: Timestamp,
}

impl RestartDelays {
    /// The delay that is in force for a container that has ended; `None` before the first restart,
    /// and for one that ran for a long time. A kubelet that has just started knows no delays, and
    /// takes them from the number of restarts.
    fn of(&self, ended: &PodContainer) -> Option<Duration> {
        let counted = || {
            let doubled = u32::try_from(ended.restarts).ok()?.checked_sub(1)?;
            Some(RestartDelay {
                delay: doubled_delay(doubled),
                restarted: ended.created,
            })
        };
        let known = self.0.get(&ended.name).copied().or_else(counted)?;
        let ran = ended.end().duration_since(known.restarted);
        (ran <= RESET_AFTER).then_some(known.delay)
    }

    /// The time at which a container that has ended may start again.
    fn due(&self, ended: &PodContainer) -> Timestamp {
        let delay = self.of(ended).unwrap_or_default();
        let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        ended.end().saturating_add(delay).unwrap_or(Timestamp::MAX)
    }

    /// Notes that a container which has ended is started again at `now`.
    pub(crate) fn note_restart(&mut self, ended: &PodContainer, now: Timestamp) {
        let delay = self
            .of(ended)
            .map_or(FIRST_DELAY, |delay| delay.saturating_mul(2).min(MAX_DELAY));
        let restarted = RestartDelay {
            delay,
            restarted: now,
        };
        self.0.insert(ended.name.clone(), restarted);
    }
}

fn doubled_delay(times: u32) -> Duration {
    let factor = 2_u32.checked_pow(times).unwrap_or(u32::MAX);
    FIRST_DELAY.saturating_mul(factor).min(MAX_DELAY)
}

/// A container to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerStart {
    /// Its name.
    pub(crate) name: String,
    /// The id of a container that is created already and only needs to be started.
    pub(crate) created: Option<String>,
}

/// A container that has ended and waits for its restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DelayedRestart {
    /// Its name.
    pub(crate) name: String,
    /// The delay after its end.
    pub(crate) delay: Duration,
    /// The time of its restart.
    pub(crate) until: Timestamp,
}

/// The changes of a pod's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ContainerPlan {
    /// To be started now, in this order.
    pub(crate) start: Vec<ContainerStart>,
    /// To be started later.
    pub(crate) delayed: Vec<DelayedRestart>,
    /// True if the pod has ended: no container but sidecars runs, and none starts again.
    pub(crate) is_ended: bool,
}

impl ContainerPlan {
    /// The time of the next restart.
    pub(crate) fn wake(&self) -> Option<Timestamp> {
        self.delayed.iter().map(|delayed| delayed.until).min()
    }
}

/// Plans the changes of the pod's containers in `sandbox`. Containers of `held` cannot start now,
/// for another reason.
pub(crate) fn plan(
    pod: &Pod,
    sandbox: &str,
    containers: &[PodContainer],
    delays: &RestartDelays,
    held: &BTreeSet<String>,
    now: Timestamp,
) -> ContainerPlan {
    let planner = Planner {
        pod,
        sandbox,
        containers,
        delays,
        held,
        now,
    };
    let mut plan = ContainerPlan::default();
    if planner.plan_init(&mut plan) {
        planner.plan_apps(&mut plan);
    }
    plan
}

struct Planner<'a> {
    pod: &'a Pod,
    sandbox: &'a str,
    containers: &'a [PodContainer],
    delays: &'a RestartDelays,
    held: &'a BTreeSet<String>,
    now: Timestamp,
}

impl Planner<'_> {
    fn newest(&self, container: &Container) -> Option<&PodContainer> {
        newest(self.containers, self.sandbox, &container.name)
    }

    /// Plans init containers and sidecars. Returns true if the others may run.
    fn plan_init(&self, plan: &mut ContainerPlan) -> bool {
        let apps = app_containers(self.pod);
        let is_initialized = apps.iter().any(|app| self.newest(app).is_some());
        for init in init_containers(self.pod) {
            let found = self.newest(init);
            let is_done = match (found, is_sidecar(init)) {
                (None, false) if is_initialized => true,
                (None, _) => {
                    self.start(plan, init, None);
                    false
                }
                (Some(found), sidecar) => match found.phase {
                    ContainerPhase::Running => sidecar,
                    ContainerPhase::Created => {
                        self.start(plan, init, Some(found.id.clone()));
                        false
                    }
                    ContainerPhase::Exited | ContainerPhase::Unknown if sidecar => {
                        self.restart(plan, found);
                        false
                    }
                    ContainerPhase::Exited | ContainerPhase::Unknown if found.code() == 0 => true,
                    ContainerPhase::Exited | ContainerPhase::Unknown => {
                        match restart_policy(self.pod) {
                            RestartPolicy::Never => plan.is_ended = !is_initialized,
                            RestartPolicy::Always | RestartPolicy::OnFailure => {
                                self.restart(plan, found);
                            }
                        }
                        false
                    }
                },
            };
            if !is_done && !is_initialized {
                return false;
            }
        }
        true
    }

    fn plan_apps(&self, plan: &mut ContainerPlan) {
        let policy = restart_policy(self.pod);
        let mut is_ended = true;
        for app in app_containers(self.pod) {
            let found = self.newest(app);
            match found.map(|found| (found, found.phase)) {
                None => self.start(plan, app, None),
                Some((found, ContainerPhase::Created)) => {
                    self.start(plan, app, Some(found.id.clone()));
                }
                Some((_, ContainerPhase::Running)) => {}
                Some((found, _)) if policy.restarts_after(found.code()) => {
                    self.restart(plan, found);
                }
                Some(_) => continue,
            }
            is_ended = false;
        }
        plan.is_ended = is_ended;
    }

    fn start(&self, plan: &mut ContainerPlan, container: &Container, created: Option<String>) {
        if !self.held.contains(&container.name) {
            plan.start.push(ContainerStart {
                name: container.name.clone(),
                created,
            });
        }
    }

    fn restart(&self, plan: &mut ContainerPlan, ended: &PodContainer) {
        if self.held.contains(&ended.name) {
            return;
        }
        let until = self.delays.due(ended);
        if until <= self.now {
            plan.start.push(ContainerStart {
                name: ended.name.clone(),
                created: None,
            });
        } else {
            plan.delayed.push(DelayedRestart {
                name: ended.name.clone(),
                delay: self.delays.of(ended).unwrap_or_default(),
                until,
            });
        }
    }
}

/// `restartPolicy` of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    /// The default.
    Always,
    /// Restart after an exit code other than 0.
    OnFailure,
    /// Never restart.
    Never,
}

impl RestartPolicy {
    /// Returns true if a container starts again after that exit code.
    pub(crate) fn restarts_after(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// The pod's restart policy.
pub(crate) fn restart_policy(pod: &Pod) -> RestartPolicy {
    let policy = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref());
    match policy {
        Some("Never") => RestartPolicy::Never,
        Some("OnFailure") => RestartPolicy::OnFailure,
        _ => RestartPolicy::Always,
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;

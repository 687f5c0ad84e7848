//! The plan of a churn: the steps and their times, all of which follow from a seed.

use std::{fmt, time::Duration};

use fastrand::Rng;

/// The nodes that a cluster starts with.
pub const NODES: usize = 3;
/// The pods that each of them has addresses for.
pub const PODS: usize = 5;
/// The time for which a kubelet is paused: longer than the longest wait for a silent one.
const STANDSTILL: Duration = Duration::from_secs(44);
/// The mean time between two creations of pods.
const BETWEEN_PODS: Duration = Duration::from_millis(550);
/// The mean time between two faults.
const BETWEEN_FAULTS: Duration = Duration::from_millis(1_800);

/// A step. It has numbers and names of its own, so that a plan does not depend on the state of the
/// cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChurnStep {
    /// Creates pod `p-N`.
    Create {
        /// Its number.
        pod: usize,
        /// The kind of pod.
        kind: PodKind,
    },
    /// Deletes a pod.
    Delete {
        /// Its number.
        pod: usize,
        /// With a grace period of 0, so that its object is gone before its sandbox.
        force: bool,
    },
    /// Removes the finalizer of a pod.
    Finalize {
        /// Its number.
        pod: usize,
    },
    /// Kills a process with SIGKILL.
    Kill(TargetProcess),
    /// Pauses the kubelet of a node.
    Pause {
        /// The node.
        node: usize,
    },
    /// Lets the kubelet go on.
    Resume {
        /// The node.
        node: usize,
    },
    /// Damages the lease file of a live sandbox.
    Damage {
        /// The kind of damage.
        how: LeaseDamage,
        /// The choice among the lease files, modulo their number.
        pick: usize,
    },
    /// Deletes the Node object, and nothing else.
    DeleteNode {
        /// The node.
        node: usize,
    },
    /// Creates the Node object again, as `kubectl apply` would.
    CreateNode {
        /// The node.
        node: usize,
    },
    /// Ends the node, and makes it again: `podplane node remove` and `node add`.
    ReplaceNode {
        /// The node.
        node: usize,
    },
    /// Makes a node of another name, which waits until there is a block for it.
    AddTaker,
    /// Ends that node.
    RemoveTaker,
    /// Writes that no address of the node is in use, deletes its pods by force, and then its Node
    /// object.
    ClaimEmpty {
        /// The node.
        node: usize,
    },
    /// Deletes the Node object, asks the API server to release its block without a fence, and
    /// creates another node with that block.
    Snatch {
        /// The node.
        node: usize,
    },
}

/// The kind of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodKind {
    /// An ordinary pod.
    Plain,
    /// A pod with a finalizer, so that its object outlives its sandbox.
    Finalizer,
    /// A pod that names its node itself.
    Bound(usize),
    /// A pod on its node's network.
    HostNetwork,
}

/// A process to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetProcess {
    /// `apiserver`.
    ApiServer,
    /// `scheduler`.
    Scheduler,
    /// `ipam-controller`.
    IpamController,
    /// `controller-manager`.
    ControllerManager,
    /// The kubelet of a node.
    Kubelet(usize),
    /// The CRI server of a node.
    Cri(usize),
}

/// The kind of damage to a lease file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDamage {
    /// The file is emptied.
    Truncate,
    /// The file is filled with NULs, as after a power failure.
    Nul,
    /// The file is removed.
    Delete,
}

/// The steps, by the time since the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChurnPlan(pub Vec<(Duration, ChurnStep)>);

impl ChurnPlan {
    /// The plan of a seed.
    #[must_use]
    pub fn new(seed: u64, length: Duration) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut steps = Vec::new();
        pods(&mut rng, length, &mut steps);
        faults(&mut rng, length, &mut steps);
        standstills(&mut rng, length, &mut steps);
        // The sort is stable: steps of one time stay in the order of this function.
        steps.sort_by_key(|(at, _)| *at);
        Self(steps)
    }
}

/// A random time from half of `mean` to one and a half.
fn around(rng: &mut Rng, mean: Duration) -> Duration {
    mean.mul_f64(0.5 + rng.f64())
}

fn between(rng: &mut Rng, from: Duration, to: Duration) -> Duration {
    from + to.saturating_sub(from).mul_f64(rng.f64())
}

fn pods(rng: &mut Rng, length: Duration, steps: &mut Vec<(Duration, ChurnStep)>) {
    const SHORT: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(14);
    let mut at = Duration::ZERO;
    for pod in 0.. {
        at += around(rng, BETWEEN_PODS);
        if at >= length {
            return;
        }
        let kind = match rng.u32(0..20) {
            0..5 => PodKind::Finalizer,
            5..8 => PodKind::Bound(rng.usize(0..NODES)),
            8 => PodKind::HostNetwork,
            _ => PodKind::Plain,
        };
        steps.push((at, ChurnStep::Create { pod, kind }));
        let end = at + between(rng, SHORT, LONG);
        let force = rng.u32(0..5) == 0;
        steps.push((end, ChurnStep::Delete { pod, force }));
        if kind == PodKind::Finalizer {
            let finalized = end + between(rng, SHORT, LONG);
            steps.push((finalized, ChurnStep::Finalize { pod }));
        }
    }
}

fn faults(rng: &mut Rng, length: Duration, steps: &mut Vec<(Duration, ChurnStep)>) {
    let mut at = Duration::ZERO;
    loop {
        at += around(rng, BETWEEN_FAULTS);
        if at >= length {
            return;
        }
        let node = rng.usize(0..NODES);
        let step = match rng.u32(0..30) {
            0..4 => ChurnStep::Kill(TargetProcess::ApiServer),
            4..8 => ChurnStep::Kill(TargetProcess::Kubelet(node)),
            8..13 => ChurnStep::Kill(TargetProcess::Cri(node)),
            13..15 => ChurnStep::Kill(TargetProcess::Scheduler),
            15..17 => ChurnStep::Kill(TargetProcess::IpamController),
            17 => ChurnStep::Kill(TargetProcess::ControllerManager),
            18..25 => ChurnStep::Damage {
                how: [LeaseDamage::Truncate, LeaseDamage::Nul, LeaseDamage::Delete]
                    [rng.usize(0..3)],
                pick: rng.usize(0..1_000),
            },
            25 => ChurnStep::ClaimEmpty { node },
            26 => ChurnStep::Snatch { node },
            27 => ChurnStep::ReplaceNode { node },
            _ => ChurnStep::DeleteNode { node },
        };
        if let ChurnStep::ClaimEmpty { .. }
        | ChurnStep::Snatch { .. }
        | ChurnStep::DeleteNode { .. } = step
        {
            let back = at + between(rng, Duration::from_millis(200), Duration::from_secs(6));
            steps.push((back, ChurnStep::CreateNode { node }));
        }
        steps.push((at, step));
    }
}

/// Once in each part of the plan, a node whose kubelet is silent is deleted while its sandboxes
/// live, and another one waits for its block.
fn standstills(rng: &mut Rng, length: Duration, steps: &mut Vec<(Duration, ChurnStep)>) {
    let second = Duration::from_secs(1);
    let mut begin = Duration::ZERO;
    loop {
        // Not before there are pods.
        begin += between(rng, 5 * second, 9 * second);
        let end = begin + STANDSTILL;
        if end > length {
            return;
        }
        let node = rng.usize(0..NODES);
        steps.retain(|(at, step)| !(begin..=end).contains(at) || !revives(step, node));
        steps.push((begin, ChurnStep::Pause { node }));
        steps.push((begin + second, ChurnStep::DeleteNode { node }));
        steps.push((begin + 2 * second, ChurnStep::AddTaker));
        steps.push((end, ChurnStep::Resume { node }));
        steps.push((end, ChurnStep::CreateNode { node }));
        steps.push((end + 2 * second, ChurnStep::RemoveTaker));
        begin = end + 4 * second;
    }
}

impl ChurnStep {
    /// The node whose object the step creates, deletes or replaces.
    pub(super) fn node(&self) -> Option<usize> {
        match self {
            Self::DeleteNode { node }
            | Self::CreateNode { node }
            | Self::ReplaceNode { node }
            | Self::ClaimEmpty { node }
            | Self::Snatch { node } => Some(*node),
            _ => None,
        }
    }
}

/// Returns true if a step would bring back the node whose kubelet is paused.
fn revives(step: &ChurnStep, paused: usize) -> bool {
    match step {
        ChurnStep::CreateNode { node } | ChurnStep::ReplaceNode { node } => *node == paused,
        ChurnStep::Kill(TargetProcess::Kubelet(node)) => *node == paused,
        _ => false,
    }
}

/// The name of a node.
#[must_use]
pub fn node_name(node: usize) -> String {
    format!("node-{node}")
}

/// The name of a pod.
#[must_use]
pub fn pod_name(pod: usize) -> String {
    format!("p-{pod}")
}

impl fmt::Display for ChurnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { pod, kind } => write!(f, "create pod p-{pod} ({kind:?})"),
            Self::Delete { pod, force: false } => write!(f, "delete pod p-{pod}"),
            Self::Delete { pod, force: true } => write!(f, "delete pod p-{pod} by force"),
            Self::Finalize { pod } => write!(f, "remove the finalizer of pod p-{pod}"),
            Self::Kill(victim) => write!(f, "kill {victim}"),
            Self::Pause { node } => write!(f, "stop the kubelet of node-{node}"),
            Self::Resume { node } => write!(f, "let the kubelet of node-{node} go on"),
            Self::Damage { how, .. } => write!(f, "damage a lease ({how:?})"),
            Self::DeleteNode { node } => write!(f, "delete the object of node-{node}"),
            Self::CreateNode { node } => write!(f, "create the object of node-{node}"),
            Self::ReplaceNode { node } => write!(f, "remove node-{node} and add it again"),
            Self::AddTaker => write!(f, "add a node that takes the next free block"),
            Self::ClaimEmpty { node } => {
                write!(
                    f,
                    "write that node-{node} has no address in use, and delete it"
                )
            }
            Self::RemoveTaker => write!(f, "remove that node"),
            Self::Snatch { node } => write!(f, "have node-{node}'s block released"),
        }
    }
}

impl fmt::Display for TargetProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer => write!(f, "apiserver"),
            Self::Scheduler => write!(f, "scheduler"),
            Self::IpamController => write!(f, "ipam-controller"),
            Self::ControllerManager => write!(f, "controller-manager"),
            Self::Kubelet(node) => write!(f, "kubelet-node-{node}"),
            Self::Cri(node) => write!(f, "cri-node-{node}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_secs(70);

    #[test]
    fn the_plan_follows_from_the_seed() {
        assert_eq!(ChurnPlan::new(7, SHORT), ChurnPlan::new(7, SHORT));
        assert_ne!(ChurnPlan::new(7, SHORT), ChurnPlan::new(8, SHORT));
    }

    #[test]
    fn every_short_plan_has_every_kind_of_fault_that_is_certain() {
        for seed in 0..50 {
            let ChurnPlan(steps) = ChurnPlan::new(seed, SHORT);
            let has = |is: fn(&ChurnStep) -> bool| steps.iter().any(|(_, step)| is(step));
            assert!(
                has(|step| matches!(step, ChurnStep::Pause { .. })),
                "{seed}"
            );
            assert!(has(|step| matches!(step, ChurnStep::AddTaker)), "{seed}");
            assert!(has(|step| matches!(step, ChurnStep::Kill(_))), "{seed}");
            assert!(
                has(|step| matches!(step, ChurnStep::Delete { force: true, .. })),
                "{seed}"
            );
            assert!(
                has(|step| matches!(step, ChurnStep::Finalize { .. })),
                "{seed}"
            );
            assert!(
                has(|step| matches!(step, ChurnStep::Damage { .. })),
                "{seed}"
            );
        }
    }
}

//! Runs the invariant checker after each step.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use podplane_ipam::invariants::{self, Violation, World};
use podplane_test_cluster::monitor::{ListedRevisions, ViolationSpan};
use tokio::time::{Instant, sleep};

use crate::{format::ViolationKind, plan::PlannedStep, stage::ScenarioCluster};

/// The time between two looks at the cluster.
const LOOK: Duration = Duration::from_millis(50);

/// The time limit, at the end of a run, of waiting for pods that are about to get or to lose an
/// address. Some never will.
const REST: Duration = Duration::from_secs(1);

/// A mismatch between the violations that a step names and those that the checker found.
#[derive(Debug)]
pub(crate) struct ViolationMismatch {
    pub(crate) expected: BTreeSet<ViolationKind>,
    pub(crate) found: Findings,
}

/// The findings of the checker.
#[derive(Debug)]
pub(crate) enum Findings {
    /// Violations at the last look.
    Lasting(Vec<Violation>),
    /// Violations at some revision, which may be over.
    AtRevisions(Vec<ViolationSpan>),
    /// The cluster could not be observed, with the reason.
    Nothing(String),
}

impl Findings {
    pub(crate) fn violations(&self) -> Vec<&Violation> {
        match self {
            Self::Lasting(each) => each.iter().collect(),
            Self::AtRevisions(each) => each.iter().map(|span| &span.violation).collect(),
            Self::Nothing(_) => Vec::new(),
        }
    }

    /// A text for each violation.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Lasting(each) => each.iter().map(ToString::to_string).collect(),
            Self::AtRevisions(each) => each
                .iter()
                .map(|span| span.to_string().replace('\n', "\n            "))
                .collect(),
            Self::Nothing(_) => Vec::new(),
        }
    }
}

impl std::fmt::Display for ViolationMismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = |kinds: &BTreeSet<ViolationKind>| match kinds.is_empty() {
            true => "no violation".to_owned(),
            false => kinds
                .iter()
                .map(|kind| kind.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        };
        write!(f, "the invariants:\n  expected: {}", names(&self.expected))?;
        if let Findings::Nothing(error) = &self.found {
            return write!(
                f,
                "\n  was:      unknown: failed to observe the cluster: {error}"
            );
        }
        let violations = self.found.violations();
        write!(
            f,
            "\n  was:      {}",
            names(&kinds(violations.iter().copied()))
        )?;
        let each = violations.iter().zip(self.found.lines());
        for (violation, line) in each.take(20) {
            let kind = ViolationKind::from(*violation).as_str();
            write!(f, "\n            {kind}: {line}")?;
        }
        match violations.len().checked_sub(20) {
            Some(more @ 1..) => write!(f, "\n            and {more} more"),
            _ => Ok(()),
        }
    }
}

/// The violations that the checker may find after a step.
#[derive(Debug)]
pub(crate) struct ExpectedViolations<'a> {
    pub(crate) step: &'a PlannedStep,
    /// The violations that the step before named, which may take some time to disappear.
    pub(crate) before: &'a BTreeSet<ViolationKind>,
    /// True for the last step: nobody looks again after it, so changes under way are awaited.
    pub(crate) is_last: bool,
}

/// Waits until the checker finds the violations that the step names, and no others. Returns the
/// violations that it found.
///
/// Lists and files are compared again and again: they are not read at one moment, so a violation in
/// them may be an artefact. Every revision of pods and nodes is checked by the same rules, too
/// ([`invariants::Tracker`]): a violation at a revision is real, however short it was.
pub(crate) async fn check(
    stage: &mut ScenarioCluster,
    expected: &ExpectedViolations<'_>,
) -> Result<Vec<Violation>, ViolationMismatch> {
    let ExpectedViolations { step, is_last, .. } = expected;
    if !stage.is_observable() {
        return Ok(Vec::new());
    }
    let otherwise = |found| ViolationMismatch {
        expected: step.violations.clone(),
        found,
    };
    let begun = Instant::now();
    let mut listed = None;
    let mut seen = Vec::new();
    loop {
        let looked = look(stage, &mut listed).await;
        let new = stage.new_spans();
        let unexpected: Vec<_> = new
            .iter()
            .filter(|span| !expected.allows(&span.violation))
            .cloned()
            .collect();
        if !unexpected.is_empty() {
            return Err(otherwise(Findings::AtRevisions(unexpected)));
        }
        seen.extend(new.into_iter().map(|span| span.violation));
        let found = match looked {
            Ok(world) => {
                let found = invariants::check(&world);
                let is_over = !is_last || is_at_rest(&world) || begun.elapsed() >= REST;
                if is_over && expected.is_met(&found, &seen) {
                    seen.retain(|violation| !found.contains(violation));
                    return Ok(found.into_iter().chain(seen).collect());
                }
                Findings::Lasting(found)
            }
            Err(error) => Findings::Nothing(format!("{error:#}")),
        };
        if begun.elapsed() >= step.settle {
            return Err(otherwise(found));
        }
        sleep(LOOK).await;
    }
}

/// Observes the cluster. Fails until the watches have caught up with the state at the end of the
/// step.
async fn look(
    stage: &ScenarioCluster,
    listed: &mut Option<ListedRevisions>,
) -> anyhow::Result<World> {
    let world = stage.cluster.world().await?;
    let listed = match listed {
        Some(listed) => listed,
        None => listed.insert(stage.monitor.listed().await?),
    };
    let has_reached = stage.monitor.history().has_reached(listed);
    ensure!(has_reached, "the watches of pods and nodes are behind");
    Ok(world)
}

impl ExpectedViolations<'_> {
    /// Returns true if a violation may exist while the step goes on, or while violations of the
    /// step before disappear.
    fn allows(&self, violation: &Violation) -> bool {
        let kind = ViolationKind::from(violation);
        self.step.violations.contains(&kind) || self.before.contains(&kind)
    }

    /// Returns true if the step names all violations that exist `now`, and each that it names
    /// exists or was `seen` at a revision.
    fn is_met(&self, now: &[Violation], seen: &[Violation]) -> bool {
        let named = &self.step.violations;
        kinds(now).is_subset(named) && named.is_subset(&kinds(now.iter().chain(seen)))
    }
}

/// Returns true if no pod is about to get or to lose an address.
fn is_at_rest(world: &World) -> bool {
    let mut pods = world.pods.iter().filter(|pod| pod.uses_pod_network());
    pods.all(|pod| !pod.deleting && (pod.node.is_none() || !pod.ips.is_empty()))
}

fn kinds<'a>(violations: impl IntoIterator<Item = &'a Violation>) -> BTreeSet<ViolationKind> {
    violations.into_iter().map(ViolationKind::from).collect()
}

#[cfg(test)]
mod tests {
    use podplane_ipam::invariants::Pod;

    use super::*;
    use crate::plan::Action;

    fn pod(name: &str, node: &str, ip: Option<&str>) -> Pod {
        Pod {
            namespace: "default".into(),
            name: name.into(),
            uid: name.into(),
            node: Some(node.into()),
            host_network: false,
            released: false,
            deleting: false,
            ips: ip.map(|ip| ip.parse().unwrap()).into_iter().collect(),
        }
    }

    fn duplicate() -> Violation {
        Violation::DuplicateAddress {
            ip: "10.0.0.2".parse().unwrap(),
            pods: Vec::new(),
        }
    }

    /// Calls `question` about a step that names `step`, after one that names `before`.
    fn ask<T>(
        step: &[ViolationKind],
        before: &[ViolationKind],
        question: impl FnOnce(&ExpectedViolations<'_>) -> T,
    ) -> T {
        let step = PlannedStep {
            at: crate::Position { line: 1, column: 1 },
            title: String::new(),
            full_title: String::new(),
            is_named: false,
            action: Action::Check,
            violations: step.iter().copied().collect(),
            settle: Duration::from_secs(20),
        };
        let before = before.iter().copied().collect();
        question(&ExpectedViolations {
            step: &step,
            before: &before,
            is_last: false,
        })
    }

    #[test]
    fn allows_violations_named_by_this_or_the_previous_step() {
        use ViolationKind::{DuplicatePodIp, OverlappingPodCidr};
        let allows = |step: &[_], before: &[_]| ask(step, before, |of| of.allows(&duplicate()));
        assert!(!allows(&[], &[]));
        assert!(!allows(&[OverlappingPodCidr], &[OverlappingPodCidr]));
        assert!(allows(&[OverlappingPodCidr, DuplicatePodIp], &[]));
        assert!(allows(&[], &[DuplicatePodIp]));
    }

    #[test]
    fn requires_named_violations_and_rejects_all_others() {
        let named = [ViolationKind::DuplicatePodIp];
        let is_met = |step: &[_], now: &[_], seen: &[_]| ask(step, &[], |of| of.is_met(now, seen));
        assert!(is_met(&[], &[], &[]));
        assert!(is_met(&named, &[duplicate()], &[]));
        assert!(is_met(&named, &[], &[duplicate()]));
        assert!(!is_met(&named, &[], &[]));
        assert!(!is_met(&[], &[duplicate()], &[]));
        // The step before named it.
        assert!(is_met(&[], &[], &[duplicate()]));
    }

    #[test]
    fn a_cluster_is_at_rest_when_all_bound_pods_have_addresses_and_none_is_ending() {
        let mut world = World {
            pods: vec![pod("x", "a", Some("10.0.0.2")), pod("y", "", None)],
            ..World::default()
        };
        assert!(!is_at_rest(&world));
        world.pods[1].node = None;
        assert!(is_at_rest(&world));
        world.pods[0].deleting = true;
        assert!(!is_at_rest(&world));
        world.pods[0].released = true;
        assert!(is_at_rest(&world));
    }
}

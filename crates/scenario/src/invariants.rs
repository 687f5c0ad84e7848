//! The invariant checker, after each step.

use std::{collections::BTreeSet, time::Duration};

use anyhow::ensure;
use podplane_ipam::audit::{self, Violation, World};
use podplane_testkit::monitor::{ListedRevisions, ViolationSpan};
use tokio::time::{Instant, sleep};

use crate::{format::ViolationKind, plan::Step, stage::Stage};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// How long pods that are about to get or to lose an address are waited for in the end. Some never will.
const REST: Duration = Duration::from_secs(1);

/// What the checker found where it should have found something else.
#[derive(Debug)]
pub(crate) struct Otherwise {
    pub(crate) expected: BTreeSet<ViolationKind>,
    pub(crate) found: Findings,
}

/// The findings of the checker.
#[derive(Debug)]
pub(crate) enum Findings {
    /// This was there at the last look.
    Lasting(Vec<Violation>),
    /// This was there at some revision, and may be over.
    AtRevisions(Vec<ViolationSpan>),
    /// Nobody could see what was there.
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

impl std::fmt::Display for Otherwise {
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
            return write!(f, "\n  was:      not to be seen: {error}");
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

/// What a step changes about what the checker may find.
#[derive(Debug)]
pub(crate) struct Expected<'a> {
    pub(crate) step: &'a Step,
    /// What the step before has left, which may take its time to go.
    pub(crate) before: &'a BTreeSet<ViolationKind>,
    /// Nobody looks again after this: what is under way is waited for.
    pub(crate) is_last: bool,
}

/// Waits until the checker finds what the step says, and nothing else. Returns what it found.
///
/// Lists and files are compared again and again: they are not of one moment, so what they show may
/// be passing. Every revision of pods and nodes is judged, too, by the same rules
/// ([`audit::Tracker`]): what breaks them at a revision did break them, for however short a time.
pub(crate) async fn check(
    stage: &mut Stage,
    expected: &Expected<'_>,
) -> Result<Vec<Violation>, Otherwise> {
    let Expected { step, is_last, .. } = expected;
    if !stage.is_observable() {
        return Ok(Vec::new());
    }
    let otherwise = |found| Otherwise {
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
                let found = audit::check(&world);
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

/// Looks at the cluster, once the watches have been told of all that there was when the step ended.
async fn look(stage: &Stage, listed: &mut Option<ListedRevisions>) -> anyhow::Result<World> {
    let world = stage.cluster.world().await?;
    let listed = match listed {
        Some(listed) => listed,
        None => listed.insert(stage.monitor.listed().await?),
    };
    let has_reached = stage.monitor.history().has_reached(listed);
    ensure!(has_reached, "the watches of pods and nodes are behind");
    Ok(world)
}

impl Expected<'_> {
    /// Returns true if a violation may be there while the step goes on, or while what the step before
    /// has left passes.
    fn allows(&self, violation: &Violation) -> bool {
        let kind = ViolationKind::from(violation);
        self.step.violations.contains(&kind) || self.before.contains(&kind)
    }

    /// Returns true if the step names all that is there `now`, and all that it names is there or was
    /// `seen` at a revision.
    fn is_met(&self, now: &[Violation], seen: &[Violation]) -> bool {
        let named = &self.step.violations;
        kinds(now).is_subset(named) && named.is_subset(&kinds(now.iter().chain(seen)))
    }
}

/// Whether no pod is about to get or to lose an address.
fn is_at_rest(world: &World) -> bool {
    let mut pods = world.pods.iter().filter(|pod| pod.uses_pod_network());
    pods.all(|pod| !pod.deleting && (pod.node.is_none() || !pod.ips.is_empty()))
}

fn kinds<'a>(violations: impl IntoIterator<Item = &'a Violation>) -> BTreeSet<ViolationKind> {
    violations.into_iter().map(ViolationKind::from).collect()
}

#[cfg(test)]
mod tests {
    use podplane_ipam::audit::Pod;

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

    /// Asks of a step that names `step`, after one that names `before`.
    fn ask<T>(
        step: &[ViolationKind],
        before: &[ViolationKind],
        question: impl FnOnce(&Expected<'_>) -> T,
    ) -> T {
        let step = Step {
            at: crate::Position { line: 1, column: 1 },
            title: String::new(),
            action: Action::Check,
            violations: step.iter().copied().collect(),
            settle: Duration::from_secs(20),
        };
        let before = before.iter().copied().collect();
        question(&Expected {
            step: &step,
            before: &before,
            is_last: false,
        })
    }

    #[test]
    fn allows_what_this_step_or_the_one_before_names() {
        use ViolationKind::{DuplicatePodIp, OverlappingPodCidr};
        let allows = |step: &[_], before: &[_]| ask(step, before, |of| of.allows(&duplicate()));
        assert!(!allows(&[], &[]));
        assert!(!allows(&[OverlappingPodCidr], &[OverlappingPodCidr]));
        assert!(allows(&[OverlappingPodCidr, DuplicatePodIp], &[]));
        assert!(allows(&[], &[DuplicatePodIp]));
    }

    #[test]
    fn a_named_violation_is_there_or_was_seen_and_no_other_is_there() {
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

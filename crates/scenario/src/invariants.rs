//! The invariant checker, after each step.

use std::{collections::BTreeSet, time::Duration};

use podplane_ipam::audit::{self, Violation, World};
use tokio::time::{Instant, sleep};

use crate::{format::ViolationKind, plan::Step, stage::Stage};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// Nodes, pods and files are not seen at the same moment. What is still so after this long was no such deception.
const CERTAIN: Duration = Duration::from_secs(3);

/// How long pods that are about to get or to lose an address are waited for in the end. Some never will.
const REST: Duration = Duration::from_secs(1);

/// What the checker found where it should have found something else.
#[derive(Debug)]
pub(crate) struct Otherwise {
    pub(crate) expected: BTreeSet<ViolationKind>,
    /// What was there, or why nobody could see it.
    pub(crate) found: Result<Vec<Violation>, String>,
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
        match &self.found {
            Err(error) => write!(f, "\n  was:      not to be seen: {error}"),
            Ok(found) => {
                write!(f, "\n  was:      {}", names(&kinds(found)))?;
                found.iter().take(20).try_for_each(|violation| {
                    write!(
                        f,
                        "\n            {}: {violation}",
                        ViolationKind::from(violation).as_str()
                    )
                })?;
                match found.len().checked_sub(20) {
                    Some(more @ 1..) => write!(f, "\n            and {more} more"),
                    _ => Ok(()),
                }
            }
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
pub(crate) async fn check(
    stage: &Stage,
    expected: &Expected<'_>,
) -> Result<Vec<Violation>, Otherwise> {
    let Expected { step, is_last, .. } = expected;
    if !stage.is_observable() {
        return Ok(Vec::new());
    }
    let begun = Instant::now();
    let mut certain_from: Option<Instant> = None;
    loop {
        let found = match stage.cluster.world().await {
            Ok(world) => {
                let found = audit::check(&world);
                let is_over = !is_last || is_at_rest(&world) || begun.elapsed() >= REST;
                if is_over && kinds(&found) == step.violations {
                    return Ok(found);
                }
                Ok(found)
            }
            Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
        };
        let patience = match &found {
            Ok(found) => patience(found, expected),
            Err(_) => None,
        };
        certain_from = patience.and(certain_from.or_else(|| Some(Instant::now())));
        let is_certain = certain_from
            .zip(patience)
            .is_some_and(|(since, patience)| since.elapsed() >= patience.min(step.settle));
        if is_certain || begun.elapsed() >= step.settle {
            return Err(Otherwise {
                expected: step.violations.clone(),
                found,
            });
        }
        sleep(LOOK).await;
    }
}

/// How long what was found may be passing, if it hardly can be: sandboxes that are being made, and pods that are being collected, look wrong for a while.
fn patience(found: &[Violation], expected: &Expected<'_>) -> Option<Duration> {
    let kinds = kinds(found);
    let is_new = |kind| {
        kinds.contains(&kind)
            && ![&expected.step.violations, expected.before]
                .iter()
                .any(|known| known.contains(&kind))
    };
    if is_new(ViolationKind::OverlappingPodCidr) {
        // All blocks are seen in one list.
        Some(Duration::ZERO)
    } else if is_new(ViolationKind::DuplicatePodIp) {
        Some(CERTAIN)
    } else {
        None
    }
}

/// Whether no pod is about to get or to lose an address.
fn is_at_rest(world: &World) -> bool {
    let mut pods = world.pods.iter().filter(|pod| pod.uses_pod_network());
    pods.all(|pod| !pod.deleting && (pod.node.is_none() || !pod.ips.is_empty()))
}

fn kinds(violations: &[Violation]) -> BTreeSet<ViolationKind> {
    violations.iter().map(ViolationKind::from).collect()
}

#[cfg(test)]
mod tests {
    use podplane_ipam::audit::{Node, Pod};

    use super::*;
    use crate::plan::Action;

    fn node(name: &str, block: &str) -> Node {
        Node {
            name: name.into(),
            uid: name.into(),
            pod_cidrs: vec![block.parse().unwrap()],
            ip_capacity: None,
        }
    }

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

    fn after(step: &[ViolationKind], before: &[ViolationKind], world: &World) -> Option<Duration> {
        let step = Step {
            at: crate::Position { line: 1, column: 1 },
            title: String::new(),
            action: Action::Check,
            violations: step.iter().copied().collect(),
            settle: Duration::from_secs(20),
        };
        let before = before.iter().copied().collect();
        let expected = Expected {
            step: &step,
            before: &before,
            is_last: false,
        };
        patience(&audit::check(world), &expected)
    }

    #[test]
    fn blocks_of_one_list_overlap_for_certain_unless_they_did_before() {
        use ViolationKind::{DuplicatePodIp, OverlappingPodCidr};
        let mut world = World {
            nodes: vec![node("a", "10.0.0.0/24"), node("b", "10.0.0.0/25")],
            ..World::default()
        };
        assert_eq!(after(&[], &[], &world), Some(Duration::ZERO));
        assert_eq!(after(&[OverlappingPodCidr], &[], &world), None);
        assert_eq!(after(&[], &[OverlappingPodCidr], &world), None);
        world.pods = vec![
            pod("x", "a", Some("10.0.0.2")),
            pod("y", "b", Some("10.0.0.2")),
        ];
        assert_eq!(after(&[], &[OverlappingPodCidr], &world), Some(CERTAIN));
        let both = [OverlappingPodCidr, DuplicatePodIp];
        assert_eq!(after(&both, &[], &world), None);
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

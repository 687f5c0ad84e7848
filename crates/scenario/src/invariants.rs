//! The invariant checker, after each step.

use std::{collections::BTreeSet, time::Duration};

use podplane_ipam::audit::Violation;
use tokio::time::{Instant, sleep};

use crate::{format::ViolationKind, plan::Step, stage::Stage};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// Nodes, pods and files are not seen at the same moment. What is still so after this long was no such deception.
const CERTAIN: Duration = Duration::from_secs(3);

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

/// Waits until the checker finds what the step says, and nothing else. Returns what it found.
pub(crate) async fn check(stage: &Stage, step: &Step) -> Result<Vec<Violation>, Otherwise> {
    if !stage.is_observable() {
        return Ok(Vec::new());
    }
    let begun = Instant::now();
    let mut certain_from: Option<Instant> = None;
    loop {
        let found = match stage.cluster.violations().await {
            Ok(violations) if kinds(&violations) == step.violations => return Ok(violations),
            Ok(violations) => Ok(violations),
            Err(error) => Err(format!("{:#}", anyhow::Error::from(error))),
        };
        if let Ok(violations) = &found {
            // Sandboxes that are being made, and pods that are being collected, look wrong for a while. These never may.
            let is_bad = kinds(violations).difference(&step.violations).any(|kind| {
                matches!(
                    kind,
                    ViolationKind::DuplicatePodIp | ViolationKind::OverlappingPodCidr
                )
            });
            certain_from = match certain_from {
                _ if !is_bad => None,
                None => Some(Instant::now()),
                since => since,
            };
        }
        let is_certain =
            certain_from.is_some_and(|since| since.elapsed() >= CERTAIN.min(step.settle));
        if is_certain || begun.elapsed() >= step.settle {
            return Err(Otherwise {
                expected: step.violations.clone(),
                found,
            });
        }
        sleep(LOOK).await;
    }
}

fn kinds(violations: &[Violation]) -> BTreeSet<ViolationKind> {
    violations.iter().map(ViolationKind::from).collect()
}

//! The steps of a trace in the order in which they are shown, with the attempts that are shown as
//! one line and the times without a step.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{DEEPEST, DroppedAttempts, DroppedSteps, failure};

/// The fewest alike steps of which those between the first and the last one are folded.
const FEWEST_FOLDED: usize = 4;
/// The shortest time without a step that is said, in nanoseconds.
const SHORTEST_GAP: u64 = 1_000_000_000;

/// A step of a trace.
#[derive(Clone, Copy, Debug)]
pub struct TraceStep<'a, Id> {
    /// The id.
    pub id: Id,
    /// The id of the step that it is a part of; `None` for a root.
    pub parent: Option<Id>,
    /// The name.
    pub name: &'a str,
    /// The process that did it: a CNI plugin, or the service.
    pub process: &'a str,
    /// The error with which it ended.
    pub error: Option<&'a str>,
    /// The start, in nanoseconds since 1970.
    pub start: u64,
    /// The end, in nanoseconds since 1970.
    pub end: u64,
}

/// The order of the steps, and what can be said about several of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outline {
    /// The steps, each before its parts, which are in the order of their starts. A part of a step
    /// that is not known is a part of the root.
    pub steps: Vec<OutlineStep>,
    /// Steps that can be folded. One that is around others comes before them.
    pub folds: Vec<StepFold>,
    /// The times without a step, in the order of the steps after them.
    pub gaps: Vec<StepGap>,
}

/// The place of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlineStep {
    /// The place among the steps of which the outline was made.
    pub source: usize,
    /// The place of the step that it is a part of, in [`Outline::steps`].
    pub parent: Option<usize>,
    /// The number of steps that it is within.
    pub depth: usize,
}

/// Repeated steps, of which a reader needs to see the first and the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFold {
    /// The places of the others with their parts, in [`Outline::steps`].
    pub places: Range<usize>,
    /// The places of those that are repeated, in [`Outline::steps`].
    pub attempts: Vec<usize>,
    /// Their number in words.
    pub count: String,
    /// The reason for which they failed; empty if they did not.
    pub reason: String,
}

impl StepFold {
    /// A line in place of the steps.
    #[must_use]
    pub fn text(&self) -> String {
        match self.reason.as_str() {
            "" => self.count.clone(),
            reason => format!("{}, {reason}", self.count),
        }
    }
}

/// A time without a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepGap {
    /// The place of the step after it, in [`Outline::steps`].
    pub before: usize,
    /// The start, in nanoseconds since 1970.
    pub start: u64,
    /// The end, in nanoseconds since 1970.
    pub end: u64,
    /// A phrase behind the duration, with the cause if the steps show it.
    pub text: String,
}

/// A line of an outline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutlineLine<'a> {
    /// A step.
    Step(OutlineStep),
    /// A line in place of several steps.
    Fold(&'a StepFold),
    /// A time without a step.
    Gap(&'a StepGap),
}

impl Outline {
    /// The outline of these steps, in any order, of a trace without the `dropped` ones.
    #[must_use]
    pub fn of<Id: Copy + Ord>(steps: &[TraceStep<'_, Id>], dropped: &DroppedSteps) -> Self {
        let builder = OutlineBuilder::placed(steps);
        let gaps = builder.gaps(dropped);
        let folds = builder.folds(&dropped.attempts);
        Self {
            steps: builder.steps,
            folds,
            gaps,
        }
    }

    /// The lines with their depths. `is_folded` is false for a line for each step.
    #[must_use]
    pub fn lines(&self, is_folded: bool) -> Vec<(usize, OutlineLine<'_>)> {
        let mut lines = Vec::new();
        let mut hidden = 0;
        for (place, step) in self.steps.iter().enumerate() {
            if place < hidden {
                continue;
            }
            let mut folds = self.folds.iter();
            let fold = folds.find(|fold| is_folded && fold.places.start == place);
            let line = match fold {
                Some(fold) => {
                    hidden = fold.places.end;
                    OutlineLine::Fold(fold)
                }
                None => OutlineLine::Step(*step),
            };
            let gaps = self.gaps.iter();
            let gaps = gaps.filter(|gap| fold.is_none() && gap.before == place);
            let gaps = gaps.map(OutlineLine::Gap);
            lines.extend(gaps.chain([line]).map(|line| (step.depth, line)));
        }
        lines
    }
}

/// The facts of a step by which it is compared with others that have the same parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StepKind<'a> {
    name: &'a str,
    process: &'a str,
    /// The reason for which it [failed](failure).
    failure: Option<&'a str>,
    has_parts: bool,
}

impl StepKind<'_> {
    /// Returns true if the steps can be shown as one: attempts that failed for the same reason, or
    /// steps of one name that have nothing within them.
    fn is_alike(&self, other: &Self) -> bool {
        let of_step = |kind: &Self| (kind.name, kind.process, kind.failure);
        let are_single = !self.has_parts && !other.has_parts;
        of_step(self) == of_step(other) && (self.failure.is_some() || are_single)
    }
}

/// Consecutive steps of one parent that can be folded, with their parts.
struct FoldedRun<'a> {
    places: Range<usize>,
    /// The steps that have the same parent, with their places.
    steps: Vec<(usize, StepKind<'a>)>,
}

/// Failed attempts at one step.
struct FailedAttempts<'a> {
    name: &'a str,
    process: &'a str,
    places: Vec<usize>,
    reasons: Vec<&'a str>,
}

struct PlacedStep<'a, Id> {
    step: &'a TraceStep<'a, Id>,
    failure: Option<&'a str>,
}

/// A step and its place in the source.
type SourceStep<'a, Id> = (usize, &'a TraceStep<'a, Id>);

struct OutlineBuilder<'a, Id> {
    /// By the ids of the steps that they are parts of, in the order of their starts.
    parts: BTreeMap<Id, Vec<SourceStep<'a, Id>>>,
    /// Those of [`Outline::steps`].
    placed: Vec<PlacedStep<'a, Id>>,
    runs: Vec<FoldedRun<'a>>,
    steps: Vec<OutlineStep>,
}

impl<'a, Id: Copy + Ord> OutlineBuilder<'a, Id> {
    /// A builder that has placed all steps.
    fn placed(source: &'a [TraceStep<'a, Id>]) -> Self {
        let mut ordered: Vec<SourceStep<'a, Id>> = source.iter().enumerate().collect();
        ordered.sort_by_key(|(_, step)| step.order());
        let known: BTreeSet<Id> = source.iter().map(|step| step.id).collect();
        let root = ordered.iter().find(|(_, step)| step.parent.is_none());
        let root = root.map(|(_, root)| root.id);
        let mut builder = Self {
            parts: BTreeMap::new(),
            placed: Vec::with_capacity(source.len()),
            runs: Vec::new(),
            steps: Vec::with_capacity(source.len()),
        };
        let mut roots = Vec::new();
        for (place, step) in ordered {
            let parent = match step.parent {
                Some(parent) if parent != step.id && known.contains(&parent) => Some(parent),
                // The root is around all steps whose parent is not known.
                Some(_) => root,
                None => None,
            };
            match parent {
                Some(parent) => builder.parts.entry(parent).or_default().push((place, step)),
                None => roots.push((place, step)),
            }
        }
        builder.place(roots, None, 0);
        // Steps that are parts of each other, or too deep, which no tracer makes.
        let left = std::mem::take(&mut builder.parts).into_values().flatten();
        let left = left.collect();
        builder.place(left, None, 0);
        builder
    }

    /// Places steps that have the same parent, each with its parts.
    fn place(&mut self, steps: Vec<SourceStep<'a, Id>>, parent: Option<usize>, depth: usize) {
        let kinds: Vec<_> = steps.iter().map(|(_, step)| self.kind(step)).collect();
        let folded = folded(&kinds);
        let mut run: Option<FoldedRun<'a>> = None;
        for (((source, step), kind), is_folded) in steps.into_iter().zip(kinds).zip(folded) {
            let place = self.steps.len();
            if !is_folded {
                self.runs.extend(run.take());
            }
            self.steps.push(OutlineStep {
                source,
                parent,
                depth,
            });
            self.placed.push(PlacedStep {
                step,
                failure: kind.failure,
            });
            if depth < DEEPEST
                && let Some(parts) = self.parts.remove(&step.id)
            {
                self.place(parts, Some(place), depth + 1);
            }
            if is_folded {
                let run = run.get_or_insert_with(|| FoldedRun {
                    places: place..place,
                    steps: Vec::new(),
                });
                run.steps.push((place, kind));
                run.places.end = self.steps.len();
            }
        }
        self.runs.extend(run);
    }

    fn kind(&self, step: &'a TraceStep<'a, Id>) -> StepKind<'a> {
        let parts = |step: &'a TraceStep<'a, Id>| {
            let parts = self.parts.get(&step.id).into_iter().flatten();
            parts.map(|(_, part)| *part).collect()
        };
        StepKind {
            name: step.name,
            process: step.process,
            failure: failure(step, &|step: &'a TraceStep<'a, Id>| step.error, &parts),
            has_parts: self.parts.contains_key(&step.id),
        }
    }

    fn folds(&self, dropped: &[DroppedAttempts]) -> Vec<StepFold> {
        let runs = self.runs.iter().filter(|run| run.places.len() > 1);
        let runs: Vec<_> = runs.map(|run| (run, run.failed_attempts())).collect();
        let mut not_kept = vec![0; runs.len()];
        for DroppedAttempts {
            name,
            process,
            count,
        } in dropped
        {
            let of_step = runs
                .iter()
                .zip(&mut not_kept)
                .filter_map(|((_, failed), n)| {
                    let failed = failed.as_ref()?;
                    let is_it = (failed.name, failed.process) == (name, process);
                    is_it.then_some((failed.places.len(), n))
                });
            if let Some((_, not_kept)) = of_step.max_by_key(|(kept, _)| *kept) {
                *not_kept = *count;
            }
        }
        let folds = runs
            .into_iter()
            .zip(not_kept)
            .map(|((run, failed), not_kept)| {
                let places = run.places.clone();
                match failed {
                    Some(failed) => StepFold {
                        places,
                        count: failed.count(not_kept),
                        reason: failed.reason(not_kept),
                        attempts: failed.places,
                    },
                    None => StepFold {
                        places,
                        count: format!("{} similar steps in between", run.steps.len()),
                        reason: String::new(),
                        attempts: run.steps.iter().map(|(place, _)| *place).collect(),
                    },
                }
            });
        let mut folds: Vec<_> = folds.collect();
        folds.sort_by_key(|fold| (fold.places.start, Reverse(fold.places.end)));
        folds
    }

    /// The times without a step. The steps that were dropped, if any, are missing in the longest.
    fn gaps(&self, dropped: &DroppedSteps) -> Vec<StepGap> {
        let steps = self.placed.iter().map(|placed| placed.step);
        let begin = steps.clone().map(|step| step.start).min();
        let end = steps.map(|step| step.end).max();
        let mut ordered: Vec<_> = self.placed.iter().enumerate().collect();
        // A step around all others is not what goes on meanwhile.
        ordered.retain(|(_, PlacedStep { step, .. })| {
            (Some(step.start), Some(step.end)) != (begin, end)
        });
        ordered.sort_by_key(|(_, placed)| placed.step.order());
        let mut until = ordered.first().map_or(0, |(_, first)| first.step.start);
        let mut gaps: Vec<StepGap> = Vec::new();
        for (before, PlacedStep { step, .. }) in ordered {
            if step.start.saturating_sub(until) >= SHORTEST_GAP {
                gaps.push(StepGap {
                    before,
                    start: until,
                    end: step.start,
                    text: match self.cause(step, until) {
                        Some(cause) => format!("without a step: {cause}"),
                        None => "without a step".to_owned(),
                    },
                });
            }
            until = until.max(step.end);
        }
        let longest = gaps.iter_mut().max_by_key(|gap| gap.end - gap.start);
        if let Some((gap, remark)) = longest.zip(dropped.remark()) {
            gap.text = format!("in which {remark}");
        }
        gaps.sort_by_key(|gap| gap.before);
        gaps
    }

    /// The cause of the time from `until` to `step`, if that repeats a step that failed before.
    fn cause(&self, step: &TraceStep<'_, Id>, until: u64) -> Option<String> {
        let is_before = |other: &&PlacedStep<'_, Id>| {
            other.step.end <= until
                && (other.step.name, other.step.process) == (step.name, step.process)
        };
        let before = self.placed.iter().filter(is_before);
        let last = before.max_by_key(|other| other.step.end)?;
        let TraceStep { name, process, .. } = step;
        last.failure
            .map(|_| format!("the back-off of {process} after its failed {name}"))
    }
}

impl<Id: Copy> TraceStep<'_, Id> {
    /// Of steps that start at the same time, the one that ends later comes first, as it may contain
    /// the other.
    fn order(&self) -> (u64, Reverse<u64>, Id) {
        (self.start, Reverse(self.end), self.id)
    }
}

/// For each step of one parent: true if it is between the first and the last one of its kind.
fn folded(kinds: &[StepKind<'_>]) -> Vec<bool> {
    let mut groups: Vec<(StepKind<'_>, Vec<usize>)> = Vec::new();
    for (index, kind) in kinds.iter().enumerate() {
        match groups.iter_mut().find(|(first, _)| first.is_alike(kind)) {
            Some((_, group)) => group.push(index),
            None => groups.push((*kind, vec![index])),
        }
    }
    let inner = groups
        .iter()
        .filter_map(|(_, group)| match group.as_slice() {
            [_, inner @ .., _] if group.len() >= FEWEST_FOLDED => Some(inner),
            _ => None,
        });
    let inner: BTreeSet<usize> = inner.flatten().copied().collect();
    (0..kinds.len())
        .map(|index| inner.contains(&index))
        .collect()
}

impl<'a> FoldedRun<'a> {
    /// The attempts at the step that failed the most often; `None` if no step failed.
    fn failed_attempts(&self) -> Option<FailedAttempts<'a>> {
        let mut attempts = BTreeMap::<(&str, &str), FailedAttempts<'a>>::new();
        for (place, kind) in &self.steps {
            let StepKind { name, process, .. } = *kind;
            let Some(reason) = kind.failure else { continue };
            let of_kind = attempts.entry((name, process));
            let of_kind = of_kind.or_insert_with(|| FailedAttempts {
                name,
                process,
                places: Vec::new(),
                reasons: Vec::new(),
            });
            of_kind.places.push(*place);
            of_kind.reasons.push(reason);
        }
        attempts
            .into_values()
            .max_by_key(|of_kind| of_kind.places.len())
    }
}

impl FailedAttempts<'_> {
    /// The number of attempts, with those that are not kept.
    fn count(&self, not_kept: u64) -> String {
        match not_kept.saturating_add(self.places.len() as u64) {
            1 => "1 attempt in between".to_owned(),
            count => format!("{count} attempts in between"),
        }
    }

    /// The reasons for which those that are kept failed.
    fn reason(&self, not_kept: u64) -> String {
        let kept = self.reasons.len();
        let each = match (not_kept, kept) {
            (0, 1) => "failed".to_owned(),
            (0, _) => "each failed".to_owned(),
            (_, 1) => "1 kept, which failed".to_owned(),
            (_, kept) => format!("{kept} kept, each failed"),
        };
        match self.reasons.last() {
            None | Some(&"") => each,
            Some(last) if self.reasons.iter().all(|reason| reason == last) => {
                format!("{each}: {last}")
            }
            Some(last) => format!("{each}, the last one: {last}"),
        }
    }
}

#[cfg(test)]
mod tests;

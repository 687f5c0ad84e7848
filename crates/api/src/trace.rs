//! Names in the traces of pods' journeys that both writers and readers know, and how readers
//! shorten a trace.

/// The attribute with the name of the CNI plugin of a step.
pub const CNI_PLUGIN: &str = "cni.plugin";

/// The facts of a step by which it is compared with others that have the same parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepKind<'a> {
    /// The name of the step.
    pub name: &'a str,
    /// The process that did it.
    pub process: &'a str,
    /// The reason for which it [failed](failure).
    pub failure: Option<&'a str>,
    /// True if the step has steps within it.
    pub has_parts: bool,
}

impl StepKind<'_> {
    /// Returns true if the steps can be shown as one: attempts that failed for the same reason, or
    /// steps of one name that have nothing within them.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        let of_step = |kind: &Self| (kind.name, kind.process, kind.failure);
        let are_single = !self.has_parts && !other.has_parts;
        of_step(self) == of_step(other) && (self.failure.is_some() || are_single)
    }
}

/// The deepest nesting of steps in which the reason of a failure is looked for.
const DEEPEST: usize = 32;

/// The reason for which a step failed, in the words of the innermost step that did: the errors
/// around it repeat it, with ids of their own. A step without an error failed if the last one
/// within it did.
pub fn failure<'a, S: Copy>(
    step: S,
    error: &impl Fn(S) -> Option<&'a str>,
    parts: &impl Fn(S) -> Vec<S>,
) -> Option<&'a str> {
    failure_within(step, error, parts, DEEPEST)
}

fn failure_within<'a, S: Copy>(
    step: S,
    error: &impl Fn(S) -> Option<&'a str>,
    parts: &impl Fn(S) -> Vec<S>,
    depth: usize,
) -> Option<&'a str> {
    let own = error(step);
    let Some(depth) = depth.checked_sub(1) else {
        return own;
    };
    let within = parts(step);
    let of_part = |part: &S| failure_within(*part, error, parts, depth);
    match own {
        Some(_) => within.iter().find_map(of_part).or(own),
        None => within.last().and_then(of_part),
    }
}

/// The remark on a trace of which the API server has dropped this number of steps; `None` if it has
/// all.
#[must_use]
pub fn dropped_steps(count: u64) -> Option<String> {
    match count {
        0 => None,
        1 => Some("1 step in between is not kept".to_owned()),
        _ => Some(format!("{count} steps in between are not kept")),
    }
}

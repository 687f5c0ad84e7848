//! Histories of concurrent operations on single keys, and the check that they could have happened
//! one at a time.
//!
//! Clients [record](Recorder) the beginning of each operation and its outcome. [`Recorder::check`]
//! then looks, for each key, for an order of the operations that explains every answer, in which no
//! operation that began after another had ended comes before it: linearizability (Herlihy and
//! Wing). The search goes along the history and keeps every state that can be true at each point
//! (Lowe's just-in-time linearization); equal states merge. An operation without an answer may have
//! happened or not.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Mutex, PoisonError},
};

#[cfg(test)]
mod tests;

/// The value that a write leaves at its key. No two writes of a history have the same value.
pub type Value = u64;

/// An operation on one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOp {
    /// Writes if nothing is there.
    Create(Value),
    /// Writes the second value if the first is there.
    Swap(Value, Value),
    /// Writes if something is there.
    Put(Value),
    /// Removes what is there.
    Delete,
    /// Reads.
    Get,
}

/// The outcome of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpOutcome {
    /// The write was carried out.
    Done,
    /// This was there: it was read, or deleted.
    Found(Value),
    /// Nothing was there.
    Absent,
    /// Something was there that the write did not expect.
    Refused,
    /// Not known, but the operation cannot happen any more: its server is dead.
    Lost,
}

/// The identity of an operation in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OpId(usize);

/// The beginning or the end of an operation.
#[derive(Clone, Debug)]
enum Event {
    Began { id: OpId, key: String, op: KeyOp },
    Ended { id: OpId, outcome: OpOutcome },
}

/// A history that is being recorded. An operation whose end is never recorded may happen at any
/// time after it began, or never.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<History>);

#[derive(Debug, Default)]
struct History {
    events: Vec<Event>,
    begun: usize,
    open: BTreeSet<OpId>,
}

impl Recorder {
    /// Records that an operation is about to be sent.
    pub fn began(&self, key: impl Into<String>, op: KeyOp) -> OpId {
        let mut history = self.lock();
        let id = OpId(history.begun);
        history.begun += 1;
        history.open.insert(id);
        let key = key.into();
        history.events.push(Event::Began { id, key, op });
        id
    }

    /// Records the outcome of an operation.
    pub fn ended(&self, id: OpId, outcome: OpOutcome) {
        let mut history = self.lock();
        history.open.remove(&id);
        history.events.push(Event::Ended { id, outcome });
    }

    /// Records that no operation under way can happen any more.
    pub fn lost(&self) {
        let mut history = self.lock();
        for id in std::mem::take(&mut history.open) {
            let outcome = OpOutcome::Lost;
            history.events.push(Event::Ended { id, outcome });
        }
    }

    /// The number of operations that began.
    pub fn len(&self) -> usize {
        self.lock().begun
    }

    /// Returns true if no operation began.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the history is linearizable.
    ///
    /// # Errors
    ///
    /// The first answer that no order explains.
    pub fn check(&self) -> Result<(), HistoryViolation> {
        let mut keys = BTreeMap::<&str, Vec<Event>>::new();
        let mut key_of = BTreeMap::<OpId, &str>::new();
        let history = self.lock();
        for event in &history.events {
            let key = match event {
                Event::Began { id, key, .. } => {
                    key_of.insert(*id, key);
                    key
                }
                Event::Ended { id, .. } => key_of.get(id).copied().unwrap_or_default(),
            };
            keys.entry(key).or_default().push(event.clone());
        }
        // Keys are independent of each other, so a history is linearizable if that of each key is.
        keys.iter().try_for_each(|(key, events)| check(key, events))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that no order of the operations explains.
#[derive(Clone, PartialEq, Eq)]
pub struct HistoryViolation {
    /// The key that the operation was on.
    pub key: String,
    /// The operation.
    pub op: KeyOp,
    /// Its answer.
    pub outcome: OpOutcome,
    /// The possible values at the key just before.
    pub possible: BTreeSet<Option<Value>>,
    /// The events of the key up to the answer, the last ones only.
    pub events: Vec<String>,
}

impl fmt::Debug for HistoryViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            op,
            outcome,
            possible,
            events,
        } = self;
        writeln!(
            f,
            "no order explains that {op:?} of {key} was {outcome:?}; before it there may have been {possible:?}"
        )?;
        events.iter().try_for_each(|event| writeln!(f, "  {event}"))
    }
}

/// A possible state at a point of a key's history.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PossibleState {
    value: Option<Value>,
    /// The operations under way that have happened already.
    happened: BTreeSet<OpId>,
}

/// The operations under way, with their outcomes; `None` for an outcome that is not known.
type OpenOps = BTreeMap<OpId, (KeyOp, Option<OpOutcome>)>;

fn check(key: &str, events: &[Event]) -> Result<(), HistoryViolation> {
    let ends: BTreeMap<OpId, OpOutcome> = events
        .iter()
        .filter_map(|event| match event {
            Event::Ended { id, outcome } => Some((*id, *outcome)),
            Event::Began { .. } => None,
        })
        .collect();
    let known = |id: &OpId| ends.get(id).copied().filter(|end| *end != OpOutcome::Lost);
    let mut open = OpenOps::new();
    let nothing = PossibleState {
        value: None,
        happened: BTreeSet::new(),
    };
    let mut possible = BTreeSet::from([nothing]);
    for (at, event) in events.iter().enumerate() {
        let (id, outcome) = match event {
            Event::Began { id, op, .. } => {
                open.insert(*id, (*op, known(id)));
                continue;
            }
            Event::Ended { id, outcome } => (*id, *outcome),
        };
        let before = possible.clone();
        possible = happened_by(id, possible, &open);
        if outcome == OpOutcome::Lost {
            possible.extend(before.iter().cloned());
        }
        for state in std::mem::take(&mut possible) {
            let PossibleState {
                value,
                mut happened,
            } = state;
            happened.remove(&id);
            possible.insert(PossibleState { value, happened });
        }
        let ended = open.remove(&id);
        if let (true, Some((op, _))) = (possible.is_empty(), ended) {
            return Err(HistoryViolation {
                key: key.to_owned(),
                op,
                outcome,
                possible: before.into_iter().map(|state| state.value).collect(),
                events: events[at.saturating_sub(20)..=at]
                    .iter()
                    .map(|event| format!("{event:?}"))
                    .collect(),
            });
        }
    }
    Ok(())
}

/// Every state, reachable from these by letting operations under way happen, in which the operation
/// has happened.
fn happened_by(id: OpId, from: BTreeSet<PossibleState>, open: &OpenOps) -> BTreeSet<PossibleState> {
    let mut reached = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut next: Vec<PossibleState> = from.into_iter().collect();
    while let Some(state) = next.pop() {
        if state.happened.contains(&id) {
            reached.insert(state);
            continue;
        }
        if !seen.insert(state.clone()) {
            continue;
        }
        for (other, (op, outcome)) in open {
            if state.happened.contains(other) {
                continue;
            }
            if let Some(value) = after(state.value, *op, *outcome) {
                let mut happened = state.happened.clone();
                happened.insert(*other);
                next.push(PossibleState { value, happened });
            }
        }
    }
    reached
}

/// The value after an operation with this outcome; `None` if the outcome is impossible.
fn after(value: Option<Value>, op: KeyOp, outcome: Option<OpOutcome>) -> Option<Option<Value>> {
    use OpOutcome::{Absent, Done, Found, Refused};
    match (op, outcome, value) {
        (KeyOp::Create(new), None | Some(Done), None) => Some(Some(new)),
        (KeyOp::Create(_), Some(Refused), Some(_)) => Some(value),
        (KeyOp::Swap(old, new), None | Some(Done), Some(there)) if there == old => Some(Some(new)),
        (KeyOp::Swap(old, _), Some(Refused), Some(there)) if there != old => Some(value),
        (KeyOp::Put(new), None | Some(Done), Some(_)) => Some(Some(new)),
        (KeyOp::Delete, None, Some(_)) => Some(None),
        (KeyOp::Delete, Some(Found(found)), Some(there)) if there == found => Some(None),
        (KeyOp::Get, Some(Found(found)), Some(there)) if there == found => Some(value),
        (KeyOp::Swap(..) | KeyOp::Put(_) | KeyOp::Delete | KeyOp::Get, Some(Absent), None) => {
            Some(None)
        }
        _ => None,
    }
}

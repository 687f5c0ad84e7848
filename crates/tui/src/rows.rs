//! The rows of each view.

mod blocks;
mod events;
mod nodes;
mod pods;
mod waiting;

use std::cmp::Ordering;

use podplane_api::{
    jiff::Timestamp,
    table::{NONE, age},
};

pub(crate) use self::{
    blocks::BlockRow, events::EventRow, nodes::NodeRow, pods::PodRow, waiting::WaitingRow,
};

/// The time since, as kubectl shows it.
fn ago(time: Option<Timestamp>, now: Timestamp) -> String {
    time.map_or_else(|| NONE.to_owned(), |time| age::between(time, now))
}

/// The order of ages: the youngest first, and those without a time last.
fn by_age(a: Option<Timestamp>, b: Option<Timestamp>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}

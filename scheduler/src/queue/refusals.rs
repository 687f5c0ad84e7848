//! The numbers of waiting pods by the filter that refused them.

use std::collections::{BTreeMap, BTreeSet};

/// For each filter, the number of waiting pods that it refused a node at their last attempt.
///
/// A pod counts for every filter that refused it a node, so the numbers do not add up to the number
/// of pods. It counts wherever it is in the queue, also in an attempt, until the attempt ends or
/// the pod leaves the queue. A filter that refused a pod once stays, with 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalCounts(BTreeMap<&'static str, usize>);

impl RefusalCounts {
    /// The filters and their numbers of pods, by the name of the filter.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.0.iter().map(|(filter, pods)| (*filter, *pods))
    }

    /// Counts a pod that these filters refused.
    pub(super) fn add(&mut self, filters: &BTreeSet<&'static str>) {
        for filter in filters {
            *self.0.entry(filter).or_default() += 1;
        }
    }

    /// Undoes [`RefusalCounts::add`].
    pub(super) fn remove(&mut self, filters: &BTreeSet<&'static str>) {
        for filter in filters {
            if let Some(pods) = self.0.get_mut(filter) {
                *pods = pods.saturating_sub(1);
            }
        }
    }
}

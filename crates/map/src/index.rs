//! Counts of addresses by sorted arrays: the work depends on the number of blocks and of addresses
//! in use, never on the size of a network.

use crate::{
    prefix::size,
    state::{AddressState, StateCounts},
};

/// A set of addresses as disjoint, ascending intervals.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cover {
    /// First and last.
    spans: Vec<(u128, u128)>,
    /// The number of addresses before each span; saturates.
    before: Vec<u128>,
}

impl Cover {
    /// The union of intervals in any order.
    pub(crate) fn of(mut each: Vec<(u128, u128)>) -> Self {
        each.sort_unstable();
        let mut spans: Vec<(u128, u128)> = Vec::new();
        for (first, last) in each {
            match spans.last_mut() {
                // Adjacent ones are joined, too.
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => spans.push((first, last)),
            }
        }
        let mut sum = 0u128;
        let before = spans.iter().map(|(first, last)| {
            let before = sum;
            sum = sum.saturating_add(size(*first, *last));
            before
        });
        let before = before.collect();
        Self { spans, before }
    }

    /// The number of its addresses before `end`.
    fn measure_before(&self, end: u128) -> u128 {
        let after = self.spans.partition_point(|(first, _)| *first < end);
        let Some(index) = after.checked_sub(1) else {
            return 0;
        };
        let of_span = |(first, last): &(u128, u128)| match *last < end {
            true => size(*first, *last),
            false => end - first,
        };
        let before = self.before.get(index).copied().unwrap_or_default();
        before.saturating_add(self.spans.get(index).map_or(0, of_span))
    }

    /// The number of its addresses from `first` to `last`.
    pub(crate) fn measure(&self, first: u128, last: u128) -> u128 {
        // The last address apart, since that of all IPv6 has no successor.
        let before = self.measure_before(last);
        let but_last = before.saturating_sub(self.measure_before(first));
        but_last.saturating_add(u128::from(self.contains(last)))
    }

    /// Returns true if the address is in it.
    pub(crate) fn contains(&self, number: u128) -> bool {
        let after = self.spans.partition_point(|(first, _)| *first <= number);
        let span = after.checked_sub(1).and_then(|index| self.spans.get(index));
        span.is_some_and(|(_, last)| number <= *last)
    }
}

/// The number of values from `first` to `last` in an ascending list.
fn count_within(sorted: &[u128], first: u128, last: u128) -> u128 {
    let from = sorted.partition_point(|number| *number < first);
    let to = sorted.partition_point(|number| *number <= last);
    to.saturating_sub(from) as u128
}

/// The states of addresses that nobody has, from the inside out. An address is in the first layer
/// that contains it; outside of all layers it is unassigned.
const LAYERS: [AddressState; 4] = [
    // The addresses that nodes give to pods.
    AddressState::Free,
    // The rest of their blocks: first and last addresses, and gateways.
    AddressState::Reserved,
    // Former blocks.
    AddressState::Withheld,
    // Service ranges.
    AddressState::Reserved,
];

/// The number of a layer; after the last one, that of no layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNumber(usize);

impl LayerNumber {
    /// The state of an address in the layer that nobody has.
    pub(crate) fn state(self) -> AddressState {
        let layer = LAYERS.get(self.0);
        layer.copied().unwrap_or(AddressState::Unassigned)
    }

    /// Returns true if a block contains the layer, a former one included.
    pub(crate) const fn is_in_block(self) -> bool {
        self.0 < LAYERS.len() - 1
    }
}

/// The states of all addresses of a family.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateIndex {
    /// The union of each layer with those before it.
    layers: [Cover; LAYERS.len()],
    /// Addresses with a state of their own, by state, each list ascending.
    points: [Vec<u128>; AddressState::COUNT],
    /// The same addresses by their layer, and in the last list those in none.
    points_by_layer: [Vec<u128>; LAYERS.len() + 1],
}

impl StateIndex {
    /// Creates the index of layers, as intervals in any order.
    pub(crate) fn new(parts: [Vec<(u128, u128)>; LAYERS.len()]) -> Self {
        let mut all = Vec::new();
        let layers = parts.map(|part| {
            all.extend(part);
            Cover::of(all.clone())
        });
        Self {
            layers,
            ..Self::default()
        }
    }

    /// Gives an address a state of its own; `layer` is [that of the address](Self::layer_of). Calls
    /// are in ascending order of addresses.
    pub(crate) fn push(&mut self, number: u128, layer: LayerNumber, state: AddressState) {
        self.points[state.index()].push(number);
        self.points_by_layer[layer.0].push(number);
    }

    /// The first layer that contains the address.
    pub(crate) fn layer_of(&self, number: u128) -> LayerNumber {
        let layer = self.layers.iter().position(|cover| cover.contains(number));
        LayerNumber(layer.unwrap_or(LAYERS.len()))
    }

    /// The addresses of the state from `first` to `last`, of those with a state of their own.
    pub(crate) fn points(&self, state: AddressState, first: u128, last: u128) -> &[u128] {
        let sorted = &self.points[state.index()];
        let from = sorted.partition_point(|number| *number < first);
        let to = sorted.partition_point(|number| *number <= last);
        sorted.get(from..to).unwrap_or_default()
    }

    /// The counts from `first` to `last`, with blocks.
    pub(crate) fn counts_with_blocks(&self, first: u128, last: u128) -> StateCounts {
        let mut counts = self.point_counts(first, last);
        let mut inner = 0;
        for ((state, layer), points) in LAYERS.iter().zip(&self.layers).zip(&self.points_by_layer) {
            let outer = layer.measure(first, last);
            let taken = count_within(points, first, last);
            let unused = outer.saturating_sub(inner).saturating_sub(taken);
            counts.set(*state, counts.of(*state).saturating_add(unused));
            inner = outer;
        }
        let [.., outside] = &self.points_by_layer;
        let unassigned = size(first, last)
            .saturating_sub(inner)
            .saturating_sub(count_within(outside, first, last));
        counts.set(AddressState::Unassigned, unassigned);
        counts
    }

    /// The counts from `first` to `last` in a network without blocks: what nobody has is free.
    pub(crate) fn counts_without_blocks(&self, first: u128, last: u128) -> StateCounts {
        let mut counts = self.point_counts(first, last);
        let taken = counts.total();
        counts.set(AddressState::Free, size(first, last).saturating_sub(taken));
        counts
    }

    fn point_counts(&self, first: u128, last: u128) -> StateCounts {
        let mut counts = StateCounts::default();
        for state in AddressState::ALL {
            let points = &self.points[state.index()];
            if !points.is_empty() {
                counts.set(state, count_within(points, first, last));
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_cover_measures_as_a_set_of_numbers_does(
            each in prop::collection::vec((0u128..60, 0u128..9), 0..12),
            first in 0u128..70,
            length in 0u128..30,
        ) {
            let spans: Vec<_> = each.iter().map(|(first, more)| (*first, first + more)).collect();
            let cover = Cover::of(spans.clone());
            let is_in = |n: &u128| spans.iter().any(|(first, last)| (first..=last).contains(&n));
            let last = first + length;
            prop_assert_eq!(cover.measure(first, last), (first..=last).filter(is_in).count() as u128);
            prop_assert_eq!(cover.contains(first), is_in(&first));
        }
    }

    #[test]
    fn a_cover_counts_at_the_end_of_ipv6() {
        let cover = Cover::of(vec![(u128::MAX - 3, u128::MAX)]);
        assert_eq!(cover.measure(u128::MAX - 1, u128::MAX), 2);
        assert_eq!(cover.measure(u128::MAX, u128::MAX), 1);
        assert_eq!(cover.measure(0, u128::MAX), 4);
        let all = Cover::of(vec![(0, u128::MAX)]);
        assert_eq!(all.measure(0, u128::MAX), u128::MAX, "saturated");
        assert_eq!(all.measure(1, u128::MAX), u128::MAX);
    }
}

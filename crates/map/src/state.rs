//! The states of addresses, and their numbers in a prefix.

use std::fmt;

use podplane_ipam::figures::MAX_JSON_INTEGER;
use serde::{Serialize, Serializer, ser::SerializeMap as _};

/// The state of an address. The order is that of urgency, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressState {
    /// Several live holders have the address.
    Duplicate,
    /// A pod has it, and it is not in a block of the pod's node.
    Outside,
    /// It is allocated, and its owner does not exist.
    Orphaned,
    /// A pod or sandbox has it in a block that its node no longer has.
    Draining,
    /// A pod or its sandbox has it.
    Pod,
    /// A Service has it.
    Service,
    /// A node has it as its own address.
    Node,
    /// Nobody has it, and nobody can get it for now: its block is draining, held or quarantined.
    Withheld,
    /// Nobody can get it: a service range, or the first or last address of a block.
    Reserved,
    /// The gateway of a block.
    Gateway,
    /// The holder of the block, or the network without blocks, can give it.
    Free,
    /// It is in no block.
    Unassigned,
}

impl AddressState {
    /// The number of states.
    pub const COUNT: usize = Self::ALL.len();

    /// All states, the most urgent first.
    pub const ALL: [Self; 12] = [
        Self::Duplicate,
        Self::Outside,
        Self::Orphaned,
        Self::Draining,
        Self::Pod,
        Self::Service,
        Self::Node,
        Self::Withheld,
        Self::Reserved,
        Self::Gateway,
        Self::Free,
        Self::Unassigned,
    ];

    /// The states that need attention, the most urgent first.
    pub const FAULTS: [Self; 3] = [Self::Duplicate, Self::Outside, Self::Orphaned];

    /// The name in pictures, legends and JSON, in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Duplicate => "duplicate",
            Self::Outside => "outside",
            Self::Orphaned => "orphaned",
            Self::Draining => "draining",
            Self::Pod => "pod",
            Self::Service => "service",
            Self::Node => "node",
            Self::Withheld => "withheld",
            Self::Reserved => "reserved",
            Self::Gateway => "gateway",
            Self::Free => "free",
            Self::Unassigned => "unassigned",
        }
    }

    /// The meaning, as a phrase.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Duplicate => "has several holders",
            Self::Outside => "of a pod, outside its block",
            Self::Orphaned => "allocated, without owner",
            Self::Draining => "in use in a former block",
            Self::Pod => "of a pod",
            Self::Service => "of a Service",
            Self::Node => "of a node",
            Self::Withheld => "unused in a former block",
            Self::Reserved => "not for pods",
            Self::Gateway => "of a block's bridge",
            Self::Free => "can be given",
            Self::Unassigned => "in no block",
        }
    }

    /// The mark in grids of characters and in large cells: it tells the states apart without
    /// colour.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Duplicate => 'D',
            Self::Outside => 'X',
            Self::Orphaned => 'O',
            Self::Draining => '~',
            Self::Pod => 'p',
            Self::Service => 's',
            Self::Node => 'n',
            Self::Withheld => '-',
            Self::Reserved => 'r',
            Self::Gateway => 'g',
            Self::Free => '.',
            Self::Unassigned => ' ',
        }
    }

    /// Returns true for the states in which the address has a holder. Gateways and reserved
    /// addresses come with a block and are not counted as in use.
    #[must_use]
    pub const fn is_in_use(self) -> bool {
        match self {
            Self::Duplicate
            | Self::Outside
            | Self::Orphaned
            | Self::Draining
            | Self::Pod
            | Self::Service
            | Self::Node => true,
            Self::Withheld | Self::Reserved | Self::Gateway | Self::Free | Self::Unassigned => {
                false
            }
        }
    }

    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for AddressState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for AddressState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// The number of addresses in each state. The numbers saturate: all of IPv6 has one address more
/// than a `u128` can count.
///
/// Serialized as an object with the states that occur. A number beyond 2^53-1 is a string of its
/// digits, as in the other documents of podplane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateCounts([u128; AddressState::COUNT]);

impl StateCounts {
    /// The number of addresses in the state.
    #[must_use]
    pub const fn of(&self, state: AddressState) -> u128 {
        self.0[state.index()]
    }

    /// The number of all addresses.
    #[must_use]
    pub fn total(&self) -> u128 {
        self.0
            .iter()
            .fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The number of addresses with a holder.
    #[must_use]
    pub fn in_use(&self) -> u128 {
        let in_use = self.present().filter(|(state, _)| state.is_in_use());
        in_use.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The number of addresses that somebody can have: all but gateways and reserved ones.
    #[must_use]
    pub fn usable(&self) -> u128 {
        let kept = self
            .of(AddressState::Reserved)
            .saturating_add(self.of(AddressState::Gateway));
        self.total().saturating_sub(kept)
    }

    /// The states that occur, with their numbers, the most urgent first.
    pub fn present(&self) -> impl Iterator<Item = (AddressState, u128)> {
        let each = AddressState::ALL.into_iter().zip(self.0);
        each.filter(|(_, count)| *count > 0)
    }

    /// The state that stands for all of them.
    ///
    /// A single address that somebody has decides, the most urgent first: a duplicate is visible in
    /// a /8. Of the others the most frequent state does, and with equal numbers the more urgent
    /// one, so that an unused block is free although it has a gateway.
    #[must_use]
    pub fn dominant(&self) -> AddressState {
        let mut in_use = self.present().filter(|(state, _)| state.is_in_use());
        in_use
            .next()
            .map_or_else(|| self.background(), |(state, _)| state)
    }

    /// The most frequent state without a holder; with equal numbers the more urgent one. A block
    /// is visible in a /8, too: outside of blocks is only what has none in it.
    #[must_use]
    pub fn background(&self) -> AddressState {
        let unused = self.present().filter(|(state, _)| !state.is_in_use());
        let most = unused.min_by_key(|(state, count)| {
            let is_unassigned = *state == AddressState::Unassigned;
            (is_unassigned, std::cmp::Reverse(*count), *state)
        });
        most.map_or(AddressState::Unassigned, |(state, _)| state)
    }

    pub(crate) fn set(&mut self, state: AddressState, count: u128) {
        self.0[state.index()] = count;
    }

    /// Adds all numbers of another prefix.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(count);
        }
    }

    /// The numbers without those of a part of the same addresses.
    #[must_use]
    pub fn without(&self, part: &Self) -> Self {
        let mut rest = *self;
        for (count, of_part) in rest.0.iter_mut().zip(part.0) {
            *count = count.saturating_sub(of_part);
        }
        rest
    }
}

impl Serialize for StateCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (state, count) in self.present() {
            match u64::try_from(count) {
                Ok(small) if count <= MAX_JSON_INTEGER => {
                    map.serialize_entry(state.as_str(), &small)?;
                }
                _ => map.serialize_entry(state.as_str(), &count.to_string())?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_has_each_state_at_its_index() {
        for (index, state) in AddressState::ALL.into_iter().enumerate() {
            assert_eq!(state.index(), index, "{state}");
        }
        let letters: BTreeSet<char> = AddressState::ALL.map(AddressState::letter).into();
        let names: BTreeSet<&str> = AddressState::ALL.map(AddressState::as_str).into();
        assert_eq!(letters.len(), AddressState::COUNT);
        assert_eq!(names.len(), AddressState::COUNT);
    }

    fn counts(each: &[(AddressState, u128)]) -> StateCounts {
        let mut counts = StateCounts::default();
        for (state, count) in each {
            counts.set(*state, *count);
        }
        counts
    }

    #[test]
    fn one_address_in_use_decides_and_otherwise_most_addresses_do() {
        use AddressState::{Duplicate, Free, Gateway, Pod, Reserved, Unassigned};
        for (each, want) in [
            (vec![(Duplicate, 1), (Pod, 5000)], Duplicate),
            (vec![(Pod, 1), (Free, 5000)], Pod),
            (vec![(Reserved, 2), (Gateway, 1), (Free, 253)], Free),
            (vec![(Reserved, 2), (Free, 2)], Reserved),
            (vec![(Reserved, 256)], Reserved),
            (vec![(Free, 253), (Unassigned, 5000)], Free),
            (vec![(Unassigned, 5000)], Unassigned),
            (vec![], Unassigned),
        ] {
            assert_eq!(counts(&each).dominant(), want, "{each:?}");
        }
    }

    #[test]
    fn json_names_the_states_that_occur_and_keeps_large_numbers() {
        let counts = counts(&[(AddressState::Pod, 3), (AddressState::Free, 1 << 64)]);
        let json = serde_json::to_string(&counts).unwrap();
        assert_eq!(json, r#"{"pod":3,"free":"18446744073709551616"}"#);
    }
}

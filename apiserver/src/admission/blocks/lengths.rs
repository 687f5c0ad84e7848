//! The prefix lengths that records have or had: the lengths at which a block above another is
//! looked for.

use std::collections::BTreeSet;

use ipnet::IpNet;
use podplane_ipam::Family;
use podplane_store::{Key, Write};
use serde::{Deserialize, Serialize};

const LENGTHS: &str = "/podplane/block-lengths";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lengths {
    v4: BTreeSet<u8>,
    v6: BTreeSet<u8>,
}

impl Lengths {
    /// Every length that a block can have.
    pub(super) fn all() -> Self {
        Self {
            v4: (0..=32).collect(),
            v6: (0..=128).collect(),
        }
    }

    pub(super) fn of(&self, family: Family) -> &BTreeSet<u8> {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// Adds the length of a block; returns true if it is new.
    pub(super) fn insert(&mut self, net: &IpNet) -> bool {
        let lengths = match Family::of(net) {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        };
        lengths.insert(net.prefix_len())
    }

    pub(super) fn key() -> Key {
        Key::try_from(LENGTHS).expect("neither empty nor long")
    }

    pub(super) fn put(&self) -> Write {
        let value = serde_json::to_vec(self).expect("lists of numbers have a JSON form");
        Write::Put {
            key: Self::key(),
            value: value.into(),
        }
    }
}

//! The refusal of a block, with a proposal of a free one.

use ipnet::IpNet;
use podplane_api::{
    Object as _,
    core::Node,
    validation::{ErrorList, FieldPath},
};
use podplane_ipam::{Family, nearest_free};
use podplane_proto::error::ApiError;

use super::record::{KeyedBlockRecord, RecordState};
use crate::{admission::BlockPolicy, error};

/// The distance from the refused block, in bits, within which a free one is proposed if no range is
/// configured: 2^16 blocks, of its size or that of the block in the way.
const NEARBY_BITS: u8 = 16;

/// Describes a block that is in the way, and its owner.
pub(super) fn describe_owner(stored: &KeyedBlockRecord) -> String {
    let KeyedBlockRecord {
        net, node, record, ..
    } = stored;
    let state = match (record.state, record.until) {
        (RecordState::Assigned, _) => String::new(),
        (RecordState::Foreign, _) => " (foreign)".to_owned(),
        (RecordState::Draining, _) => match &record.hold {
            None => ", which is gone and whose addresses are still in use (draining)".to_owned(),
            Some(hold) => format!(
                ", which is gone (held by {} since {})",
                hold.holder(),
                hold.since
            ),
        },
        (RecordState::Quarantined, None) => ", which is gone (quarantined)".to_owned(),
        (RecordState::Quarantined, Some(until)) => {
            format!(", which is gone (quarantined until {until})")
        }
    };
    format!("{net} of node \"{node}\"{state}")
}

/// The ranges and blocks that are not free.
#[derive(Clone, Copy)]
pub(super) struct OccupiedRanges<'a> {
    /// The ranges of services.
    pub(super) ranges: &'a [IpNet],
    pub(super) records: &'a [KeyedBlockRecord],
}

/// `Node "b" is invalid: spec.podCIDRs: Invalid value: …: overlaps …; … is free`
pub(super) fn refusal(
    policy: &BlockPolicy,
    node: &Node,
    net: &IpNet,
    (held, whose): (&IpNet, &str),
    taken: OccupiedRanges<'_>,
) -> ApiError {
    let mut errors = ErrorList::new();
    let detail = format!("overlaps {whose}; {}", proposal(policy, net, held, taken));
    let path = FieldPath::new("spec").child("podCIDRs");
    errors.invalid(&path, net.to_string(), &detail);
    error::invalid::<Node>(node.name(), &errors)
}

/// Proposes a free block, in words.
fn proposal(policy: &BlockPolicy, net: &IpNet, held: &IpNet, taken: OccupiedRanges<'_>) -> String {
    let OccupiedRanges { ranges, records } = taken;
    let taken = || {
        let blocks = records.iter().map(|held| held.net);
        blocks.chain(ranges.iter().copied())
    };
    let of_family = |range: &&IpNet| Family::of(range) == Family::of(net);
    let mut ranges = policy.cluster_cidrs.iter().filter(of_family).peekable();
    let length = net.prefix_len();
    if ranges.peek().is_none() {
        let wider = length.min(held.prefix_len()).saturating_sub(NEARBY_BITS);
        let nearby = IpNet::new(net.addr(), wider);
        return match nearby
            .ok()
            .and_then(|nearby| nearest_free(net, &nearby, taken()))
        {
            Some(free) => format!("{free} is free"),
            None => format!("no /{length} nearby is free"),
        };
    }
    let mut full = Vec::new();
    for range in ranges {
        match nearest_free(net, range, taken()) {
            Some(free) => return format!("{free} is free"),
            None => full.push(range.to_string()),
        }
    }
    format!(
        "no /{length} is free in the cluster CIDR {}",
        full.join(",")
    )
}

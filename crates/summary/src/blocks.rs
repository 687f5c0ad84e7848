//! The records of node blocks as facts of the map.

use podplane_ipam::parse_cidr;
use podplane_map::{BlockState, NodeBlock};
use podplane_proto::ipam::{Block, BlockState as RecordState};

/// The block of a record, as `ListBlocks` and `FindBlocks` give it. `None` for a record that cannot
/// be read: its CIDR is not one.
#[must_use]
pub fn node_block(record: &Block) -> Option<NodeBlock> {
    let cidr = parse_cidr(&record.cidr).ok()?.trunc();
    let node = Some(record.node_name.as_str()).filter(|node| !node.is_empty());
    let state = state(record, node.is_some())?;
    let node = node.filter(|_| !matches!(state, BlockState::Reserved | BlockState::Unowned));
    let block = NodeBlock::new(cidr, state, node).ok()?;
    Some(block.with_details(&details(record)))
}

fn state(record: &Block, has_node: bool) -> Option<BlockState> {
    Some(match RecordState::try_from(record.state).ok()? {
        RecordState::Assigned | RecordState::Foreign if !has_node => BlockState::Unowned,
        RecordState::Assigned => BlockState::Assigned,
        RecordState::Foreign => BlockState::Foreign,
        RecordState::Draining if record.hold.is_some() => BlockState::Held,
        RecordState::Draining => BlockState::Draining,
        RecordState::Quarantined => BlockState::Quarantined,
        RecordState::Reserved => BlockState::Reserved,
        RecordState::Unspecified => return None,
    })
}

/// A line for people about the hold and the end of the state; empty if there is nothing to say.
fn details(record: &Block) -> String {
    let hold = record.hold.as_ref().map(|hold| {
        let instance = match hold.instance.as_str() {
            "" => "an unknown instance",
            instance => instance,
        };
        format!("held by {instance} since {}", hold.since)
    });
    let until = (!record.until.is_empty()).then(|| format!("until {}", record.until));
    let parts: Vec<_> = hold.into_iter().chain(until).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use podplane_proto::ipam::Hold;

    use super::*;

    fn record(state: RecordState, node: &str) -> Block {
        Block {
            cidr: "10.244.1.0/24".into(),
            state: state.into(),
            node_name: node.into(),
            ..Block::default()
        }
    }

    #[test]
    fn states_follow_the_record_its_node_and_its_hold() {
        let held = Block {
            hold: Some(Hold {
                instance: "0f2c".into(),
                since: "2026-11-01T10:00:00Z".into(),
                ..Hold::default()
            }),
            until: "2026-11-02T10:00:00Z".into(),
            ..record(RecordState::Draining, "a")
        };
        for (record, state, node) in [
            (
                record(RecordState::Assigned, "a"),
                BlockState::Assigned,
                Some("a"),
            ),
            (record(RecordState::Assigned, ""), BlockState::Unowned, None),
            (
                record(RecordState::Foreign, "a"),
                BlockState::Foreign,
                Some("a"),
            ),
            (
                record(RecordState::Draining, "a"),
                BlockState::Draining,
                Some("a"),
            ),
            (
                record(RecordState::Draining, ""),
                BlockState::Draining,
                None,
            ),
            (
                record(RecordState::Quarantined, "a"),
                BlockState::Quarantined,
                Some("a"),
            ),
            (
                record(RecordState::Reserved, ""),
                BlockState::Reserved,
                None,
            ),
            (held.clone(), BlockState::Held, Some("a")),
        ] {
            let block = node_block(&record).unwrap();
            assert_eq!((block.state(), block.node()), (state, node), "{record:?}");
        }
        assert_eq!(
            node_block(&held).unwrap().details(),
            "held by 0f2c since 2026-11-01T10:00:00Z, until 2026-11-02T10:00:00Z"
        );
    }

    #[test]
    fn a_record_without_a_prefix_or_a_state_is_left_out() {
        let odd = Block {
            cidr: "10.244.1.0".into(),
            ..record(RecordState::Assigned, "a")
        };
        assert!(node_block(&odd).is_none());
        assert!(node_block(&record(RecordState::Unspecified, "a")).is_none());
    }
}

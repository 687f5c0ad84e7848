//! The calls to the apiserver, and the handling of their answers.

use std::time::Duration;

use podplane_api::core::Node;
use podplane_client::{ApiError, Reason, answered, leader::LeadershipLost};
use podplane_proto::{blocks::MAX_UPDATES, error::FieldViolation, ipam as wire};

use super::{SyncedController, record};
use crate::{
    condition,
    plan::{Assignment, BlockChange, NodeVerdict, RecordStatus, RecordUpdate},
};

impl SyncedController {
    /// Writes blocks into nodes: one node by `AssignPodCidrs`, several by one `AssignBlocks`.
    pub(super) async fn assign(&self, assignments: Vec<Assignment>) -> Result<(), LeadershipLost> {
        let results = match assignments.as_slice() {
            [] => return Ok(()),
            [one] if self.parts.client.blocks().are_atomic() => {
                let cidrs = texts(one);
                let nodes = self.parts.client.all::<Node>();
                let call =
                    nodes.assign_pod_cidrs(&one.node, &one.uid, &one.resource_version, &cidrs);
                vec![answered(call).await.map(drop)]
            }
            many => {
                let sent = many.iter().map(|one| wire::Assignment {
                    name: one.node.clone(),
                    uid: one.uid.clone(),
                    resource_version: one.resource_version.clone(),
                    pod_cidrs: texts(one),
                });
                let blocks = self.parts.client.blocks();
                let call = blocks.assign(sent.collect());
                let answer = match blocks.are_atomic() {
                    true => answered(call).await,
                    // Many calls, of which each has a deadline.
                    false => call.await,
                };
                match answer {
                    Ok(results) => results.into_iter().map(|one| one.map(drop)).collect(),
                    // It is not known whether any was carried out.
                    Err(error) => vec![Err(error); many.len()],
                }
            }
        };
        for (assignment, result) in assignments.iter().zip(results) {
            self.assigned(assignment, result)?;
        }
        Ok(())
    }

    fn assigned(
        &self,
        assignment: &Assignment,
        result: Result<(), ApiError>,
    ) -> Result<(), LeadershipLost> {
        let Assignment { node, uid, .. } = assignment;
        let pod_cidrs = || texts(assignment).join(",");
        match result {
            Ok(()) => {
                tracing::info!(node, uid, pod_cidrs = pod_cidrs(), "assigned node block");
                self.decide(|allocator| allocator.assignment_confirmed(assignment));
                self.queue.forget(node);
                return Ok(());
            }
            Err(error) if error.is_fence_lost() => return Err(LeadershipLost(error)),
            // Its blocks are released when the watch reports the deletion.
            Err(error) if error.is_not_found() => {
                tracing::debug!(node, uid, "node was deleted before it had a block");
                self.queue.forget(node);
                return Ok(());
            }
            Err(error) if refuses_blocks(&error) => {
                tracing::warn!(node, uid, pod_cidrs = pod_cidrs(), %error, "node block was refused; trying another");
                self.decide(|allocator| allocator.assignment_refused(assignment));
                self.stale.notify_one();
            }
            // A new node changes often, so a conflict is normal.
            Err(error) if error.is_conflict() => {
                tracing::debug!(node, uid, %error, "node has changed; trying again");
                self.queue.add_rate_limited(node.clone());
                return Ok(());
            }
            Err(error) => {
                self.not_assigned(node, uid);
                let wait = self.queue.add_rate_limited(node.clone());
                tracing::warn!(node, uid, %error, retry_in = ?wait, "failed to assign node block; trying again");
                return Ok(());
            }
        }
        self.not_assigned(node, uid);
        self.queue.add_rate_limited(node.clone());
        Ok(())
    }

    /// Updates the stored records of blocks.
    pub(super) async fn update(&self, updates: Vec<RecordUpdate>) -> Result<(), LeadershipLost> {
        if !self.options.writes {
            for update in &updates {
                self.learn(|allocator| allocator.record_updated(update, None));
                self.queue.forget(&update.node);
            }
            return Ok(());
        }
        for updates in updates.chunks(MAX_UPDATES) {
            let sent = updates.iter().map(sent).collect();
            let blocks = self.parts.client.blocks();
            let call = blocks.update(sent);
            let answer = match blocks.are_atomic() {
                true => answered(call).await,
                false => call.await,
            };
            let results = match answer {
                Ok(results) => results,
                Err(error) => vec![Err(error); updates.len()],
            };
            for (update, result) in updates.iter().zip(results) {
                let RecordUpdate { net, node, uid, .. } = update;
                match result {
                    Ok(block) => {
                        let record = block.as_ref().and_then(record);
                        self.learn(|allocator| allocator.record_updated(update, record));
                        self.queue.forget(node);
                    }
                    Err(error) if error.is_fence_lost() => return Err(LeadershipLost(error)),
                    // There is no record to change.
                    Err(error) if error.is_not_found() => {
                        self.learn(|allocator| allocator.record_updated(update, None));
                        self.queue.forget(node);
                    }
                    // The store has the current record.
                    Err(error) => {
                        tracing::debug!(%net, node, uid, change = ?update.change, %error, "failed to update block record; trying again");
                        self.stale.notify_one();
                        self.queue.add_rate_limited(node.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes the node's condition: the allocator's verdict on its blocks.
    pub(super) async fn set_condition(
        &self,
        name: String,
        uid: String,
        verdict: Option<NodeVerdict>,
    ) -> Result<(), LeadershipLost> {
        if !self.options.writes {
            self.decide(|allocator| allocator.condition_written(&name, &uid, verdict.as_ref()));
            self.queue.forget(&name);
            return Ok(());
        }
        match condition::write(&self.parts.client, &name, &uid, verdict.as_ref()).await {
            Ok(()) => {
                self.decide(|allocator| allocator.condition_written(&name, &uid, verdict.as_ref()));
                self.queue.forget(&name);
            }
            Err(error) if error.is_fence_lost() => return Err(LeadershipLost(error)),
            Err(error) => {
                tracing::debug!(node = name, uid, %error, "failed to write node condition; trying again");
                self.queue.add_rate_limited(name);
            }
        }
        Ok(())
    }
}

fn texts(assignment: &Assignment) -> Vec<String> {
    let cidrs = assignment.pod_cidrs.iter();
    cidrs.map(ToString::to_string).collect()
}

fn sent(update: &RecordUpdate) -> wire::BlockUpdate {
    use wire::block_update::Change as Sent;
    let (change, quarantine) = match update.change {
        BlockChange::Mark(RecordStatus::Foreign) => {
            (Sent::State(wire::BlockState::Foreign.into()), 0)
        }
        BlockChange::Mark(_) => (Sent::State(wire::BlockState::Assigned.into()), 0),
        BlockChange::Quarantine(delay) => (
            Sent::State(wire::BlockState::Quarantined.into()),
            whole_seconds(delay),
        ),
        BlockChange::Release => (Sent::Release(true), 0),
    };
    wire::BlockUpdate {
        cidr: update.net.to_string(),
        node_name: update.node.clone(),
        node_uid: update.uid.clone(),
        change: Some(change),
        quarantine_seconds: quarantine,
    }
}

/// Rounds up: a block is kept back for at least the configured delay.
fn whole_seconds(delay: Duration) -> u32 {
    let seconds = delay.as_nanos().div_ceil(1_000_000_000);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Returns whether the server rejects the blocks, and not another field of the node.
fn refuses_blocks(error: &ApiError) -> bool {
    let of_blocks = |violation: &FieldViolation| violation.field.starts_with("spec.podCIDRs");
    error.reason == Reason::Invalid && error.fields.iter().any(of_blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_is_never_cut_short() {
        for (millis, want) in [(0, 0), (1, 1), (500, 1), (1000, 1), (1001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), want);
        }
        assert_eq!(whole_seconds(Duration::MAX), u32::MAX);
    }
}

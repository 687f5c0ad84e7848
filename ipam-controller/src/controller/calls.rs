//! The calls, and what their answers mean.

use std::time::Duration;

use podplane_api::core::Node;
use podplane_client::{ApiError, Reason, answered};
use podplane_proto::{blocks::MAX_UPDATES, error::FieldViolation, ipam as wire};

use super::{Lost, Shell, record};
use crate::condition;
use crate::plan::{Assignment, Change, Standing, Update, Verdict};

impl Shell {
    /// Writes blocks into nodes: into one by a call of its own, into several by one call.
    pub(super) async fn assign(&self, assignments: Vec<Assignment>) -> Result<(), Lost> {
        let results = match assignments.as_slice() {
            [] => return Ok(()),
            [one] => {
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
                match answered(self.parts.client.blocks().assign(sent.collect())).await {
                    Ok(results) => results.into_iter().map(|one| one.map(drop)).collect(),
                    // Whether any was carried out is not known.
                    Err(error) => vec![Err(error); many.len()],
                }
            }
        };
        for (assignment, result) in assignments.iter().zip(results) {
            self.assigned(assignment, result)?;
        }
        Ok(())
    }

    fn assigned(&self, assignment: &Assignment, result: Result<(), ApiError>) -> Result<(), Lost> {
        let Assignment { node, uid, .. } = assignment;
        let pod_cidrs = || texts(assignment).join(",");
        match result {
            Ok(()) => {
                tracing::info!(node, uid, pod_cidrs = pod_cidrs(), "assigned node block");
                self.decide(|allocator| allocator.confirm(assignment));
                self.queue.forget(node);
                return Ok(());
            }
            Err(error) if error.is_fence_lost() => return Err(Lost(error)),
            // Its blocks are released when the watch tells the same.
            Err(error) if error.is_not_found() => {
                tracing::debug!(node, uid, "node gone before it had a block");
                self.queue.forget(node);
                return Ok(());
            }
            Err(error) if refuses_blocks(&error) => {
                tracing::warn!(node, uid, pod_cidrs = pod_cidrs(), %error, "node block refused; trying another");
                self.decide(|allocator| allocator.refused(assignment));
                self.stale.notify_one();
            }
            // A node changes often in its first moments, so a conflict is nothing unusual.
            Err(error) if error.is_conflict() => {
                tracing::debug!(node, uid, %error, "node changed; trying again");
                self.queue.add_rate_limited(node.clone());
                return Ok(());
            }
            Err(error) => {
                tracing::warn!(node, uid, %error, "node block not assigned; trying again");
            }
        }
        self.not_assigned(node, uid);
        self.queue.add_rate_limited(node.clone());
        Ok(())
    }

    /// Moves records on.
    pub(super) async fn update(&self, updates: Vec<Update>) -> Result<(), Lost> {
        if !self.options.writes {
            for update in &updates {
                self.learn(|allocator| allocator.updated(update, None));
                self.queue.forget(&update.node);
            }
            return Ok(());
        }
        for updates in updates.chunks(MAX_UPDATES) {
            let sent = updates.iter().map(sent).collect();
            let results = match answered(self.parts.client.blocks().update(sent)).await {
                Ok(results) => results,
                Err(error) => vec![Err(error); updates.len()],
            };
            for (update, result) in updates.iter().zip(results) {
                let Update { net, node, uid, .. } = update;
                match result {
                    Ok(block) => {
                        let record = block.as_ref().and_then(record);
                        self.learn(|allocator| allocator.updated(update, record));
                        self.queue.forget(node);
                    }
                    Err(error) if error.is_fence_lost() => return Err(Lost(error)),
                    // There is none to be changed.
                    Err(error) if error.is_not_found() => {
                        self.learn(|allocator| allocator.updated(update, None));
                        self.queue.forget(node);
                    }
                    // What the record says by now is in the store.
                    Err(error) => {
                        tracing::debug!(%net, node, uid, change = ?update.change, %error, "record not changed; trying again");
                        self.stale.notify_one();
                        self.queue.add_rate_limited(node.clone());
                    }
                }
            }
        }
        Ok(())
    }

    /// Has the node's condition say what is thought of its blocks.
    pub(super) async fn set_condition(
        &self,
        name: String,
        uid: String,
        verdict: Option<Verdict>,
    ) -> Result<(), Lost> {
        if !self.options.writes {
            self.decide(|allocator| allocator.conditioned(&name, &uid, verdict.as_ref()));
            self.queue.forget(&name);
            return Ok(());
        }
        match condition::write(&self.parts.client, &name, &uid, verdict.as_ref()).await {
            Ok(()) => {
                self.decide(|allocator| allocator.conditioned(&name, &uid, verdict.as_ref()));
                self.queue.forget(&name);
            }
            Err(error) if error.is_fence_lost() => return Err(Lost(error)),
            Err(error) => {
                tracing::debug!(node = name, uid, %error, "condition not written; trying again");
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

fn sent(update: &Update) -> wire::BlockUpdate {
    use wire::block_update::Change as Sent;
    let (change, quarantine) = match update.change {
        Change::Mark(Standing::Foreign) => (Sent::State(wire::BlockState::Foreign.into()), 0),
        Change::Mark(_) => (Sent::State(wire::BlockState::Assigned.into()), 0),
        Change::Quarantine(delay) => (
            Sent::State(wire::BlockState::Quarantined.into()),
            whole_seconds(delay),
        ),
        Change::Release => (Sent::Release(true), 0),
    };
    wire::BlockUpdate {
        cidr: update.net.to_string(),
        node_name: update.node.clone(),
        node_uid: update.uid.clone(),
        change: Some(change),
        quarantine_seconds: quarantine,
    }
}

/// Rounded up: what was asked for is kept back, however short.
fn whole_seconds(delay: Duration) -> u32 {
    let seconds = delay.as_nanos().div_ceil(1_000_000_000);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Whether it is the blocks that the server does not take, and not something else of the node.
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

//! Blocks of Nodes that are gone while sandboxes here have addresses of them.
//!
//! A deleted Node's block drains: the API server keeps its record until no pod has an address of it, and for a while if the Node said that addresses were in use. Pods
//! can be gone before their sandboxes are (`kubectl delete pod --force`), so for that while the kubelet says again and again that it is not
//! over, and then that it is. A kubelet that is silent for [`HELD_SECONDS`] is taken for gone with its sandboxes, as Kubernetes takes a node for gone
//! whose lease is as old.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs, io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node as NodeObject};
use podplane_client::{ApiError, Cache, Change, Reason, answered};
use podplane_cni::host_local;
use podplane_proto::{
    blocks::{HELD_SECONDS, MAX_UPDATES},
    ipam::{BlockState, BlockUpdate, block_update},
};
use tokio::{
    task,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::node::{Node, NodeError};
use crate::cri::sandboxes::chain;

/// How often that is said.
const RENEW: Duration = Duration::from_secs(10);
/// How often it is looked whether the last sandbox is gone.
const LOOK: Duration = Duration::from_secs(1);
/// Nodes that are deleted within this time are looked at together.
const TOGETHER: Duration = Duration::from_millis(100);

/// A block of an earlier Node of one of our names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    node: String,
    uid: String,
    cidr: String,
}

/// With when it was last said that they are held.
type Blocks = BTreeMap<Block, Option<Instant>>;

/// Keeps them until `stop`.
///
/// # Errors
///
/// None; the signature is that of a task.
pub(super) async fn run(
    nodes: Vec<Arc<Node>>,
    cache: Cache<NodeObject>,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let by_name = nodes.into_iter().map(|node| (node.name().to_owned(), node));
    let holds = Holds {
        nodes: by_name.collect(),
    };
    stop.run_until_cancelled(holds.keep(cache)).await;
    Ok(())
}

struct Holds {
    nodes: BTreeMap<String, Arc<Node>>,
}

impl Holds {
    async fn keep(&self, cache: Cache<NodeObject>) {
        cache.synced().await;
        let mut changes = cache.subscribe();
        let mut blocks = Blocks::new();
        // Nodes may have been deleted while no kubelet ran.
        let mut is_behind = true;
        let mut next_look = Instant::now();
        loop {
            let is_waited_for = is_behind || !blocks.is_empty();
            // A change is taken only when it is returned; losing a wait loses nothing.
            tokio::select! {
                change = changes.next() => {
                    if self.is_gone(&change) {
                        is_behind = true;
                        next_look = next_look.min(Instant::now() + TOGETHER);
                    }
                    continue;
                }
                () = sleep_until(next_look), if is_waited_for => {}
            }
            if let Err(error) = self.look(&mut blocks, &mut is_behind).await {
                tracing::debug!(%error, "blocks of gone nodes not held; trying again");
            }
            next_look = Instant::now() + LOOK;
        }
    }

    async fn look(&self, blocks: &mut Blocks, is_behind: &mut bool) -> Result<(), ApiError> {
        if *is_behind {
            let found = self.draining().await?;
            let said = |block: &Block| blocks.get(block).copied().flatten();
            let found = found.into_iter();
            *blocks = found.map(|block| (block.clone(), said(&block))).collect();
            *is_behind = false;
        }
        self.say(blocks).await
    }

    /// Whether a Node of ours is no more.
    fn is_gone(&self, change: &Change<NodeObject>) -> bool {
        match change {
            Change::Deleted(old) => self.nodes.contains_key(old.name()),
            Change::Applied { old, new } => {
                let replaced = old.as_ref().is_some_and(|old| old.uid() != new.uid());
                replaced && self.nodes.contains_key(new.name())
            }
        }
    }

    /// The blocks that drain, of Nodes of ours.
    async fn draining(&self) -> Result<BTreeSet<Block>, ApiError> {
        let Some(any) = self.nodes.values().next() else {
            return Ok(BTreeSet::new());
        };
        let listed = answered(any.client.blocks().list()).await?;
        let of_ours = listed.blocks.into_iter().filter(|block| {
            block.state() == BlockState::Draining && self.nodes.contains_key(&block.node_name)
        });
        let blocks = of_ours.map(|block| Block {
            node: block.node_name,
            uid: block.node_uid,
            cidr: block.cidr,
        });
        Ok(blocks.collect())
    }

    /// Says of each block whether it is held, if that is due, and drops those that are done.
    async fn say(&self, blocks: &mut Blocks) -> Result<(), ApiError> {
        let mut due = Vec::new();
        for (block, renewed) in blocks.iter() {
            let is_held = self.is_held(block).await;
            if !is_held || renewed.is_none_or(|at| at.elapsed() >= RENEW) {
                due.push((block.clone(), is_held));
            }
        }
        for part in due.chunks(MAX_UPDATES) {
            let Some(any) = self.nodes.values().next() else {
                return Ok(());
            };
            let now = Instant::now();
            let updates = part.iter().map(|(block, is_held)| BlockUpdate {
                cidr: block.cidr.clone(),
                node_name: block.node.clone(),
                node_uid: block.uid.clone(),
                change: Some(block_update::Change::HeldSeconds(if *is_held {
                    HELD_SECONDS
                } else {
                    0
                })),
                ..BlockUpdate::default()
            });
            let answers = answered(any.client.blocks().update(updates.collect())).await?;
            for ((block, is_held), answer) in part.iter().zip(answers) {
                let Block { node, uid, cidr } = block;
                match answer {
                    Ok(Some(_)) if *is_held => {
                        tracing::info!(
                            node,
                            uid,
                            cidr,
                            "block of a deleted node held for its sandboxes"
                        );
                        blocks.insert(block.clone(), Some(now));
                    }
                    Ok(_) => {
                        tracing::info!(
                            node,
                            uid,
                            cidr,
                            "no sandbox has an address of the deleted node's block"
                        );
                        blocks.remove(block);
                    }
                    Err(error) if !is_over(&error) => {
                        tracing::debug!(node, uid, cidr, %error, "block of a deleted node not held; trying again");
                    }
                    Err(error) => {
                        tracing::info!(node, uid, cidr, %error, "block of a deleted node is not kept any more");
                        blocks.remove(block);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether a sandbox has an address of the block. What is not known may be so.
    async fn is_held(&self, block: &Block) -> bool {
        let (Some(node), Ok(net)) = (self.nodes.get(&block.node), block.cidr.parse()) else {
            return false;
        };
        match node.has_sandbox_in(net).await {
            Ok(is_held) => is_held,
            Err(error) => {
                tracing::debug!(node = node.name(), error = %chain(&error), "addresses not known; the block stays held");
                true
            }
        }
    }
}

/// Whether the block does not drain any more, so that there is nothing to hold. Any other error may pass.
fn is_over(error: &ApiError) -> bool {
    matches!(
        error.reason,
        Reason::NotFound | Reason::Conflict | Reason::InUse
    )
}

impl Node {
    /// Whether a sandbox has an address of `net`, or may have one soon.
    async fn has_sandbox_in(&self, net: IpNet) -> Result<bool, NodeError> {
        if self.announced.try_write().is_err() {
            return Ok(true);
        }
        let networks = self.dir.networks();
        let earlier = task::spawn_blocking(move || leases_below(&networks)).await??;
        let books = self.books().await?;
        if !books.has_files() && !books.sandboxes.is_empty() {
            return Ok(true);
        }
        let has = |id: &str| books.sandboxes.iter().any(|sandbox| sandbox.id == id);
        let current = books
            .leases
            .iter()
            .map(|lease| (lease.ip, lease.container_id.clone()));
        let mut leases = current.chain(earlier);
        Ok(leases.any(|(ip, id)| net.contains(&ip) && has(&id)))
    }
}

/// The allocation files of all networks, since an earlier one may have had another name.
fn leases_below(networks: &std::path::Path) -> io::Result<Vec<(IpAddr, String)>> {
    let mut leases = Vec::new();
    let found = match fs::read_dir(networks) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(leases),
        found => found?,
    };
    for network in found {
        let used = host_local::usage(&network?.path())?;
        leases.extend(used.into_iter().map(|lease| (lease.ip, lease.container_id)));
    }
    Ok(leases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_held_until_the_record_says_otherwise() {
        let over = |reason| is_over(&ApiError::new(reason, ""));
        for reason in [Reason::NotFound, Reason::Conflict, Reason::InUse] {
            assert!(over(reason), "{reason:?}");
        }
        for reason in [
            Reason::InternalError,
            Reason::Timeout,
            Reason::ServiceUnavailable,
            Reason::Forbidden,
        ] {
            assert!(!over(reason), "{reason:?}");
        }
    }
}

//! Blocks of Nodes that are gone while sandboxes here have addresses of them.
//!
//! A deleted Node's block is held until the instance of the node that holds it says that its last
//! sandbox is gone, however long that takes. Pods can be gone before their sandboxes are (`kubectl
//! delete pod --force`). Until then the kubelet says again and again that it is not over, and which
//! addresses are in use: so people see who is at work, and a server with `--release-after` does not
//! take the node for gone with its sandboxes.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fs, io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node as NodeObject, jiff::Timestamp};
use podplane_client::{ApiError, Cache, Change, Reason, answered};
use podplane_cni::host_local;
use podplane_proto::{
    blocks::MAX_UPDATES,
    ipam::{
        Block as Recorded, BlockState, BlockUpdate, PodAddress, block_update, hold_change::Action,
    },
};
use tokio::{
    task,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::node::{Node, NodeError};
use crate::cri::sandboxes::chain;

/// How often that is said, at least.
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

/// With when it is to be said again that they are held.
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
            let due = |block: &Block| blocks.get(block).copied().flatten();
            let found = found.into_iter();
            *blocks = found.map(|block| (block.clone(), due(&block))).collect();
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

    /// The blocks of gone Nodes of ours that instances here hold, or may hold.
    async fn draining(&self) -> Result<BTreeSet<Block>, ApiError> {
        let Some(any) = self.nodes.values().next() else {
            return Ok(BTreeSet::new());
        };
        let listed = answered(any.client.blocks().list()).await?;
        let is_ours = |block: &Recorded| {
            let (node, hold) = (self.nodes.get(&block.node_name)?, block.hold.as_ref()?);
            let instance = hold.instance.as_str();
            Some(instance.is_empty() || instance == node.instance.id())
        };
        let of_ours = listed.blocks.into_iter().filter(|block| {
            block.state() == BlockState::Draining && is_ours(block).unwrap_or_default()
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
        for (block, next) in blocks.iter() {
            let used = self.used(block).await;
            if used.is_none() || next.is_none_or(|next| next <= Instant::now()) {
                due.push((block.clone(), used));
            }
        }
        for part in due.chunks(MAX_UPDATES) {
            let Some(any) = self.nodes.values().next() else {
                return Ok(());
            };
            let updates = part
                .iter()
                .filter_map(|(block, used)| self.update(block, used.as_deref()));
            let answers = answered(any.client.blocks().update(updates.collect())).await?;
            for ((block, used), answer) in part.iter().zip(answers) {
                let Block { node, uid, cidr } = block;
                match answer {
                    Ok(Some(recorded)) if used.is_some() => {
                        tracing::info!(
                            node,
                            uid,
                            cidr,
                            "block of a deleted node held for its sandboxes"
                        );
                        blocks.insert(block.clone(), Some(Instant::now() + pause(&recorded)));
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

    /// The update that takes the hold of a block for the addresses in use, or ends it for `None`.
    fn update(&self, block: &Block, used: Option<&[PodAddress]>) -> Option<BlockUpdate> {
        let identity = self.nodes.get(&block.node)?.instance.identity();
        let change = match used {
            Some(addresses) => identity.hold(Action::Take, addresses.to_vec()),
            None => identity.hold(Action::End, Vec::new()),
        };
        Some(BlockUpdate {
            cidr: block.cidr.clone(),
            node_name: block.node.clone(),
            node_uid: block.uid.clone(),
            change: Some(block_update::Change::Hold(change)),
            ..BlockUpdate::default()
        })
    }

    /// The addresses of the block that sandboxes have; nothing, if none has any. What is not known
    /// may be so.
    async fn used(&self, block: &Block) -> Option<Vec<PodAddress>> {
        let (Some(node), Ok(net)) = (self.nodes.get(&block.node), block.cidr.parse()) else {
            return Some(Vec::new());
        };
        match node.used_of(net).await {
            Ok(used) => used,
            Err(error) => {
                tracing::debug!(node = node.name(), error = %chain(&error), "addresses not known; the block stays held");
                Some(Vec::new())
            }
        }
    }
}

/// How long after a renewal the next one is due: soon enough for a server that ends holds by time.
fn pause(recorded: &Recorded) -> Duration {
    let until = recorded.until.parse::<Timestamp>().ok();
    let left = until.map(|until| until.duration_since(Timestamp::now()));
    let left = left.and_then(|left| Duration::try_from(left).ok());
    left.map_or(RENEW, |left| RENEW.min(left / 3))
}

/// Whether the block does not drain any more, so that there is nothing to hold. Any other error may pass.
fn is_over(error: &ApiError) -> bool {
    matches!(
        error.reason,
        Reason::NotFound | Reason::Conflict | Reason::InUse | Reason::Forbidden
    )
}

impl Node {
    /// The addresses of `net` that sandboxes have; nothing, if none has any, nor may have one soon.
    async fn used_of(&self, net: IpNet) -> Result<Option<Vec<PodAddress>>, NodeError> {
        if self.held.try_write().is_err() {
            return Ok(Some(Vec::new()));
        }
        let networks = self.dir.networks();
        let earlier = task::spawn_blocking(move || leases_below(&networks)).await??;
        let books = self.books().await?;
        if !books.has_files() && !books.sandboxes.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let current = books
            .leases
            .iter()
            .map(|lease| (lease.ip, lease.container_id.clone()));
        let has = |id: &str| books.sandboxes.iter().any(|sandbox| sandbox.id == id);
        let mut used: BTreeSet<_> = current
            .chain(earlier)
            .filter(|(ip, id)| net.contains(ip) && has(id))
            .collect();
        if used.is_empty() {
            // Files can be lost while their sandboxes live.
            for sandbox in &books.sandboxes {
                let ips = self.addresses_of(&sandbox.id).await?.into_iter();
                let of_net = ips.filter(|ip| net.contains(ip));
                used.extend(of_net.map(|ip| (ip, sandbox.id.clone())));
            }
        }
        let told = used.iter().filter_map(|(ip, id)| {
            let sandbox = books.sandboxes.iter().find(|sandbox| sandbox.id == *id)?;
            Some(PodAddress {
                address: ip.to_string(),
                namespace: sandbox.pod.namespace.clone(),
                name: sandbox.pod.name.clone(),
                uid: sandbox.uid.clone(),
                node_name: self.name().to_owned(),
            })
        });
        let told: Vec<_> = told.collect();
        Ok((!told.is_empty()).then_some(told))
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
        for reason in [
            Reason::NotFound,
            Reason::Conflict,
            Reason::InUse,
            Reason::Forbidden,
        ] {
            assert!(over(reason), "{reason:?}");
        }
        for reason in [
            Reason::InternalError,
            Reason::Timeout,
            Reason::ServiceUnavailable,
        ] {
            assert!(!over(reason), "{reason:?}");
        }
    }
}

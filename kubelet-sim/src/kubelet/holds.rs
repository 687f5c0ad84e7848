//! Blocks of Nodes that are gone while sandboxes here have addresses of them.
//!
//! A deleted Node's block is held until the instance of the node that holds it reports that its
//! last sandbox is gone, however long that takes. Pods can be gone before their sandboxes are
//! (`kubectl delete pod --force`). Until then the kubelet renews the hold again and again, with the
//! addresses in use: so users see what the block waits for, and a server with `--release-after`
//! does not take the node for gone with its sandboxes.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    io,
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node as NodeObject, jiff::Timestamp};
use podplane_client::{ApiError, Cache, CacheChange, Reason, answered};
use podplane_error_chain::one_line;
use podplane_host::{
    clock::{self, Instant, sleep_until},
    fs, task,
};
use podplane_proto::{
    blocks::MAX_UPDATES,
    ipam::{
        Block as Recorded, BlockState, BlockUpdate, PodAddress, block_update, hold_change::Action,
    },
};
use tokio_util::sync::CancellationToken;

use super::node::{NodeContext, NodeError};

/// The longest time between two renewals of a hold.
const MAX_RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two checks for the last sandbox.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The time in which deletions of nodes are collected, to be handled together.
const BATCH_DELAY: Duration = Duration::from_millis(100);

/// A draining block of a removed Node, whose hold an instance of this kubelet has or may have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct HeldBlock {
    node: String,
    uid: String,
    cidr: String,
}

/// Blocks, each with the time of the next renewal of its hold; `None` before the first.
type RenewalTimes = BTreeMap<HeldBlock, Option<Instant>>;

/// Keeps the holds until `stop`.
///
/// # Errors
///
/// It does not fail; the signature is that of a task.
pub(super) async fn run(
    nodes: Vec<Arc<NodeContext>>,
    cache: Cache<NodeObject>,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let by_name = nodes.into_iter().map(|node| (node.name().to_owned(), node));
    let holds = HoldWorker {
        nodes: by_name.collect(),
    };
    stop.run_until_cancelled(Box::pin(holds.run(cache))).await;
    Ok(())
}

struct HoldWorker {
    nodes: BTreeMap<String, Arc<NodeContext>>,
}

impl HoldWorker {
    /// Syncs after a Node of this kubelet was removed, and every [`POLL_INTERVAL`] while a block of
    /// such a Node is held here. Never returns.
    ///
    /// The held blocks are listed at the start and after a Node was removed, until that succeeds.
    /// A listed block is checked in each sync, until its hold is ended.
    async fn run(&self, cache: Cache<NodeObject>) {
        cache.synced().await;
        let mut changes = cache.subscribe();
        let mut blocks = RenewalTimes::new();
        // Nodes may have been deleted while no kubelet ran.
        let mut must_list = true;
        let mut next_sync = Instant::now();
        loop {
            let has_work = must_list || !blocks.is_empty();
            // A change is taken only when it is returned; losing a wait loses nothing.
            tokio::select! {
                change = changes.next() => {
                    if self.is_gone(&change) {
                        must_list = true;
                        next_sync = next_sync.min(Instant::now() + BATCH_DELAY);
                    }
                    continue;
                }
                () = sleep_until(next_sync), if has_work => {}
            }
            if let Err(error) = self.sync(&mut blocks, &mut must_list).await {
                tracing::debug!(%error, "failed to hold blocks of deleted nodes; trying again");
            }
            next_sync = Instant::now() + POLL_INTERVAL;
        }
    }

    /// Lists the held blocks if that is due, and renews or ends their holds.
    async fn sync(&self, blocks: &mut RenewalTimes, must_list: &mut bool) -> Result<(), ApiError> {
        if *must_list {
            let found = self.list_held().await?;
            let due = |block: &HeldBlock| blocks.get(block).copied().flatten();
            let found = found.into_iter();
            *blocks = found.map(|block| (block.clone(), due(&block))).collect();
            *must_list = false;
        }
        self.renew_or_end(blocks).await
    }

    /// Returns true if the change removes a Node of this kubelet: it was deleted, or replaced by
    /// another of its name.
    fn is_gone(&self, change: &CacheChange<NodeObject>) -> bool {
        match change {
            CacheChange::Deleted(old) => self.nodes.contains_key(old.name()),
            CacheChange::Applied { old, new } => {
                let replaced = old.as_ref().is_some_and(|old| old.uid() != new.uid());
                replaced && self.nodes.contains_key(new.name())
            }
        }
    }

    /// The blocks of removed Nodes of this kubelet that instances here hold, or may hold.
    async fn list_held(&self) -> Result<BTreeSet<HeldBlock>, ApiError> {
        let mut nodes = self.nodes.values();
        let Some(any) = nodes.next() else {
            return Ok(BTreeSet::new());
        };
        // A node may read its own records alone.
        let of = match nodes.next() {
            None => any.name(),
            Some(_) => "",
        };
        let listed = answered(any.client.blocks().list_of(of)).await?;
        let is_ours = |block: &Recorded| {
            let (node, hold) = (self.nodes.get(&block.node_name)?, block.hold.as_ref()?);
            let instance = hold.instance.as_str();
            Some(instance.is_empty() || instance == node.instance.id())
        };
        let of_ours = listed.blocks.into_iter().filter(|block| {
            block.state() == BlockState::Draining && is_ours(block).unwrap_or_default()
        });
        let blocks = of_ours.map(|block| HeldBlock {
            node: block.node_name,
            uid: block.node_uid,
            cidr: block.cidr,
        });
        Ok(blocks.collect())
    }

    /// Renews the hold of each block for which that is due, ends the hold of each block out of use,
    /// and drops the ended ones.
    async fn renew_or_end(&self, blocks: &mut RenewalTimes) -> Result<(), ApiError> {
        let mut due = Vec::new();
        for (block, next) in blocks.iter() {
            let used = self.addresses_in_use(block).await;
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
                let HeldBlock { node, uid, cidr } = block;
                match answer {
                    Ok(Some(recorded)) if used.is_some() => {
                        let next = Instant::now() + renew_interval(&recorded);
                        match blocks.insert(block.clone(), Some(next)).flatten() {
                            None => tracing::info!(
                                node,
                                uid,
                                cidr,
                                "holding the block of a deleted node for its sandboxes"
                            ),
                            Some(_) => tracing::debug!(node, uid, cidr, "renewed the hold"),
                        }
                    }
                    Ok(_) => {
                        tracing::info!(
                            node,
                            uid,
                            cidr,
                            "ended the hold of a deleted node's block: no sandbox has an address of it"
                        );
                        blocks.remove(block);
                    }
                    Err(error) if !is_over(&error) => {
                        tracing::debug!(node, uid, cidr, %error, "failed to hold the block of a deleted node; trying again");
                    }
                    Err(error) => {
                        tracing::info!(node, uid, cidr, %error, "stopped holding the block of a deleted node");
                        blocks.remove(block);
                    }
                }
            }
        }
        Ok(())
    }

    /// The update that takes the hold of a block for the addresses in use, or ends it for `None`.
    fn update(&self, block: &HeldBlock, used: Option<&[PodAddress]>) -> Option<BlockUpdate> {
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

    /// The addresses of the block that are in use by sandboxes; `None` if there are none. If they
    /// are not known, the block counts as in use, without addresses.
    async fn addresses_in_use(&self, block: &HeldBlock) -> Option<Vec<PodAddress>> {
        let (Some(node), Ok(net)) = (self.nodes.get(&block.node), block.cidr.parse()) else {
            return Some(Vec::new());
        };
        match node.addresses_in_use(net).await {
            Ok(used) => used,
            Err(error) => {
                tracing::debug!(node = node.name(), error = %one_line(&error), "failed to find the addresses in use; the block stays held");
                Some(Vec::new())
            }
        }
    }
}

/// The time from a renewal to the next one: short enough for a server that ends holds after a time.
fn renew_interval(recorded: &Recorded) -> Duration {
    let until = recorded.until.parse::<Timestamp>().ok();
    let validity = until.map(|until| until.duration_since(clock::timestamp()));
    let validity = validity.and_then(|validity| Duration::try_from(validity).ok());
    validity.map_or(MAX_RENEW_INTERVAL, |validity| {
        MAX_RENEW_INTERVAL.min(validity / 3)
    })
}

/// Returns true if the block does not drain any more, so that no hold is needed. Any other
/// error may be temporary.
fn is_over(error: &ApiError) -> bool {
    matches!(
        error.reason,
        Reason::NotFound | Reason::Conflict | Reason::InUse | Reason::Forbidden
    )
}

impl NodeContext {
    /// The addresses of `net` that are in use by sandboxes; `None` if no sandbox has one, nor may
    /// have one soon.
    async fn addresses_in_use(&self, net: IpNet) -> Result<Option<Vec<PodAddress>>, NodeError> {
        // A sandbox is being created: a guard of `hold_blocks` exists.
        if self.hold.try_write().is_err() {
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
        let addresses = used.iter().filter_map(|(ip, id)| {
            let sandbox = books.sandboxes.iter().find(|sandbox| sandbox.id == *id)?;
            Some(PodAddress {
                address: ip.to_string(),
                namespace: sandbox.pod.namespace.clone(),
                name: sandbox.pod.name.clone(),
                uid: sandbox.uid.clone(),
                node_name: self.name().to_owned(),
            })
        });
        let addresses: Vec<_> = addresses.collect();
        Ok((!addresses.is_empty()).then_some(addresses))
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
        let used = podplane_host_local::usage(&network?.path())?;
        leases.extend(used.into_iter().map(|lease| (lease.ip, lease.container_id)));
    }
    Ok(leases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_definite_answers_end_a_hold() {
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

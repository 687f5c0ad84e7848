//! A node's hold of its blocks.
//!
//! The API server gives a held block to nobody, whatever becomes of the Node and its pods. So a
//! node takes the hold before it makes its first sandbox, and ends it after the last one is gone,
//! never the other way round. The hold belongs to this instance: another instance of the node
//! cannot end it, and makes no sandbox in the block.

use std::net::IpAddr;

use podplane_api::{Object as _, core::Node as NodeObject};
use podplane_client::{Reason, answered};
use podplane_proto::ipam::{BlockUpdate, block_update, hold_change::Action};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::{
    ipam_report::FRESH,
    node::{AddressBooks, NodeContext, NodeError, pod_cidrs},
};
use crate::PodCidrs;

/// The hold of the node's blocks, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HoldState {
    /// Not known: an earlier process may have taken it.
    #[default]
    Unknown,
    /// Ended: no sandbox has an address, and no other instance holds the blocks.
    Ended(UidAndBlocks),
    /// This instance has taken it.
    Taken(UidAndBlocks),
}

/// The UID of a Node, and its blocks.
pub(super) type UidAndBlocks = (String, Option<PodCidrs>);

fn blocks(node: &NodeObject) -> UidAndBlocks {
    (node.uid().to_owned(), pod_cidrs(node))
}

impl NodeContext {
    /// Reads the Node from the API server. The cached one may be stale: a Node that was deleted and
    /// created again has another block, and its pod may be known sooner than the Node.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub async fn read_uncached(&self) -> Result<NodeObject, NodeError> {
        let found = self.client.all::<NodeObject>().get(self.name()).await;
        found.map_err(|error| match error.is_not_found() {
            true => NodeError::Gone(self.name().to_owned()),
            false => NodeError::api("read the node")(error),
        })
    }

    /// Takes the hold of the blocks of `node`, and keeps it while the returned guard lives. Keep
    /// the guard while a sandbox is being created.
    ///
    /// `node` must have been [read](Self::read_uncached) after the pod became known.
    ///
    /// # Errors
    ///
    /// [`NodeError`]; then no sandbox may be created.
    pub async fn hold_blocks(
        &self,
        node: &NodeObject,
    ) -> Result<RwLockReadGuard<'_, HoldState>, NodeError> {
        let cidrs = pod_cidrs(node);
        if cidrs != *self.configured.lock().await && (cidrs.is_some() || self.dir.uses_pod_cidr()) {
            return Err(NodeError::Renumbered(self.name().to_owned()));
        }
        let held = self.hold.read().await;
        if *held == HoldState::Taken(blocks(node)) {
            return Ok(held);
        }
        drop(held);
        self.take_hold(node).await.map(RwLockWriteGuard::downgrade)
    }

    /// Takes the hold, if it is not taken.
    async fn take_hold(
        &self,
        node: &NodeObject,
    ) -> Result<RwLockWriteGuard<'_, HoldState>, NodeError> {
        let mut held = self.hold.write().await;
        if *held != HoldState::Taken(blocks(node)) {
            self.change_hold(node, Action::Take).await?;
            *held = HoldState::Taken(blocks(node));
        }
        Ok(held)
    }

    /// Takes or ends the hold of each of the node's blocks.
    async fn change_hold(&self, node: &NodeObject, action: Action) -> Result<(), NodeError> {
        let cidrs = pod_cidrs(node);
        let cidrs = cidrs.iter().flat_map(|cidrs| cidrs.iter());
        let update = |cidr: &ipnet::IpNet| BlockUpdate {
            cidr: cidr.to_string(),
            node_name: self.name().to_owned(),
            node_uid: node.uid().to_owned(),
            change: Some(block_update::Change::Hold(
                self.instance.identity().hold(action, Vec::new()),
            )),
            ..BlockUpdate::default()
        };
        let updates: Vec<_> = cidrs.map(update).collect();
        // On Kubernetes blocks have no holders: docs/real-clusters.md says what follows from it.
        if updates.is_empty() || !self.client.blocks().are_atomic() {
            return Ok(());
        }
        let failed = NodeError::api("change the hold of the node's block");
        let answers = answered(self.client.blocks().update(updates)).await;
        for answer in answers.map_err(failed)? {
            match answer {
                Ok(_) => {}
                // A block without a record is held by nobody.
                Err(error) if action == Action::End && error.is_not_found() => {}
                Err(error) if error.reason == Reason::Forbidden => {
                    return Err(NodeError::HeldByAnother(error.message));
                }
                Err(error) => {
                    return Err(NodeError::api("change the hold of the node's block")(error));
                }
            }
        }
        Ok(())
    }

    /// Reads the addresses of the node, and takes or ends the hold of its blocks accordingly: they
    /// are held if sandboxes have addresses. If none has any, no other instance of the node holds
    /// them either.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(super) async fn reconcile_hold(
        &self,
        node: &NodeObject,
    ) -> Result<AddressBooks, NodeError> {
        let books = self.books_within(FRESH).await?;
        if self.any_in_use(&books).await? {
            // Sandboxes of an earlier process, or of a version without holds.
            if *self.hold.read().await != HoldState::Taken(blocks(node)) {
                drop(self.take_hold(node).await?);
            }
            return Ok(books);
        }
        // A sandbox is being created: a guard of `hold_blocks` exists.
        let Ok(mut held) = self.hold.try_write() else {
            return Ok(books);
        };
        if *held == HoldState::Ended(blocks(node)) {
            return Ok(books);
        }
        // A sandbox may have been created since the addresses were read.
        let books = self.books().await?;
        if !self.any_in_use(&books).await? {
            // Set before the call, which may succeed even if its answer is lost.
            *held = HoldState::Unknown;
            self.change_hold(node, Action::End).await?;
            *held = HoldState::Ended(blocks(node));
        }
        Ok(books)
    }

    /// Returns true if a sandbox has an address, or may have one.
    async fn any_in_use(&self, books: &AddressBooks) -> Result<bool, NodeError> {
        // A plugin's report may be older than the newest sandbox.
        if !books.has_files() {
            return Ok(!books.sandboxes.is_empty());
        }
        if books
            .leases
            .iter()
            .any(|lease| books.owner(lease).is_some())
        {
            return Ok(true);
        }
        // Files can be lost while their sandboxes live.
        for sandbox in &books.sandboxes {
            if !self.addresses_of(&sandbox.id).await?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The addresses of a sandbox, from the runtime.
    pub(super) async fn addresses_of(&self, id: &str) -> Result<Vec<IpAddr>, NodeError> {
        let asked = self.runtime.addresses(id).await;
        asked.map_err(NodeError::runtime("ask for the sandbox's status"))
    }
}

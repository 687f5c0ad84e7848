//! A node's hold of its blocks.
//!
//! The API server gives a block that is held to nobody, whatever becomes of the Node and its pods.
//! So a node takes the hold before it makes its first sandbox, and ends it after the last one is
//! gone, never the other way round. The hold is this instance's: another instance of the node
//! cannot end it, and makes no sandbox in the block.

use std::net::IpAddr;

use podplane_api::{Object as _, core::Node as NodeObject};
use podplane_client::{Reason, answered};
use podplane_proto::ipam::{BlockUpdate, block_update, hold_change::Action};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::{
    ipam_report::FRESH,
    node::{Books, Node, NodeError, pod_cidrs},
};
use crate::PodCidrs;

/// What is known of the hold of the node's blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Hold {
    /// A process before this one may have taken it.
    #[default]
    Unknown,
    /// No sandbox has an address, and no other instance holds them.
    Ended(Blocks),
    /// It is taken.
    Taken(Blocks),
}

/// The UID of a Node, and its blocks.
pub(super) type Blocks = (String, Option<PodCidrs>);

fn blocks(node: &NodeObject) -> Blocks {
    (node.uid().to_owned(), pod_cidrs(node))
}

impl Node {
    /// Sees to it that the node's blocks are held, for as long as what is returned lives. Hold it
    /// while a sandbox is made.
    ///
    /// The Node is read anew each time: one that was deleted and created again has another block, of which the pod may be known sooner than of the Node.
    ///
    /// # Errors
    ///
    /// [`NodeError`]: then no sandbox may be made.
    pub async fn announce(&self) -> Result<RwLockReadGuard<'_, Hold>, NodeError> {
        let found = self.client.all::<NodeObject>().get(self.name()).await;
        let node = found.map_err(|error| match error.is_not_found() {
            true => NodeError::Gone(self.name().to_owned()),
            false => NodeError::api("read the node")(error),
        })?;
        let cidrs = pod_cidrs(&node);
        if cidrs != *self.configured.lock().await && (cidrs.is_some() || self.dir.uses_pod_cidr()) {
            return Err(NodeError::Renumbered(self.name().to_owned()));
        }
        let held = self.held.read().await;
        if *held == Hold::Taken(blocks(&node)) {
            return Ok(held);
        }
        drop(held);
        self.take_hold(&node).await.map(RwLockWriteGuard::downgrade)
    }

    /// Takes the hold, if it is not taken.
    async fn take_hold(&self, node: &NodeObject) -> Result<RwLockWriteGuard<'_, Hold>, NodeError> {
        let mut held = self.held.write().await;
        if *held != Hold::Taken(blocks(node)) {
            self.change_hold(node, Action::Take).await?;
            *held = Hold::Taken(blocks(node));
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
        if updates.is_empty() {
            return Ok(());
        }
        let failed = NodeError::api("change the hold of the node's block");
        let answers = answered(self.client.blocks().update(updates)).await;
        for answer in answers.map_err(failed)? {
            match answer {
                Ok(_) => {}
                // Without a record nobody holds it.
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

    /// The addresses of the node. If sandboxes have some, the node's blocks are held from now on;
    /// if none has, they are not, and no other instance of the node holds them either.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(super) async fn settled_books(&self, node: &NodeObject) -> Result<Books, NodeError> {
        let books = self.books_within(FRESH).await?;
        if self.any_in_use(&books).await? {
            // Those of a process before this one, or of a version without holds.
            if *self.held.read().await != Hold::Taken(blocks(node)) {
                drop(self.take_hold(node).await?);
            }
            return Ok(books);
        }
        // One is about to be made.
        let Ok(mut held) = self.held.try_write() else {
            return Ok(books);
        };
        if *held == Hold::Ended(blocks(node)) {
            return Ok(books);
        }
        // One may have been made since they were read.
        let books = self.books().await?;
        if !self.any_in_use(&books).await? {
            // Before the call, which may be carried out without an answer.
            *held = Hold::Unknown;
            self.change_hold(node, Action::End).await?;
            *held = Hold::Ended(blocks(node));
        }
        Ok(books)
    }

    /// Whether a sandbox has an address, or may have.
    async fn any_in_use(&self, books: &Books) -> Result<bool, NodeError> {
        // What a plugin reports may be older than the newest sandbox.
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

    /// The addresses of a sandbox, as the runtime knows them.
    pub(super) async fn addresses_of(&self, id: &str) -> Result<Vec<IpAddr>, NodeError> {
        let asked = self.runtime.addresses(id).await;
        asked.map_err(NodeError::runtime("ask for the sandbox's status"))
    }
}

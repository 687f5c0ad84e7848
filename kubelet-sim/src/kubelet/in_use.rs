//! A node's word that addresses of its block are in use.
//!
//! When a Node is deleted, the API server keeps its block from others for as long as its kubelet needs to say that sandboxes still have addresses of it, but only if
//! the Node had said so ([`POD_IPS_ALLOCATED`]). So it is said before the first sandbox is made, and taken back after the last one is gone, never the other way round.

use podplane_api::{
    Object as _,
    core::Node as NodeObject,
    pod_ips::{self, POD_IPS_ALLOCATED},
};
use tokio::sync::{RwLockReadGuard, RwLockWriteGuard};

use super::{
    ipam_report::FRESH,
    node::{Books, Node, NodeError, pod_cidrs},
};

/// Writes that met a change of the Node are tried again this often.
const CONFLICTS: u32 = 10;

/// Whether the annotation says that no address is in use.
pub(super) fn none_in_use(annotation: Option<&String>) -> bool {
    annotation.is_none_or(|count| count == "0")
}

impl Node {
    /// Sees to it that the Node says that addresses are in use, for as long as what is returned lives. Hold it while a sandbox is made.
    ///
    /// The Node is read anew each time: one that was deleted and created again has another block, of which the pod may be known sooner than of the Node.
    ///
    /// # Errors
    ///
    /// [`NodeError`]: then no sandbox may be made.
    pub async fn announce(&self) -> Result<RwLockReadGuard<'_, Option<String>>, NodeError> {
        let found = self.client.all::<NodeObject>().get(self.name()).await;
        let node = found.map_err(|error| match error.is_not_found() {
            true => NodeError::Gone(self.name().to_owned()),
            false => NodeError::api("read the node")(error),
        })?;
        let cidrs = pod_cidrs(&node);
        if cidrs != *self.configured.lock().await && (cidrs.is_some() || self.dir.uses_pod_cidr()) {
            return Err(NodeError::Renumbered(self.name().to_owned()));
        }
        let uid = node.uid();
        let announced = self.announced.read().await;
        if announced.as_deref() == Some(uid) {
            return Ok(announced);
        }
        drop(announced);
        let mut announced = self.announced.write().await;
        if announced.as_deref() != Some(uid) {
            self.say_in_use(uid).await?;
            *announced = Some(uid.to_owned());
        }
        Ok(announced.downgrade())
    }

    async fn say_in_use(&self, uid: &str) -> Result<(), NodeError> {
        let nodes = self.client.all::<NodeObject>();
        let mut conflicts = 0..CONFLICTS;
        loop {
            // Not from the cache, which may not know yet that it was taken back.
            let found = nodes.get(self.name()).await;
            let mut node = found.map_err(NodeError::api("read the node"))?;
            if node.uid() != uid {
                return Err(NodeError::Gone(self.name().to_owned()));
            }
            if pod_ips::allocated(&node).is_some_and(|count| count > 0) {
                return Ok(());
            }
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(POD_IPS_ALLOCATED.into(), "1".into());
            match nodes.update(&node).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() && conflicts.next().is_some() => {}
                Err(error) => return Err(NodeError::api("annotate the node")(error)),
            }
        }
    }

    /// The addresses of the node; and, if it may say that none is in use any more, the right to: no sandbox is made while that is held.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(super) async fn settled_books(
        &self,
        node: &NodeObject,
    ) -> Result<(Books, Option<RwLockWriteGuard<'_, Option<String>>>), NodeError> {
        let books = self.books_within(FRESH).await?;
        let annotations = node.metadata.annotations.as_ref();
        let says = annotations.and_then(|all| all.get(POD_IPS_ALLOCATED));
        if books.any_in_use() || none_in_use(says) {
            return Ok((books, None));
        }
        let Ok(quiet) = self.announced.try_write() else {
            return Ok((books, None));
        };
        // One may have been made since they were read.
        Ok((self.books().await?, Some(quiet)))
    }
}

impl Books {
    /// Whether a sandbox has an address of the node's ranges, or may have.
    fn any_in_use(&self) -> bool {
        // What a plugin reports may be older than the newest sandbox.
        match self.has_files() {
            true => self.current().any(|lease| self.owner(lease).is_some()),
            false => !self.sandboxes.is_empty(),
        }
    }
}

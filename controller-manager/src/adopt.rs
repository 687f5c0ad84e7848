//! Adoption of objects without a controller, and release of objects that no longer match.

use std::sync::Arc;

use podplane_api::{Object, selector::LabelSelector};
use podplane_client::{ApiError, Client, answered};
use tokio::sync::OnceCell;

use crate::{
    index::ObjectIndex,
    owner::{Claim, claim, controller_reference, remove_reference},
    workloads::PodOwner,
};

/// The claims of one owner, within one reconciliation.
pub(crate) struct Adoption<'a, O> {
    client: &'a Client,
    owner: &'a O,
    /// True if the server says that the owner is not being deleted. The server is asked once, and
    /// only if there is an object to adopt: the cached owner may be deleted, and an object that it
    /// adopted would never be released.
    may_adopt: OnceCell<bool>,
    /// A finalizer that adopted objects get.
    finalizer: Option<&'static str>,
}

impl<'a, O: Object> Adoption<'a, O> {
    pub(crate) fn new(client: &'a Client, owner: &'a O) -> Self {
        Self {
            client,
            owner,
            may_adopt: OnceCell::new(),
            finalizer: None,
        }
    }

    /// Adds a finalizer to the objects that are adopted.
    pub(crate) fn with_finalizer(mut self, finalizer: &'static str) -> Self {
        self.finalizer = Some(finalizer);
        self
    }

    /// Adopts and releases candidates; returns those that are the owner's afterwards.
    pub(crate) async fn claim<K: Object>(
        &self,
        selector: &LabelSelector,
        candidates: Vec<Arc<K>>,
    ) -> Result<Vec<Arc<K>>, ApiError> {
        let mut claimed = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            match claim(self.owner, selector, &*candidate) {
                Claim::Keep => claimed.push(candidate),
                Claim::Ignore => {}
                Claim::Release => self.release(&*candidate).await?,
                Claim::Adopt => claimed.extend(self.adopt(&*candidate).await?.map(Arc::new)),
            }
        }
        Ok(claimed)
    }

    async fn adopt<K: Object>(&self, object: &K) -> Result<Option<K>, ApiError> {
        if !*self
            .may_adopt
            .get_or_try_init(|| self.is_not_being_deleted())
            .await?
        {
            return Ok(None);
        }
        tracing::info!(owner = %self.owner.key(), kind = K::KIND, object = %object.key(), "adopting object");
        let mut adopted = object.clone();
        let owners = adopted
            .metadata_mut()
            .owner_references
            .get_or_insert_default();
        owners.retain(|owner| owner.uid != self.owner.uid());
        owners.push(controller_reference(self.owner));
        if let Some(finalizer) = self.finalizer {
            let finalizers = adopted.metadata_mut().finalizers.get_or_insert_default();
            finalizers.push(finalizer.to_owned());
        }
        self.write(&adopted).await
    }

    async fn release<K: Object>(&self, object: &K) -> Result<(), ApiError> {
        tracing::info!(owner = %self.owner.key(), kind = K::KIND, object = %object.key(), "releasing object");
        let mut released = object.clone();
        remove_reference(released.metadata_mut(), self.owner.uid());
        self.write(&released).await.map(drop)
    }

    /// Writes at the revision that was read; a deleted object is claimed by nobody.
    async fn write<K: Object>(&self, object: &K) -> Result<Option<K>, ApiError> {
        let api = self.client.namespaced::<K>(object.namespace());
        match answered(api.update(object)).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn is_not_being_deleted(&self) -> Result<bool, ApiError> {
        let api = self.client.namespaced::<O>(self.owner.namespace());
        match answered(api.get(self.owner.name())).await {
            Ok(owner) => Ok(owner.uid() == self.owner.uid() && !owner.is_deleting()),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl<O: PodOwner> Adoption<'_, O> {
    /// Claims the owner's objects and those without a controller, as far as they count.
    pub(crate) async fn claim_of<K: Object>(
        &self,
        index: &ObjectIndex<K>,
        counts: impl Fn(&K) -> bool,
    ) -> Result<Vec<Arc<K>>, ApiError> {
        let (namespace, selector) = (self.owner.namespace(), self.owner.selector());
        if selector.is_empty() {
            return Ok(Vec::new());
        }
        let mut candidates = index.controlled(namespace, self.owner.uid());
        candidates.extend(index.controlled(namespace, ""));
        candidates.retain(|candidate| counts(candidate));
        self.claim(&selector, candidates).await
    }
}

//! The registry of a kind, for code that has objects of its Rust type.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use podplane_api::{
    ObjectKey,
    any::{DynObject, kind_of},
    strategy::Strategy,
};
use podplane_proto::error::{ApiError, Reason};
use podplane_store::Guard;

use super::{
    ChangeDecision, ChangeTerms, DeleteOptions, KindRegistry, ObjectPart, Operation,
    SubresourceActions, WriteParams,
};
use crate::{
    admission::{
        Admission, Allocation, ConfiguredAdmission, MutatingAdmission, OfType, WriteCheck,
    },
    cache::{KindCache, Position},
    engine::Engine,
};

/// Reads and writes of the objects of a kind that has a Rust type.
#[derive(Debug)]
pub(crate) struct Registry<K> {
    any: KindRegistry,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Registry<K> {
    fn clone(&self) -> Self {
        Self {
            any: self.any.clone(),
            kind: PhantomData,
        }
    }
}

impl<K> Deref for Registry<K> {
    type Target = KindRegistry;

    fn deref(&self) -> &KindRegistry {
        &self.any
    }
}

/// The object of a type.
pub(super) fn typed<K: Strategy>(object: Box<DynObject>) -> Result<K, ApiError> {
    object.into_typed().ok_or_else(|| {
        let why = format!("Internal error occurred: the object is not a {}", K::KIND);
        ApiError::new(Reason::InternalError, why)
    })
}

/// The same by reference.
fn typed_ref<K: Strategy>(object: &DynObject) -> Result<&K, ApiError> {
    object.typed().ok_or_else(|| {
        let why = format!("Internal error occurred: the object is not a {}", K::KIND);
        ApiError::new(Reason::InternalError, why)
    })
}

impl<K: Strategy> ChangeDecision<K> {
    fn boxed(self) -> ChangeDecision {
        match self {
            Self::Keep(object) => ChangeDecision::Keep(Box::new(object)),
            Self::Put(object) => ChangeDecision::Put(Box::new(object)),
            Self::Replace(object, part) => ChangeDecision::Replace(Box::new(object), part),
            Self::Remove(object) => ChangeDecision::Remove(Box::new(object)),
        }
    }
}

impl<K: Strategy> Registry<K> {
    /// The typed handle of a registry, which must be that of the type's kind.
    pub(crate) fn of(any: KindRegistry) -> Self {
        let kind = PhantomData;
        Self { any, kind }
    }

    /// The cache of the kind.
    pub(crate) fn cache() -> Arc<KindCache> {
        Arc::new(KindCache::new(kind_of::<K>()))
    }

    pub(crate) fn new(engine: Engine, cache: Arc<KindCache>, position: Position) -> Self {
        Self::of(KindRegistry::new(engine, cache, position))
    }

    /// The registry without its type.
    pub(crate) fn any(&self) -> &KindRegistry {
        &self.any
    }

    /// The same registry with an admission for each write.
    pub(crate) fn admitting(mut self, admission: Option<Arc<dyn Admission<K>>>) -> Self {
        self.any.admission = None;
        if let Some(admission) = admission {
            self.any.admission = Some(OfType::new(admission));
        }
        self
    }

    /// The same with an allocation for each object that is written.
    pub(crate) fn allocating(mut self, allocation: Option<Arc<dyn Allocation<K>>>) -> Self {
        self.any.allocation = None;
        if let Some(allocation) = allocation {
            self.any.allocation = Some(OfType::new(allocation));
        }
        self
    }

    /// The same with admissions that complete new objects, in order.
    pub(crate) fn completing(mut self, mutations: Vec<Arc<dyn MutatingAdmission<K>>>) -> Self {
        self.any.mutations.clear();
        for mutation in mutations {
            self.any.mutations.push(OfType::new(mutation));
        }
        self
    }

    /// The same with checks of who writes what.
    pub(crate) fn checking(mut self, checks: Vec<Arc<dyn WriteCheck<K>>>) -> Self {
        self.any.checks.clear();
        for check in checks {
            self.any.checks.push(OfType::new(check));
        }
        self
    }

    /// The same with rules that are objects.
    pub(crate) fn configured_by(self, rules: Option<Arc<dyn ConfiguredAdmission>>) -> Self {
        Self::of(self.any.configured_by(rules))
    }

    /// The same with subresources that act.
    pub(crate) fn acting(mut self, actions: Option<Arc<dyn SubresourceActions>>) -> Self {
        self.any.actions = actions;
        self
    }

    /// The same without its subresources: for what these need themselves, which would otherwise own
    /// itself, and the store would never be closed.
    pub(crate) fn for_reading(&self) -> Self {
        self.clone().acting(None)
    }

    /// The object in the cache, which may be older than writes that clients know of.
    pub(crate) fn cached(&self, key: &ObjectKey) -> Option<K> {
        self.cached_object(key)?.decode().ok()
    }

    /// Stores a new object and returns it as stored.
    pub(crate) async fn create(&self, object: K, write: &WriteParams) -> Result<K, ApiError> {
        typed(self.any.create(Box::new(object), write).await?)
    }

    /// Replaces a part of an object.
    pub(crate) async fn update(
        &self,
        object: K,
        part: ObjectPart,
        write: &WriteParams,
    ) -> Result<K, ApiError> {
        typed(self.any.update(Box::new(object), part, write).await?)
    }

    /// Removes an object, or begins to, and returns its last or its new state.
    pub(crate) async fn delete(
        &self,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<K, ApiError> {
        typed(self.any.delete(key, options).await?)
    }

    /// Changes an object on behalf of the server. Validated like a client's update.
    pub(crate) async fn modify(
        &self,
        key: &ObjectKey,
        operation: Operation,
        terms: ChangeTerms<'_>,
        change: impl Fn(&mut K) -> Result<(), ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        let change = |old: &DynObject| {
            let mut new = typed_ref::<K>(old)?.clone();
            change(&mut new)?;
            Ok(ChangeDecision::Replace(new, None).boxed())
        };
        typed(self.any.change(key, operation, terms, &change).await?)
    }

    /// Reads the object, decides, and commits the decision; repeats this if another write comes
    /// between.
    pub(super) async fn change_typed(
        &self,
        key: &ObjectKey,
        guards: Vec<Guard>,
        operation: Operation,
        terms: ChangeTerms<'_>,
        decide: impl Fn(&K) -> Result<ChangeDecision<K>, ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        let decide = |old: &DynObject| decide(typed_ref(old)?).map(ChangeDecision::<K>::boxed);
        let changed = self
            .any
            .change_guarded(key, guards, operation, terms, &decide);
        typed(changed.await?)
    }
}

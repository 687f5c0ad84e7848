//! The registry: reads of a kind's objects, and their writes on the way to the store.
//!
//! There is one [`Registry`] for each kind. Reads and watches come from the cache. Each write reads
//! the store, decides, and commits under a guard of the revision that it read. After a conflict it
//! decides again, unless the request names the revision.

mod create;
mod delete;
mod journey;
mod list;
mod managed;
mod narrow;
mod patch;
mod update;
mod watch;

pub(crate) use delete::DeleteOptions;
pub(crate) use list::{Freshness, Listed, NOT_OLDER_THAN};
pub(crate) use patch::Patch;
pub(crate) use update::Part;
pub(crate) use watch::{Start, Told, WatchOptions, revision as watch_revision};

use std::sync::Arc;

use futures::future::BoxFuture;
use podplane_api::{
    Object, ObjectKey, Scope,
    jiff::Timestamp,
    meta::Time,
    strategy::{Strategy, Subresource},
};
use podplane_host::clock::{self, Instant};
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_store::{Guard, Key, Revision, StoreError, Txn};
use serde_json::Value;

use crate::{
    admission::{Admission, Beside, Change, fences},
    cache::{Entry, KindCache, Position, Query},
    engine::Engine,
    error, storage,
};

/// Carries out the subresources of a kind that act on its objects.
pub(crate) type Act<K> = for<'a> fn(
    &'a Registry<K>,
    &'a ObjectKey,
    Subresource,
    &'a Value,
    Effect,
) -> BoxFuture<'a, Result<(), ApiError>>;

/// Reads and writes of the objects of a kind.
#[derive(Debug)]
pub(crate) struct Registry<K> {
    engine: Engine,
    cache: Arc<KindCache<K>>,
    position: Position,
    admission: Option<Arc<dyn Admission<K>>>,
    act: Option<Act<K>>,
}

impl<K> Clone for Registry<K> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            cache: Arc::clone(&self.cache),
            position: self.position.clone(),
            admission: self.admission.clone(),
            act: self.act,
        }
    }
}

/// The effect of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The write is stored.
    #[default]
    Durable,
    /// The write is checked and answered as usual, and nothing is stored (`dryRun=All`).
    Dry,
}

/// The options of a write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Write {
    pub(crate) effect: Effect,
    /// The writer that `metadata.managedFields` records. `None` for writes through gRPC, except
    /// patches that name a manager: other requests cannot. Kubernetes takes an object without
    /// records for one that existed before its first apply.
    pub(crate) manager: Option<String>,
    /// The fence of the writer, if it sent one.
    pub(crate) fence: Option<Fence>,
}

impl Write {
    fn terms(&self) -> Terms<'_> {
        Terms {
            effect: self.effect,
            fence: self.fence.as_ref(),
        }
    }
}

/// The conditions of a change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms<'a> {
    pub(crate) effect: Effect,
    /// The fence that must hold.
    pub(crate) fence: Option<&'a Fence>,
}

impl From<Effect> for Terms<'_> {
    fn from(effect: Effect) -> Self {
        Self {
            effect,
            fence: None,
        }
    }
}

/// The decision about an object.
enum Step<K> {
    /// Keep the object as it is, and answer with this.
    Keep(K),
    /// Replace the object.
    Put(K),
    /// Remove the object, and answer with this.
    Remove(K),
}

impl<K: Strategy> Registry<K> {
    pub(crate) fn new(engine: Engine, cache: Arc<KindCache<K>>, position: Position) -> Self {
        Self {
            engine,
            cache,
            position,
            admission: None,
            act: None,
        }
    }

    /// The same registry with an admission for each write.
    pub(crate) fn admitting(self, admission: Option<Arc<dyn Admission<K>>>) -> Self {
        Self { admission, ..self }
    }

    /// The same with subresources that act.
    pub(crate) fn acting(self, act: Option<Act<K>>) -> Self {
        Self { act, ..self }
    }

    /// The subresources that act, if the kind has such.
    pub(crate) fn act(&self) -> Option<Act<K>> {
        self.act
    }

    /// Returns what the admission commits together with a valid change.
    ///
    /// # Errors
    ///
    /// The reason why the change is refused.
    async fn beside(&self, change: Change<'_, K>, effect: Effect) -> Result<Beside, ApiError> {
        let Some(admission) = &self.admission else {
            return Ok(Beside::default());
        };
        let beside = admission.beside(change).await?;
        if effect == Effect::Dry {
            admission.judge(change).await?;
        }
        Ok(beside)
    }

    /// Asks the admission why one of its guards failed; `Ok` if the guards may hold now.
    async fn judge(&self, change: Change<'_, K>) -> Result<(), ApiError> {
        match &self.admission {
            Some(admission) => admission.judge(change).await,
            None => Ok(()),
        }
    }

    /// Reads the object, at least as new as every acknowledged write.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Result<Arc<Entry>, ApiError> {
        scoped::<K>(key)?;
        self.position.reached(self.engine.acknowledged()).await?;
        self.cache
            .get(&storage::key::<K>(key)?)
            .ok_or_else(|| error::not_found::<K>(&key.name))
    }

    /// The number of objects in the cache.
    pub(crate) fn count(&self) -> usize {
        self.cache.len()
    }

    /// The keys of the objects that match, at least as new as every acknowledged write.
    pub(crate) async fn keys(&self, query: &Query) -> Result<Vec<ObjectKey>, ApiError> {
        self.position.reached(self.engine.acknowledged()).await?;
        Ok(self.cache.keys(query))
    }

    /// Reads the object, decides, and commits the decision; repeats this if another write comes
    /// between.
    async fn change(
        &self,
        key: &ObjectKey,
        terms: Terms<'_>,
        decide: impl Fn(K) -> Result<Step<K>, ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        self.change_guarded(key, Vec::new(), terms, &decide).await
    }

    /// The same under further guards; a failure of one of them is a conflict. Compiled once for
    /// each kind, not for each decision.
    async fn change_guarded(
        &self,
        key: &ObjectKey,
        guards: Vec<Guard>,
        terms: Terms<'_>,
        decide: &(dyn Fn(K) -> Result<Step<K>, ApiError> + Send + Sync),
    ) -> Result<K, ApiError> {
        let begun = Instant::now();
        scoped::<K>(key)?;
        let store_key = storage::key::<K>(key)?;
        let Terms { effect, fence } = terms;
        loop {
            let leads = fences::guard(&self.engine, fence).await?;
            let found = self.engine.get(&store_key).await.map_err(error::store)?;
            let item = found.ok_or_else(|| error::not_found::<K>(&key.name))?;
            let old: K = storage::decode(&item).map_err(|error| error::internal(&error))?;
            let revision = item.modified;
            let before = self.admission.is_some().then(|| old.clone());
            let from = old.station();
            let decided = decide(old)?;
            let change = Change {
                old: before.as_ref(),
                new: match &decided {
                    Step::Keep(object) | Step::Put(object) => Some(object),
                    Step::Remove(_) => None,
                },
                fence,
            };
            let beside = self.beside(change, effect).await?;
            let mut txn = Txn {
                guards: leads.into_iter().collect(),
                writes: beside.writes,
                // So that objects which fill a disk can be removed, by every writer with a part in
                // their removal.
                reclaims: match &decided {
                    Step::Keep(object) | Step::Put(object) => object.is_deleting(),
                    Step::Remove(_) => true,
                },
            };
            txn.guards.push(unchanged(&store_key, revision));
            let of_what_was_read = txn.guards.len();
            txn.guards.extend(guards.iter().cloned());
            let of_admission = txn.guards.len();
            txn.guards.extend(beside.guards);
            let is_removed = matches!(decided, Step::Remove(_));
            let (txn, mut object) = match decided {
                Step::Keep(object) => return Ok(object),
                Step::Put(mut object) => {
                    let value = storage::encode(&mut object)?;
                    if value == item.value {
                        // No change, so no event for watches.
                        storage::set_revision(&mut object, revision);
                        return Ok(object);
                    }
                    (txn.put(store_key.clone(), value), object)
                }
                Step::Remove(object) => (txn.delete(store_key.clone()), object),
            };
            if effect == Effect::Dry {
                storage::set_revision(&mut object, revision);
                return Ok(object);
            }
            match self.engine.commit(txn).await {
                Ok(committed) => {
                    storage::set_revision(&mut object, committed.revision);
                    let to = object.station().filter(|_| !is_removed);
                    journey::tell(begun, from.as_ref(), to.as_ref());
                    return Ok(object);
                }
                // Only the object itself or the leader changed: decide again.
                Err(StoreError::Conflict { guard, .. }) if guard < of_what_was_read => {}
                Err(StoreError::Conflict { guard, .. }) if guard >= of_admission => {
                    let (old, new) = (before.as_ref(), Some(&object));
                    self.judge(Change { old, new, fence }).await?;
                }
                Err(error) => return Err(error::store(error)),
            }
        }
    }
}

fn unchanged(key: &Key, revision: Revision) -> Guard {
    Guard::At {
        key: key.clone(),
        revision,
    }
}

/// Checks that the key names one object of the kind.
fn scoped<K: Object>(key: &ObjectKey) -> Result<(), ApiError> {
    match (K::SCOPE, key.namespace.as_str()) {
        _ if key.name.is_empty() => Err(error::bad_request("name is required")),
        (Scope::Namespaced, "") => Err(error::bad_request("namespace is required")),
        (Scope::Cluster, namespace) if !namespace.is_empty() => Err(error::bad_request(format!(
            "namespace may not be set: {} are not in one",
            K::PLURAL
        ))),
        // A slash would make a key that belongs to another object.
        _ if key.name.contains('/') || key.namespace.contains('/') => {
            Err(error::not_found::<K>(&key.name))
        }
        _ => Ok(()),
    }
}

/// The current time in whole seconds, as in Kubernetes.
fn now() -> Time {
    Time(truncated(clock::timestamp()))
}

fn truncated(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

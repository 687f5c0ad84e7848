//! The registry: what may be written, and what becomes of it on the way to the store.
//!
//! One [`Registry`] for each kind. Reads and watches come from the cache; each write reads the store, decides on what it read, and
//! commits guarded by the revision that it read. A lost race is decided again, unless the request names the revision.

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
pub(crate) use journey::Station;
pub(crate) use list::{Freshness, Listed, NOT_OLDER_THAN};
pub(crate) use patch::Patch;
pub(crate) use update::Part;
pub(crate) use watch::{Start, Told, WatchOptions, revision as watch_revision};

use std::{sync::Arc, time::Instant};

use podplane_api::{Object, ObjectKey, Scope, jiff::Timestamp, meta::Time};
use podplane_proto::{error::ApiError, fence::Fence};
use podplane_store::{Guard, Key, Revision, StoreError, Txn};

use crate::{
    admission::{Admission, Beside, Change, fences},
    cache::{Entry, KindCache, Position, Query},
    engine::Engine,
    error, storage,
    strategy::Strategy,
};

/// Reads and writes of the objects of a kind.
#[derive(Debug)]
pub(crate) struct Registry<K> {
    engine: Engine,
    cache: Arc<KindCache<K>>,
    position: Position,
    admission: Option<Arc<dyn Admission<K>>>,
}

impl<K> Clone for Registry<K> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            cache: Arc::clone(&self.cache),
            position: self.position.clone(),
            admission: self.admission.clone(),
        }
    }
}

/// Whether a write is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It is, and lasts.
    #[default]
    Durable,
    /// It is judged and answered as if it were, and nothing is written (`dryRun=All`).
    Dry,
}

/// How a write is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Write {
    pub(crate) effect: Effect,
    /// Who is recorded in `metadata.managedFields` as the writer. Nobody is for writes through gRPC, where no client names itself: Kubernetes
    /// takes an object without records for one that was there before its first apply.
    pub(crate) manager: Option<String>,
    /// What the writer leads by, if it says so.
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

/// On what terms an object is changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms<'a> {
    pub(crate) effect: Effect,
    /// Only while this fence holds.
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

/// What is to become of an object.
enum Step<K> {
    /// It stays as it is, and this is the answer.
    Keep(K),
    /// This takes its place.
    Put(K),
    /// It is removed, and this is the answer.
    Remove(K),
}

impl<K: Strategy> Registry<K> {
    pub(crate) fn new(engine: Engine, cache: Arc<KindCache<K>>, position: Position) -> Self {
        Self {
            engine,
            cache,
            position,
            admission: None,
        }
    }

    /// The same with an admission for each write.
    pub(crate) fn admitting(self, admission: Option<Arc<dyn Admission<K>>>) -> Self {
        Self { admission, ..self }
    }

    /// What is committed together with a change that is valid, or why it may not be.
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

    /// Why a guard of the admission did not hold; nothing, if it may hold now.
    async fn judge(&self, change: Change<'_, K>) -> Result<(), ApiError> {
        match &self.admission {
            Some(admission) => admission.judge(change).await,
            None => Ok(()),
        }
    }

    /// The object, as new as every acknowledged write.
    pub(crate) async fn get(&self, key: &ObjectKey) -> Result<Arc<Entry>, ApiError> {
        scoped::<K>(key)?;
        self.position.reached(self.engine.acknowledged()).await?;
        self.cache
            .get(&storage::key::<K>(key)?)
            .ok_or_else(|| error::not_found::<K>(&key.name))
    }

    /// How many objects are in the cache.
    pub(crate) fn count(&self) -> usize {
        self.cache.len()
    }

    /// The keys of the objects that match, as new as every acknowledged write.
    pub(crate) async fn keys(&self, query: &Query) -> Result<Vec<ObjectKey>, ApiError> {
        self.position.reached(self.engine.acknowledged()).await?;
        Ok(self.cache.keys(query))
    }

    /// Reads the object, decides, and commits what was decided, until no other write comes between.
    async fn change(
        &self,
        key: &ObjectKey,
        terms: Terms<'_>,
        decide: impl Fn(K) -> Result<Step<K>, ApiError> + Send + Sync,
    ) -> Result<K, ApiError> {
        self.change_guarded(key, Vec::new(), terms, &decide).await
    }

    /// The same under further guards; that one of them does not hold is a conflict. Compiled once
    /// for each kind, not for each decision.
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
                // So that what fills a disk can be removed, by whoever has a part in its removal.
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
                        // Nothing to write, so nothing for watchers to see.
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
                // Only the object itself changed, or who leads: decide again on what it is now.
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

/// That the key names an object of the kind, not all of them.
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

/// Now, in whole seconds, as Kubernetes' times are.
fn now() -> Time {
    Time(truncated(Timestamp::now()))
}

fn truncated(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

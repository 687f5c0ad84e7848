//! The custom kinds, followed as their definitions come and go.

use std::{collections::BTreeMap, future::pending, panic, sync::Arc};

use futures::{FutureExt as _, future::select_all};
use podplane_api::{
    Object as _, ObjectKey, Scope, apiextensions::CustomResourceDefinition, meta::ObjectMeta,
};
use podplane_client::{
    ApiResource, Cache, CacheChange, CacheItem, Client, MetadataClient, source_reflector,
};
use podplane_host::task;
use tokio::task::JoinSet;

use super::{
    Garbage,
    graph::{TrackedObject, Uid},
    kind::CustomKind,
    kinds::KindState,
};
use crate::work::Latch;

/// Follows the objects of all custom kinds, for ever; `ready` is notified when the first list of
/// definitions has been observed.
pub(crate) async fn follow(
    garbage: Arc<Garbage>,
    client: Client,
    definitions: Cache<CustomResourceDefinition>,
    ready: Arc<Latch>,
) {
    let mut followed = FollowedKinds {
        garbage,
        metadata: client.metadata(),
        kinds: BTreeMap::new(),
    };
    let mut changes = definitions.subscribe();
    definitions.synced().await;
    while let Some(change) = changes.try_next() {
        followed.take(change).await;
    }
    ready.arrive();
    loop {
        let change = tokio::select! {
            // Cancel safe: a change is taken only when it is returned.
            change = changes.next() => change,
            // Cancel safe: `join_next` is.
            () = followed.ended() => return,
        };
        followed.take(change).await;
    }
}

struct FollowedKinds {
    garbage: Arc<Garbage>,
    metadata: MetadataClient,
    /// By the names of their definitions.
    kinds: BTreeMap<String, FollowedKind>,
}

/// The kind of a definition that was served once.
struct FollowedKind {
    /// As it is served now.
    kind: Option<CustomKind>,
    /// `None` if the program has a type of that group and name.
    number: Option<usize>,
    /// They follow its objects.
    tasks: JoinSet<()>,
}

impl FollowedKinds {
    async fn take(&mut self, change: CacheChange<CustomResourceDefinition>) {
        let (definition, state) = match &change {
            CacheChange::Applied { new, .. } => (new, KindState::Unserved),
            CacheChange::Deleted(old) => (old, KindState::Undefined),
        };
        let kind = match state {
            KindState::Undefined => None,
            _ => served_kind(definition),
        };
        let name = definition.name();
        if let Some(former) = self.kinds.get_mut(name) {
            if former.kind == kind && state == KindState::Unserved {
                return;
            }
            former.tasks.shutdown().await;
            former.kind = None;
            if let Some(number) = former.number {
                self.garbage.leave(number, state);
            }
        }
        match (kind, state) {
            (Some(kind), _) => {
                let followed = self.follow(name, kind);
                self.kinds.insert(name.to_owned(), followed);
            }
            (None, KindState::Undefined) => _ = self.kinds.remove(name),
            (None, _) => {}
        }
    }

    fn follow(&self, definition: &str, kind: CustomKind) -> FollowedKind {
        let mut tasks = JoinSet::new();
        let number = self.garbage.follow_custom(kind.clone());
        if let Some(number) = number {
            let track = move |metadata: ObjectMeta| TrackedItem {
                uid: metadata.uid.clone().unwrap_or_default(),
                object: TrackedObject::new(number, &metadata),
            };
            let (cache, watch) = source_reflector(self.metadata.of(&kind.resource), track);
            let garbage = Arc::clone(&self.garbage);
            task::spawn(&mut tasks, watch);
            task::spawn(&mut tasks, async move {
                let known = cache.clone();
                let listed = || {
                    let items = known.list();
                    garbage.listed(number, &items.iter().map(|item| item.uid.clone()).collect());
                };
                garbage
                    .follow(cache, |item| item.object.clone(), listed)
                    .await;
            });
            tracing::info!(definition, "collecting the objects of the custom kind");
        }
        FollowedKind {
            kind: Some(kind),
            number,
            tasks,
        }
    }

    /// Completes when a task ends, which it does only by a panic; panics then.
    async fn ended(&mut self) {
        let kinds = self.kinds.values_mut();
        let running = kinds.filter(|kind| !kind.tasks.is_empty());
        let running: Vec<_> = running.map(|kind| kind.tasks.join_next().boxed()).collect();
        if running.is_empty() {
            return pending().await;
        }
        if let (Some(Err(error)), ..) = select_all(running).await
            && error.is_panic()
        {
            panic::resume_unwind(error.into_panic());
        }
    }
}

/// What the collector knows of a custom object.
#[derive(Clone, PartialEq)]
struct TrackedItem {
    uid: Uid,
    object: TrackedObject,
}

impl CacheItem for TrackedItem {
    fn key(&self) -> ObjectKey {
        self.object.key.clone()
    }

    fn uid(&self) -> &str {
        &self.uid
    }
}

/// The kind of a definition that is established, in the version in which objects are stored, or
/// else the first one that is served.
fn served_kind(definition: &CustomResourceDefinition) -> Option<CustomKind> {
    let status = definition.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    if !conditions.any(|one| one.type_ == "Established" && one.status == "True") {
        return None;
    }
    let names = status.accepted_names.as_ref()?;
    let spec = &definition.spec;
    let served = spec.versions.iter().filter(|version| version.served);
    let version = served.min_by_key(|version| !version.storage)?;
    Some(CustomKind {
        resource: ApiResource {
            group: spec.group.clone(),
            version: version.name.clone(),
            api_version: format!("{}/{}", spec.group, version.name),
            kind: names.kind.clone(),
            plural: names.plural.clone(),
        },
        scope: match spec.scope.as_str() {
            "Namespaced" => Scope::Namespaced,
            _ => Scope::Cluster,
        },
    })
}

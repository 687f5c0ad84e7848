//! The custom kinds, followed as their definitions come and go.

use std::{collections::BTreeMap, sync::Arc};

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
        followed.take(changes.next().await).await;
    }
}

struct FollowedKinds {
    garbage: Arc<Garbage>,
    metadata: MetadataClient,
    /// By the names of their definitions.
    kinds: BTreeMap<String, FollowedKind>,
}

struct FollowedKind {
    kind: CustomKind,
    number: usize,
    /// They follow its objects.
    tasks: JoinSet<()>,
}

impl FollowedKinds {
    async fn take(&mut self, change: CacheChange<CustomResourceDefinition>) {
        match change {
            CacheChange::Applied { new, .. } => {
                let kind = served_kind(&new);
                let current = self.kinds.get(new.name());
                if current.map(|current| &current.kind) == kind.as_ref() {
                    return;
                }
                self.leave(new.name(), KindState::Unserved).await;
                if let Some(kind) = kind {
                    self.follow(new.name(), kind);
                }
            }
            CacheChange::Deleted(old) => self.leave(old.name(), KindState::Gone).await,
        }
    }

    fn follow(&mut self, definition: &str, kind: CustomKind) {
        let number = self.garbage.follow_custom(kind.clone());
        let track = move |metadata: ObjectMeta| TrackedItem {
            uid: metadata.uid.clone().unwrap_or_default(),
            object: TrackedObject::new(number, &metadata),
        };
        let (cache, watch) = source_reflector(self.metadata.of(&kind.resource), track);
        let garbage = Arc::clone(&self.garbage);
        let mut tasks = JoinSet::new();
        task::spawn(&mut tasks, watch);
        task::spawn(&mut tasks, async move {
            let listed = || garbage.listed(number);
            garbage
                .follow(cache, |item| item.object.clone(), listed)
                .await;
        });
        tracing::info!(definition, "collecting the objects of the custom kind");
        let followed = FollowedKind {
            kind,
            number,
            tasks,
        };
        self.kinds.insert(definition.to_owned(), followed);
    }

    async fn leave(&mut self, definition: &str, state: KindState) {
        let Some(mut followed) = self.kinds.remove(definition) else {
            return;
        };
        followed.tasks.shutdown().await;
        self.garbage.leave(followed.number, state);
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
    let version = served.max_by_key(|version| version.storage)?;
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

//! The life of a definition: its names are accepted, its kind is established, and when it is
//! deleted, its objects go first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use podplane_api::{
    Object as _, ObjectKey,
    apiextensions::{
        CustomResourceDefinition, CustomResourceDefinitionCondition, CustomResourceDefinitionStatus,
    },
    jiff::Timestamp,
    kinds::custom_resource_definition::CLEANUP,
    meta::Time,
};
use podplane_host::clock;
use podplane_proto::{
    error::{ApiError, Reason},
    wire::WatchEventType,
};
use podplane_store::Guard;

use super::{install::CustomKinds, names};
use crate::{
    cache::Query,
    registry::{
        ChangeTerms, DeleteOptions, ObjectPart, Operation, StreamEvent, WatchOptions, WatchStart,
    },
    storage,
};

/// The conditions of a definition.
pub(super) const ESTABLISHED: &str = "Established";
const NAMES_ACCEPTED: &str = "NamesAccepted";
const TERMINATING: &str = "Terminating";

/// The interval of looks at definitions whose objects take time to end, and of attempts after an
/// error.
const AGAIN: Duration = Duration::from_millis(200);
/// The number of objects of a kind that are deleted concurrently.
const AT_ONCE: usize = 32;

/// Returns true if the condition holds.
pub(super) fn is_true(definition: &CustomResourceDefinition, condition: &str) -> bool {
    let status = definition.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one.type_ == condition && one.status == "True")
}

/// A condition to set.
struct Condition {
    kind: &'static str,
    is_true: bool,
    reason: String,
    message: String,
}

impl Condition {
    fn new(kind: &'static str, is_true: bool, reason: &str, message: &str) -> Self {
        Self {
            kind,
            is_true,
            reason: reason.to_owned(),
            message: message.to_owned(),
        }
    }

    /// Sets the condition; its time changes only with its status.
    fn set(self, status: &mut CustomResourceDefinitionStatus, now: Timestamp) {
        let Self {
            kind,
            is_true,
            reason,
            message,
        } = self;
        let text = if is_true { "True" } else { "False" };
        let conditions = status.conditions.get_or_insert_default();
        let old = conditions.iter_mut().find(|one| one.type_ == kind);
        let since = old.as_ref().filter(|old| old.status == text);
        let since = since.and_then(|old| old.last_transition_time.clone());
        let new = CustomResourceDefinitionCondition {
            last_transition_time: since.or(Some(Time(now))),
            message: Some(message),
            reason: Some(reason),
            status: text.to_owned(),
            type_: kind.to_owned(),
            ..CustomResourceDefinitionCondition::default()
        };
        match old {
            Some(old) => *old = new,
            None => conditions.push(new),
        }
    }
}

fn now() -> Timestamp {
    storage::whole_seconds(clock::timestamp())
}

impl CustomKinds {
    /// Follows the definitions. Never completes.
    pub(crate) async fn follow(self: Arc<Self>) -> Result<(), ApiError> {
        loop {
            if let Err(error) = self.follow_once().await {
                tracing::warn!(%error, retry_in = ?AGAIN, "lost the watch of custom resource definitions; trying again");
            }
            clock::sleep(AGAIN).await;
        }
    }

    async fn follow_once(&self) -> Result<(), ApiError> {
        let all = WatchOptions {
            query: Query::default(),
            start: WatchStart::Present(None),
            ends: None,
            bookmarks: false,
            announce_end: true,
        };
        let mut changes = self.definitions.watch(all).await?.boxed();
        let mut known = BTreeMap::new();
        let mut is_complete = false;
        // Definitions to look at again.
        let mut open: Vec<String> = Vec::new();
        loop {
            let change = match open.is_empty() {
                true => Some(changes.next().await),
                false => clock::timeout(AGAIN, changes.next()).await.ok(),
            };
            match change {
                None => {}
                Some(None) => return Ok(()),
                Some(Some(event)) => match event? {
                    StreamEvent::Bookmark(_) => continue,
                    StreamEvent::InitialEnd(_) => is_complete = true,
                    StreamEvent::Change(change) => {
                        let document = change.document()?;
                        let decoded = CustomResourceDefinition::from_json_noting(document);
                        // The cache has decoded it before.
                        let Ok((definition, _)) = decoded else {
                            continue;
                        };
                        let name = definition.name().to_owned();
                        if change.event_type() == WatchEventType::Deleted {
                            known.remove(&name);
                            self.uninstall(&name);
                            open.extend(without_names(&known, &definition.spec.group));
                        } else {
                            known.insert(name.clone(), definition);
                            open.push(name);
                        }
                    }
                },
            }
            // Names are judged among all definitions.
            if !is_complete {
                continue;
            }
            let looked_at: std::collections::BTreeSet<String> = open.drain(..).collect();
            for name in looked_at {
                match self.reconcile(&name, &mut known).await {
                    Ok(true) => {}
                    Ok(false) => open.push(name),
                    Err(error) => {
                        tracing::warn!(definition = name, %error, retry_in = ?AGAIN, "failed to serve the custom kind; trying again");
                        open.push(name);
                    }
                }
            }
        }
    }

    /// Advances a definition; returns false if it has to be looked at again.
    async fn reconcile(
        &self,
        name: &str,
        known: &mut BTreeMap<String, CustomResourceDefinition>,
    ) -> Result<bool, ApiError> {
        let Some(definition) = known.get(name).cloned() else {
            return Ok(true);
        };
        if definition.is_deleting() {
            return self.end(&definition).await;
        }
        let accepted = names::accept(&definition, known.values());
        let is_accepted = accepted.conflict.is_none();
        let is_established = is_true(&definition, ESTABLISHED);
        let mut wanted = definition.clone();
        let status = wanted.status.get_or_insert_default();
        status.accepted_names = Some(accepted.names);
        match accepted.conflict {
            None => Condition::new(NAMES_ACCEPTED, true, "NoConflicts", "no conflicts found"),
            Some((reason, message)) => Condition::new(NAMES_ACCEPTED, false, reason, &message),
        }
        .set(status, now());
        if !is_established {
            match is_accepted {
                true => Condition::new(
                    ESTABLISHED,
                    false,
                    "Installing",
                    "the initial names have been accepted",
                ),
                false => {
                    let why = "not all names are accepted";
                    Condition::new(ESTABLISHED, false, "NotAccepted", why)
                }
            }
            .set(status, now());
        }
        let mut current = definition;
        if wanted.status != current.status {
            current = self.write_status(&wanted).await?;
            known.insert(name.to_owned(), current.clone());
        }
        if !is_accepted && !is_established {
            return Ok(true);
        }
        if !self.install(&current).await? || is_established {
            return Ok(true);
        }
        // Served already, so that whoever sees the condition can use the kind.
        let status = current.status.get_or_insert_default();
        let why = "the initial names have been accepted";
        Condition::new(ESTABLISHED, true, "InitialNamesAccepted", why).set(status, now());
        let established = self.write_status(&current).await?;
        known.insert(name.to_owned(), established);
        Ok(true)
    }

    /// Writes the status of a definition, at the revision that was judged.
    async fn write_status(
        &self,
        wanted: &CustomResourceDefinition,
    ) -> Result<CustomResourceDefinition, ApiError> {
        let set = |definition: &mut CustomResourceDefinition| {
            if definition.resource_version() != wanted.resource_version() {
                return Err(crate::error::modified::<CustomResourceDefinition>(
                    wanted.name(),
                ));
            }
            definition.status.clone_from(&wanted.status);
            Ok(())
        };
        let operation = Operation::Update(ObjectPart::Status);
        let terms = ChangeTerms::by_server();
        self.definitions
            .modify(&wanted.key(), operation, terms, set)
            .await
    }

    /// Advances the end of a definition: its objects are deleted, and then its finalizer goes.
    async fn end(&self, definition: &CustomResourceDefinition) -> Result<bool, ApiError> {
        let mut finalizers = definition.metadata.finalizers.iter().flatten();
        if !finalizers.any(|one| one == CLEANUP) {
            // Others keep it.
            return Ok(true);
        }
        let name = definition.name();
        let mut current = definition.clone();
        let status = current.status.get_or_insert_default();
        let why = "CustomResource deletion is in progress";
        Condition::new(TERMINATING, true, "InstanceDeletionInProgress", why).set(status, now());
        if current.status != definition.status {
            current = self.write_status(&current).await?;
        }
        // Also one that was never established, since an earlier one of its name may have left
        // objects.
        let mut nothing_left = Vec::new();
        if self.install(&current).await?
            && let Some(objects) = self.stored(name)
        {
            let keys = objects.keys(&Query::default()).await?;
            let delete = |key: ObjectKey| {
                let objects = objects.clone();
                async move { objects.delete(&key, &DeleteOptions::by_server()).await }
            };
            let mut deleting = stream::iter(keys).map(delete).buffer_unordered(AT_ONCE);
            while let Some(deleted) = deleting.next().await {
                match deleted {
                    Err(error) if error.reason != Reason::NotFound => return Err(error),
                    _ => {}
                }
            }
            // Checked by the commit: objects with finalizers stay for a while.
            nothing_left.push(Guard::NoneUnder(storage::prefix_of(objects.kind())));
        }
        let release = |definition: &mut CustomResourceDefinition| {
            let finalizers = definition.metadata.finalizers.get_or_insert_default();
            finalizers.retain(|one| one != CLEANUP);
            let status = definition.status.get_or_insert_default();
            let why = "removed all instances";
            Condition::new(TERMINATING, false, "InstanceDeletionCompleted", why).set(status, now());
        };
        let key = current.key();
        let released = self
            .definitions
            .release_definition(&key, nothing_left, release);
        match released.await {
            Ok(_) => Ok(true),
            Err(error) => match error.reason {
                Reason::NotFound => Ok(true),
                Reason::Conflict => Ok(false),
                _ => Err(error),
            },
        }
    }
}

/// The definitions of a group that do not have all names that they ask for.
fn without_names(known: &BTreeMap<String, CustomResourceDefinition>, group: &str) -> Vec<String> {
    let of_group = known.values().filter(|one| one.spec.group == group);
    let waiting = of_group.filter(|one| !is_true(one, NAMES_ACCEPTED));
    waiting.map(|one| one.name().to_owned()).collect()
}

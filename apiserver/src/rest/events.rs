//! `events.k8s.io/v1`: the events of `v1`, in Kubernetes' newer form. Events are stored in the form
//! of `v1`.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _, future::BoxFuture};
use podplane_api::{
    Object as _, ObjectKey,
    any::ColumnDefinition,
    canonical::canonicalize,
    core::Event,
    event_view::{core_only, from_core, json_patch_to_core, selector_to_core, to_core},
    events,
    jiff::Timestamp,
    kinds::event::{validate_new_event, validate_new_event_update},
    schema::Type,
    strict,
    validation::ErrorList,
};
use podplane_host::clock::Instant;
use podplane_proto::error::{ApiError, Reason};
use serde_json::Value;

use super::{
    request::{FieldValidation, ListOptions, Selection, WriteOptions},
    resource::{Convert, Documents, KindNames, Resource, WatchNotice, WatchNotices, WriteAnswer},
};
use crate::{
    error,
    registry::{DeleteOptions, ObjectPart, Patch, Registry, WriteEffect, WriteParams},
};

const GROUP: &str = "events.k8s.io";
const KIND: &str = "Event";

/// Events in their newer form.
pub(crate) struct EventsV1 {
    core: Arc<dyn Resource>,
    names: KindNames,
}

impl EventsV1 {
    pub(crate) fn new(core: Registry<Event>) -> Self {
        let names = KindNames {
            group: GROUP.into(),
            ..KindNames::of::<Event>()
        };
        let core = Arc::new(core.any().clone());
        Self { core, names }
    }

    /// Validates the event that a patch would result in.
    async fn judge_patched(
        &self,
        key: &ObjectKey,
        patch: &Patch,
        options: &WriteOptions,
    ) -> Result<(), ApiError> {
        let old = match self.core.get(key).await {
            Ok(old) => Some(old),
            Err(error) if error.reason == Reason::NotFound => None,
            Err(error) => return Err(error),
        };
        let write = WriteParams {
            effect: WriteEffect::Dry,
            ..options.write.clone()
        };
        let tried = WriteOptions {
            write,
            validation: FieldValidation::Ignore,
            duplicates: Vec::new(),
        };
        let new = self
            .core
            .patch(key, ObjectPart::Main, patch, &tried)
            .await?;
        judge(new.document, old)
    }
}

impl Resource for EventsV1 {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        self.core.get(key).map_ok(from_core).boxed()
    }

    fn list<'a>(&'a self, options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        async move {
            let Documents { metadata, items } = self.core.list(&list_of_core(options)).await?;
            let convert = Convert::new(from_core);
            let shown = items.into_iter().map(|item| item.converted(&convert));
            let items = shown.collect();
            Ok(Documents { metadata, items })
        }
        .boxed()
    }

    fn watch<'a>(
        &'a self,
        options: &'a ListOptions,
        ends: Instant,
    ) -> BoxFuture<'a, Result<WatchNotices, ApiError>> {
        let converted = |notice: WatchNotice| WatchNotice {
            document: from_core(notice.document),
            ..notice
        };
        async move {
            let notices = self.core.watch(&list_of_core(options), ends).await?;
            Ok(notices.map(move |notice| notice.map(converted)).boxed())
        }
        .boxed()
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let (document, warnings) = decode(document, options)?;
            judge(document.clone(), None)?;
            let told = without_duplicates(options);
            Ok(written(self.core.create(document, &told).await?, warnings))
        }
        .boxed()
    }

    fn update<'a>(
        &'a self,
        document: Value,
        part: ObjectPart,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let (document, warnings) = decode(document, options)?;
            let text = |field: &str| document["metadata"][field].as_str().unwrap_or_default();
            let key = ObjectKey::new(text("namespace"), text("name"));
            let old = match self.core.get(&key).await {
                Err(error) if error.reason == Reason::NotFound => None,
                found => Some(found?),
            };
            judge(document.clone(), old)?;
            let updated = self
                .core
                .update(document, part, &without_duplicates(options))
                .await?;
            Ok(written(updated, warnings))
        }
        .boxed()
    }

    fn patch<'a>(
        &'a self,
        key: &'a ObjectKey,
        part: ObjectPart,
        patch: &'a Patch,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let unknown = match patch {
                Patch::Merge(patch) | Patch::Strategic(patch) => core_only(patch),
                Patch::Apply { config, .. } => core_only(config),
                Patch::Json(_) => Vec::new(),
            };
            let warnings = refuse_or_warn(unknown, options)?;
            let patch = match patch.clone() {
                Patch::Json(patch) => Patch::Json(json_patch_to_core(patch)),
                Patch::Merge(patch) => Patch::Merge(to_core(patch)),
                Patch::Strategic(patch) => Patch::Strategic(to_core(patch)),
                Patch::Apply { config, force } => Patch::Apply {
                    config: to_core(config),
                    force,
                },
            };
            self.judge_patched(key, &patch, options).await?;
            let patched = self
                .core
                .patch(key, part, &patch, &without_duplicates(options))
                .await?;
            Ok(written(patched, warnings))
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        key: &'a ObjectKey,
        options: &'a DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, ApiError>> {
        self.core.delete(key, options).map_ok(from_core).boxed()
    }

    fn keys<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, ApiError>> {
        async move { self.core.keys(&selection_of_core(selection)).await }.boxed()
    }

    fn columns(&self) -> &[ColumnDefinition] {
        self.core.columns()
    }

    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<Value>, ApiError> {
        self.core.cells(to_core(document), now)
    }
}

fn selection_of_core(selection: &Selection) -> Selection {
    Selection {
        fields: selector_to_core(&selection.fields),
        ..selection.clone()
    }
}

fn list_of_core(options: &ListOptions) -> ListOptions {
    let mut list = options.clone();
    list.selection = selection_of_core(&options.selection);
    list
}

/// The options for the write of the `v1` event, without duplicates: this form has reported them.
fn without_duplicates(options: &WriteOptions) -> WriteOptions {
    WriteOptions {
        write: options.write.clone(),
        validation: options.validation,
        duplicates: Vec::new(),
    }
}

/// Converts a document to an event of `v1`; also returns warnings.
fn decode(mut document: Value, options: &WriteOptions) -> Result<(Value, Vec<String>), ApiError> {
    let changed = Type::of_kind(GROUP, "v1", KIND).map(|ty| canonicalize(ty, &mut document));
    let (event, unknown) = strict::decode_noting::<events::Event, _>(document)
        .map_err(|error| error::not_strictly(KIND, "v1", &error))?;
    let mut warnings = refuse_or_warn(unknown, options)?;
    warnings.extend(changed.into_iter().flatten());
    let document = serde_json::to_value(event).map_err(|error| error::internal(&error))?;
    Ok((to_core(document), warnings))
}

fn refuse_or_warn(unknown: Vec<String>, options: &WriteOptions) -> Result<Vec<String>, ApiError> {
    options
        .judge(unknown)
        .map_err(|error| error::not_strictly(KIND, "v1", &error))
}

/// Checks the rules of the newer form, which are stricter than those for every event.
fn judge(new: Value, old: Option<Value>) -> Result<(), ApiError> {
    let event = |document| {
        let decoded = Event::from_json_noting(document);
        decoded
            .map(|(event, _)| event)
            .map_err(|error| error::not_strict::<Event>(&error))
    };
    let new = event(new)?;
    let errors: ErrorList = match old {
        None => validate_new_event(&new),
        Some(old) => validate_new_event_update(&new, &event(old)?),
    };
    if errors.is_empty() {
        return Ok(());
    }
    Err(error::invalid_of(GROUP, KIND, new.name(), &errors))
}

fn written(written: WriteAnswer, mut warnings: Vec<String>) -> WriteAnswer {
    warnings.extend(written.warnings.iter().cloned());
    WriteAnswer {
        document: from_core(written.document.clone()),
        warnings,
        ..written
    }
}

#[cfg(test)]
mod tests;

//! A served version of a custom kind, as the REST API sees it: the registry of the version, whose
//! stored documents may be of another one.

use std::sync::Arc;

use futures::{FutureExt as _, StreamExt as _, future::BoxFuture};
use podplane_api::{
    ObjectKey,
    any::{AnyKind as _, ColumnDefinition, KindNames},
    autoscaling::Scale,
    jiff::Timestamp,
    strategy::Subresource,
};
use podplane_custom_resources::{CustomKind, ScaleError};
use podplane_host::clock::Instant;
use podplane_proto::error::ApiError;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{conversion::Conversion, kind::VersionKind};
use crate::{
    error,
    registry::{ActAnswer, ChangeTerms, DeleteOptions, KindRegistry, ObjectPart, Patch},
    rest::{
        request::{ListOptions, Selection, WriteOptions},
        resource::{
            Convert, Documents, ListedItem, Resource, WatchNotice, WatchNotices, WriteAnswer,
        },
    },
};

/// A served version of a custom kind.
pub(super) struct CustomResource {
    pub(super) kind: Arc<VersionKind>,
    pub(super) registry: KindRegistry,
    /// `None` if versions differ only in their names.
    pub(super) conversion: Option<Arc<dyn Conversion>>,
    /// True for the version that counts the objects of the kind.
    pub(super) counts: bool,
    /// False for a version in which objects are only stored.
    pub(super) is_served: bool,
    /// True once the definition is being deleted.
    pub(super) is_ending: bool,
    /// Cancelled when the version is served no more in this form: its watches end.
    pub(super) end: CancellationToken,
}

impl CustomResource {
    /// A stored document, of whatever version, as clients of this version see it.
    async fn shown(&self, document: Value) -> Result<Value, ApiError> {
        let mut shown = self.all_shown(vec![document]).await?;
        Ok(shown.pop().unwrap_or_default())
    }

    /// The same for several documents.
    async fn all_shown(&self, mut documents: Vec<Value>) -> Result<Vec<Value>, ApiError> {
        if let Some(conversion) = &self.conversion {
            documents = conversion
                .convert(documents, &self.kind.api_version)
                .await?;
        }
        let shown = documents.into_iter();
        Ok(shown.map(|document| self.kind.shown(document)).collect())
    }

    /// A written object as a read shows it: what was dropped has its defaults again.
    fn answered(&self, mut written: WriteAnswer) -> WriteAnswer {
        self.kind.rules.kind.default(&mut written.document);
        written
    }

    async fn notice(&self, notice: WatchNotice) -> Result<WatchNotice, ApiError> {
        if notice.event_type == podplane_proto::wire::WatchEventType::Bookmark {
            return Ok(notice);
        }
        Ok(WatchNotice {
            document: self.shown(notice.document).await?,
            ..notice
        })
    }
}

impl Resource for Arc<CustomResource> {
    fn names(&self) -> &KindNames {
        &self.kind.names
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Value, ApiError>> {
        async move {
            let found = Resource::get(&self.registry, key).await?;
            self.shown(found).await
        }
        .boxed()
    }

    fn list<'a>(&'a self, options: &'a ListOptions) -> BoxFuture<'a, Result<Documents, ApiError>> {
        async move {
            let Documents { metadata, items } = Resource::list(&self.registry, options).await?;
            let items = match &self.conversion {
                // Shown when the list is rendered.
                None => {
                    let kind = Arc::clone(&self.kind);
                    let convert = Convert::new(move |document| kind.shown(document));
                    let items = items.into_iter();
                    items.map(|item| item.converted(&convert)).collect()
                }
                Some(_) => {
                    let documents: Result<_, _> =
                        items.into_iter().map(ListedItem::document).collect();
                    let shown = self.all_shown(documents?).await?;
                    shown.into_iter().map(ListedItem::from).collect()
                }
            };
            Ok(Documents { metadata, items })
        }
        .boxed()
    }

    fn watch<'a>(
        &'a self,
        options: &'a ListOptions,
        ends: Instant,
    ) -> BoxFuture<'a, Result<WatchNotices, ApiError>> {
        let this = Arc::clone(self);
        async move {
            let notices = Resource::watch(&self.registry, options, ends).await?;
            let end = this.end.clone().cancelled_owned();
            let shown = notices.then(move |notice| {
                let this = Arc::clone(&this);
                async move { this.notice(notice?).await }
            });
            Ok(shown.take_until(end).boxed())
        }
        .boxed()
    }

    fn create<'a>(
        &'a self,
        document: Value,
        options: &'a WriteOptions,
    ) -> BoxFuture<'a, Result<WriteAnswer, ApiError>> {
        async move {
            let created = Resource::create(&self.registry, document, options);
            Ok(self.answered(created.await?))
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
            let updated = Resource::update(&self.registry, document, part, options);
            Ok(self.answered(updated.await?))
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
            let patched = Resource::patch(&self.registry, key, part, patch, options);
            Ok(self.answered(patched.await?))
        }
        .boxed()
    }

    fn delete<'a>(
        &'a self,
        key: &'a ObjectKey,
        options: &'a DeleteOptions,
    ) -> BoxFuture<'a, Result<Value, ApiError>> {
        Resource::delete(&self.registry, key, options)
    }

    fn keys<'a>(
        &'a self,
        selection: &'a Selection,
    ) -> BoxFuture<'a, Result<Vec<ObjectKey>, ApiError>> {
        Resource::keys(&self.registry, selection)
    }

    fn act<'a>(
        &'a self,
        key: &'a ObjectKey,
        act: Subresource,
        document: &'a Value,
        terms: ChangeTerms<'a>,
    ) -> BoxFuture<'a, Result<ActAnswer, ApiError>> {
        Resource::act(&self.registry, key, act, document, terms)
    }

    fn convert(&self, document: Value) -> BoxFuture<'_, Result<Value, ApiError>> {
        self.shown(document).boxed()
    }

    fn scale(&self, document: &Value) -> Result<Value, ApiError> {
        let scale = self.kind.rules.kind.scale(document).map_err(unscalable)?;
        serde_json::to_value(scale).map_err(|error| error::internal(&error))
    }

    fn scaled(&self, scale: &Scale) -> Result<Value, ApiError> {
        let mut patch = json!({});
        let applied = self.kind.rules.kind.apply_scale(&mut patch, scale);
        applied.map_err(unscalable)?;
        Ok(patch)
    }

    fn custom(&self) -> Option<&CustomKind> {
        Some(&self.kind.rules.kind)
    }

    fn warning(&self) -> Option<&str> {
        self.kind.rules.kind.deprecation_warning()
    }

    fn refused_creation(&self) -> Option<String> {
        let why = "create not allowed while custom resource definition is terminating";
        self.is_ending.then(|| why.to_owned())
    }

    fn count(&self) -> Option<usize> {
        self.counts.then(|| self.registry.count())
    }

    fn columns(&self) -> &[ColumnDefinition] {
        self.kind.columns()
    }

    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<Value>, ApiError> {
        Resource::cells(&self.registry, document, now)
    }
}

fn unscalable(error: ScaleError) -> ApiError {
    error::internal(&error)
}

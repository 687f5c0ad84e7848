//! The installation of definitions: what is served for each.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use podplane_api::{
    Object as _,
    any::{ColumnDefinition, KindNames},
    apiextensions::{
        CustomResourceDefinition, CustomResourceDefinitionNames, CustomResourceDefinitionSpec,
    },
    strategy::Subresource,
};
use podplane_custom_resources::{CustomKind, KindError};
use podplane_proto::error::ApiError;
use tokio_util::sync::CancellationToken;

use super::{
    conversion::{self, StoredVersion},
    kind::{VERBS, VersionKind, VersionRules},
    lifecycle::{self, is_true},
    resource::CustomResource,
};
use crate::{
    admission::ConfiguredAdmission,
    cache::{Feeder, KindCache, Position, Sinks},
    engine::Engine,
    registry::{KindRegistry, Registry},
    rest::resource::Resource,
    served::ServedKinds,
    storage,
    upkeep::UpkeepKind,
};

/// The custom kinds of a server.
pub(crate) struct CustomKinds {
    pub(super) engine: Engine,
    position: Position,
    sinks: Sinks,
    served: ServedKinds,
    configured: Option<Arc<dyn ConfiguredAdmission>>,
    pub(super) definitions: Registry<CustomResourceDefinition>,
    installed: Mutex<BTreeMap<String, InstalledKind>>,
}

/// A definition, and what is served for it.
struct InstalledKind {
    /// The parts of the definition that the installation depends on.
    spec: CustomResourceDefinitionSpec,
    names: CustomResourceDefinitionNames,
    is_ending: bool,
    cache: Arc<KindCache>,
    /// The selectable fields of all versions.
    fields: Vec<String>,
    resources: Vec<Arc<CustomResource>>,
    end: CancellationToken,
}

impl CustomKinds {
    pub(crate) fn new(
        engine: Engine,
        feeder: &Feeder,
        served: ServedKinds,
        configured: Option<Arc<dyn ConfiguredAdmission>>,
        definitions: Registry<CustomResourceDefinition>,
    ) -> Self {
        Self {
            engine,
            position: feeder.position(),
            sinks: feeder.sinks(),
            served,
            configured,
            definitions,
            installed: Mutex::default(),
        }
    }

    fn installed(&self) -> MutexGuard<'_, BTreeMap<String, InstalledKind>> {
        // The map is whole whenever the lock is free.
        self.installed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs the definitions that the store has, before the feeder fills its caches: so that
    /// their objects are served from the start, with the history that watches resume from.
    pub(crate) async fn install_stored(&self, feeder: &mut Feeder) -> Result<(), ApiError> {
        let prefix = storage::prefix::<CustomResourceDefinition>();
        let stored = storage::list::<CustomResourceDefinition>(&self.engine, prefix).await;
        for definition in stored? {
            if !is_true(&definition, lifecycle::ESTABLISHED) {
                continue;
            }
            match self.prepare(&definition) {
                Ok(kind) => {
                    feeder.add(kind.cache.clone());
                    self.installed().insert(definition.name().to_owned(), kind);
                }
                Err(error) => not_installed(&definition, &error),
            }
        }
        self.publish();
        Ok(())
    }

    /// Installs a definition, or changes its installation. Returns false if it cannot be.
    pub(super) async fn install(
        &self,
        definition: &CustomResourceDefinition,
    ) -> Result<bool, ApiError> {
        let name = definition.name();
        let names = accepted_names(definition);
        let is_ending = definition.is_deleting();
        let (is_same, old) = match self.installed().get(name) {
            Some(old) => (
                old.spec == definition.spec && old.names == names && old.is_ending == is_ending,
                Some(Arc::clone(&old.cache)),
            ),
            None => (false, None),
        };
        if is_same {
            return Ok(true);
        }
        let kind = match self.prepare(definition) {
            Ok(kind) => kind,
            Err(error) => {
                not_installed(definition, &error);
                return Ok(false);
            }
        };
        let is_new = old
            .as_ref()
            .is_none_or(|old| !Arc::ptr_eq(old, &kind.cache));
        if is_new {
            self.sinks.add(kind.cache.clone()).await?;
        }
        let replaced = self.installed().insert(name.to_owned(), kind);
        self.publish();
        if let Some(replaced) = replaced {
            // Its watches end, so that their clients see the new form.
            replaced.end.cancel();
        }
        if let Some(old) = old.filter(|_| is_new) {
            self.sinks.remove(old);
        }
        tracing::info!(definition = name, "serving the custom kind");
        Ok(true)
    }

    /// Serves the kind of a definition no more.
    pub(super) fn uninstall(&self, name: &str) {
        let Some(kind) = self.installed().remove(name) else {
            return;
        };
        self.publish();
        kind.end.cancel();
        self.sinks.remove(kind.cache);
        tracing::info!(definition = name, "the custom kind is served no more");
    }

    /// The registry of the version in which objects are stored, if the definition is installed.
    pub(super) fn stored(&self, name: &str) -> Option<KindRegistry> {
        let installed = self.installed();
        let kinds = installed.get(name)?.resources.iter();
        let mut counting = kinds.filter(|resource| resource.counts);
        counting.next().map(|resource| resource.registry.clone())
    }

    /// Tells the rest of the server what is served.
    fn publish(&self) {
        let installed = self.installed();
        let resources = installed.values().flat_map(|kind| &kind.resources);
        let stored = resources.clone().filter(|resource| resource.counts);
        let stored =
            stored.map(|resource| Arc::new(resource.registry.clone()) as Arc<dyn UpkeepKind>);
        let stored = stored.collect();
        let served = resources.filter(|resource| resource.is_served);
        let served = served.map(|resource| Arc::new(Arc::clone(resource)) as Arc<dyn Resource>);
        self.served.serve_custom(served.collect(), stored);
    }

    /// Compiles a definition to what is served for it. The cache of an earlier installation is kept
    /// if it fits.
    fn prepare(&self, definition: &CustomResourceDefinition) -> Result<InstalledKind, KindError> {
        let spec = &definition.spec;
        let names = accepted_names(definition);
        let is_ending = definition.is_deleting();
        let mut fields: Vec<String> = Vec::new();
        for field in spec
            .versions
            .iter()
            .filter_map(|version| version.selectable_fields.as_ref())
            .flatten()
        {
            let field = field.json_path.trim_start_matches('.').to_owned();
            if !fields.contains(&field) {
                fields.push(field);
            }
        }
        let has_fields = !fields.is_empty();
        let kinds = spec.versions.iter();
        let kinds = kinds.filter(|version| version.served || version.storage || has_fields);
        let kinds = kinds.map(|version| {
            let kind = CustomKind::new(definition, &version.name)?;
            Ok((version, Arc::new(kind)))
        });
        let kinds = kinds.collect::<Result<Vec<_>, KindError>>()?;
        let others = kinds.iter().filter(|_| has_fields);
        let others: Vec<_> = others.map(|(_, kind)| Arc::clone(kind)).collect();
        let conversion = conversion::of(&self.served.others(), definition);
        let stored_version = spec.versions.iter().find(|version| version.storage);
        let stored_version = stored_version.map_or("", |version| version.name.as_str());
        let kinds = kinds.into_iter();
        let kinds = kinds.filter(|(version, _)| version.served || version.storage);
        let mut compiled = Vec::new();
        for (version, kind) in kinds {
            let kind = VersionParts {
                spec,
                names: &names,
                stored_version,
                fields: &fields,
                others: &others,
                converts: conversion.is_some(),
            }
            .kind(kind);
            compiled.push((Arc::new(kind), version.served, version.storage));
        }
        let kept = self.installed().get(definition.name()).and_then(|old| {
            let fits = old.fields == fields && old.spec.names.plural == spec.names.plural;
            fits.then(|| Arc::clone(&old.cache))
        });
        let stored = compiled.iter().find(|(.., is_stored)| *is_stored);
        let cache = match (kept, stored) {
            (Some(cache), _) => cache,
            (None, Some((kind, ..))) => Arc::new(KindCache::new(Arc::clone(kind) as _)),
            (None, None) => {
                return Err(KindError::Version {
                    kind: spec.names.kind.clone(),
                    version: stored_version.to_owned(),
                });
            }
        };
        let end = CancellationToken::new();
        let resources = compiled.into_iter().map(|(kind, is_served, is_stored)| {
            let form = conversion.as_ref().map(|conversion| StoredVersion {
                conversion: Arc::clone(conversion),
                own: kind.api_version.clone(),
                stored: kind.stored_version.clone(),
            });
            let registry = KindRegistry::of_version(
                Arc::clone(&kind) as _,
                self.engine.clone(),
                Arc::clone(&cache),
                self.position.clone(),
            );
            let registry = registry.converting(form.map(|form| Arc::new(form) as _));
            Arc::new(CustomResource {
                registry: registry.configured_by(self.configured.clone()),
                kind,
                conversion: conversion.clone(),
                counts: is_stored,
                is_served,
                is_ending,
                end: end.clone(),
            })
        });
        Ok(InstalledKind {
            spec: spec.clone(),
            names,
            is_ending,
            resources: resources.collect(),
            cache,
            fields,
            end,
        })
    }
}

/// The names that are served: those that were accepted.
fn accepted_names(definition: &CustomResourceDefinition) -> CustomResourceDefinitionNames {
    let status = definition.status.as_ref();
    let accepted = status.and_then(|status| status.accepted_names.clone());
    accepted.unwrap_or_default()
}

fn not_installed(definition: &CustomResourceDefinition, error: &KindError) {
    let error: &(dyn std::error::Error + 'static) = error;
    tracing::error!(
        definition = definition.name(),
        error,
        "cannot serve the custom kind"
    );
}

/// The parts of a version that it has from its definition.
struct VersionParts<'a> {
    spec: &'a CustomResourceDefinitionSpec,
    names: &'a CustomResourceDefinitionNames,
    stored_version: &'a str,
    fields: &'a [String],
    others: &'a [Arc<CustomKind>],
    converts: bool,
}

impl VersionParts<'_> {
    fn kind(self, kind: Arc<CustomKind>) -> VersionKind {
        let group = &self.spec.group;
        let texts =
            |texts: &Option<Vec<String>>| texts.iter().flatten().cloned().map(Into::into).collect();
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let parts = [
            (kind.has_scale(), Subresource::Scale),
            (kind.has_status(), Subresource::Status),
        ];
        let parts = parts.into_iter().filter(|(has, _)| *has);
        let names = KindNames {
            group: group.clone().into(),
            version: kind.version().to_owned().into(),
            kind: self.names.kind.clone().into(),
            list_kind: text(&self.names.list_kind).into(),
            plural: self.names.plural.clone().into(),
            singular: text(&self.names.singular).into(),
            short: texts(&self.names.short_names),
            categories: texts(&self.names.categories),
            scope: kind.scope(),
            verbs: &VERBS,
            subresources: parts.map(|(_, part)| part).collect::<Vec<_>>().into(),
            returns_deleted: false,
        };
        let own: Vec<&str> = kind.selectable_fields().collect();
        let selects = |field: &String| match own.contains(&field.as_str()) {
            true => field.clone(),
            false => String::new(),
        };
        let fields = self.fields.iter().map(selects).collect();
        VersionKind {
            api_version: names.api_version(),
            stored_version: format!("{group}/{}", self.stored_version),
            root: format!("{group}/{}", names.plural),
            columns: columns(&kind),
            fields,
            names,
            is_same_in_all_versions: !self.converts,
            rules: Arc::new(VersionRules {
                kind,
                fields: self.fields.to_vec(),
                others: self.others.to_vec(),
            }),
        }
    }
}

fn columns(kind: &CustomKind) -> Vec<ColumnDefinition> {
    let name = ColumnDefinition {
        name: "Name".to_owned(),
        column_type: "string".to_owned(),
        format: "name".to_owned(),
        description: String::new(),
        priority: 0,
    };
    let others = kind.columns().iter().map(|column| ColumnDefinition {
        name: column.name.clone(),
        column_type: column.ty.clone(),
        format: column.format.clone(),
        description: column.description.clone(),
        priority: column.priority,
    });
    std::iter::once(name).chain(others).collect()
}

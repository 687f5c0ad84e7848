//! CustomResourceDefinitions: kinds that users add.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    apiextensions::{
        CustomResourceConversion, CustomResourceDefinition, CustomResourceDefinitionCondition,
        CustomResourceDefinitionStatus,
    },
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of},
    table::{Column, TableRow, always, created_at},
    validation::Validate,
};

impl Object for CustomResourceDefinition {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "customresourcedefinition";
    const SHORT_NAMES: &'static [&'static str] = &["crd", "crds"];
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];

    json_conversions_through_values!();
}

impl FieldSelectable for CustomResourceDefinition {}

impl Validate for CustomResourceDefinition {}

impl TableRow for CustomResourceDefinition {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("CREATED AT")];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        vec![self.name().into(), created_at(self)]
    }
}

impl Strategy for CustomResourceDefinition {
    const SERVICE: &'static str = "podplane.apiextensions.v1.CustomResourceDefinitionService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const UNCONDITIONAL_UPDATE: bool = false;

    fn set_defaults(&mut self) {
        let names = &mut self.spec.names;
        let is_absent = |name: &Option<String>| name.as_deref().is_none_or(str::is_empty);
        if is_absent(&names.singular) {
            names.singular = Some(names.kind.to_lowercase());
        }
        if is_absent(&names.list_kind) && !names.kind.is_empty() {
            names.list_kind = Some(format!("{}List", names.kind));
        }
        let conversion = self.spec.conversion.get_or_insert_with(|| {
            let strategy = "None".to_owned();
            CustomResourceConversion {
                strategy,
                webhook: None,
            }
        });
        let webhook = conversion.webhook.as_mut();
        let client = webhook.and_then(|webhook| webhook.client_config.as_mut());
        if let Some(service) = client.and_then(|client| client.service.as_mut()) {
            service.port.get_or_insert(443);
        }
        for version in &mut self.spec.versions {
            let parts = version.subresources.as_mut();
            if let Some(status) = parts.and_then(|parts| parts.status.as_mut()) {
                // It has no fields, and those that it does not have are dropped.
                status.0 = json!({});
            }
        }
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(CustomResourceDefinitionStatus::default());
        add_stored_version(self);
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        add_stored_version(self);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }

    generation_of!(spec);

    /// The first deletion adds the finalizer by which the objects of the kind go first.
    fn has_finalizers(&self) -> bool {
        !self.is_deleting() || self.metadata.finalizers.iter().flatten().next().is_some()
    }

    fn begin_deletion(&mut self) {
        let finalizers = self.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|one| one == CLEANUP) {
            finalizers.push(CLEANUP.to_owned());
        }
        let since = self.metadata.deletion_timestamp.clone();
        let status = self.status.get_or_insert_default();
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|one| one.type_ != "Terminating");
        conditions.push(CustomResourceDefinitionCondition {
            last_transition_time: since,
            message: Some(DELETION_PENDING.to_owned()),
            reason: Some("InstanceDeletionPending".to_owned()),
            status: "True".to_owned(),
            type_: "Terminating".to_owned(),
            ..CustomResourceDefinitionCondition::default()
        });
    }
}

/// The finalizer of a definition whose objects are yet to be deleted.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const DELETION_PENDING: &str =
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";

/// Records that objects are stored in the version that the spec says.
fn add_stored_version(definition: &mut CustomResourceDefinition) {
    let versions = definition.spec.versions.iter();
    let stored = versions.filter(|version| version.storage);
    let status = definition.status.get_or_insert_default();
    let known = status.stored_versions.get_or_insert_default();
    for version in stored {
        if !known.contains(&version.name) {
            known.push(version.name.clone());
        }
    }
}

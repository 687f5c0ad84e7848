//! Namespaces: their content is deleted before they are.

use jiff::Timestamp;

use crate::{
    core::Namespace,
    names,
    object::{Object, Scope, json_conversions},
    selector::{FieldSelectable, SelectableField, field::status},
    strategy::{Strategy, Subresource},
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata},
};

/// The namespaces that exist from the first start, and cannot be deleted: the cluster does not work
/// without them.
pub const SYSTEM_NAMESPACES: [&str; 4] =
    ["default", "kube-node-lease", "kube-public", "kube-system"];
/// The finalizer in `spec.finalizers` that keeps a namespace until nothing is left in it.
const CONTENT_FINALIZER: &str = "kubernetes";
/// The label by which namespaces can be selected by name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Object for Namespace {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "namespace";
    const SHORT_NAMES: &'static [&'static str] = &["ns"];

    json_conversions!();
}

impl FieldSelectable for Namespace {
    const FIELDS: &'static [SelectableField<Self>] =
        &[("status.phase", |namespace| status!(namespace, phase))];
}

impl Validate for Namespace {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_label);
        let path = FieldPath::new("spec").child("finalizers");
        for finalizer in self
            .spec
            .iter()
            .flat_map(|spec| spec.finalizers.iter().flatten())
        {
            errors.invalid_each(&path, finalizer, names::qualified_name(finalizer));
        }
        errors
    }
}

impl TableRow for Namespace {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("STATUS"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let phase = self.status.as_ref().and_then(|status| status.phase.clone());
        vec![
            self.name().into(),
            phase.unwrap_or_default(),
            created(self, now),
        ]
    }
}

impl Strategy for Namespace {
    const SERVICE: &'static str = "podplane.core.v1.NamespaceService";
    const VERBS: &'static [&'static str] = &[
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        let name = self.name().to_owned();
        if !name.is_empty() {
            self.metadata
                .labels
                .get_or_insert_default()
                .insert(NAME_LABEL.into(), name);
        }
    }

    fn prepare_for_create(&mut self) {
        let finalizers = self
            .spec
            .get_or_insert_default()
            .finalizers
            .get_or_insert_default();
        if !finalizers
            .iter()
            .any(|finalizer| finalizer == CONTENT_FINALIZER)
        {
            finalizers.push(CONTENT_FINALIZER.into());
        }
        self.status = None;
        self.status.get_or_insert_default().phase = Some("Active".into());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.status.clone_from(&old.status);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }

    fn delete_refusal(&self) -> Option<&'static str> {
        SYSTEM_NAMESPACES
            .contains(&self.name())
            .then_some("this namespace may not be deleted")
    }

    fn has_finalizers(&self) -> bool {
        let content = self.spec.as_ref().and_then(|spec| spec.finalizers.as_ref());
        [content, self.metadata.finalizers.as_ref()]
            .into_iter()
            .flatten()
            .any(|list| !list.is_empty())
    }

    fn begin_deletion(&mut self) {
        self.status.get_or_insert_default().phase = Some("Terminating".into());
    }
}

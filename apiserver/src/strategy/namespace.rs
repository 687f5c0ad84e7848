use podplane_api::{Object as _, core::Namespace};
use podplane_proto::error::ApiError;

use super::Strategy;
use crate::error;

/// The namespaces that exist from the first start, and cannot be deleted: the cluster does not work without them.
pub(crate) const SYSTEM_NAMESPACES: [&str; 4] =
    ["default", "kube-node-lease", "kube-public", "kube-system"];
/// Held by `spec.finalizers` until nothing is left in the namespace.
const CONTENT_FINALIZER: &str = "kubernetes";
/// So that namespaces can be selected by name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

impl Strategy for Namespace {
    const SERVICE: &'static str = "podplane.core.v1.NamespaceService";

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

    fn admit_delete(&self) -> Result<(), ApiError> {
        if SYSTEM_NAMESPACES.contains(&self.name()) {
            return Err(error::forbidden::<Self>(
                self.name(),
                "this namespace may not be deleted",
            ));
        }
        Ok(())
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

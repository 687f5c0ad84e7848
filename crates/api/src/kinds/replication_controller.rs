//! ReplicationControllers: sets of equal pods, the predecessors of ReplicaSets.

use std::{borrow::Cow, collections::BTreeMap};

use jiff::Timestamp;
use serde_json::json;

use crate::{
    core::ReplicationController,
    kinds::pod,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::{FieldSelectable, SelectableField},
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, TableRow, always, created, integer, wide, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, workload as rules},
};

impl Object for ReplicationController {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "replicationcontroller";
    const SHORT_NAMES: &'static [&'static str] = &["rc"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions_through_values!();
}

impl FieldSelectable for ReplicationController {
    const FIELDS: &'static [SelectableField<Self>] = &[("status.replicas", |set| {
        let replicas = set.status.as_ref().map_or(0, |status| status.replicas);
        Cow::Owned(replicas.to_string())
    })];
}

impl Validate for ReplicationController {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let spec = self.spec.clone().unwrap_or_default();
        rules::non_negative(
            &path.child("minReadySeconds"),
            spec.min_ready_seconds,
            &mut errors,
        );
        rules::non_negative(&path.child("replicas"), spec.replicas, &mut errors);
        let selector = spec.selector.unwrap_or_default();
        if selector.is_empty() {
            errors.required(&path.child("selector"), "");
        }
        let Some(template) = &spec.template else {
            errors.required(&path.child("template"), "");
            return errors;
        };
        let labels = template
            .metadata
            .as_ref()
            .and_then(|meta| meta.labels.clone());
        let labels = labels.unwrap_or_default();
        let path = path.child("template");
        if selector
            .iter()
            .any(|(key, value)| labels.get(key) != Some(value))
        {
            let detail = "`selector` does not match template `labels`";
            errors.invalid(
                &path.child("metadata").child("labels"),
                json!(labels),
                detail,
            );
        }
        rules::lasting_template(&path, template, &mut errors);
        errors
    }
}

impl TableRow for ReplicationController {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        integer("DESIRED"),
        integer("CURRENT"),
        integer("READY"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let [containers, images] = workload::containers(spec.template.as_ref());
        vec![
            self.name().into(),
            workload::count(spec.replicas).to_string(),
            status.replicas.to_string(),
            workload::count(status.ready_replicas).to_string(),
            created(self, now),
            containers,
            images,
            workload::labels(spec.selector.as_ref()),
        ]
    }
}

impl Strategy for ReplicationController {
    const SERVICE: &'static str = "podplane.core.v1.ReplicationControllerService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        spec.min_ready_seconds.get_or_insert(0);
        let template = spec.template.get_or_insert_default();
        pod::set_template_defaults(template);
        // The labels of the template are those of the controller and its selector, unless given.
        let labels = template
            .metadata
            .as_ref()
            .and_then(|meta| meta.labels.clone());
        if let Some(labels) = labels.filter(|labels| !labels.is_empty()) {
            if spec.selector.as_ref().is_none_or(BTreeMap::is_empty) {
                spec.selector = Some(labels.clone());
            }
            if self.metadata.labels.as_ref().is_none_or(BTreeMap::is_empty) {
                self.metadata.labels = Some(labels);
            }
        }
    }

    separate_status!();

    generation_of!(spec);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller(spec: serde_json::Value) -> ReplicationController {
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut controller = ReplicationController::from_json(document).unwrap();
        controller.set_defaults();
        controller
    }

    #[test]
    fn the_selector_is_that_of_the_template() {
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let good = controller(json!({"template": template}));
        assert!(good.validate().is_empty());
        assert_eq!(
            good.metadata.labels,
            Some([("a".to_owned(), "b".to_owned())].into())
        );
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            ["a", "1", "0", "0", "<unknown>", "c", "i", "a=b"]
        );
        let other =
            controller(json!({"template": template, "selector": {"a": "c"}, "replicas": -1}));
        assert_eq!(
            other.validate().to_string(),
            r#"[spec.replicas: Invalid value: -1: must be greater than or equal to 0, spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`]"#
        );
    }
}

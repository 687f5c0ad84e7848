//! PodTemplates: stored descriptions of pods.

use jiff::Timestamp;

use crate::{
    core::PodTemplate,
    kinds::pod,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, generation_of},
    table::{Column, TableRow, always, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, workload as rules},
};

impl Object for PodTemplate {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "podtemplate";

    json_conversions_through_values!();
}

impl FieldSelectable for PodTemplate {}

impl Validate for PodTemplate {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let template = self.template.clone().unwrap_or_default();
        rules::template(&FieldPath::new("template"), &template, &mut errors);
        errors
    }
}

impl TableRow for PodTemplate {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("CONTAINERS"),
        always("IMAGES"),
        always("POD LABELS"),
    ];

    fn cells(&self, _: Timestamp) -> Vec<String> {
        let [containers, images] = workload::containers(self.template.as_ref());
        let labels = self
            .template
            .as_ref()
            .and_then(|template| template.metadata.as_ref()?.labels.as_ref());
        vec![
            self.name().into(),
            containers,
            images,
            workload::labels(labels),
        ]
    }
}

impl Strategy for PodTemplate {
    const SERVICE: &'static str = "podplane.core.v1.PodTemplateService";
    const RETURNS_DELETED: bool = true;

    fn set_defaults(&mut self) {
        pod::set_template_defaults(self.template.get_or_insert_default());
    }

    generation_of!(template);
}

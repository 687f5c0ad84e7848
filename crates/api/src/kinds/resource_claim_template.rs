//! ResourceClaimTemplates: claims that pods get each their own of.

use crate::{
    object::{Object, Scope, json_conversions_through_values},
    resource::ResourceClaimTemplate,
    selector::FieldSelectable,
    strategy::Strategy,
    table::TableRow,
    validation::Validate,
};

impl Object for ResourceClaimTemplate {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "resourceclaimtemplate";

    json_conversions_through_values!();
}

impl FieldSelectable for ResourceClaimTemplate {}

impl Validate for ResourceClaimTemplate {}

impl TableRow for ResourceClaimTemplate {}

impl Strategy for ResourceClaimTemplate {
    const SERVICE: &'static str = "podplane.resource.v1.ResourceClaimTemplateService";
    const RETURNS_DELETED: bool = true;
}

//! APIServices: the groups and versions that servers beside the API server serve.

use jiff::Timestamp;

use crate::{
    apiregistration::APIService,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, separate_status},
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata},
};

impl Object for APIService {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "apiservice";
    const CATEGORIES: &'static [&'static str] = &["api-extensions"];

    json_conversions_through_values!();
}

impl FieldSelectable for APIService {}

impl Validate for APIService {
    fn validate(&self) -> ErrorList {
        let spec = self.spec.clone().unwrap_or_default();
        let (group, version) = (
            spec.group.unwrap_or_default(),
            spec.version.unwrap_or_default(),
        );
        let mut errors = metadata::validate(self, names::path_segment);
        let required = format!("{version}.{group}");
        if self.name() != required {
            let detail = format!("must be `spec.version+\".\"+spec.group`: {required:?}");
            errors.invalid(
                &FieldPath::new("metadata").child("name"),
                self.name(),
                &detail,
            );
        }
        let path = FieldPath::new("spec");
        if !group.is_empty() {
            errors.invalid_each(
                &path.child("group"),
                &group,
                names::dns1123_subdomain(&group),
            );
        }
        errors.invalid_each(
            &path.child("version"),
            &version,
            names::dns1035_label(&version),
        );
        for (field, number, most) in [
            ("groupPriorityMinimum", spec.group_priority_minimum, 20_000),
            ("versionPriority", spec.version_priority, 1_000),
        ] {
            if !(1..=most).contains(&number) {
                let detail = format!("must be positive and less than {most}");
                errors.invalid(&path.child(field), number, &detail);
            }
        }
        let has_bundle = spec.ca_bundle.is_some_and(|bundle| !bundle.0.is_empty());
        let is_insecure = spec.insecure_skip_tls_verify == Some(true);
        if spec.service.is_none() && (has_bundle || is_insecure) {
            errors.invalid(
                &path.child("caBundle"),
                "",
                "local APIServices may not have a caBundle or skip TLS verification",
            );
        }
        if has_bundle && is_insecure {
            let detail = "may not be true if caBundle is present";
            errors.invalid(&path.child("insecureSkipTLSVerify"), true, detail);
        }
        errors
    }
}

impl TableRow for APIService {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("SERVICE"),
        always("AVAILABLE"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let service = self.spec.as_ref().and_then(|spec| spec.service.as_ref());
        let service = service.map_or_else(
            || "Local".into(),
            |service| {
                let part = |part: &Option<String>| part.clone().unwrap_or_default();
                format!("{}/{}", part(&service.namespace), part(&service.name))
            },
        );
        vec![
            self.name().into(),
            service,
            available(self),
            created(self, now),
        ]
    }
}

impl Strategy for APIService {
    const SERVICE: &'static str = "podplane.apiregistration.v1.APIServiceService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const UNCONDITIONAL_UPDATE: bool = false;

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        if let Some(service) = &mut spec.service {
            service.port.get_or_insert(443);
        }
    }

    separate_status!();
}

/// The condition `Available`, with its reason if it does not hold.
fn available(service: &APIService) -> String {
    let conditions = service
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut available = conditions.filter(|condition| condition.type_ == "Available");
    match available.next() {
        None => "Unknown".into(),
        Some(condition) if condition.status == "True" => "True".into(),
        Some(condition) => {
            let reason = condition.reason.as_deref().unwrap_or_default();
            format!("{} ({reason})", condition.status)
        }
    }
}

//! The rules of CustomResourceDefinitions.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceConversion, CustomResourceDefinition,
    CustomResourceDefinitionNames, CustomResourceDefinitionVersion, CustomResourceSubresources,
    JSONSchemaProps,
};
use podplane_api::{
    names,
    validation::{ErrorList, FieldPath},
};
use serde_json::{Value, json};

use crate::{columns::json_path, schema_rules};

const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: [&str; 8] = [
    "byte",
    "date",
    "date-time",
    "double",
    "float",
    "int32",
    "int64",
    "password",
];
const MAX_SELECTABLE: u64 = 8;

/// Validates a definition; as the successor of `old`, if there is one.
pub fn validate_definition(
    crd: &CustomResourceDefinition,
    old: Option<&CustomResourceDefinition>,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = &crd.spec;
    let required = format!("{}.{}", spec.names.plural, spec.group);
    let name = crd.metadata.name.as_deref().unwrap_or_default();
    let at_name = FieldPath::new("metadata").child("name");
    errors.invalid_each(&at_name, name, names::dns1123_subdomain(name));
    if name != required {
        errors.invalid(&at_name, name, "must be spec.names.plural+\".\"+spec.group");
    }
    let at = FieldPath::new("spec");
    of_spec(crd, old, &at, &mut errors);
    if let Some(old) = old {
        update(crd, old, &at, &mut errors);
    }
    if let Some(accepted) = crd
        .status
        .as_ref()
        .and_then(|status| status.accepted_names.as_ref())
    {
        of_names(
            accepted,
            &FieldPath::new("status").child("acceptedNames"),
            &mut errors,
        );
    }
    approval(crd, old, &mut errors);
    errors
}

fn of_spec(
    crd: &CustomResourceDefinition,
    old: Option<&CustomResourceDefinition>,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    let spec = &crd.spec;
    let group = at.child("group");
    let broken = names::dns1123_subdomain(&spec.group);
    if spec.group.is_empty() {
        errors.required(&group, "");
    } else if !broken.is_empty() {
        errors.invalid(&group, spec.group.as_str(), &broken.join(","));
    } else if !spec.group.contains('.') {
        errors.invalid(
            &group,
            spec.group.as_str(),
            "should be a domain with at least one dot",
        );
    }
    match spec.scope.as_str() {
        "" => errors.required(&at.child("scope"), ""),
        "Cluster" | "Namespaced" => {}
        other => errors.not_supported(&at.child("scope"), other, &["Cluster", "Namespaced"]),
    }
    let was_preserved = old.is_some_and(|old| old.spec.preserve_unknown_fields == Some(true));
    if spec.preserve_unknown_fields == Some(true) && !was_preserved {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.invalid(&at.child("preserveUnknownFields"), true, detail);
    }
    let versions = at.child("versions");
    let mut seen = BTreeSet::new();
    for (index, version) in spec.versions.iter().enumerate() {
        let at = versions.index(index);
        let broken = names::dns1035_label(&version.name);
        if !broken.is_empty() {
            errors.invalid(&at.child("name"), version.name.as_str(), &broken.join(","));
        }
        seen.insert(&version.name);
        let before = old.and_then(|old| {
            old.spec
                .versions
                .iter()
                .find(|other| other.name == version.name)
        });
        of_version(version, before, &at, errors);
    }
    let shown = || {
        json!(
            spec.versions
                .iter()
                .map(|version| &version.name)
                .collect::<Vec<_>>()
        )
    };
    if seen.len() != spec.versions.len() {
        errors.invalid(&versions, shown(), "must contain unique version names");
    }
    if spec
        .versions
        .iter()
        .filter(|version| version.storage)
        .count()
        != 1
    {
        errors.invalid(
            &versions,
            shown(),
            "must have exactly one version marked as storage version",
        );
    }
    let at_names = at.child("names");
    let singular = spec.names.singular.as_deref().unwrap_or_default();
    let list_kind = spec.names.list_kind.as_deref().unwrap_or_default();
    for (field, name) in [
        ("plural", spec.names.plural.as_str()),
        ("singular", singular),
        ("kind", spec.names.kind.as_str()),
        ("listKind", list_kind),
    ] {
        if name.is_empty() {
            errors.required(&at_names.child(field), "");
        }
    }
    of_names(&spec.names, &at_names, errors);
    if let Some(conversion) = &spec.conversion {
        of_conversion(
            conversion,
            spec.preserve_unknown_fields == Some(true),
            &at.child("conversion"),
            errors,
        );
    }
    stored_versions(crd, errors);
}

fn of_names(names: &CustomResourceDefinitionNames, at: &FieldPath, errors: &mut ErrorList) {
    let mut label = |at: &FieldPath, name: &str, mixed_case: bool| {
        let checked = if mixed_case {
            name.to_lowercase()
        } else {
            name.to_owned()
        };
        let broken = names::dns1035_label(&checked);
        if !broken.is_empty() {
            let prefix = if mixed_case {
                "may have mixed case, but should otherwise match: "
            } else {
                ""
            };
            errors.invalid(at, name, &format!("{prefix}{}", broken.join(",")));
        }
    };
    let list_kind = names.list_kind.as_deref().unwrap_or_default();
    let singular = names.singular.as_deref().unwrap_or_default();
    for (field, name, mixed_case) in [
        ("plural", names.plural.as_str(), false),
        ("singular", singular, false),
        ("kind", names.kind.as_str(), true),
        ("listKind", list_kind, true),
    ] {
        if !name.is_empty() {
            label(&at.child(field), name, mixed_case);
        }
    }
    for (field, all) in [
        ("shortNames", &names.short_names),
        ("categories", &names.categories),
    ] {
        for (index, name) in all.iter().flatten().enumerate() {
            label(&at.child(field).index(index), name, false);
        }
    }
    if !names.kind.is_empty() && names.kind == list_kind {
        errors.invalid(
            &at.child("listKind"),
            list_kind,
            "kind and listKind may not be the same",
        );
    }
}

fn of_version(
    version: &CustomResourceDefinitionVersion,
    old: Option<&CustomResourceDefinitionVersion>,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    if let Some(warning) = &version.deprecation_warning {
        let at = at.child("deprecationWarning");
        let mut refuse = |rule: &str| errors.invalid(&at, warning.as_str(), rule);
        if version.deprecated != Some(true) {
            refuse("can only be set for deprecated versions");
        } else if warning.is_empty() {
            refuse("must not be an empty string");
        } else if warning.len() > 256 {
            refuse("must be <= 256 characters long");
        } else if let Some((index, _)) = warning.char_indices().find(|(_, c)| c.is_control()) {
            refuse(&format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {index}"
            ));
        }
    }
    let at_schema = at.child("schema").child("openAPIV3Schema");
    let has_status = version
        .subresources
        .as_ref()
        .is_some_and(|all| all.status.is_some());
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    let before = old.and_then(|old| old.schema.as_ref()?.open_api_v3_schema.as_ref());
    match schema {
        None => errors.required(&at_schema, ""),
        Some(schema) => schema_rules::validate(
            schema,
            before == Some(schema),
            has_status,
            &at_schema,
            errors,
        ),
    }
    if let Some(subresources) = &version.subresources {
        of_subresources(subresources, &at.child("subresources"), errors);
    }
    for (index, column) in version
        .additional_printer_columns
        .iter()
        .flatten()
        .enumerate()
    {
        of_column(
            column,
            &at.child("additionalPrinterColumns").index(index),
            errors,
        );
    }
    selectable(version, schema, old, at, errors);
}

fn of_column(column: &CustomResourceColumnDefinition, at: &FieldPath, errors: &mut ErrorList) {
    if column.name.is_empty() {
        errors.required(&at.child("name"), "");
    }
    let rule = format!("must be one of {COLUMN_TYPES}");
    if column.type_.is_empty() {
        errors.required(&at.child("type"), &rule);
    } else if !COLUMN_TYPES.split(',').any(|ty| ty == column.type_) {
        errors.invalid(&at.child("type"), column.type_.as_str(), &rule);
    }
    if let Some(format) = column.format.as_deref().filter(|format| !format.is_empty())
        && !COLUMN_FORMATS.contains(&format)
    {
        let rule = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.invalid(&at.child("format"), format, &rule);
    }
    let path = column.json_path.as_str();
    let at = at.child("jsonPath");
    if path.is_empty() {
        errors.required(&at, "");
    } else if !path.starts_with('.') {
        errors.invalid(&at, path, "must be a simple json path starting with .");
    } else if json_path(path).is_none() {
        errors.invalid(&at, path, "must be a valid json path");
    }
}

fn of_subresources(
    subresources: &CustomResourceSubresources,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    let Some(scale) = &subresources.scale else {
        return;
    };
    let at = at.child("scale");
    let mut path = |field: &str, path: &str, below: &[&str], rule: &str| {
        let at = at.child(field);
        if path.is_empty() {
            errors.required(&at, "");
        } else if !path.starts_with('.') {
            errors.invalid(&at, path, "must be a simple json path starting with .");
        } else if !below.iter().any(|below| path.starts_with(below)) {
            errors.invalid(&at, path, rule);
        }
    };
    let rule = "should be a json path under .spec";
    path(
        "specReplicasPath",
        &scale.spec_replicas_path,
        &[".spec."],
        rule,
    );
    let rule = "should be a json path under .status";
    path(
        "statusReplicasPath",
        &scale.status_replicas_path,
        &[".status."],
        rule,
    );
    if let Some(selector) = scale
        .label_selector_path
        .as_deref()
        .filter(|path| !path.is_empty())
    {
        let rule = "should be a json path under either .spec or .status";
        path("labelSelectorPath", selector, &[".spec.", ".status."], rule);
    }
}

fn selectable(
    version: &CustomResourceDefinitionVersion,
    schema: Option<&JSONSchemaProps>,
    old: Option<&CustomResourceDefinitionVersion>,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    let fields = version.selectable_fields.as_deref().unwrap_or_default();
    let at = at.child("selectableFields");
    let mut seen = BTreeSet::new();
    for (index, field) in fields.iter().enumerate() {
        let path = field.json_path.as_str();
        let at = at.index(index).child("jsonPath");
        if path.is_empty() {
            errors.required(&at, "");
            continue;
        }
        let found = match schema_rules::field_schema(schema, path, false) {
            Ok(found) => found,
            Err(error) => {
                errors.invalid(&at, path, &format!("is an invalid path: {error}"));
                continue;
            }
        };
        if path.starts_with(".metadata.") || path == ".metadata" {
            errors.invalid(&at, path, "must not point to fields in metadata");
        }
        if !matches!(
            found.type_.as_deref(),
            Some("string" | "boolean" | "integer")
        ) {
            let rule = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.invalid(&at, path, rule);
        }
        if !seen.insert(path) {
            errors.duplicate(&at, path);
        }
    }
    let is_unchanged = old.is_some_and(|old| old.selectable_fields == version.selectable_fields);
    let count = u64::try_from(seen.len()).unwrap_or(u64::MAX);
    if count > MAX_SELECTABLE && !is_unchanged {
        errors.too_many(&at, seen.len(), MAX_SELECTABLE);
    }
}

fn of_conversion(
    conversion: &CustomResourceConversion,
    preserve: bool,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    let strategy = at.child("strategy");
    match conversion.strategy.as_str() {
        "" => return errors.required(&strategy, ""),
        "None" | "Webhook" => {}
        other => errors.not_supported(&strategy, other, &["None", "Webhook"]),
    }
    if conversion.strategy != "None" && preserve {
        errors.invalid(
            &strategy,
            conversion.strategy.as_str(),
            "must be None if spec.preserveUnknownFields is true",
        );
    }
    let webhook = conversion.webhook.as_ref();
    if conversion.strategy != "Webhook" {
        if webhook.is_some() {
            let detail = "should not be set when strategy is not set to Webhook";
            errors.forbidden(&at.child("webhookClientConfig"), detail);
        }
        return;
    }
    let client = webhook.and_then(|webhook| webhook.client_config.as_ref());
    let at_client = at.child("webhookClientConfig");
    match client.map(|client| (client.url.as_deref(), client.service.as_ref())) {
        None => errors.required(&at_client, "required when strategy is set to Webhook"),
        Some((Some(_), Some(_)) | (None, None)) => {
            errors.required(&at_client, "exactly one of url or service is required");
        }
        Some((Some(url), None)) => {
            if !url.starts_with("https://") || !podplane_cel_rules::is_uri(url) {
                errors.invalid(
                    &at_client.child("url"),
                    url,
                    "'https' is the only allowed URL scheme",
                );
            }
        }
        Some((None, Some(service))) => {
            let at = at_client.child("service");
            for (field, name) in [("name", &service.name), ("namespace", &service.namespace)] {
                if name.is_empty() {
                    errors.required(&at.child(field), &format!("service {field} is required"));
                }
            }
            if let Some(port) = service.port.filter(|port| !(1..=65_535).contains(port)) {
                errors.invalid(
                    &at.child("port"),
                    port,
                    "port is not valid: must be between 1 and 65535, inclusive",
                );
            }
        }
    }
    let versions = webhook
        .map(|webhook| webhook.conversion_review_versions.as_slice())
        .unwrap_or_default();
    let at = at.child("conversionReviewVersions");
    if versions.is_empty() {
        return errors.required(&at, "");
    }
    let mut seen = BTreeMap::new();
    for (index, version) in versions.iter().enumerate() {
        if seen.insert(version, index).is_some() {
            errors.invalid(&at.index(index), version.as_str(), "duplicate version");
            continue;
        }
        errors.invalid_each(&at.index(index), version, names::dns1035_label(version));
    }
    if !versions
        .iter()
        .any(|version| version == "v1" || version == "v1beta1")
    {
        errors.invalid(
            &at,
            json!(versions),
            "must include at least one of v1, v1beta1",
        );
    }
}

fn stored_versions(crd: &CustomResourceDefinition, errors: &mut ErrorList) {
    // A new definition has none: the server sets them.
    let Some(stored) = crd
        .status
        .as_ref()
        .and_then(|status| status.stored_versions.as_ref())
    else {
        return;
    };
    let at = FieldPath::new("status").child("storedVersions");
    let storage = crd.spec.versions.iter().filter(|version| version.storage);
    for version in storage.filter(|version| !stored.is_empty() && !stored.contains(&version.name)) {
        errors.invalid(
            &at,
            json!(stored),
            &format!("must have the storage version {}", version.name),
        );
    }
    for (index, name) in stored.iter().enumerate() {
        if !crd
            .spec
            .versions
            .iter()
            .any(|version| version.name == *name)
        {
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            errors.invalid(&at.index(index), name.as_str(), &detail);
        }
    }
}

fn update(
    new: &CustomResourceDefinition,
    old: &CustomResourceDefinition,
    at: &FieldPath,
    errors: &mut ErrorList,
) {
    let conditions = old
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let is_established = conditions
        .filter(|condition| condition.type_ == "Established")
        .any(|condition| condition.status == "True");
    let mut immutable = |at: FieldPath, new: &str, old: &str| {
        if new != old {
            errors.invalid(&at, Value::from(new), "field is immutable");
        }
    };
    if is_established {
        immutable(at.child("scope"), &new.spec.scope, &old.spec.scope);
        immutable(
            at.child("names").child("kind"),
            &new.spec.names.kind,
            &old.spec.names.kind,
        );
    }
    immutable(at.child("group"), &new.spec.group, &old.spec.group);
    immutable(
        at.child("names").child("plural"),
        &new.spec.names.plural,
        &old.spec.names.plural,
    );
}

/// Groups of Kubernetes' own need an approval, which an annotation shows.
fn approval(
    crd: &CustomResourceDefinition,
    old: Option<&CustomResourceDefinition>,
    errors: &mut ErrorList,
) {
    const APPROVED: &str = "api-approved.kubernetes.io";
    let group = &crd.spec.group;
    let is_protected = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == domain || group.ends_with(&format!(".{domain}")));
    let of = |crd: &CustomResourceDefinition| {
        crd.metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(APPROVED))
            .cloned()
            .unwrap_or_default()
    };
    let value = of(crd);
    if !is_protected || old.is_some_and(|old| of(old) == value) {
        return;
    }
    let at = FieldPath::new("metadata")
        .child("annotations")
        .key(APPROVED);
    if value.is_empty() {
        errors.required(&at, "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111");
    } else if !value.starts_with("unapproved") && !value.starts_with("https://") {
        errors.invalid(&at, value, "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111");
    }
}

//! ResourceQuotas: limits of what a namespace uses.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    core::ResourceQuota,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, separate_status},
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

const SCOPES: [&str; 7] = [
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

/// The resources without a domain that a quota may limit.
const STANDARD: [&str; 20] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
    "storage",
];

/// Checks the name of a limited resource.
fn name(text: &str) -> Vec<String> {
    let mut broken = names::qualified_name(text);
    let is_standard = STANDARD.contains(&text)
        || text.starts_with("hugepages-")
        || text.starts_with("requests.hugepages-");
    if !text.contains('/') && !is_standard {
        broken.push("must be a standard resource for quota".to_owned());
    }
    broken
}

impl Object for ResourceQuota {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "resourcequota";
    const SHORT_NAMES: &'static [&'static str] = &["quota"];

    json_conversions_through_values!();
}

impl FieldSelectable for ResourceQuota {}

impl Validate for ResourceQuota {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let spec = self.spec.clone().unwrap_or_default();
        values::quantities(&path.child("hard"), spec.hard.as_ref(), name, &mut errors);
        let scopes = spec.scopes.unwrap_or_default();
        for scope in &scopes {
            if !SCOPES.contains(&scope.as_str()) {
                errors.invalid(&path.child("scopes"), json!(scopes), "unsupported scope");
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let scopes = |quota: &Self| quota.spec.as_ref().and_then(|spec| spec.scopes.clone());
        let path = FieldPath::new("spec").child("scopes");
        values::immutable(&path, &scopes(self), &scopes(old), &mut errors);
        if let Some(status) = &self.status {
            let path = FieldPath::new("status");
            values::quantities(&path.child("hard"), status.hard.as_ref(), name, &mut errors);
            values::quantities(&path.child("used"), status.used.as_ref(), name, &mut errors);
        }
        errors
    }
}

impl TableRow for ResourceQuota {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("REQUEST"),
        always("LIMIT"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let shown = |limits: bool| {
            let hard = status.hard.iter().flatten();
            let chosen = hard.filter(|(name, _)| name.starts_with("limits.") == limits);
            let each = chosen.map(|(name, hard)| {
                let used = used.get(name).map_or("0", |used| used.0.as_str());
                format!("{name}: {used}/{}", hard.0)
            });
            each.collect::<Vec<_>>().join(", ")
        };
        vec![
            self.name().into(),
            shown(false),
            shown(true),
            created(self, now),
        ]
    }
}

impl Strategy for ResourceQuota {
    const SERVICE: &'static str = "podplane.core.v1.ResourceQuotaService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    separate_status!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_name_resources() {
        let quota = |hard: serde_json::Value| {
            let document =
                json!({"metadata": {"name": "a", "namespace": "default"}, "spec": {"hard": hard}});
            ResourceQuota::from_json(document).unwrap()
        };
        let mut good = quota(
            json!({"pods": "10", "limits.cpu": "2", "count/jobs.batch": "1", "example.com/gpu": "1"}),
        );
        assert!(good.validate().is_empty(), "{}", good.validate());
        good.status = serde_json::from_value(json!({
            "hard": {"pods": "10", "limits.cpu": "2"}, "used": {"pods": "3"}
        }))
        .unwrap();
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            ["a", "pods: 3/10", "limits.cpu: 0/2", "<unknown>"]
        );
        assert_eq!(
            quota(json!({"dogs": "-1"})).validate().to_string(),
            r#"[spec.hard[dogs]: Invalid value: "dogs": must be a standard resource for quota, spec.hard[dogs]: Invalid value: "-1": must be greater than or equal to 0]"#
        );
    }
}

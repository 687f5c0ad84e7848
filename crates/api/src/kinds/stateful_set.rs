//! StatefulSets: pods with lasting names and storage.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    apps::{StatefulSet, StatefulSetSpec},
    kinds::pod,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, TableRow, always, created, wide, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload as rules},
};

impl Object for StatefulSet {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "statefulset";
    const SHORT_NAMES: &'static [&'static str] = &["sts"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions_through_values!();
}

impl FieldSelectable for StatefulSet {}

impl Validate for StatefulSet {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        let (new, old) = (self.spec.clone(), old.spec.clone());
        let (new, old) = (new.unwrap_or_default(), old.unwrap_or_default());
        if fixed(&new, &old) != old {
            errors.forbidden(
                &FieldPath::new("spec"),
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                 'template', 'updateStrategy', 'revisionHistoryLimit', \
                 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
            );
        }
        errors
    }
}

impl TableRow for StatefulSet {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("READY"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let ready = self
            .status
            .as_ref()
            .and_then(|status| status.ready_replicas);
        let [containers, images] = workload::containers(Some(&spec.template));
        vec![
            self.name().into(),
            format!(
                "{}/{}",
                workload::count(ready),
                workload::count(spec.replicas)
            ),
            created(self, now),
            containers,
            images,
        ]
    }
}

impl Strategy for StatefulSet {
    const SERVICE: &'static str = "podplane.apps.v1.StatefulSetService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Scale, Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        values::default_word(&mut spec.pod_management_policy, "OrderedReady");
        let strategy = spec.update_strategy.get_or_insert_default();
        values::default_word(&mut strategy.type_, "RollingUpdate");
        if strategy.type_.as_deref() == Some("RollingUpdate") {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.partition.get_or_insert(0);
        }
        let policy = spec
            .persistent_volume_claim_retention_policy
            .get_or_insert_default();
        values::default_word(&mut policy.when_deleted, "Retain");
        values::default_word(&mut policy.when_scaled, "Retain");
        spec.replicas.get_or_insert(1);
        spec.revision_history_limit.get_or_insert(10);
        pod::set_template_defaults(&mut spec.template);
        for claim in spec.volume_claim_templates.iter_mut().flatten() {
            claim.set_defaults();
        }
    }

    separate_status!();

    generation_of!(spec);
}

fn validate_spec(path: &FieldPath, spec: &StatefulSetSpec, errors: &mut ErrorList) {
    let policy = spec.pod_management_policy.as_deref();
    pod::one_of(
        &path.child("podManagementPolicy"),
        policy,
        &["OrderedReady", "Parallel"],
        errors,
    );
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    let strategy_path = path.child("updateStrategy");
    pod::one_of(
        &strategy_path.child("type"),
        strategy.type_.as_deref(),
        &["OnDelete", "RollingUpdate"],
        errors,
    );
    let rolling_path = strategy_path.child("rollingUpdate");
    match strategy.rolling_update {
        Some(_) if strategy.type_.as_deref() == Some("OnDelete") => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            errors.invalid(&rolling_path, json!(strategy.rolling_update), detail);
        }
        Some(rolling) => {
            let partition = rolling_path.child("partition");
            rules::non_negative(&partition, rolling.partition, errors);
        }
        None => {}
    }
    for (field, number) in [
        ("replicas", spec.replicas),
        ("minReadySeconds", spec.min_ready_seconds),
        ("revisionHistoryLimit", spec.revision_history_limit),
        (
            "ordinals.start",
            spec.ordinals.as_ref().and_then(|it| it.start),
        ),
    ] {
        rules::non_negative(&path.child(field), number, errors);
    }
    rules::selector_and_template(path, "statefulset", &spec.selector, &spec.template, errors);
}

/// The spec with what an update may change as in `old`.
fn fixed(spec: &StatefulSetSpec, old: &StatefulSetSpec) -> StatefulSetSpec {
    StatefulSetSpec {
        pod_management_policy: spec.pod_management_policy.clone(),
        selector: spec.selector.clone(),
        service_name: spec.service_name.clone(),
        volume_claim_templates: spec.volume_claim_templates.clone(),
        ..old.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(more: serde_json::Value) -> StatefulSet {
        let mut spec = json!({
            "serviceName": "s", "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut set = StatefulSet::from_json(document).unwrap();
        set.set_defaults();
        set
    }

    #[test]
    fn defaults_are_those_of_the_reference() {
        let set = set(json!({"volumeClaimTemplates": [{"metadata": {"name": "d"}, "spec": {}}]}));
        assert!(set.validate().is_empty(), "{}", set.validate());
        let spec = json!(set.spec);
        assert_eq!(spec["replicas"], 1);
        assert_eq!(spec["podManagementPolicy"], "OrderedReady");
        assert_eq!(
            spec["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
        );
        assert_eq!(
            spec["persistentVolumeClaimRetentionPolicy"],
            json!({"whenDeleted": "Retain", "whenScaled": "Retain"})
        );
        assert_eq!(
            spec["volumeClaimTemplates"][0]["spec"]["volumeMode"],
            "Filesystem"
        );
        assert_eq!(
            set.cells(Timestamp::UNIX_EPOCH),
            ["a", "0/1", "<unknown>", "c", "i"]
        );
    }

    #[test]
    fn selector_and_claims_stay() {
        let old = set(json!({}));
        let scaled = set(json!({"replicas": 3, "minReadySeconds": 5}));
        assert!(scaled.validate_update(&old).is_empty());
        for other in [
            json!({"serviceName": "t"}),
            json!({"podManagementPolicy": "Parallel"}),
        ] {
            let errors = set(other).validate_update(&old).to_string();
            assert!(
                errors.starts_with("spec: Forbidden: updates to statefulset"),
                "{errors}"
            );
        }
        let wrong = set(
            json!({"replicas": -1, "selector": {"matchLabels": {}}, "podManagementPolicy": "x"}),
        );
        let errors = wrong.validate().to_string();
        for part in [
            "spec.replicas: Invalid value: -1",
            "empty selector is invalid for statefulset",
            r#"spec.podManagementPolicy: Unsupported value: "x""#,
        ] {
            assert!(errors.contains(part), "{errors}");
        }
    }
}

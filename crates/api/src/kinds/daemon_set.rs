//! DaemonSets: a pod on each node.

use jiff::Timestamp;
use serde_json::json;

use crate::{
    IntOrString,
    apps::DaemonSet,
    kinds::pod,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, TableRow, always, created, integer, wide, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload as rules},
};

impl Object for DaemonSet {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "daemonset";
    const SHORT_NAMES: &'static [&'static str] = &["ds"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions_through_values!();
}

impl FieldSelectable for DaemonSet {}

impl Validate for DaemonSet {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let spec = self.spec.clone().unwrap_or_default();
        rules::selector_and_template(
            &path,
            "daemonset",
            &spec.selector,
            &spec.template,
            &mut errors,
        );
        rules::non_negative(
            &path.child("minReadySeconds"),
            spec.min_ready_seconds,
            &mut errors,
        );
        let limit = spec.revision_history_limit;
        rules::non_negative(&path.child("revisionHistoryLimit"), limit, &mut errors);
        let strategy = spec.update_strategy.unwrap_or_default();
        let path = path.child("updateStrategy");
        pod::one_of(
            &path.child("type"),
            strategy.type_.as_deref(),
            &["OnDelete", "RollingUpdate"],
            &mut errors,
        );
        if let Some(rolling) = strategy.rolling_update {
            let path = path.child("rollingUpdate");
            let limits = [
                ("maxUnavailable", rolling.max_unavailable),
                ("maxSurge", rolling.max_surge),
            ];
            for (field, limit) in &limits {
                if let Some(limit) = limit {
                    rules::int_or_percent(&path.child(field), limit, &mut errors);
                    rules::at_most_100_percent(&path.child(field), limit, &mut errors);
                }
            }
            let is_zero = |limit: &Option<IntOrString>| match limit {
                Some(IntOrString::Int(number)) => *number == 0,
                Some(limit) => rules::percent(limit) == Some(0),
                None => true,
            };
            match (is_zero(&limits[0].1), is_zero(&limits[1].1)) {
                (true, true) => {
                    let detail = "cannot be 0 when maxSurge is 0";
                    errors.invalid(&path.child("maxUnavailable"), json!(limits[0].1), detail);
                }
                (false, false) => {
                    let detail = "may not be set when maxUnavailable is non-zero";
                    errors.invalid(&path.child("maxSurge"), json!(limits[1].1), detail);
                }
                _ => {}
            }
        }
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        if let (Some(new), Some(old)) = (&self.spec, &old.spec) {
            let path = FieldPath::new("spec");
            rules::immutable_selector(&path, &new.selector, &old.selector, &mut errors);
        }
        errors
    }
}

impl TableRow for DaemonSet {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        integer("DESIRED"),
        integer("CURRENT"),
        integer("READY"),
        integer("UP-TO-DATE"),
        integer("AVAILABLE"),
        always("NODE SELECTOR"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let status = self.status.clone().unwrap_or_default();
        let [containers, images] = workload::containers(Some(&spec.template));
        let nodes = spec
            .template
            .spec
            .as_ref()
            .and_then(|spec| spec.node_selector.as_ref());
        vec![
            self.name().into(),
            status.desired_number_scheduled.to_string(),
            status.current_number_scheduled.to_string(),
            status.number_ready.to_string(),
            workload::count(status.updated_number_scheduled).to_string(),
            workload::count(status.number_available).to_string(),
            workload::labels(nodes),
            created(self, now),
            containers,
            images,
            workload::selector(&spec.selector),
        ]
    }
}

impl Strategy for DaemonSet {
    const SERVICE: &'static str = "podplane.apps.v1.DaemonSetService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = self.spec.get_or_insert_default();
        let strategy = spec.update_strategy.get_or_insert_default();
        values::default_word(&mut strategy.type_, "RollingUpdate");
        if strategy.type_.as_deref() == Some("RollingUpdate") {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            rolling.max_surge.get_or_insert(IntOrString::Int(0));
        }
        spec.revision_history_limit.get_or_insert(10);
        pod::set_template_defaults(&mut spec.template);
    }

    separate_status!();

    generation_of!(spec);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(more: serde_json::Value) -> DaemonSet {
        let mut spec = json!({
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"d": "e"}}}
        });
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut set = DaemonSet::from_json(document).unwrap();
        set.set_defaults();
        set
    }

    #[test]
    fn a_rollout_makes_progress_in_one_way() {
        let good = set(json!({}));
        assert!(good.validate().is_empty());
        assert_eq!(
            json!(good.spec)["updateStrategy"],
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}})
        );
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            [
                "a",
                "0",
                "0",
                "0",
                "0",
                "0",
                "d=e",
                "<unknown>",
                "c",
                "i",
                "a=b"
            ]
        );
        let rolling = |unavailable: serde_json::Value, surge: serde_json::Value| {
            let rolling = json!({"maxUnavailable": unavailable, "maxSurge": surge});
            set(json!({"updateStrategy": {"rollingUpdate": rolling}}))
                .validate()
                .to_string()
        };
        assert!(rolling(json!("0%"), json!(0)).ends_with("cannot be 0 when maxSurge is 0"));
        assert!(
            rolling(json!(1), json!("10%"))
                .ends_with("may not be set when maxUnavailable is non-zero")
        );
        assert_eq!(rolling(json!(0), json!("10%")), "[]");
        assert!(rolling(json!("101%"), json!(0)).contains("must not be greater than 100%"));
        let other = set(
            json!({"selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]}}),
        );
        assert!(
            other
                .validate_update(&good)
                .to_string()
                .contains("spec.selector: Invalid value")
        );
    }
}

//! HorizontalPodAutoscalers: the wanted number of pods by their load. They are stored; nothing here
//! scales.

use jiff::Timestamp;

use crate::{
    autoscaling_v2::{
        HorizontalPodAutoscaler, MetricSpec, MetricTarget, MetricValueStatus, ResourceMetricSource,
    },
    kinds::pod::one_of,
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, NONE, TableRow, UNSET, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, values},
};

const METRICS: [&str; 5] = [
    "ContainerResource",
    "External",
    "Object",
    "Pods",
    "Resource",
];
/// The text of a value that is not known.
const UNKNOWN: &str = "<unknown>";

impl Object for HorizontalPodAutoscaler {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "horizontalpodautoscaler";
    const SHORT_NAMES: &'static [&'static str] = &["hpa"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions_through_values!();
}

impl FieldSelectable for HorizontalPodAutoscaler {}

impl Validate for HorizontalPodAutoscaler {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("spec");
        let (least, most) = (self.spec.min_replicas, self.spec.max_replicas);
        if let Some(least) = least.filter(|least| *least < 1) {
            let detail = "must be greater than or equal to 1";
            errors.invalid(&path.child("minReplicas"), least, detail);
        }
        if most < 1 {
            errors.invalid(&path.child("maxReplicas"), most, "must be greater than 0");
        }
        if least.is_some_and(|least| most < least) {
            let detail = "must be greater than or equal to `minReplicas`";
            errors.invalid(&path.child("maxReplicas"), most, detail);
        }
        let target = &self.spec.scale_target_ref;
        let field = path.child("scaleTargetRef");
        let segment = names::path_segment;
        values::named(&field.child("kind"), &target.kind, segment, &mut errors);
        values::named(&field.child("name"), &target.name, segment, &mut errors);
        for (index, metric) in self.spec.metrics.iter().flatten().enumerate() {
            let path = path.child("metrics").index(index);
            one_of(
                &path.child("type"),
                Some(&metric.type_),
                &METRICS,
                &mut errors,
            );
            let sources = [
                (
                    "ContainerResource",
                    "containerResource",
                    metric.container_resource.is_some(),
                ),
                ("External", "external", metric.external.is_some()),
                ("Object", "object", metric.object.is_some()),
                ("Pods", "pods", metric.pods.is_some()),
                ("Resource", "resource", metric.resource.is_some()),
            ];
            for (kind, field, is_present) in sources {
                if kind == metric.type_ && !is_present {
                    let detail = "must populate information for the given metric source";
                    errors.required(&path.child(field), detail);
                } else if kind != metric.type_ && is_present {
                    let detail = "must populate the given metric source only";
                    errors.forbidden(&path.child(field), detail);
                }
            }
        }
        errors
    }
}

impl TableRow for HorizontalPodAutoscaler {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("REFERENCE"),
        always("TARGETS"),
        always("MINPODS"),
        always("MAXPODS"),
        always("REPLICAS"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let target = &self.spec.scale_target_ref;
        vec![
            self.name().into(),
            format!("{}/{}", target.kind, target.name),
            targets(self),
            self.spec
                .min_replicas
                .map_or_else(|| UNSET.into(), |count| count.to_string()),
            self.spec.max_replicas.to_string(),
            status.current_replicas.unwrap_or_default().to_string(),
            created(self, now),
        ]
    }
}

impl Strategy for HorizontalPodAutoscaler {
    const SERVICE: &'static str = "podplane.autoscaling.v2.HorizontalPodAutoscalerService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        spec.min_replicas.get_or_insert(1);
        if spec.metrics.as_ref().is_none_or(Vec::is_empty) {
            spec.metrics = Some(vec![MetricSpec {
                type_: "Resource".to_owned(),
                resource: Some(ResourceMetricSource {
                    name: "cpu".to_owned(),
                    target: MetricTarget {
                        type_: "Utilization".to_owned(),
                        average_utilization: Some(80),
                        ..MetricTarget::default()
                    },
                }),
                ..MetricSpec::default()
            }]);
        }
    }

    separate_status!();

    generation_of!(spec);
}

/// The present and the wanted values of the first metrics.
fn targets(scaler: &HorizontalPodAutoscaler) -> String {
    let status = scaler.status.as_ref();
    let current = status.and_then(|status| status.current_metrics.as_deref());
    let current = current.unwrap_or_default();
    let all: Vec<_> = scaler
        .spec
        .metrics
        .iter()
        .flatten()
        .enumerate()
        .map(|(index, metric)| {
            let now = current.get(index);
            match metric.type_.as_str() {
                "Resource" => metric.resource.as_ref().map(|source| {
                    let now = now.and_then(|now| Some(&now.resource.as_ref()?.current));
                    of_resource(&source.name, &source.target, now)
                }),
                "ContainerResource" => metric.container_resource.as_ref().map(|source| {
                    let now = now.and_then(|now| Some(&now.container_resource.as_ref()?.current));
                    of_resource(&source.name, &source.target, now)
                }),
                "Pods" => metric.pods.as_ref().map(|source| {
                    let now = now.and_then(|now| Some(&now.pods.as_ref()?.current));
                    value(&source.target, now)
                        .trim_end_matches(" (avg)")
                        .to_owned()
                }),
                "Object" => metric.object.as_ref().map(|source| {
                    let now = now.and_then(|now| Some(&now.object.as_ref()?.current));
                    value(&source.target, now)
                }),
                "External" => metric.external.as_ref().map(|source| {
                    let now = now.and_then(|now| Some(&now.external.as_ref()?.current));
                    value(&source.target, now)
                }),
                _ => None,
            }
            .unwrap_or_else(|| "<unknown type>".to_owned())
        })
        .collect();
    let more = all.len().saturating_sub(2);
    let shown = all[..all.len() - more].join(", ");
    match (all.is_empty(), more) {
        (true, _) => NONE.to_owned(),
        (false, 0) => shown,
        (false, more) => format!("{shown} + {more} more..."),
    }
}

fn of_resource(name: &str, target: &MetricTarget, now: Option<&MetricValueStatus>) -> String {
    if let Some(wanted) = &target.average_value {
        let now = now.and_then(|now| now.average_value.as_ref());
        let now = now.map_or(UNKNOWN, |now| &now.0);
        return format!("{name}: {now}/{}", wanted.0);
    }
    let percent = |value: Option<i32>, absent: &str| {
        value.map_or_else(|| absent.to_owned(), |value| format!("{value}%"))
    };
    let now = percent(now.and_then(|now| now.average_utilization), UNKNOWN);
    let wanted = percent(target.average_utilization, "<auto>");
    format!("{name}: {now}/{wanted}")
}

fn value(target: &MetricTarget, now: Option<&MetricValueStatus>) -> String {
    let text = |value: Option<&crate::Quantity>| value.map_or(UNKNOWN, |value| &value.0).to_owned();
    match &target.average_value {
        Some(wanted) => {
            let now = text(now.and_then(|now| now.average_value.as_ref()));
            format!("{now}/{} (avg)", wanted.0)
        }
        None => {
            let now = text(now.and_then(|now| now.value.as_ref()));
            format!(
                "{now}/{}",
                target.value.as_ref().map_or("0", |wanted| &wanted.0)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scaler(more: serde_json::Value) -> HorizontalPodAutoscaler {
        let mut spec =
            json!({"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 3});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut scaler = HorizontalPodAutoscaler::from_json(document).unwrap();
        scaler.set_defaults();
        scaler
    }

    #[test]
    fn the_default_metric_is_the_use_of_cpu() {
        let scaler = scaler(json!({}));
        assert!(scaler.validate().is_empty(), "{}", scaler.validate());
        assert_eq!(
            scaler.cells(Timestamp::UNIX_EPOCH),
            [
                "a",
                "Deployment/d",
                "cpu: <unknown>/80%",
                "1",
                "3",
                "0",
                "<unknown>"
            ]
        );
    }

    #[test]
    fn replicas_and_metrics_are_checked() {
        for (more, refused) in [
            (
                json!({"minReplicas": 0}),
                "spec.minReplicas: Invalid value: 0",
            ),
            (
                json!({"minReplicas": 5}),
                "greater than or equal to `minReplicas`",
            ),
            (
                json!({"maxReplicas": 0}),
                "spec.maxReplicas: Invalid value: 0: must be greater than 0",
            ),
            (
                json!({"metrics": [{"type": "Pods"}]}),
                "spec.metrics[0].pods: Required value",
            ),
            (
                json!({"metrics": [{"type": "x"}]}),
                "spec.metrics[0].type: Unsupported value",
            ),
        ] {
            let errors = scaler(more).validate().to_string();
            assert!(errors.contains(refused), "{errors}");
        }
    }
}

//! Ingresses: the ways from outside to services by host and path.

mod validation;

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::{
    names,
    networking::{Ingress, IngressRule},
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, NONE, TableRow, always, created, first},
    validation::{ErrorList, FieldPath, Validate, metadata},
};

impl Object for Ingress {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "ingress";
    const SHORT_NAMES: &'static [&'static str] = &["ing"];

    json_conversions_through_values!();
}

impl FieldSelectable for Ingress {}

impl Validate for Ingress {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let spec = self.spec.clone().unwrap_or_default();
        validation::spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }
}

impl TableRow for Ingress {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("CLASS"),
        always("HOSTS"),
        always("ADDRESS"),
        always("PORTS"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = self.spec.clone().unwrap_or_default();
        let has_tls = spec.tls.iter().flatten().next().is_some();
        vec![
            self.name().into(),
            spec.ingress_class_name
                .clone()
                .unwrap_or_else(|| NONE.into()),
            hosts(spec.rules.as_deref().unwrap_or_default()),
            addresses(self),
            if has_tls { "80, 443" } else { "80" }.into(),
            created(self, now),
        ]
    }
}

impl Strategy for Ingress {
    const SERVICE: &'static str = "podplane.networking.v1.IngressService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        self.spec.get_or_insert_default();
    }

    separate_status!();

    generation_of!(spec);
}

/// The hosts of the first rules; `*` if none names one.
fn hosts(rules: &[IngressRule]) -> String {
    let named = rules
        .iter()
        .filter_map(|rule| rule.host.as_deref().filter(|host| !host.is_empty()));
    let named: Vec<_> = named.map(str::to_owned).collect();
    first(&named, 3)
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "*".into())
}

/// The addresses at which the ingress is reached, in order.
fn addresses(ingress: &Ingress) -> String {
    let status = ingress
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let points = status
        .iter()
        .flat_map(|status| status.ingress.iter().flatten());
    let all = points.filter_map(|point| {
        let mut named = [&point.ip, &point.hostname].into_iter().flatten();
        named.find(|text| !text.is_empty()).cloned()
    });
    let distinct: BTreeSet<_> = all.collect();
    distinct.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ingress(spec: serde_json::Value) -> Ingress {
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        Ingress::from_json(document).unwrap()
    }

    fn path(kind: &str, path: &str, backend: serde_json::Value) -> Ingress {
        let path = json!({"pathType": kind, "path": path, "backend": backend});
        ingress(json!({"rules": [{"host": "a.example.com", "http": {"paths": [path]}}]}))
    }

    #[test]
    fn paths_have_a_type_and_a_backend() {
        let service = json!({"service": {"name": "s", "port": {"number": 80}}});
        let good = path("Prefix", "/", service.clone());
        assert!(good.validate().is_empty(), "{}", good.validate());
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            ["a", "<none>", "a.example.com", "", "80", "<unknown>"]
        );
        assert!(
            path("ImplementationSpecific", "", service.clone())
                .validate()
                .is_empty()
        );
        let at = "spec.rules[0].http.paths[0]";
        for (wrong, refused) in [
            (
                path("Exact", "a", service.clone()),
                ".path: Invalid value: \"a\": must be an absolute path",
            ),
            (
                path("Prefix", "/a//b", service.clone()),
                ".path: Invalid value: \"/a//b\": must not contain \"//\"",
            ),
            (
                path("Regex", "/", service),
                ".pathType: Unsupported value: \"Regex\"",
            ),
            (
                path("Prefix", "/", json!({})),
                ".backend: Required value: service or resource is required",
            ),
            (
                path(
                    "Prefix",
                    "/",
                    json!({"service": {"name": "s", "port": {"name": "h", "number": 1}}}),
                ),
                ".backend.service.port: Invalid value: {\"name\":\"h\",\"number\":1}: cannot set both port name & port number",
            ),
        ] {
            let errors = wrong.validate().to_string();
            assert!(errors.contains(&format!("{at}{refused}")), "{errors}");
        }
        assert_eq!(
            ingress(json!({})).validate().to_string(),
            "spec: Invalid value: {}: either `defaultBackend` or `rules` must be specified"
        );
        let wildcard =
            json!({"rules": [{"host": "*.example.com"}, {"host": "10.0.0.1"}, {"host": "a.*"}]});
        assert_eq!(ingress(wildcard).validate().iter().count(), 2);
    }
}

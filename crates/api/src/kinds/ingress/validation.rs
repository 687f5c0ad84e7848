use std::net::IpAddr;

use serde_json::json;

use crate::{
    kinds::pod::{in_range, one_of},
    names,
    networking::{HTTPIngressPath, IngressBackend, IngressSpec},
    validation::{ErrorList, FieldPath, values},
};

const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];

pub(super) fn spec(path: &FieldPath, spec: &IngressSpec, errors: &mut ErrorList) {
    let rules = spec.rules.as_deref().unwrap_or_default();
    match &spec.default_backend {
        Some(backend) => self::backend(&path.child("defaultBackend"), backend, errors),
        None if rules.is_empty() => {
            let detail = "either `defaultBackend` or `rules` must be specified";
            errors.invalid(path, json!(spec), detail);
        }
        None => {}
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(index);
        if let Some(host) = rule.host.as_deref().filter(|host| !host.is_empty()) {
            self::host(&path.child("host"), host, errors);
        }
        if let Some(http) = &rule.http {
            let path = path.child("http").child("paths");
            if http.paths.is_empty() {
                errors.required(&path, "");
            }
            for (index, one) in http.paths.iter().enumerate() {
                http_path(&path.index(index), one, errors);
            }
        }
    }
    for (index, tls) in spec.tls.iter().flatten().enumerate() {
        let hosts = path.child("tls").index(index).child("hosts");
        for (index, host) in tls.hosts.iter().flatten().enumerate() {
            self::host(&hosts.index(index), host, errors);
        }
    }
    if let Some(class) = spec.ingress_class_name.as_deref() {
        let path = path.child("ingressClassName");
        errors.invalid_each(&path, class, names::dns1123_subdomain(class));
    }
}

/// Checks a name of a host, which may begin with a wildcard.
fn host(path: &FieldPath, host: &str, errors: &mut ErrorList) {
    if host.parse::<IpAddr>().is_ok() {
        return errors.invalid(path, host, "must be a DNS name, not an IP address");
    }
    let name = host.strip_prefix("*.").unwrap_or(host);
    errors.invalid_each(path, host, names::dns1123_subdomain(name));
}

fn http_path(path: &FieldPath, one: &HTTPIngressPath, errors: &mut ErrorList) {
    let kind = Some(one.path_type.as_str());
    one_of(&path.child("pathType"), kind, &PATH_TYPES, errors);
    let text = one.path.as_deref().unwrap_or_default();
    let field = path.child("path");
    let may_be_absent = one.path_type == "ImplementationSpecific" && text.is_empty();
    if !text.starts_with('/') && !may_be_absent {
        errors.invalid(&field, text, "must be an absolute path");
    }
    if matches!(one.path_type.as_str(), "Exact" | "Prefix") {
        for part in ["//", "/./", "/../", "%2f", "%2F"] {
            if text.contains(part) {
                errors.invalid(&field, text, &format!("must not contain {part:?}"));
            }
        }
        for end in ["/..", "/."] {
            if text.ends_with(end) {
                errors.invalid(&field, text, &format!("cannot end with '{end}'"));
            }
        }
    }
    backend(&path.child("backend"), &one.backend, errors);
}

fn backend(path: &FieldPath, backend: &IngressBackend, errors: &mut ErrorList) {
    match (&backend.service, &backend.resource) {
        (None, None) => errors.required(path, "service or resource is required"),
        (Some(_), Some(_)) => {
            let detail = "cannot set both resource and service backends";
            errors.invalid(path, json!(backend), detail);
        }
        (Some(service), None) => {
            let path = path.child("service");
            values::named(
                &path.child("name"),
                &service.name,
                names::dns1035_label,
                errors,
            );
            let port = service.port.clone().unwrap_or_default();
            let name = port.name.as_deref().filter(|name| !name.is_empty());
            let number = port.number.filter(|number| *number != 0);
            let path = path.child("port");
            match (name, number) {
                (Some(_), Some(_)) => {
                    errors.invalid(
                        &path,
                        json!(port),
                        "cannot set both port name & port number",
                    );
                }
                (Some(name), None) => {
                    errors.invalid_each(&path.child("name"), name, names::port_name(name));
                }
                (None, Some(number)) => in_range(&path.child("number"), number, errors),
                (None, None) => errors.required(&path, "port name or number is required"),
            }
        }
        (None, Some(resource)) => {
            let path = path.child("resource");
            let segment = names::path_segment;
            values::named(&path.child("kind"), &resource.kind, segment, errors);
            values::named(&path.child("name"), &resource.name, segment, errors);
        }
    }
}

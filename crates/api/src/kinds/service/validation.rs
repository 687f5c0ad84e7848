//! Validation of services (source: `ValidateService` of `pkg/apis/core/validation`). Addresses and
//! node ports are only checked for their form; that they are free is checked where they are given.

use std::{collections::BTreeSet, net::IpAddr};

use serde_json::json;

use crate::{
    IntOrString,
    core::{Service, ServicePort, ServiceSpec},
    kinds::{
        pod::{in_range, one_of},
        service::allocation::{is_external_name, is_headless, is_health_checked},
    },
    names,
    validation::{ErrorList, FieldPath, Validate, metadata},
};

const EXTERNAL_NAME: &str = "may not be set for ExternalName services";
const IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
/// A port that clouds must not expose to the Internet.
const KUBELET_PORT: i32 = 10250;
const AFFINITY_MAX_SECONDS: i32 = 86_400;

impl Validate for Service {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1035_label);
        let spec = self.spec.clone().unwrap_or_default();
        validate_spec(&FieldPath::new("spec"), &spec, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        if let (Some(new), Some(old)) = (&self.spec, &old.spec) {
            keeps_addresses(&FieldPath::new("spec"), new, old, &mut errors);
        }
        errors.append(self.validate());
        errors
    }
}

fn cluster_ips(spec: &ServiceSpec) -> &[String] {
    spec.cluster_ips.as_deref().unwrap_or_default()
}

/// Checks what may not change while the type has addresses: the first address and its family, the
/// second ones of both unless they are released, and the port for health checks.
fn keeps_addresses(path: &FieldPath, new: &ServiceSpec, old: &ServiceSpec, errors: &mut ErrorList) {
    if is_health_checked(new)
        && is_health_checked(old)
        && old.health_check_node_port.unwrap_or_default() != 0
        && new.health_check_node_port != old.health_check_node_port
    {
        let detail = "cannot change healthCheckNodePort on loadBalancer service with externalTrafficPolicy=Local during update";
        let value = new.health_check_node_port.unwrap_or_default();
        errors.invalid(&path.child("healthCheckNodePort"), value, detail);
    }
    if is_external_name(new) || is_external_name(old) {
        return;
    }
    let families = |spec: &ServiceSpec| spec.ip_families.clone().unwrap_or_default();
    let mut keeps = |field: &str, new: &[String], old: &[String], may_be_unset: bool| {
        let path = path.child(field);
        match (new.first(), old.first()) {
            (None, Some(_)) if !may_be_unset => {
                let detail = "primary clusterIP can not be unset";
                errors.invalid(&path.index(0), json!(new), detail);
            }
            (Some(one), Some(former)) if one != former => {
                errors.invalid(&path.index(0), json!(new), "may not change once set");
            }
            _ => {}
        }
        if let (Some(one), Some(former)) = (new.get(1), old.get(1))
            && one != former
        {
            errors.invalid(&path.index(1), json!(new), "may not change once set");
        }
    };
    keeps("clusterIPs", cluster_ips(new), cluster_ips(old), false);
    if is_headless(old) == is_headless(new) && !is_headless(new) {
        keeps("ipFamilies", &families(new), &families(old), true);
    }
}

fn validate_spec(path: &FieldPath, spec: &ServiceSpec, errors: &mut ErrorList) {
    let kind = spec.type_.as_deref().unwrap_or_default();
    let ports_path = path.child("ports");
    let all_ports = spec.ports.as_deref().unwrap_or_default();
    if all_ports.is_empty() && !is_headless(spec) && kind != "ExternalName" {
        errors.required(&ports_path, "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if is_headless(spec) => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.invalid(&path.child("clusterIPs").index(0), "None", &detail);
        }
        "ExternalName" => external_name(path, spec, errors),
        _ => {}
    }
    ports(&ports_path, kind, all_ports, errors);
    metadata::labels(&path.child("selector"), spec.selector.as_ref(), errors);
    affinity(path, spec, errors);
    addresses(path, spec, errors);
    let external = spec.external_ips.iter().flatten().enumerate();
    for (index, ip) in external.filter(|(_, ip)| ip.parse::<IpAddr>().is_err()) {
        errors.invalid(&path.child("externalIPs").index(index), ip.as_str(), IP);
    }
    one_of(
        &path.child("type"),
        Some(kind),
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        errors,
    );
    traffic(path, kind, spec, errors);
}

fn external_name(path: &FieldPath, spec: &ServiceSpec, errors: &mut ErrorList) {
    let set = [
        ("clusterIPs", !cluster_ips(spec).is_empty()),
        (
            "ipFamilies",
            spec.ip_families.iter().flatten().next().is_some(),
        ),
        ("ipFamilyPolicy", spec.ip_family_policy.is_some()),
    ];
    for (field, _) in set.iter().filter(|(_, is_set)| *is_set) {
        errors.forbidden(&path.child(field), EXTERNAL_NAME);
    }
    let path = path.child("externalName");
    let name = spec.external_name.as_deref().unwrap_or_default();
    match name.strip_suffix('.').unwrap_or(name) {
        "" => errors.required(&path, ""),
        name => errors.invalid_each(&path, name, names::dns1123_subdomain(name)),
    }
}

fn ports(path: &FieldPath, kind: &str, ports: &[ServicePort], errors: &mut ErrorList) {
    let mut seen = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        if kind == "LoadBalancer" && port.port == KUBELET_PORT {
            let detail = "may not expose port 10250 externally since it is used by kubelet";
            errors.invalid(&path, port.port, detail);
        }
        let name_path = path.child("name");
        match port.name.as_deref().unwrap_or_default() {
            "" if ports.len() > 1 => errors.required(&name_path, ""),
            "" => {}
            name => {
                errors.invalid_each(&name_path, name, names::dns1123_label(name));
                if !seen.insert(name) {
                    errors.duplicate(&name_path, name);
                }
            }
        }
        in_range(&path.child("port"), port.port, errors);
        let protocol = port.protocol.as_deref();
        one_of(
            &path.child("protocol"),
            protocol,
            &["SCTP", "TCP", "UDP"],
            errors,
        );
        let target_path = path.child("targetPort");
        match &port.target_port {
            Some(IntOrString::String(name)) => {
                errors.invalid_each(&target_path, name, names::port_name(name));
            }
            Some(IntOrString::Int(number)) => in_range(&target_path, *number, errors),
            None => {}
        }
        if let Some(protocol) = &port.app_protocol {
            let path = path.child("appProtocol");
            errors.invalid_each(&path, protocol, names::qualified_name(protocol));
        }
        if kind == "ClusterIP" && port.node_port.unwrap_or_default() != 0 {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.forbidden(&path.child("nodePort"), detail);
        }
    }
    let mut seen = BTreeSet::new();
    let mut seen_on_nodes = BTreeSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        let node_port = port.node_port.unwrap_or_default();
        if node_port != 0 && !seen_on_nodes.insert((&port.protocol, node_port)) {
            errors.duplicate(&path.child("nodePort"), node_port);
        }
        if !seen.insert((&port.protocol, port.port)) {
            let key = json!({"Name": "", "Protocol": port.protocol, "AppProtocol": null, "Port": port.port, "TargetPort": 0, "NodePort": 0});
            errors.duplicate(&path, key);
        }
    }
}

fn affinity(path: &FieldPath, spec: &ServiceSpec, errors: &mut ErrorList) {
    let affinity = spec.session_affinity.as_deref();
    one_of(
        &path.child("sessionAffinity"),
        affinity,
        &["ClientIP", "None"],
        errors,
    );
    let config = spec.session_affinity_config.as_ref();
    let seconds = config
        .and_then(|config| config.client_ip.as_ref())
        .and_then(|client| client.timeout_seconds);
    match (affinity, seconds) {
        (Some("ClientIP"), Some(seconds)) if !(1..=AFFINITY_MAX_SECONDS).contains(&seconds) => {
            let config = path.child("sessionAffinityConfig").child("clientIP");
            let detail = format!("must be greater than 0 and less than {AFFINITY_MAX_SECONDS}");
            errors.invalid(&config.child("timeoutSeconds"), seconds, &detail);
        }
        _ => {}
    }
}

fn addresses(path: &FieldPath, spec: &ServiceSpec, errors: &mut ErrorList) {
    let ips = cluster_ips(spec);
    let ips_path = path.child("clusterIPs");
    let one = spec.cluster_ip.as_deref().unwrap_or_default();
    match ips {
        [] if one.is_empty() => {}
        [] => errors.required(&ips_path, ""),
        [first, ..] if first != one => {
            let detail = "first value must match `clusterIP`";
            errors.invalid(&ips_path, json!(ips), detail);
        }
        _ => {}
    }
    for (index, ip) in ips.iter().enumerate() {
        if index == 0 && ip == "None" {
            if ips.len() > 1 {
                let detail = "'None' must be the first and only value";
                errors.invalid(&ips_path, json!(ips), detail);
            }
        } else if ip.parse::<IpAddr>().is_err() {
            errors.invalid(&ips_path.index(index), ip.as_str(), IP);
        }
    }
    if ips.len() > 2 {
        errors.invalid(&ips_path, json!(ips), "may only hold up to 2 values");
    }
    let parsed: Vec<_> = ips
        .iter()
        .filter_map(|ip| ip.parse::<IpAddr>().ok())
        .collect();
    if let [first, second] = parsed[..]
        && first.is_ipv4() == second.is_ipv4()
    {
        let detail = "may specify no more than one IP for each IP family";
        errors.invalid(&ips_path, json!(ips), detail);
    }
    let mut seen = BTreeSet::new();
    for (index, family) in spec.ip_families.iter().flatten().enumerate() {
        let path = path.child("ipFamilies").index(index);
        one_of(&path, Some(family), &["IPv4", "IPv6"], errors);
        if !seen.insert(family) {
            errors.duplicate(&path, family.as_str());
        }
    }
    if let Some(policy) = &spec.ip_family_policy {
        let policies = ["SingleStack", "PreferDualStack", "RequireDualStack"];
        one_of(
            &path.child("ipFamilyPolicy"),
            Some(policy),
            &policies,
            errors,
        );
    }
}

fn traffic(path: &FieldPath, kind: &str, spec: &ServiceSpec, errors: &mut ErrorList) {
    let external = spec.external_ips.iter().flatten().next().is_some();
    let accessible = matches!(kind, "LoadBalancer" | "NodePort") || kind == "ClusterIP" && external;
    let outside_path = path.child("externalTrafficPolicy");
    match spec.external_traffic_policy.as_deref() {
        None | Some("") if accessible => errors.required(&outside_path, ""),
        None | Some("") => {}
        Some(policy) if !accessible => errors.invalid(
            &outside_path,
            policy,
            "may only be set for externally-accessible services",
        ),
        policy => one_of(&outside_path, policy, &["Cluster", "Local"], errors),
    }
    let health = spec.health_check_node_port.unwrap_or_default();
    if health != 0 && !is_health_checked(spec) {
        let detail =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        errors.invalid(&path.child("healthCheckNodePort"), health, detail);
    }
    let inside_path = path.child("internalTrafficPolicy");
    match spec.internal_traffic_policy.as_deref() {
        None if matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort") => {
            errors.required(&inside_path, "");
        }
        None => {}
        policy => one_of(&inside_path, policy, &["Cluster", "Local"], errors),
    }
}

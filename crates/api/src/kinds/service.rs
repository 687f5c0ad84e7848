//! Services are stored and served; nothing here forwards to them. The API server gives them
//! addresses and node ports ([`allocation`]) if it has a range of addresses. Without one a service
//! keeps the `clusterIP` that it was created with, `None` included, and one created without has
//! none.

pub mod allocation;
mod table;
#[cfg(test)]
mod tests;
mod validation;

use std::net::Ipv6Addr;

use crate::{
    IntOrString,
    core::{LoadBalancerStatus, Service, ServiceSpec, ServiceStatus},
    object::{Object, Scope, json_conversions},
    selector::{FieldSelectable, SelectableField, field::spec},
    strategy::{Strategy, Subresource},
};

/// The time for which a client stays with the same pod (source:
/// `DefaultClientIPServiceAffinitySeconds`).
const AFFINITY_SECONDS: i32 = 10_800;

impl Object for Service {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "service";
    const SHORT_NAMES: &'static [&'static str] = &["svc"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions!();
}

impl FieldSelectable for Service {
    const FIELDS: &'static [SelectableField<Self>] = &[
        ("spec.clusterIP", |service| spec!(service, cluster_ip)),
        ("spec.type", |service| spec!(service, type_)),
    ];
}

impl Strategy for Service {
    const SERVICE: &'static str = "podplane.core.v1.ServiceService";
    const RETURNS_DELETED: bool = true;
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];
    const CREATE_ON_UPDATE: bool = true;

    fn set_defaults(&mut self) {
        set_defaults(self.spec.get_or_insert_default());
    }

    fn prepare_for_create(&mut self) {
        self.status = Some(ServiceStatus {
            load_balancer: Some(LoadBalancerStatus::default()),
            ..ServiceStatus::default()
        });
        allocation::complete_addresses(self.spec.get_or_insert_default());
    }

    fn prepare_for_update(&mut self, old: &Self) {
        self.status.clone_from(&old.status);
        let old = old.spec.clone().unwrap_or_default();
        let spec = self.spec.get_or_insert_default();
        keep_addresses(spec, &old);
        allocation::keep_node_ports(spec, &old);
        allocation::drop_fields_of_type(spec, &old);
    }

    fn set_status(&mut self, update: &Self) {
        self.status.clone_from(&update.status);
    }
}

/// As Kubernetes' `SetDefaults_Service`.
fn set_defaults(spec: &mut ServiceSpec) {
    let word = |field: &mut Option<String>, value: &str| {
        if not_empty(field.as_ref()).is_none() {
            *field = Some(value.to_owned());
        }
    };
    word(&mut spec.session_affinity, "None");
    match spec.session_affinity.as_deref() {
        Some("None") => spec.session_affinity_config = None,
        Some("ClientIP") => {
            let config = spec.session_affinity_config.get_or_insert_default();
            let client = config.client_ip.get_or_insert_default();
            client.timeout_seconds.get_or_insert(AFFINITY_SECONDS);
        }
        _ => {}
    }
    word(&mut spec.type_, "ClusterIP");
    for port in spec.ports.iter_mut().flatten() {
        word(&mut port.protocol, "TCP");
        let target = port.target_port.take().filter(|target| match target {
            IntOrString::Int(number) => *number != 0,
            IntOrString::String(name) => !name.is_empty(),
        });
        port.target_port = Some(target.unwrap_or(IntOrString::Int(port.port)));
    }
    let kind = spec.type_.clone().unwrap_or_default();
    let external = spec.external_ips.iter().flatten().next().is_some();
    let balanced = kind == "LoadBalancer";
    if balanced || kind == "NodePort" || (kind == "ClusterIP" && external) {
        word(&mut spec.external_traffic_policy, "Cluster");
    }
    if matches!(kind.as_str(), "ClusterIP" | "NodePort" | "LoadBalancer") {
        word(&mut spec.internal_traffic_policy, "Cluster");
    }
    if balanced {
        spec.allocate_load_balancer_node_ports.get_or_insert(true);
    }
}

/// Sets the address families of the service: those of its addresses, else IPv4 and the family that
/// the policy asks for.
fn set_families(spec: &mut ServiceSpec) {
    if spec.type_.as_deref() == Some("ExternalName") {
        return;
    }
    let policy = spec.ip_family_policy.get_or_insert_with(|| {
        let two = spec.cluster_ips.iter().flatten().count() > 1
            || spec.ip_families.iter().flatten().count() > 1;
        if two {
            "RequireDualStack"
        } else {
            "SingleStack"
        }
        .into()
    });
    if !is_absent(spec.ip_families.as_ref()) {
        return;
    }
    let addresses = spec.cluster_ips.iter().flatten().filter(|ip| *ip != "None");
    let mut families: Vec<_> = addresses
        .map(|ip| match ip.parse::<Ipv6Addr>() {
            Ok(_) => "IPv6",
            Err(_) => "IPv4",
        })
        .collect();
    if families.is_empty() {
        families.push("IPv4");
    }
    if policy == "RequireDualStack" && families.len() == 1 {
        families.push(if families == ["IPv4"] { "IPv6" } else { "IPv4" });
    }
    spec.ip_families = Some(families.into_iter().map(str::to_owned).collect());
}

/// Makes `clusterIP` and `clusterIPs` agree: if a client changed or left out one of them, the other
/// follows (source: `normalizeClusterIPs`).
fn keep_addresses(spec: &mut ServiceSpec, old: &ServiceSpec) {
    let allocated = |spec: &ServiceSpec| spec.type_.as_deref() != Some("ExternalName");
    if allocated(spec) && allocated(old) && not_empty(spec.cluster_ip.as_ref()).is_none() {
        let same = is_absent(spec.cluster_ips.as_ref()) || spec.cluster_ips == old.cluster_ips;
        if same {
            spec.cluster_ip.clone_from(&old.cluster_ip);
            spec.cluster_ips.clone_from(&old.cluster_ips);
        }
    }
    match (
        not_empty(spec.cluster_ip.as_ref()),
        not_empty(old.cluster_ip.as_ref()),
    ) {
        (new, old_ip) if new == old_ip => {
            if is_absent(spec.cluster_ips.as_ref()) {
                spec.cluster_ips.clone_from(&old.cluster_ips);
            }
        }
        _ if spec.cluster_ips != old.cluster_ips && !is_absent(spec.cluster_ips.as_ref()) => {}
        (Some(new), _) => spec.cluster_ips = Some(vec![new.to_owned()]),
        (None, _) => spec.cluster_ips = None,
    }
}

fn not_empty(field: Option<&String>) -> Option<&str> {
    field.map(String::as_str).filter(|text| !text.is_empty())
}

fn is_absent(list: Option<&Vec<String>>) -> bool {
    list.is_none_or(Vec::is_empty)
}

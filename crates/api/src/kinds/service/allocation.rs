//! The allocation of a service: its address families, addresses and node ports (source:
//! `pkg/registry/core/service/storage`). All of it is a function of the service and its former
//! state; the API server chooses the addresses and ports, and reserves them.

use std::{collections::BTreeSet, net::IpAddr};

use podplane_ipam::Family;
use serde_json::json;

use super::{is_absent, not_empty, set_families};
use crate::{
    core::{Service, ServicePort, ServiceSpec},
    validation::{ErrorList, FieldPath},
};

const SINGLE: &str = "SingleStack";
const PREFER: &str = "PreferDualStack";
const REQUIRE: &str = "RequireDualStack";

/// The numbers of a service: no other service may have any of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceHoldings {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// The ports on nodes, that of health checks included.
    pub node_ports: BTreeSet<u16>,
}

impl ServiceHoldings {
    /// The holdings of a service.
    pub fn of(service: &Service) -> Self {
        service.spec.as_ref().map_or_else(Self::default, |spec| {
            let health = spec.health_check_node_port;
            let ports = spec.ports.iter().flatten().map(|port| port.node_port);
            let ports = ports.chain([health]).flatten();
            let ports = ports.filter(|_| has_node_ports(spec));
            Self {
                addresses: addresses(spec).collect(),
                node_ports: ports
                    .filter_map(|port| u16::try_from(port).ok())
                    .filter(|port| *port != 0)
                    .collect(),
            }
        })
    }
}

/// The addresses of the service, without `None`.
fn addresses(spec: &ServiceSpec) -> impl Iterator<Item = IpAddr> {
    let has_addresses = !is_external_name(spec);
    let all = spec.cluster_ips.iter().flatten();
    all.filter(move |_| has_addresses)
        .filter_map(|ip| ip.parse().ok())
}

/// The families of the addresses that the service still lacks, each with its place in
/// `spec.clusterIPs`.
pub fn missing_addresses(service: &Service) -> Vec<(usize, Family)> {
    let Some(spec) = &service.spec else {
        return Vec::new();
    };
    if is_external_name(spec) || is_headless(spec) {
        return Vec::new();
    }
    let known = spec.cluster_ips.as_deref().unwrap_or_default().len();
    let families = spec.ip_families.iter().flatten().enumerate();
    let missing = families.skip(known);
    missing
        .filter_map(|(place, family)| Some((place, parse_family(family)?)))
        .collect()
}

/// True if a service of a cluster with addresses lacks families, addresses or node ports.
pub fn is_incomplete(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let lacks_families =
        spec.is_some_and(|spec| !is_external_name(spec) && is_absent(spec.ip_families.as_ref()));
    lacks_families || !missing_addresses(service).is_empty() || lacks_node_ports(service)
}

/// The node ports that the service names itself, with their places.
pub fn named_node_ports(service: &Service) -> Vec<(FieldPath, i32)> {
    let Some(spec) = service.spec.as_ref().filter(|spec| has_node_ports(spec)) else {
        return Vec::new();
    };
    let path = FieldPath::new("spec");
    let ports = spec
        .ports
        .iter()
        .flatten()
        .enumerate()
        .map(|(index, port)| {
            let path = path.child("ports").index(index).child("nodePort");
            (path, port.node_port)
        });
    let health = (
        path.child("healthCheckNodePort"),
        spec.health_check_node_port,
    );
    let all = ports.chain([health]);
    all.filter_map(|(path, port)| Some((path, port.filter(|port| *port != 0)?)))
        .collect()
}

/// Gives the service its next address. The first is `spec.clusterIP`, too.
pub fn add_address(service: &mut Service, address: IpAddr) {
    let spec = service.spec.get_or_insert_default();
    let all = spec.cluster_ips.get_or_insert_default();
    if all.is_empty() {
        spec.cluster_ip = Some(address.to_string());
    }
    all.push(address.to_string());
}

/// True if the service is to have node ports that it does not have yet.
pub fn lacks_node_ports(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        let lacks = |port: Option<i32>| port.unwrap_or_default() == 0;
        let mut ports = spec.ports.iter().flatten();
        allocates_node_ports(spec) && ports.any(|port| lacks(port.node_port))
            || is_health_checked(spec) && lacks(spec.health_check_node_port)
    })
}

/// Gives the service the node ports that it lacks, from `next`. Ports of one number and several
/// protocols share a node port.
///
/// # Errors
///
/// Those of `next`.
pub fn add_node_ports<E>(
    service: &mut Service,
    mut next: impl FnMut() -> Result<u16, E>,
) -> Result<(), E> {
    let Some(spec) = &mut service.spec else {
        return Ok(());
    };
    if has_node_ports(spec) {
        let mut ports = spec.ports.take().unwrap_or_default();
        for index in 0..ports.len() {
            let lacks = ports[index].node_port.unwrap_or_default() == 0;
            if lacks && allocates_node_ports(spec) {
                let same = ports.iter().find_map(|other| {
                    let same = other.port == ports[index].port;
                    other.node_port.filter(|port| same && *port != 0)
                });
                let chosen = match same {
                    Some(port) => Ok(port),
                    None => next().map(i32::from),
                };
                match chosen {
                    Ok(port) => ports[index].node_port = Some(port),
                    Err(error) => {
                        spec.ports = Some(ports);
                        return Err(error);
                    }
                }
            }
        }
        spec.ports = Some(ports);
    }
    if is_health_checked(spec) && spec.health_check_node_port.unwrap_or_default() == 0 {
        spec.health_check_node_port = Some(i32::from(next()?));
    }
    Ok(())
}

/// Sets the address families of a service without ranges of addresses to take them from.
pub fn set_any_families(service: &mut Service) {
    set_families(service.spec.get_or_insert_default());
}

/// Sets the address families of a service in a cluster that has these, the default first (source:
/// `initIPFamilyFields`).
///
/// # Errors
///
/// The reasons why the service cannot have what it asks for.
pub fn init_families(
    service: &mut Service,
    old: Option<&Service>,
    families: &[Family],
) -> Result<(), ErrorList> {
    let default_spec = ServiceSpec::default();
    let old = old.map(|old| old.spec.as_ref().unwrap_or(&default_spec));
    let has_selector = |spec: &ServiceSpec| spec.selector.iter().flatten().next().is_some();
    let spec = service.spec.get_or_insert_default();
    if is_external_name(spec) || old.is_some_and(|old| stays_as_preferred(spec, old)) {
        return Ok(());
    }
    let is_open = is_headless(spec) && !has_selector(spec);
    if spec.ip_family_policy.is_none() {
        let former = old.and_then(|old| old.ip_family_policy.clone());
        let policy = former.unwrap_or_else(|| match is_open {
            true => REQUIRE.into(),
            false => SINGLE.into(),
        });
        spec.ip_family_policy = Some(policy);
    }
    let policy = spec.ip_family_policy.clone().unwrap_or_default();
    let path = FieldPath::new("spec");
    let policy_path = path.child("ipFamilyPolicy");
    let mut errors = ErrorList::new();
    match old {
        Some(old) if policy == SINGLE => {
            // The first address stays.
            if spec.cluster_ips == old.cluster_ips {
                spec.cluster_ips.iter_mut().for_each(|ips| ips.truncate(1));
            }
            if spec.ip_families == old.ip_families {
                spec.ip_families.iter_mut().for_each(|all| all.truncate(1));
            }
        }
        Some(old) => {
            let reduced = |new: &Option<Vec<String>>, old: &Option<Vec<String>>| {
                let (new, old) = (length(new.as_ref()), length(old.as_ref()));
                new != 0 && new < old
            };
            let mut release = |what: &str| {
                let detail = format!("must be 'SingleStack' to release the secondary {what}");
                errors.invalid(&policy_path, policy.as_str(), &detail);
            };
            if reduced(&spec.cluster_ips, &old.cluster_ips) {
                release("cluster IP");
            }
            if reduced(&spec.ip_families, &old.ip_families) {
                release("IP family");
            }
        }
        None => {}
    }
    if policy == SINGLE {
        let mut several = |what: &str| {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            errors.invalid(&policy_path, policy.as_str(), &detail);
        };
        if length(spec.cluster_ips.as_ref()) == 2 {
            several("cluster IPs");
        }
        if length(spec.ip_families.as_ref()) == 2 {
            several("IP families");
        }
    }
    families_of_addresses(&path, spec, families, &mut errors);
    refused(errors)?;
    let default = families.first().copied().unwrap_or(Family::V4);
    let chosen = spec.ip_families.get_or_insert_default();
    if !is_open {
        let mut errors = ErrorList::new();
        if policy == REQUIRE && families.len() < 2 {
            let detail = "this cluster is not configured for dual-stack services";
            errors.invalid(&policy_path, policy.as_str(), detail);
        }
        for (index, family) in chosen.iter().enumerate() {
            if !parse_family(family).is_some_and(|family| families.contains(&family)) {
                let path = path.child("ipFamilies").index(index);
                errors.invalid(&path, family.as_str(), "not configured on this cluster");
            }
        }
        refused(errors)?;
    }
    if chosen.is_empty() {
        chosen.push(default.to_string());
    }
    let may_have_two = is_open || families.len() == 2;
    if let [only] = chosen.as_slice()
        && policy != SINGLE
        && may_have_two
    {
        let other = match parse_family(only) {
            Some(Family::V4) => Family::V6,
            _ => Family::V4,
        };
        chosen.push(other.to_string());
    }
    Ok(())
}

fn refused(errors: ErrorList) -> Result<(), ErrorList> {
    match errors.is_empty() {
        true => Ok(()),
        false => Err(errors),
    }
}

/// Adds the families of the given addresses that are not named. An address of another family than
/// the one named for it is an error.
fn families_of_addresses(
    path: &FieldPath,
    spec: &mut ServiceSpec,
    families: &[Family],
    errors: &mut ErrorList,
) {
    if is_headless(spec) {
        return;
    }
    let ips = spec.cluster_ips.clone().unwrap_or_default();
    let named = spec.ip_families.get_or_insert_default();
    for (index, ip) in ips.iter().enumerate() {
        let Ok(address) = ip.parse::<IpAddr>() else {
            continue;
        };
        let family = Family::of_address(address);
        let path = path.child("clusterIPs").index(index);
        match named.get(index) {
            Some(wanted) if *wanted != family.to_string() => {
                let detail =
                    format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`");
                errors.invalid(&path, ip.as_str(), &detail);
            }
            Some(_) => {}
            None if families.contains(&family) => named.push(family.to_string()),
            None => {
                let detail = format!("{family} is not configured on this cluster");
                errors.invalid(&path, json!(ips), &detail);
            }
        }
    }
    if named.is_empty() {
        spec.ip_families = None;
    }
}

/// True if nothing about the families of a service changes that prefers two of them: it is not
/// changed because the cluster has another number of families now.
fn stays_as_preferred(new: &ServiceSpec, old: &ServiceSpec) -> bool {
    let prefers = |policy: &Option<String>| policy.as_deref() == Some(PREFER);
    new.type_ == old.type_
        && prefers(&new.ip_family_policy)
        && (old.ip_family_policy.is_none() || prefers(&old.ip_family_policy))
        && length(new.cluster_ips.as_ref()) != 0
        && new.cluster_ips == old.cluster_ips
        && new.ip_families == old.ip_families
}

fn length(list: Option<&Vec<String>>) -> usize {
    list.map_or(0, Vec::len)
}

fn parse_family(text: &str) -> Option<Family> {
    [Family::V4, Family::V6]
        .into_iter()
        .find(|family| family.to_string() == text)
}

pub(super) fn is_external_name(spec: &ServiceSpec) -> bool {
    spec.type_.as_deref() == Some("ExternalName")
}

pub(super) fn is_headless(spec: &ServiceSpec) -> bool {
    let ips = spec.cluster_ips.as_deref().unwrap_or_default();
    ips.first().is_some_and(|first| first == "None")
}

fn has_node_ports(spec: &ServiceSpec) -> bool {
    matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"))
}

/// True if the service gets a node port for each port that has none.
fn allocates_node_ports(spec: &ServiceSpec) -> bool {
    match spec.type_.as_deref() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec.allocate_load_balancer_node_ports != Some(false),
        _ => false,
    }
}

/// True if the service has a port on nodes for health checks.
pub(super) fn is_health_checked(spec: &ServiceSpec) -> bool {
    spec.type_.as_deref() == Some("LoadBalancer")
        && spec.external_traffic_policy.as_deref() == Some("Local")
}

/// Restores node ports that an update leaves out (source: `patchAllocatedValues`).
pub(super) fn keep_node_ports(new: &mut ServiceSpec, old: &ServiceSpec) {
    fn used(ports: Option<&Vec<ServicePort>>) -> BTreeSet<i32> {
        let ports = ports
            .into_iter()
            .flatten()
            .filter_map(|port| port.node_port);
        ports.filter(|port| *port != 0).collect()
    }
    if allocates_node_ports(new) && allocates_node_ports(old) {
        let mut taken = &used(new.ports.as_ref()) & &used(old.ports.as_ref());
        for port in new.ports.iter_mut().flatten() {
            if port.node_port.unwrap_or_default() != 0 {
                continue;
            }
            let mut former = old.ports.iter().flatten();
            let same = former.rfind(|one| one.name.as_deref() == port.name.as_deref());
            let node_port = same.and_then(|one| one.node_port).unwrap_or_default();
            if node_port != 0 && taken.insert(node_port) {
                port.node_port = Some(node_port);
            }
        }
    }
    if is_health_checked(new)
        && is_health_checked(old)
        && new.health_check_node_port.unwrap_or_default() == 0
    {
        new.health_check_node_port = old.health_check_node_port;
    }
}

/// Clears the fields that only the former type has, if the update left them as they were (source:
/// `dropTypeDependentFields`).
pub(super) fn drop_fields_of_type(new: &mut ServiceSpec, old: &ServiceSpec) {
    if !is_external_name(old) && is_external_name(new) {
        if new.cluster_ip == old.cluster_ip && new.cluster_ips == old.cluster_ips {
            new.cluster_ip = None;
            new.cluster_ips = None;
        }
        clear_if_same(&mut new.ip_families, old.ip_families.as_ref());
        clear_if_same(&mut new.ip_family_policy, old.ip_family_policy.as_ref());
    }
    if allocates_node_ports(old) && !allocates_node_ports(new) {
        let mut former = old.ports.iter().flatten();
        for port in new.ports.iter_mut().flatten() {
            clear_if_same(
                &mut port.node_port,
                former.next().and_then(|port| port.node_port.as_ref()),
            );
        }
    }
    if is_health_checked(old) && !is_health_checked(new) {
        clear_if_same(
            &mut new.health_check_node_port,
            old.health_check_node_port.as_ref(),
        );
    }
    let is_balanced = |spec: &ServiceSpec| spec.type_.as_deref() == Some("LoadBalancer");
    if is_balanced(old) && !is_balanced(new) {
        clear_if_same(
            &mut new.allocate_load_balancer_node_ports,
            old.allocate_load_balancer_node_ports.as_ref(),
        );
        clear_if_same(
            &mut new.load_balancer_class,
            old.load_balancer_class.as_ref(),
        );
    }
    let is_reached = |spec: &ServiceSpec| {
        let external = spec.external_ips.iter().flatten().next().is_some();
        has_node_ports(spec) || (spec.type_.as_deref() == Some("ClusterIP") && external)
    };
    if is_reached(old) && !is_reached(new) {
        clear_if_same(
            &mut new.external_traffic_policy,
            old.external_traffic_policy.as_ref(),
        );
    }
}

fn clear_if_same<T: PartialEq>(new: &mut Option<T>, old: Option<&T>) {
    if new.as_ref() == old {
        *new = None;
    }
}

/// Makes `spec.clusterIPs` of a new service agree with `spec.clusterIP`.
pub(super) fn complete_addresses(spec: &mut ServiceSpec) {
    if is_absent(spec.cluster_ips.as_ref())
        && let Some(ip) = not_empty(spec.cluster_ip.as_ref())
    {
        spec.cluster_ips = Some(vec![ip.to_owned()]);
    }
}

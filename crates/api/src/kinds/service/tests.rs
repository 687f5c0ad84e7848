use std::convert::Infallible;

use serde_json::{Value, json};

use super::allocation::*;
use crate::{
    core::Service,
    object::Object as _,
    strategy::Strategy as _,
    validation::{ErrorList, Validate as _},
};
use podplane_ipam::Family::{self, V4, V6};

fn service(spec: Value) -> Service {
    let mut spec = spec;
    if spec["ports"].is_null() && spec["type"] != "ExternalName" {
        spec["ports"] = json!([{"port": 80}]);
    }
    let document = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": spec});
    let mut service = Service::from_json(document).unwrap();
    service.set_defaults();
    service
}

fn created(spec: Value) -> Service {
    let mut service = service(spec);
    service.prepare_for_create();
    service
}

fn updated(spec: Value, old: &Service) -> Service {
    let mut service = service(spec);
    service.prepare_for_update(old);
    service
}

/// The families and the policy of a service, or the messages of its refusal.
fn families(mut service: Service, old: Option<&Service>, cluster: &[Family]) -> String {
    match init_families(&mut service, old, cluster) {
        Ok(()) => {
            let spec = service.spec.unwrap();
            let all = spec.ip_families.unwrap_or_default().join(",");
            let policy = spec.ip_family_policy.unwrap_or_default();
            format!("{all} {policy}")
        }
        Err(errors) => errors.to_string(),
    }
}

fn text(errors: &ErrorList) -> String {
    match errors.is_empty() {
        true => String::new(),
        false => errors.to_string(),
    }
}

#[test]
fn families_of_new_services() {
    let both = [V4, V6];
    for (cluster, spec, want) in [
        (&[V4][..], json!({}), "IPv4 SingleStack"),
        (&[V6], json!({}), "IPv6 SingleStack"),
        (&both, json!({}), "IPv4 SingleStack"),
        (&[V6, V4], json!({}), "IPv6 SingleStack"),
        (&both, json!({"ipFamilies": ["IPv6"]}), "IPv6 SingleStack"),
        (
            &[V4],
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "IPv4 PreferDualStack",
        ),
        (
            &both,
            json!({"ipFamilyPolicy": "PreferDualStack"}),
            "IPv4,IPv6 PreferDualStack",
        ),
        (
            &both,
            json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv6"]}),
            "IPv6,IPv4 RequireDualStack",
        ),
        (
            &[V4],
            json!({"ipFamilyPolicy": "RequireDualStack"}),
            "this cluster is not configured for dual-stack services",
        ),
        (
            &[V4],
            json!({"ipFamilies": ["IPv6"]}),
            "not configured on this cluster",
        ),
        (&both, json!({"clusterIP": "fd00::5"}), "IPv6 SingleStack"),
        (
            &[V4],
            json!({"clusterIP": "fd00::5"}),
            "IPv6 is not configured on this cluster",
        ),
        (
            &both,
            json!({"clusterIP": "fd00::5", "ipFamilies": ["IPv4"]}),
            "expected an IPv4 value as indicated by `ipFamilies[0]`",
        ),
        (
            &both,
            json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"]}),
            "when multiple cluster IPs are specified",
        ),
        (
            &both,
            json!({"ipFamilies": ["IPv4", "IPv6"]}),
            "when multiple IP families are specified",
        ),
        (
            &both,
            json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"], "ipFamilyPolicy": "PreferDualStack"}),
            "IPv4,IPv6 PreferDualStack",
        ),
        // Headless: without a selector in both families, whatever the cluster has.
        (
            &[V4],
            json!({"clusterIP": "None"}),
            "IPv4,IPv6 RequireDualStack",
        ),
        (
            &[V4],
            json!({"clusterIP": "None", "selector": {"a": "b"}}),
            "IPv4 SingleStack",
        ),
        (
            &[V4],
            json!({"type": "ExternalName", "externalName": "a.b"}),
            " ",
        ),
    ] {
        let found = families(created(spec.clone()), None, cluster);
        let is_refusal = found.starts_with("spec.");
        let fits = found == want || is_refusal && found.ends_with(want);
        assert!(fits, "{spec}: {found}, not {want}");
    }
}

#[test]
fn families_follow_a_changed_policy() {
    let both = [V4, V6];
    let single = json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"});
    let dual = json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"});
    let change = |from: &Value, changes: Value, cluster: &[Family]| {
        let old = created(from.clone());
        let mut spec = from.clone();
        for (key, value) in changes.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut new = updated(spec, &old);
        assert_eq!(text(&new.validate_update(&old)), "", "{changes}");
        let families = families(new.clone(), Some(&old), cluster);
        // An error leaves the service as it is.
        _ = init_families(&mut new, Some(&old), cluster);
        let ips = new.spec.as_ref().unwrap().cluster_ips.clone().unwrap();
        (families, ips.len(), missing_addresses(&new))
    };
    let require = json!({"ipFamilyPolicy": "RequireDualStack"});
    let wanted = ("IPv4,IPv6 RequireDualStack".to_owned(), 1, vec![(1, V6)]);
    assert_eq!(change(&single, require, &both), wanted);
    // The cluster has become dual-stack: nothing changes without a word.
    let alone = json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "PreferDualStack"});
    let wanted = ("IPv4 PreferDualStack".to_owned(), 1, vec![]);
    assert_eq!(change(&alone, json!({}), &both), wanted);
    let wanted = ("IPv4,IPv6 PreferDualStack".to_owned(), 2, vec![]);
    assert_eq!(change(&dual, json!({}), &[V4]), wanted);
    let wanted = ("IPv4 SingleStack".to_owned(), 1, vec![]);
    let release = json!({"ipFamilyPolicy": "SingleStack"});
    assert_eq!(change(&dual, release, &both), wanted);
    let reduced = change(&dual, json!({"clusterIPs": ["10.0.0.5"]}), &both).0;
    assert!(
        reduced.contains("must be 'SingleStack' to release the secondary cluster IP"),
        "{reduced}"
    );
}

#[test]
fn addresses_are_kept() {
    let dual = created(
        json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack"}),
    );
    for (spec, want) in [
        (json!({}), ""),
        (json!({"clusterIP": "10.0.0.6"}), "may not change once set"),
        (
            json!({"clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::6"]}),
            "may not change once set",
        ),
        (json!({"clusterIP": "None"}), "may not change once set"),
        (
            json!({"ipFamilies": ["IPv6", "IPv4"]}),
            "may not change once set",
        ),
        (json!({"type": "ExternalName", "externalName": "a.b"}), ""),
    ] {
        let new = updated(spec.clone(), &dual);
        let errors = text(&new.validate_update(&dual));
        assert!(
            errors.contains(want) && errors.is_empty() == want.is_empty(),
            "{spec}: {errors}"
        );
    }
}

#[test]
fn a_service_holds_addresses_and_ports_by_its_type() {
    let full = json!({
        "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001,
        "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5", "fd00::5"],
        "ports": [{"name": "a", "port": 1, "nodePort": 30002}, {"name": "b", "port": 2, "nodePort": 30003}],
    });
    let held = ServiceHoldings::of(&created(full.clone()));
    let text = |held: &ServiceHoldings| format!("{:?} {:?}", held.addresses, held.node_ports);
    assert_eq!(text(&held), "{10.0.0.5, fd00::5} {30001, 30002, 30003}");
    let old = created(full.clone());
    // A type without them gives them back, if the update leaves them as they are.
    for (name, want) in [
        ("NodePort", "{10.0.0.5, fd00::5} {30002, 30003}"),
        ("ClusterIP", "{10.0.0.5, fd00::5} {}"),
    ] {
        let mut spec = full.clone();
        spec["type"] = json!(name);
        let new = updated(spec, &old);
        assert_eq!(text(&ServiceHoldings::of(&new)), want, "{name}");
    }
    let mut spec = full.clone();
    spec["type"] = json!("ExternalName");
    spec["externalName"] = json!("a.b");
    let new = updated(spec, &old);
    assert_eq!(text(&ServiceHoldings::of(&new)), "{} {}");
    let headless = created(json!({"clusterIP": "None"}));
    assert_eq!(text(&ServiceHoldings::of(&headless)), "{} {}");
    assert_eq!(missing_addresses(&headless), []);
}

#[test]
fn node_ports_are_added_where_they_lack() {
    let add = |mut service: Service| {
        let mut next = 100;
        let added = add_node_ports(&mut service, || {
            next += 1;
            Ok::<_, Infallible>(next)
        });
        added.unwrap();
        let spec = service.spec.unwrap();
        let ports = spec.ports.into_iter().flatten();
        let ports: Vec<_> = ports
            .map(|port| port.node_port.unwrap_or_default())
            .collect();
        (ports, spec.health_check_node_port)
    };
    let dns = json!([
        {"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53},
        {"name": "http", "port": 80, "nodePort": 30080},
    ]);
    for (spec, want) in [
        (
            json!({"type": "NodePort", "ports": dns}),
            (vec![101, 101, 30080], None),
        ),
        (json!({"type": "LoadBalancer"}), (vec![101], None)),
        (
            json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "externalTrafficPolicy": "Local"}),
            (vec![0], Some(101)),
        ),
        (json!({}), (vec![0], None)),
    ] {
        assert_eq!(add(created(spec.clone())), want, "{spec}");
    }
    // An update that leaves them out keeps them, by the names of the ports.
    let old = created(json!({"type": "NodePort", "ports": [
        {"name": "a", "port": 1, "nodePort": 30001}, {"name": "b", "port": 2, "nodePort": 30002},
    ]}));
    let new = updated(
        json!({"type": "NodePort", "ports": [
            {"name": "b", "port": 2}, {"name": "c", "port": 3}, {"name": "a", "port": 1, "nodePort": 30002},
        ]}),
        &old,
    );
    assert_eq!(add(new).0, [101, 102, 30002]);
}

#[test]
fn a_health_check_needs_its_policy() {
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001});
    let old = created(local.clone());
    assert_eq!(text(&old.validate()), "");
    let mut changed = local.clone();
    changed["healthCheckNodePort"] = json!(30002);
    let errors = updated(changed, &old).validate_update(&old).to_string();
    assert!(
        errors.contains("cannot change healthCheckNodePort"),
        "{errors}"
    );
    let cluster = created(json!({"type": "NodePort", "healthCheckNodePort": 30001}));
    let errors = cluster.validate().to_string();
    assert!(
        errors.contains("may only be set when `type` is 'LoadBalancer'"),
        "{errors}"
    );
}

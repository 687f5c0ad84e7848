use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use podplane_api::{
    Object as _,
    core::{Endpoints, Pod, Service},
    discovery::{Endpoint, EndpointSlice},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    slices::{SlicesInput, SlicesPlan, plan},
    subsets::endpoints,
};

fn service(spec: &Value) -> Service {
    let mut whole = json!({
        "selector": {"app": "web"}, "ipFamilies": ["IPv4"], "clusterIP": "10.96.0.5",
        "ports": [{"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP"}],
    });
    for (key, value) in spec.as_object().unwrap() {
        whole[key] = value.clone();
    }
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "s", "labels": {"team": "a"}}, "spec": whole,
    }))
    .unwrap()
}

/// A pod with addresses; `state` has `r` if it is ready, `d` if it is being deleted.
fn pod(name: &str, ips: &[&str], state: &str, port: i32) -> Arc<Pod> {
    let ready = if state.contains('r') { "True" } else { "False" };
    let ips: Vec<_> = ips.iter().map(|ip| json!({"ip": ip})).collect();
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"app": "web"}},
        "spec": {"nodeName": "node-1", "hostname": name, "subdomain": "web",
            "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": port}]}]},
        "status": {"phase": "Running", "podIPs": ips, "conditions": [
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-21T10:00:00Z"}]},
    }))
    .unwrap();
    if state.contains('d') {
        pod.metadata.deletion_timestamp = Some(podplane_api::meta::Time(
            "2026-11-21T11:00:00Z".parse().unwrap(),
        ));
    }
    Arc::new(pod)
}

fn planned(service: &Service, pods: &[Arc<Pod>], slices: &[Arc<EndpointSlice>]) -> SlicesPlan {
    let zones = BTreeMap::from([("node-1".to_owned(), "west".to_owned())]);
    plan(SlicesInput {
        service,
        pods,
        zones: &zones,
        slices,
    })
}

/// The slices after the plan's writes.
fn apply(
    slices: &[Arc<EndpointSlice>],
    plan: SlicesPlan,
    made: &mut usize,
) -> Vec<Arc<EndpointSlice>> {
    let mut all: BTreeMap<String, Arc<EndpointSlice>> = slices
        .iter()
        .map(|slice| (slice.name().to_owned(), slice.clone()))
        .collect();
    for slice in plan.update {
        all.insert(slice.name().to_owned(), Arc::new(slice));
    }
    for mut slice in plan.create {
        *made += 1;
        slice.metadata.name = Some(format!("web-{made:03}"));
        all.insert(slice.name().to_owned(), Arc::new(slice));
    }
    for slice in plan.delete {
        all.remove(slice.name());
    }
    all.into_values().collect()
}

fn flags(endpoint: &Endpoint) -> (Option<bool>, Option<bool>, Option<bool>) {
    let conditions = endpoint.conditions.clone().unwrap();
    (conditions.ready, conditions.serving, conditions.terminating)
}

#[test]
fn an_endpoint_has_the_state_of_its_pod() {
    let pods = [
        pod("a", &["10.0.0.1", "fd00::1"], "r", 8080),
        pod("b", &["10.0.0.2"], "", 8080),
        pod("c", &["10.0.0.3"], "rd", 8080),
        pod("d", &["fd00::4"], "r", 8080),
        pod("e", &[], "r", 8080),
    ];
    let plan = planned(&service(&json!({})), &pods, &[]);
    let [slice] = &plan.create[..] else {
        panic!("one slice: {plan:?}");
    };
    let labels = slice.metadata.labels.clone().unwrap();
    assert_eq!(labels["kubernetes.io/service-name"], "web");
    assert_eq!(
        labels["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    assert_eq!(labels["team"], "a");
    let trigger = &slice.metadata.annotations.as_ref().unwrap()["endpoints.kubernetes.io/last-change-trigger-time"];
    assert_eq!(trigger, "2026-11-21T10:00:00Z");
    assert_eq!(slice.address_type, "IPv4");
    let port = &slice.ports.as_ref().unwrap()[0];
    assert_eq!(
        (port.name.as_deref(), port.port),
        (Some("http"), Some(8080))
    );
    let all = slice.endpoints.as_ref().unwrap();
    let (yes, no) = (Some(true), Some(false));
    let states: BTreeMap<&str, _> = all
        .iter()
        .map(|one| (one.addresses[0].as_str(), flags(one)))
        .collect();
    let want = [
        ("10.0.0.1", (yes, yes, no)),
        ("10.0.0.2", (no, no, no)),
        ("10.0.0.3", (no, yes, yes)),
    ];
    assert_eq!(states, BTreeMap::from(want));
    assert_eq!(all[0].zone.as_deref(), Some("west"));
    assert_eq!(all[0].node_name.as_deref(), Some("node-1"));
    assert!(all[0].hostname.is_some());

    let publishing = service(&json!({"publishNotReadyAddresses": true}));
    let plan = planned(&publishing, &pods, &[]);
    let all = plan.create[0].endpoints.clone().unwrap();
    assert!(all.iter().all(|one| flags(one).0 == yes));
}

#[test]
fn families_and_ports_have_slices_of_their_own() {
    let dual = service(&json!({"ipFamilies": ["IPv4", "IPv6"]}));
    let pods = [
        pod("a", &["10.0.0.1", "fd00::1"], "r", 8080),
        pod("b", &["10.0.0.2", "fd00::2"], "r", 9090),
    ];
    let plan = planned(&dual, &pods, &[]);
    let mut seen: Vec<_> = plan
        .create
        .iter()
        .map(|slice| {
            let port = slice.ports.as_ref().unwrap()[0].port.unwrap();
            (
                slice.address_type.as_str(),
                port,
                slice.endpoints.as_ref().unwrap()[0].addresses[0].as_str(),
            )
        })
        .collect();
    seen.sort_unstable();
    let want = [
        ("IPv4", 8080, "10.0.0.1"),
        ("IPv4", 9090, "10.0.0.2"),
        ("IPv6", 8080, "fd00::1"),
        ("IPv6", 9090, "fd00::2"),
    ];
    assert_eq!(seen, want);
}

#[test]
fn a_service_without_pods_has_one_empty_slice() {
    let headless = service(&json!({"clusterIP": "None"}));
    let plan = planned(&headless, &[], &[]);
    assert_eq!(plan.create.len(), 1);
    assert_eq!(plan.create[0].endpoints, Some(vec![]));
    let labels = plan.create[0].metadata.labels.as_ref().unwrap();
    assert_eq!(labels["service.kubernetes.io/headless"], "");
    let slices = apply(&[], plan, &mut 0);
    assert_eq!(planned(&headless, &[], &slices), SlicesPlan::default());
    // Some encodings have no empty lists.
    let mut stored = slices.clone();
    let slice = Arc::make_mut(&mut stored[0]);
    (slice.endpoints, slice.ports) = (None, None);
    assert_eq!(planned(&headless, &[], &stored), SlicesPlan::default());
    let ended = Arc::new({
        let mut pod = Pod::clone(&pod("a", &["10.0.0.1"], "", 1));
        pod.status.as_mut().unwrap().phase = Some("Succeeded".into());
        pod
    });
    let plan = planned(&headless, &[ended], &slices);
    assert_eq!(
        plan,
        SlicesPlan::default(),
        "an ended pod has no address any more"
    );
}

#[test]
fn endpoints_list_what_is_ready_and_what_is_not() {
    let pods = [
        pod("b", &["10.0.0.2"], "r", 8080),
        pod("a", &["10.0.0.1"], "r", 8080),
        pod("c", &["10.0.0.3"], "", 8080),
        pod("d", &["10.0.0.4"], "rd", 8080),
        pod("e", &["10.0.0.5"], "r", 9090),
    ];
    let service = service(&json!({}));
    let made = endpoints(&service, &pods, None);
    let shown = |endpoints: &Endpoints| -> Vec<(i32, Vec<String>, Vec<String>)> {
        let ips = |list: &Option<Vec<podplane_api::core::EndpointAddress>>| {
            list.iter()
                .flatten()
                .map(|address| address.ip.clone())
                .collect()
        };
        let subsets = endpoints.subsets.iter().flatten();
        subsets
            .map(|subset| {
                let port = subset.ports.as_ref().unwrap()[0].port;
                (
                    port,
                    ips(&subset.addresses),
                    ips(&subset.not_ready_addresses),
                )
            })
            .collect()
    };
    let ip = |last: i32| format!("10.0.0.{last}");
    let want = vec![
        (8080, vec![ip(1), ip(2)], vec![ip(3)]),
        (9090, vec![ip(5)], vec![]),
    ];
    assert_eq!(shown(&made), want);
    assert_eq!(made.name(), "web");
    assert_eq!(
        endpoints(&service, &pods, Some(&made)),
        made,
        "nothing is left to write"
    );

    let many: Vec<_> = (0..1100)
        .map(|at| {
            let ip = format!("10.1.{}.{}", at / 250, at % 250);
            pod(
                &format!("p{at:04}"),
                &[&ip],
                if at < 50 { "" } else { "r" },
                8080,
            )
        })
        .collect();
    let made = endpoints(&service, &many, None);
    let subset = &made.subsets.as_ref().unwrap()[0];
    assert_eq!(subset.addresses.as_ref().unwrap().len(), 1000);
    assert_eq!(subset.not_ready_addresses, None);
    let annotations = made.metadata.annotations.unwrap();
    assert_eq!(
        annotations["endpoints.kubernetes.io/over-capacity"],
        "truncated"
    );
}

proptest! {
    /// Whatever pods come and go, each is in one slice, no slice is too large, and a second step
    /// has nothing to do.
    #[test]
    fn each_pod_is_in_one_slice(steps in prop::collection::vec(prop::collection::btree_set(0..400_u32, 0..260), 1..5)) {
        let service = service(&json!({}));
        let (mut slices, mut made) = (Vec::new(), 0);
        for present in steps {
            let pods: Vec<_> = present.iter().map(|at| {
                let ip = format!("10.0.{}.{}", at / 200, at % 200);
                pod(&format!("p{at:03}"), &[&ip], "r", 8080)
            }).collect();
            let step = planned(&service, &pods, &slices);
            slices = apply(&slices, step, &mut made);
            let mut seen = BTreeSet::new();
            for slice in &slices {
                let endpoints = slice.endpoints.as_ref().unwrap();
                prop_assert!(endpoints.len() <= 100);
                prop_assert!(!endpoints.is_empty() || slices.len() == 1);
                for endpoint in endpoints {
                    prop_assert!(seen.insert(endpoint.target_ref.clone().unwrap().uid.unwrap()));
                }
            }
            let want: BTreeSet<_> = pods.iter().map(|pod| pod.uid().to_owned()).collect();
            prop_assert_eq!(seen, want);
            prop_assert_eq!(planned(&service, &pods, &slices), SlicesPlan::default());
        }
    }
}

use podplane_api::pod_ips;
use serde_json::{Value, json};

use super::*;
use crate::{
    explain::{NodeRefusal, examine_objects},
    framework::Resolvability,
    testing::{NodeBuilder, PodBuilder},
};

mod affinity;
mod images;
mod nodes;
mod spread;

/// The refusal of a node with the given pods, if it refuses the pod.
fn refusal(
    policy: IpPolicy,
    node: &NodeBuilder,
    present: &[PodBuilder],
    pod: &PodBuilder,
) -> Option<NodeRefusal> {
    let node = node.node();
    let name = node.metadata.name.clone().unwrap();
    let present = present
        .iter()
        .map(|pod| (*pod.clone().on(&name).pod()).clone());
    let present: Vec<_> = present.collect();
    let examined = examine_objects(&[node], &present, &[], policy.into(), &pod.pod());
    examined.nodes[0].result.clone().err()
}

/// The reasons of a node with the given pods.
fn reasons(
    policy: IpPolicy,
    node: &NodeBuilder,
    present: &[PodBuilder],
    pod: &PodBuilder,
) -> Vec<String> {
    let refusal = refusal(policy, node, present, pod);
    let reasons = refusal.into_iter().flat_map(|refusal| refusal.reasons);
    reasons.map(Into::into).collect()
}

fn off(node: &NodeBuilder, present: &[PodBuilder], pod: &PodBuilder) -> Vec<String> {
    reasons(IpPolicy::Off, node, present, pod)
}

#[test]
fn pod_fits_only_the_node_it_names() {
    let pod = PodBuilder::new("p").on("b");
    let reason = "node(s) didn't match the requested node name";
    assert_eq!(off(&NodeBuilder::new("a"), &[], &pod), [reason]);
    assert!(off(&NodeBuilder::new("b"), &[], &pod).is_empty());
}

#[test]
fn cordoned_node_accepts_only_tolerating_pods() {
    let node = NodeBuilder::new("n").cordon();
    let pod = PodBuilder::new("p");
    assert_eq!(off(&node, &[], &pod), ["node(s) were unschedulable"]);
    let tolerant = pod.tolerate("node.kubernetes.io/unschedulable");
    assert!(off(&node, &[], &tolerant).is_empty());
}

#[test]
fn names_the_untolerated_taint() {
    let tolerating =
        |toleration| PodBuilder::new("p").set("/spec/tolerations", json!([toleration]));
    let node = |effect| NodeBuilder::new("n").taint("team", "red", effect);
    let reason = "node(s) had untolerated taint {team: red}";
    for (effect, toleration, tolerated) in [
        ("NoSchedule", json!({"key": "team", "value": "red"}), true),
        (
            "NoSchedule",
            json!({"key": "team", "operator": "Equal", "value": "blue"}),
            false,
        ),
        (
            "NoSchedule",
            json!({"key": "team", "operator": "Exists", "effect": "NoExecute"}),
            false,
        ),
        (
            "NoExecute",
            json!({"key": "team", "operator": "Exists", "effect": "NoExecute"}),
            true,
        ),
        ("NoExecute", json!({"operator": "Exists"}), true),
        (
            "NoExecute",
            json!({"key": "other", "operator": "Exists"}),
            false,
        ),
        (
            "PreferNoSchedule",
            json!({"key": "other", "operator": "Exists"}),
            true,
        ),
    ] {
        let found = off(&node(effect), &[], &tolerating(toleration.clone()));
        assert_eq!(found.is_empty(), tolerated, "{effect} {toleration}");
        assert!(tolerated || found == [reason], "{found:?}");
    }
    let bare = NodeBuilder::new("n").taint("team", "", "NoSchedule");
    let found = off(&bare, &[], &PodBuilder::new("p"));
    assert_eq!(found, ["node(s) had untolerated taint {team: }"]);
}

#[test]
fn selector_must_match_every_label() {
    let node = NodeBuilder::new("n")
        .label("disk", "ssd")
        .label("zone", "a");
    let selecting = |labels| PodBuilder::new("p").set("/spec/nodeSelector", labels);
    let reason = "node(s) didn't match Pod's node affinity/selector";
    assert!(off(&node, &[], &selecting(json!({"disk": "ssd", "zone": "a"}))).is_empty());
    assert_eq!(
        off(&node, &[], &selecting(json!({"disk": "ssd", "zone": "b"}))),
        [reason]
    );
    assert_eq!(off(&node, &[], &selecting(json!({"none": ""}))), [reason]);
}

#[test]
fn one_affinity_term_must_match_in_full() {
    let node = NodeBuilder::new("n")
        .label("disk", "ssd")
        .label("cores", "8");
    let fits = |terms: Value| {
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        let affinity = json!({"nodeAffinity": {required: {"nodeSelectorTerms": terms}}});
        let pod = PodBuilder::new("p").set("/spec/affinity", affinity);
        off(&node, &[], &pod).is_empty()
    };
    let expressions = |list: Value| json!({"matchExpressions": list});
    let one = |key: &str, operator: &str, values: Value| {
        expressions(json!([{"key": key, "operator": operator, "values": values}]))
    };
    for (term, want) in [
        (one("disk", "In", json!(["hdd", "ssd"])), true),
        (one("disk", "In", json!(["hdd"])), false),
        (one("disk", "NotIn", json!(["hdd"])), true),
        (one("none", "NotIn", json!(["x"])), true),
        (one("disk", "Exists", json!([])), true),
        (one("disk", "DoesNotExist", json!([])), false),
        (one("cores", "Gt", json!(["7"])), true),
        (one("cores", "Gt", json!(["8"])), false),
        (one("cores", "Lt", json!(["9"])), true),
        (one("disk", "Lt", json!(["9"])), false),
        (one("none", "Gt", json!(["0"])), false),
        (one("disk", "Like", json!(["s*"])), false),
        (json!({}), false),
        (
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}),
            true,
        ),
        (
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}),
            false,
        ),
    ] {
        assert_eq!(fits(json!([term.clone()])), want, "{term}");
    }
    let (yes, no) = (
        one("disk", "Exists", json!([])),
        one("none", "Exists", json!([])),
    );
    assert!(fits(json!([no, yes])), "terms are alternatives");
    let both = expressions(
        json!([{"key": "disk", "operator": "Exists"}, {"key": "none", "operator": "Exists"}]),
    );
    assert!(!fits(json!([both])), "requirements of a term are not");
    assert!(!fits(json!([])), "no term is no match");
}

#[test]
fn assigns_a_host_port_once() {
    let node = NodeBuilder::new("n");
    let present = [PodBuilder::new("q").host_port("127.0.0.1", 8080)];
    let reason = "node(s) didn't have free ports for the requested pod ports";
    for (ip, port, free) in [
        ("127.0.0.1", 8080, false),
        ("0.0.0.0", 8080, false),
        ("", 8080, false),
        ("127.0.0.2", 8080, true),
        ("::", 8080, true),
        ("127.0.0.1", 8081, true),
    ] {
        let found = off(&node, &present, &PodBuilder::new("p").host_port(ip, port));
        assert_eq!(found.is_empty(), free, "{ip}:{port}");
        assert!(free || found == [reason], "{found:?}");
    }
}

#[test]
fn names_all_shortages() {
    let node = NodeBuilder::new("n")
        .offer("cpu", "1")
        .offer("memory", "1Gi")
        .offer("pods", "1");
    let present = [PodBuilder::new("q").ask("cpu", "600m")];
    let pod = PodBuilder::new("p")
        .ask("cpu", "401m")
        .ask("memory", "2Gi")
        .ask("ephemeral-storage", "1")
        .ask("example.com/gpu", "1");
    let short = [
        "Too many pods",
        "Insufficient cpu",
        "Insufficient memory",
        "Insufficient ephemeral-storage",
        "Insufficient example.com/gpu",
    ];
    assert_eq!(off(&node, &present, &pod), short);
    let node = node.offer("pods", "2");
    assert!(off(&node, &present, &PodBuilder::new("p").ask("cpu", "400m")).is_empty());
}

#[test]
fn request_beyond_the_whole_node_is_unresolvable() {
    let refusal = |pod: PodBuilder| {
        let node = NodeBuilder::new("n").offer("cpu", "1");
        let present = [PodBuilder::new("q").ask("cpu", "1")];
        refusal(IpPolicy::Off, &node, &present, &pod)
            .unwrap()
            .resolvable
    };
    assert_eq!(
        refusal(PodBuilder::new("p").ask("cpu", "1")),
        Resolvability::ByPreemption
    );
    assert_eq!(
        refusal(PodBuilder::new("p").ask("cpu", "2")),
        Resolvability::Never
    );
}

#[test]
fn counts_addresses_as_a_resource() {
    let short = ["Insufficient pod IPs"];
    let resource = |node: &NodeBuilder, present: &[PodBuilder], pod: &PodBuilder| {
        reasons(IpPolicy::Resource, node, present, pod)
    };
    let pod = PodBuilder::new("p");
    let (host, other) = (PodBuilder::new("h").host_network(), PodBuilder::new("o"));
    let node = NodeBuilder::new("n").block("10.0.0.0/30", 1);
    assert!(resource(&node, std::slice::from_ref(&host), &pod).is_empty());
    assert_eq!(resource(&node, std::slice::from_ref(&other), &pod), short);
    assert!(resource(&node, std::slice::from_ref(&other), &host).is_empty());
    // The node's count applies if it is higher than ours; an invalid number is not a report.
    assert_eq!(resource(&node.clone().allocated("1"), &[], &pod), short);
    assert!(resource(&node.clone().allocated("one"), &[], &pod).is_empty());
    // Without a block there is no address, whatever the node reports.
    let homeless = NodeBuilder::new("n").offer(podplane_api::pod_ips::POD_IPS, "5");
    assert_eq!(resource(&homeless, &[], &pod), short);
    assert!(resource(&homeless, &[], &host).is_empty());
    // A block without a report has the addresses that fit into it.
    let unreported = NodeBuilder::new("n").pod_cidr("10.0.0.0/30");
    assert!(resource(&unreported, &[], &pod).is_empty());
    assert_eq!(
        resource(&unreported, std::slice::from_ref(&other), &pod),
        short
    );

    let resolvable = |node: NodeBuilder| {
        let present = std::slice::from_ref(&other);
        refusal(IpPolicy::Resource, &node, present, &pod)
            .unwrap()
            .resolvable
    };
    assert_eq!(resolvable(node), Resolvability::ByPreemption);
    assert_eq!(resolvable(homeless), Resolvability::Never);
}

#[test]
fn orphaned_addresses_are_taken_and_stay_if_pods_leave() {
    let check = |orphaned: &str, pods: usize| {
        let node = NodeBuilder::new("n").block("10.0.0.0/29", 5);
        let node = node.orphaned(orphaned);
        let present = (0..pods).map(|n| PodBuilder::new(&n.to_string()));
        let present: Vec<_> = present.collect();
        let refusal = refusal(IpPolicy::Resource, &node, &present, &PodBuilder::new("p"));
        refusal.map(|refusal| refusal.resolvable)
    };
    assert_eq!(check("4", 0), None);
    assert_eq!(check("4", 1), Some(Resolvability::ByPreemption));
    assert_eq!(check("5", 0), Some(Resolvability::Never));
    assert_eq!(check("0", 4), None);
}

#[test]
fn a_request_for_addresses_is_counted_once() {
    let resource = |ips: u32, asked: &str, present: &[PodBuilder]| {
        let node = NodeBuilder::new("n").block("10.0.0.0/24", ips);
        let pod = PodBuilder::new("p").ask(pod_ips::POD_IPS, asked);
        reasons(IpPolicy::Resource, &node, present, &pod)
    };
    let short = ["Insufficient pod IPs"];
    assert!(resource(2, "2", &[]).is_empty());
    assert_eq!(resource(1, "2", &[]), short);
    assert!(resource(1, "1", &[]).is_empty());
    let one = [PodBuilder::new("o")];
    assert!(resource(3, "2", &one).is_empty());
    assert_eq!(resource(2, "2", &one), short);
    let two = [PodBuilder::new("o").ask(pod_ips::POD_IPS, "2")];
    assert!(resource(3, "1", &two).is_empty());
    assert_eq!(resource(3, "2", &two), short);
    // Without the policy it is an extended resource like others.
    let node = NodeBuilder::new("n").offer(pod_ips::POD_IPS, "1");
    let pod = PodBuilder::new("p").ask(pod_ips::POD_IPS, "2");
    let off = reasons(IpPolicy::Off, &node, &[], &pod);
    assert_eq!(off, ["Insufficient podplane.io/pod-ips"]);
}

#[test]
fn shortage_of_addresses_names_its_source() {
    let of = |node: NodeBuilder| {
        let present = ["a", "b"].map(PodBuilder::new);
        let refusal = refusal(IpPolicy::Resource, &node, &present, &PodBuilder::new("p"));
        let detail = refusal.unwrap().detail.unwrap();
        (detail.text, detail.is_in_message)
    };
    let node = |ipam| NodeBuilder::new("n").annotate(pod_ips::IPAM, ipam);
    let block = |ipam| node(ipam).pod_cidr("10.0.0.0/30");
    let unreported = |node: NodeBuilder| node.condition(pod_ips::POD_IPS_REPORTED, "False");
    let set = |node: NodeBuilder| node.offer(pod_ips::POD_IPS, "2");
    for (node, text, is_in_message) in [
        (
            set(block("host-local")),
            "0 of 2 IPs free: 2 pods, 0 orphaned, as IPAM host-local reports",
            false,
        ),
        (
            set(block("x")).orphaned("1"),
            "0 of 2 IPs free: 2 pods, 1 orphaned, as IPAM x reports",
            true,
        ),
        (
            set(unreported(block("x"))),
            "0 of 2 IPs free: 2 pods, 0 orphaned, by allocatable podplane.io/pod-ips; IPAM x reports no capacity",
            true,
        ),
        (
            unreported(block("x")),
            "0 of 1 IP free: 2 pods, 0 orphaned, by podCIDR 10.0.0.0/30; IPAM x reports no capacity",
            true,
        ),
        (
            unreported(node("x"))
                .condition("Ready", "True")
                .offer("pods", "3")
                .allocated("3"),
            "0 of 3 IPs free: 2 pods, 1 orphaned, by allocatable pods; it has no podCIDR and IPAM x reports no capacity",
            true,
        ),
        (node("x"), "waits for its podCIDR (IPAM x)", true),
    ] {
        // Only addresses are short.
        let (told, in_message) = of(node);
        assert_eq!((told.as_str(), in_message), (text, is_in_message));
    }
}

#[test]
fn pod_cidr_policy_bounds_pods_by_the_block() {
    let file = include_str!("../../tests/data/scheduler_tables.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let rows = file["kubenet_allowed_pods"].as_array().unwrap();
    assert!(rows.len() > 30);
    for row in rows {
        let (mask, want) = (row["mask"].as_u64().unwrap(), row["want"].as_u64().unwrap());
        let cidr = match row["ipv4"].as_bool().unwrap() {
            true => format!("10.0.0.0/{mask}"),
            false => format!("fd00::/{mask}"),
        };
        let node = NodeBuilder::new("n")
            .pod_cidr(&cidr)
            .offer("pods", &row["allowed"].to_string());
        // Pods on the host's network count too, which is the policy's fault.
        let fits = |count| {
            let pods: Vec<_> = (0..count)
                .map(|n| PodBuilder::new(&n.to_string()).host_network())
                .collect();
            reasons(IpPolicy::PodCidr, &node, &pods, &PodBuilder::new("p"))
        };
        assert_eq!(fits(want), ["Too many pods"], "{row}");
        assert!(want == 0 || fits(want - 1).is_empty(), "{row}");
    }
}

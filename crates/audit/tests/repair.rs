//! Tests that a repair, carried out, leaves nothing to repair.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use podplane_audit::{
    Code, ControllerFlags, Dump, DumpCollector, DumpScope, ExpectedBlocks, IpamChoice, Repair,
    Severity, audit,
};
use proptest::prelude::{prop, prop_assert, proptest};
use serde_json::{Value, json};

fn flags() -> ControllerFlags {
    ControllerFlags {
        cluster_cidr: Some("10.0.0.0/18".into()),
        node_cidr_mask_size: Some(24),
        service_cidr: Some("10.0.8.0/23".into()),
        // There are too few pods to detect the network, most of them in wrong blocks.
        ipam: Some(IpamChoice::PodCidr),
        ..ControllerFlags::default()
    }
}

fn read(objects: &[Value]) -> Dump {
    let mut collector = DumpCollector::new(DumpScope::Nodes);
    let list = json!({"kind": "List", "items": objects});
    collector.read(list.to_string().as_bytes()).unwrap();
    collector.finish(&flags())
}

fn node(name: usize, block: &str) -> Value {
    let spec = match block {
        "" => json!({}),
        block => json!({"podCIDR": block, "podCIDRs": [block]}),
    };
    json!({"apiVersion": "v1", "kind": "Node", "spec": spec, "status": {"phase": "x"},
        "metadata": {"name": format!("n{name}"), "uid": "u", "resourceVersion": "7", "generation": 3, "creationTimestamp": "2026-11-21T10:00:00Z",
            "labels": {"pool": "a"}, "managedFields": [{"manager": "kubelet"}]}})
}

fn pod(name: usize, node: usize, ip: [u8; 4]) -> Value {
    let ip = ip.map(|byte| byte.to_string()).join(".");
    json!({"kind": "Pod", "metadata": {"name": format!("p{name}"), "namespace": "default"}, "spec": {"nodeName": format!("n{node}")},
        "status": {"phase": "Running", "podIP": ip}})
}

/// The files of a repair by name, and the moves.
fn repaired(objects: &[Value]) -> (Repair, BTreeMap<String, String>) {
    let dump = read(objects);
    let expected = ExpectedBlocks::new(&flags(), &dump).unwrap();
    let report = audit(&dump, &expected);
    let repair = Repair::new(&dump, &expected, &report, Severity::Info).unwrap();
    let files = repair.files("podplane audit -").into_iter().collect();
    (repair, files)
}

#[test]
fn moves_the_node_with_fewer_pods_and_keeps_its_manifest() {
    let objects = [
        node(0, "10.0.5.0/24"),
        node(1, "10.0.5.0/24"),
        node(2, ""),
        pod(0, 0, [10, 0, 5, 2]),
        pod(1, 1, [10, 0, 5, 2]),
        pod(2, 1, [10, 0, 5, 3]),
        // Its address is in the first block, so that no other node gets that.
        pod(3, 2, [10, 0, 0, 9]),
    ];
    let (repair, files) = repaired(&objects);
    let [moved] = &repair.moves[..] else {
        panic!("{repair:?}")
    };
    assert_eq!(moved.node, "n0");
    assert_eq!(
        moved.why,
        ["10.0.5.0/24 stays with n1, which has more pods in it (2 against 1)"]
    );
    let names: Vec<_> = files.keys().map(String::as_str).collect();
    assert_eq!(names, ["RUNBOOK.md", "n0.yaml"]);
    let manifest: Value = serde_saphyr::from_str(&files["n0.yaml"]).unwrap();
    let want = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0", "labels": {"pool": "a"}},
        "spec": {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24"], "unschedulable": true}});
    assert_eq!(manifest, want);

    let page = &files["RUNBOOK.md"];
    let mut rest = page.as_str();
    for step in [
        "## n0: 10.0.5.0/24 → 10.0.1.0/24",
        "kubectl cordon n0",
        "kubectl drain n0 ",
        "kubectl get node n0 -o yaml >",
        "kubectl delete node n0",
        "kubectl apply -f n0.yaml",
        "ip link delete cni0",
        "kubectl delete pods --namespace kube-flannel",
        "kubectl delete pods --all-namespaces --field-selector spec.nodeName=n0",
        "ping -c 3",
        "kubectl uncordon n0",
        "## n2: no block → 10.0.0.0/24",
        "kubectl patch node n2 ",
        "all others have addresses of 10.0.0.0/24 already",
    ] {
        let at = rest
            .find(step)
            .unwrap_or_else(|| panic!("{step} in its place: {page}"));
        rest = &rest[at + step.len()..];
    }
}

#[test]
fn assigns_the_block_that_the_pods_addresses_are_in() {
    // n0 was given n1's block by mistake; its pods are where it was before. n2 lost its block.
    let objects = [
        node(0, "10.0.5.0/24"),
        node(1, "10.0.5.0/24"),
        node(2, ""),
        node(3, "10.0.3.0/24"),
        pod(0, 0, [10, 0, 7, 2]),
        pod(1, 0, [10, 0, 7, 3]),
        pod(2, 0, [10, 0, 7, 4]),
        pod(3, 1, [10, 0, 5, 2]),
        pod(4, 2, [10, 0, 9, 2]),
        pod(5, 2, [10, 0, 3, 9]),
        pod(6, 3, [10, 0, 3, 2]),
        // An address of the service range, which is not a node's.
        pod(7, 2, [10, 0, 8, 2]),
    ];
    let (repair, files) = repaired(&objects);
    let [moved] = &repair.moves[..] else {
        panic!("{repair:?}")
    };
    assert_eq!(moved.node, "n0", "although it has more pods");
    assert_eq!(moved.to, ["10.0.7.0/24".parse().unwrap()]);
    assert!(moved.has_its_pods);
    assert!(files["RUNBOOK.md"].contains("All of its pods have addresses of 10.0.7.0/24 already"));
    let [given] = &repair.assigned[..] else {
        panic!("{repair:?}")
    };
    assert_eq!(repair.pods, ["default/p4", "default/p5", "default/p7"]);
    // 10.0.9.0/24 is the services' too; 10.0.3.0/24 is n3's.
    assert_eq!(given.to, ["10.0.0.0/24".parse().unwrap()]);
    assert!(!given.has_its_pods);
}

#[test]
fn a_finding_about_every_node_is_one_line_without_a_repair() {
    let objects = [
        node(0, "10.9.0.0/24"),
        node(1, "10.9.1.0/24"),
        node(2, "10.9.2.0/24"),
    ];
    let dump = read(&objects);
    let expected = ExpectedBlocks::new(&flags(), &dump).unwrap();
    let report = audit(&dump, &expected);
    let [foreign] = &report.findings[..] else {
        panic!("{report:?}")
    };
    assert_eq!(
        (foreign.code, foreign.severity),
        (Code::ForeignPodCidr, Severity::Info)
    );
    assert_eq!(foreign.objects, ["Node/n0", "Node/n1", "Node/n2"]);
    assert!(
        foreign.message.starts_with("all 3 nodes: "),
        "{}",
        foreign.message
    );
    let repair = |at_least| Repair::new(&dump, &expected, &report, at_least).unwrap();
    assert!(repair(Severity::Warning).is_empty());
    assert_eq!(
        repair(Severity::Info).moves.len(),
        3,
        "who asks for it gets it"
    );
}

#[test]
fn promises_nothing_without_a_free_block() {
    let wide = [
        node(0, "10.0.0.0/18"),
        node(1, "10.0.1.0/24"),
        pod(0, 1, [10, 0, 1, 2]),
    ];
    let (repair, files) = repaired(&wide);
    assert!(repair.moves.is_empty(), "{repair:?}");
    assert!(
        repair.left[0]
            .1
            .starts_with("no block of 10.0.0.0/18 in blocks of /24 is free"),
        "{repair:?}"
    );
    assert!(files["RUNBOOK.md"].contains("Nothing can be done here for these:\n\n- n0: no block"));
}

#[test]
fn rejects_names_that_are_paths_or_commands() {
    let mut bad = node(0, "10.0.9.0/24");
    bad["metadata"]["name"] = json!("../$(reboot)");
    let (repair, files) = repaired(&[bad]);
    assert_eq!(
        (repair.moves.len(), repair.left.len(), files.len()),
        (0, 1, 1)
    );
}

proptest! {
    #[test]
    fn repairs_every_finding(blocks in prop::collection::vec((0u8..24, prop::sample::select(&[0u8, 20, 22, 23, 24, 24, 24, 25][..])), 1..12),
        pods in prop::collection::vec((0usize..12, 0u8..24), 0..30)) {
        let text = |(third, length): &(u8, u8)| match length {
            0 => String::new(),
            length => format!("10.0.{third}.0/{length}").parse::<ipnet::IpNet>().unwrap().trunc().to_string(),
        };
        let nodes = blocks.iter().enumerate().map(|(name, block)| node(name, &text(block)));
        let mut objects: Vec<Value> = nodes.collect();
        let count = objects.len();
        objects.extend(pods.iter().enumerate().map(|(name, (on, third))| {
            let last = u8::try_from(name).unwrap() + 2;
            pod(name, on % count, [10, 0, *third, last])
        }));
        let (repair, files) = repaired(&objects);
        prop_assert!(repair.left.is_empty(), "{:?}", repair.left);

        let mut after = Vec::new();
        for object in objects {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            let on = object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
            let is_moved = |node: &str| files.contains_key(&format!("{node}.yaml"));
            let given = repair.assigned.iter().find(|given| given.node == name);
            if is_moved(&name) {
                after.push(serde_saphyr::from_str(&files[&format!("{name}.yaml")]).unwrap());
            } else if let Some(given) = given {
                after.push(node(name[1..].parse().unwrap(), &given.to[0].to_string()));
            } else if !is_moved(&on) && !repair.pods.contains(&format!("default/{name}")) {
                after.push(object);
            }
        }
        let dump = read(&after);
        let report = audit(&dump, &ExpectedBlocks::new(&flags(), &dump).unwrap());
        let left: Vec<_> = report.findings.iter().filter(|finding| finding.code != Code::IpCapacity).collect();
        prop_assert!(left.is_empty(), "{left:?}");
    }
}

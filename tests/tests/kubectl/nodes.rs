//! Nodes: taints, cordons, drains, and the field story's repair of a node's block.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::{has_lines, row};

pub(super) const CASES: &[KubectlCase] = &[
    ("taint", taint),
    ("cordon and uncordon", cordon),
    ("drain", drain),
    ("drain what has bare pods", drain_refused),
    ("drain what a DaemonSet owns", drain_daemon_set),
    ("label nodes", label),
    ("create and delete a node", node),
    ("patch podCIDR", patch_cidr),
    ("the story's repair", repair),
];

fn taints(kubectl: &Kubectl, node: &str) -> String {
    let path = "jsonpath={.spec.taints[*].key}";
    kubectl.args(["get", "node", node, "-o", path]).ok()
}

fn taint(kubectl: &Kubectl) {
    let node = kubectl.node();
    let say = |taint: &str| kubectl.run(&format!("taint node {node} {taint}"));
    assert_eq!(
        say("key=value:NoSchedule").ok(),
        format!("node/{node} tainted\n")
    );
    assert_eq!(taints(kubectl, &node), "key");
    assert_eq!(
        say("key=other:NoSchedule").failed(1),
        format!(
            "error: node {node} already has key taint(s) with same effect(s) and --overwrite is false\n"
        )
    );
    assert_eq!(
        say("key=other:NoSchedule --overwrite").ok(),
        format!("node/{node} modified\n")
    );
    say("more:NoExecute").ok();
    assert_eq!(say("more-").ok(), format!("node/{node} untainted\n"));
    assert_eq!(
        say("key:NoSchedule-").ok(),
        format!("node/{node} untainted\n")
    );
    assert_eq!(taints(kubectl, &node), "");
    assert_eq!(say("key-").failed(1), "error: taint \"key\" not found\n");
    let bad = say("key=value:Sometimes").failed(1);
    assert!(bad.contains("invalid taint effect: Sometimes"), "{bad}");
}

fn cordon(kubectl: &Kubectl) {
    let node = kubectl.node();
    let say = |verb: &str| kubectl.run(&format!("{verb} {node}")).ok();
    assert_eq!(say("cordon"), format!("node/{node} cordoned\n"));
    assert_eq!(say("cordon"), format!("node/{node} already cordoned\n"));
    let table = kubectl.run("get nodes").ok();
    assert_eq!(row(&table, &node)[1], "Ready,SchedulingDisabled");
    assert_eq!(say("uncordon"), format!("node/{node} uncordoned\n"));
    assert_eq!(say("uncordon"), format!("node/{node} already uncordoned\n"));
    let table = kubectl.run("get nodes").ok();
    assert_eq!(row(&table, &node)[1], "Ready");
}

/// A pod on a node, with no owner.
fn bare_pod(kubectl: &Kubectl, node: &str) {
    let overrides = format!(
        r#"--overrides={{"spec":{{"nodeName":"{node}","volumes":[{{"name":"v","emptyDir":{{}}}}]}}}}"#
    );
    kubectl
        .args(["run", "web", "--image=nginx", &overrides])
        .ok();
    kubectl.run("wait --for=condition=Ready pod/web").ok();
}

fn drain(kubectl: &Kubectl) {
    let node = kubectl.node();
    bare_pod(kubectl, &node);
    let namespace = &kubectl.namespace;
    let answer = kubectl.run(&format!(
        "drain {node} --ignore-daemonsets --force --delete-emptydir-data"
    ));
    assert_eq!(
        answer.stderr,
        format!("Warning: deleting Pods that declare no controller: {namespace}/web\n")
    );
    has_lines(
        &answer.ok(),
        &[
            &format!("node/{node} cordoned"),
            &format!("evicting pod {namespace}/web"),
            "pod/web evicted",
            &format!("node/{node} drained"),
        ],
    );
    kubectl.run("get pod web").failed(1);
    kubectl.run(&format!("uncordon {node}")).ok();
}

fn drain_refused(kubectl: &Kubectl) {
    let node = kubectl.node();
    bare_pod(kubectl, &node);
    let namespace = &kubectl.namespace;
    let refused = kubectl.run(&format!("drain {node} --delete-emptydir-data"));
    let refused = refused.failed(1);
    assert!(
        refused.contains(&format!(
            "declare no controller (use --force to override): {namespace}/web"
        )),
        "{refused}"
    );
    let refused = kubectl.run(&format!("drain {node} --force")).failed(1);
    assert!(
        refused.contains(&format!("cannot delete Pods with local storage (use --delete-emptydir-data to override): {namespace}/web")),
        "{refused}"
    );
    kubectl.run("get pod web").ok();
    let dry = kubectl.run(&format!(
        "drain {node} --force --delete-emptydir-data --dry-run=server"
    ));
    assert!(dry.stdout.contains("/web (server dry run)"), "{dry:?}");
    kubectl.run("get pod web").ok();
    // The next version that drains this node wants it empty.
    kubectl.run("delete pod web --now").ok();
    kubectl.run(&format!("uncordon {node}")).ok();
}

/// A pod of a DaemonSet, which would come back, stays on a drained node; one whose DaemonSet is
/// gone is drained by force.
fn drain_daemon_set(kubectl: &Kubectl) {
    let node = kubectl.node();
    let namespace = &kubectl.namespace;
    let manifest = serde_json::json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [{"name": "c", "image": "pause"}]}}}});
    kubectl.apply(&manifest.to_string());
    kubectl.run("rollout status ds/web").ok();
    let pod = kubectl.run("get pods -l app=web -o name").ok();
    let pod = pod.trim();
    let refused = kubectl.run(&format!("drain {node}")).failed(1);
    let name = pod.trim_start_matches("pod/");
    let managed = format!(
        "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): {namespace}/{name}"
    );
    assert!(refused.contains(&managed), "{refused}");
    kubectl
        .run(&format!("drain {node} --ignore-daemonsets"))
        .ok();
    kubectl.run(&format!("get {pod}")).ok();
    kubectl.run("delete ds web --cascade=orphan").ok();
    let drained = kubectl.run(&format!("drain {node} --ignore-daemonsets --force"));
    has_lines(
        &drained.ok(),
        &[&format!("{pod} evicted"), &format!("node/{node} drained")],
    );
    kubectl.run(&format!("get {pod}")).failed(1);
    kubectl.run(&format!("uncordon {node}")).ok();
}

fn label(kubectl: &Kubectl) {
    let node = kubectl.node();
    kubectl
        .run(&format!(
            "label node {node} node-role.kubernetes.io/worker="
        ))
        .ok();
    let table = kubectl.run("get nodes").ok();
    assert_eq!(row(&table, &node)[2], "worker");
    kubectl
        .run(&format!(
            "label node {node} node-role.kubernetes.io/worker-"
        ))
        .ok();
}

fn node(kubectl: &Kubectl) {
    let name = kubectl.own("extra");
    let manifest = format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: {name}\n");
    assert_eq!(kubectl.apply(&manifest), format!("node/{name} created\n"));
    let path = "-o=jsonpath={.spec.podCIDR}";
    let with_block = kubectl.until(&format!("get node {name} {path}"), |seen| {
        !seen.stdout.is_empty()
    });
    assert!(with_block.stdout.starts_with("10.244."), "{with_block:?}");
    let table = kubectl.run("get nodes").ok();
    assert!(
        ["Unknown", "NotReady"].contains(&row(&table, &name)[1]),
        "{table}"
    );
    let text = kubectl.run(&format!("delete node {name}")).ok();
    assert!(
        text.starts_with(&format!("node \"{name}\" deleted")),
        "{text}"
    );
}

fn patch_cidr(kubectl: &Kubectl) {
    let node = kubectl.node();
    let patch = r#"{"spec":{"podCIDR":"10.250.0.0/24"}}"#;
    let refused = kubectl
        .args(["patch", "node", &node, "-p", patch])
        .failed(1);
    assert_eq!(
        refused,
        format!(
            "The Node \"{node}\" is invalid: spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid\n"
        )
    );
}

/// The repair of a node's block: `kubectl get node N -oyaml > n.yaml`, another block, `kubectl
/// delete node N`, `kubectl apply -f n.yaml`.
fn repair(kubectl: &Kubectl) {
    let node = kubectl.own("worker");
    let manifest = format!(
        "apiVersion: v1\nkind: Node\nmetadata:\n  name: {node}\n  labels:\n    rack: a\nspec:\n  podCIDR: 10.244.200.0/24\n  podCIDRs:\n  - 10.244.200.0/24\n"
    );
    kubectl.fed("create -f -", &manifest).ok();
    let before = kubectl.json(&format!("node {node}"));
    let dump = kubectl.run(&format!("get node {node} -oyaml")).ok();
    let edited = dump.replace("10.244.200.0/24", "10.244.201.0/24");
    let file = kubectl.file("n.yaml", &edited);
    let deleted = kubectl.run(&format!("delete node {node}")).ok();
    assert!(
        deleted.starts_with(&format!("node \"{node}\" deleted")),
        "{deleted}"
    );
    let applied = kubectl.run(&format!("apply -f {}", file.display())).ok();
    assert_eq!(applied, format!("node/{node} created\n"));
    let after = kubectl.json(&format!("node {node}"));
    assert_eq!(after["spec"]["podCIDR"], "10.244.201.0/24");
    assert_eq!(
        after["spec"]["podCIDRs"],
        serde_json::json!(["10.244.201.0/24"])
    );
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    for field in ["uid", "resourceVersion"] {
        assert_ne!(
            after["metadata"][field], before["metadata"][field],
            "{field}"
        );
    }
    // A block that somebody has is refused, with its owner and a free one.
    let taken = edited.replace("10.244.201.0/24", "10.244.0.0/24");
    kubectl.run(&format!("delete node {node}")).ok();
    let holder = kubectl
        .args([
            "get",
            "nodes",
            "-o",
            r#"jsonpath={.items[?(@.spec.podCIDR=="10.244.0.0/24")].metadata.name}"#,
        ])
        .ok();
    let refused = kubectl.fed("apply -f -", &taken).failed(1);
    assert!(
        refused.contains(&format!("The Node \"{node}\" is invalid: spec.podCIDRs")),
        "{refused}"
    );
    assert!(refused.contains(&holder), "{holder} has it: {refused}");
}

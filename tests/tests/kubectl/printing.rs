//! `get` in all its forms.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::{header, row, words};

pub(super) const CASES: &[KubectlCase] = &[
    ("get nodes", nodes),
    ("get nodes -o wide", nodes_wide),
    ("get pods, none there", nothing),
    ("get pods", pods),
    ("get pods -o wide", pods_wide),
    ("get namespaces", namespaces),
    ("get leases", leases),
    ("get all", all),
    ("get TYPE/NAME of several types", several),
    ("get what is not there", missing),
    ("get -o yaml", yaml),
    ("get -o json", json),
    ("get -o name", name),
    ("get -o jsonpath", jsonpath),
    ("get -o jsonpath of the story", story),
    ("get -o custom-columns", custom_columns),
    ("get -o go-template", go_template),
    ("get --sort-by", sort_by),
    ("get --show-labels -L", labels),
    ("get --no-headers --show-kind", no_headers),
    ("get -l", selector),
    ("get --field-selector", field_selector),
    ("get -A --chunk-size", chunks),
    ("get -f", file),
    ("get --subresource", subresource),
    ("get -w", watch),
    ("get --watch-only --output-watch-events", watch_only),
    ("get -w NAME -o yaml", watch_one),
    ("get --ignore-not-found", ignored),
];

fn nodes(kubectl: &Kubectl) {
    let table = kubectl.run("get nodes").ok();
    assert_eq!(
        header(&table),
        ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]
    );
    let node = row(&table, &kubectl.node());
    assert_eq!(node[1..3], ["Ready", "<none>"], "{table}");
    assert!(node[4].starts_with('v'), "{table}");
    let short = kubectl.run("get no").ok();
    assert_eq!(row(&short, &kubectl.node())[..3], node[..3]);
}

fn nodes_wide(kubectl: &Kubectl) {
    let table = kubectl.run("get nodes -o wide").ok();
    let want = "NAME STATUS ROLES AGE VERSION INTERNAL-IP EXTERNAL-IP OS-IMAGE KERNEL-VERSION CONTAINER-RUNTIME POD-CIDR POD-IPS ORPHANED-IPS";
    assert_eq!(header(&table), words(want));
    let node = row(&table, &kubectl.node());
    let [.., cidr, ips, orphaned] = node.as_slice() else {
        panic!("{table}");
    };
    assert!(cidr.starts_with("10.244."), "{table}");
    assert!(ips.ends_with("/253"), "{table}");
    assert_eq!(*orphaned, "0", "{table}");
}

fn nothing(kubectl: &Kubectl) {
    let answer = kubectl.run("get pods");
    assert_eq!(
        answer.stderr,
        format!("No resources found in {} namespace.\n", kubectl.namespace)
    );
    assert_eq!(answer.ok(), "");
}

fn pods(kubectl: &Kubectl) {
    kubectl.pod("web");
    let table = kubectl.run("get pods").ok();
    assert_eq!(
        header(&table),
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    );
    assert_eq!(
        row(&table, "web")[..4],
        ["web", "1/1", "Running", "0"],
        "{table}"
    );
    let one = kubectl.run("get pod web").ok();
    assert_eq!(one.lines().count(), 2, "{one}");
    let everywhere = kubectl.run("get pods -A").ok();
    assert_eq!(
        header(&everywhere)[..2],
        ["NAMESPACE", "NAME"],
        "{everywhere}"
    );
}

fn pods_wide(kubectl: &Kubectl) {
    kubectl.pod("web");
    let table = kubectl.run("get po -o wide").ok();
    let want = "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES";
    assert_eq!(header(&table), words(want));
    let pod = row(&table, "web");
    assert!(pod[5].starts_with("10.244."), "{table}");
    assert!(pod[6].starts_with("node-"), "{table}");
    assert_eq!(pod[7..], ["<none>", "<none>"], "{table}");
}

fn namespaces(kubectl: &Kubectl) {
    let table = kubectl.run("get ns").ok();
    assert_eq!(header(&table), ["NAME", "STATUS", "AGE"]);
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        assert_eq!(row(&table, name)[1], "Active");
    }
}

fn leases(kubectl: &Kubectl) {
    let table = kubectl.run("get leases -n kube-node-lease").ok();
    assert_eq!(header(&table), ["NAME", "HOLDER", "AGE"]);
    let node = kubectl.node();
    assert_eq!(row(&table, &node)[1], node);
}

fn all(kubectl: &Kubectl) {
    kubectl.pod("web");
    let table = kubectl.run("get all").ok();
    assert_eq!(
        row(&table, "pod/web")[..3],
        ["pod/web", "1/1", "Running"],
        "{table}"
    );
}

fn several(kubectl: &Kubectl) {
    kubectl.pod("web");
    let namespace = kubectl.namespace.clone();
    let table = kubectl.run(&format!("get pod/web ns/{namespace}")).ok();
    row(&table, "pod/web");
    row(&table, &format!("namespace/{namespace}"));
    let table = kubectl.run("get pods,events").ok();
    row(&table, "pod/web");
}

fn missing(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run("get pod nobody").failed(1),
        "Error from server (NotFound): pods \"nobody\" not found\n"
    );
    assert_eq!(
        kubectl.run("get sheep").failed(1),
        "error: the server doesn't have a resource type \"sheep\"\n"
    );
    assert_eq!(
        kubectl.run("get node nobody").failed(1),
        "Error from server (NotFound): nodes \"nobody\" not found\n"
    );
}

fn ignored(kubectl: &Kubectl) {
    let answer = kubectl.run("get pod nobody --ignore-not-found");
    assert_eq!(answer.stderr, "");
    assert_eq!(answer.ok(), "");
}

fn yaml(kubectl: &Kubectl) {
    kubectl.pod("web");
    let one = kubectl.run("get pod web -o yaml").ok();
    assert!(
        one.starts_with("apiVersion: v1\nkind: Pod\nmetadata:\n"),
        "{one}"
    );
    assert!(
        !one.contains("managedFields"),
        "kubectl leaves them out: {one}"
    );
    let list = kubectl.run("get pods -o yaml").ok();
    assert!(
        list.starts_with("apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Pod\n"),
        "{list}"
    );
    assert!(
        list.ends_with("kind: List\nmetadata:\n  resourceVersion: \"\"\n"),
        "{list}"
    );
}

fn json(kubectl: &Kubectl) {
    kubectl.pod("web");
    let pod = kubectl.json("pod web");
    assert_eq!(pod["kind"], "Pod");
    assert_eq!(pod["apiVersion"], "v1");
    assert_eq!(
        pod["spec"]["containers"][0]["image"],
        "registry.k8s.io/pause"
    );
    for field in ["uid", "resourceVersion", "creationTimestamp"] {
        let text = pod["metadata"][field].as_str().unwrap_or_default();
        assert!(!text.is_empty(), "{field}: {pod:#}");
    }
    let shown = kubectl
        .run("get pod web -o json --show-managed-fields")
        .ok();
    assert!(shown.contains("\"managedFields\""), "{shown}");
    assert!(shown.contains("\"kubectl-run\""), "{shown}");
}

fn name(kubectl: &Kubectl) {
    kubectl.pod("web");
    assert_eq!(kubectl.run("get pods -o name").ok(), "pod/web\n");
    assert_eq!(
        kubectl.run("get node -o name").ok(),
        "node/node-0\nnode/node-1\nnode/node-2\n"
    );
}

fn jsonpath(kubectl: &Kubectl) {
    kubectl.pod("web");
    let ip = kubectl.run("get pod web -o jsonpath={.status.podIP}").ok();
    assert!(ip.starts_with("10.244."), "{ip}");
    let path = r#"jsonpath={range .items[?(@.metadata.name=="web")]}{.metadata.name} {.status.podIPs[*].ip}{"\n"}{end}"#;
    assert_eq!(
        kubectl.args(["get", "pods", "-o", path]).ok(),
        format!("web {ip}\n")
    );
}

fn story(kubectl: &Kubectl) {
    let path = r"-ojsonpath={range .items[*]}{.metadata.name}{'\t'}{.spec.podCIDR}{'\n'}{end}";
    let list = kubectl.args(["get", "nodes", path]).ok();
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(lines.len(), 3, "{list}");
    for (place, line) in lines.iter().enumerate() {
        let (name, cidr) = line.split_once('\t').unwrap_or_default();
        assert_eq!(name, format!("node-{place}"));
        assert!(
            cidr.starts_with("10.244.") && cidr.ends_with("/24"),
            "{list}"
        );
    }
}

fn custom_columns(kubectl: &Kubectl) {
    kubectl.pod("web");
    let table = kubectl
        .run("get pods -o custom-columns=NAME:.metadata.name,IP:.status.podIP,NONE:.spec.nothing")
        .ok();
    assert_eq!(header(&table), ["NAME", "IP", "NONE"]);
    assert_eq!(row(&table, "web")[2], "<none>");
}

fn go_template(kubectl: &Kubectl) {
    kubectl.pod("web");
    let template =
        r#"go-template={{range .items}}{{.metadata.name}}={{.status.phase}}{{"\n"}}{{end}}"#;
    assert_eq!(
        kubectl.args(["get", "pods", "-o", template]).ok(),
        "web=Running\n"
    );
}

/// Creates pods that fit on no node, so that nothing changes while they are printed.
fn some_pods(kubectl: &Kubectl) {
    for (name, app, order) in [("b", "web", "2"), ("c", "web", "1"), ("a", "db", "3")] {
        let manifest = serde_json::json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": app}, "annotations": {"order": order}},
            "spec": {"nodeSelector": {"no": "such"}, "containers": [{"name": "c", "image": "pause"}]}});
        kubectl.apply(&manifest.to_string());
    }
}

fn sort_by(kubectl: &Kubectl) {
    some_pods(kubectl);
    let names = |table: String| -> Vec<String> {
        let rows = table.lines().skip(1);
        rows.map(|line| words(line)[0].to_owned()).collect()
    };
    let sorted = |by: &str| names(kubectl.run(&format!("get pods --sort-by={by}")).ok());
    assert_eq!(sorted(".metadata.annotations.order"), ["c", "b", "a"]);
    assert_eq!(sorted("{.metadata.name}"), ["a", "b", "c"]);
    let wide = kubectl
        .run("get nodes -o wide --sort-by=.spec.podCIDR")
        .ok();
    assert_eq!(names(wide).len(), 3);
    let yaml = kubectl
        .run("get pods -o name --sort-by=.metadata.annotations.order")
        .ok();
    assert_eq!(yaml, "pod/c\npod/b\npod/a\n");
}

fn labels(kubectl: &Kubectl) {
    some_pods(kubectl);
    let table = kubectl.run("get pods --show-labels").ok();
    assert_eq!(header(&table).last(), Some(&"LABELS"));
    assert_eq!(row(&table, "a").last(), Some(&"app=db"));
    let table = kubectl.run("get pods -L app").ok();
    assert_eq!(header(&table).last(), Some(&"APP"));
    assert_eq!(row(&table, "b").last(), Some(&"web"));
}

fn no_headers(kubectl: &Kubectl) {
    some_pods(kubectl);
    let table = kubectl.run("get pods --no-headers --show-kind").ok();
    assert_eq!(table.lines().count(), 3, "{table}");
    row(&table, "pod/a");
}

fn selector(kubectl: &Kubectl) {
    some_pods(kubectl);
    for (selector, want) in [
        ("app=web", "pod/b\npod/c\n"),
        ("app!=web", "pod/a\n"),
        ("app", "pod/a\npod/b\npod/c\n"),
        ("!app", ""),
        ("app=nobody", ""),
    ] {
        let found = kubectl
            .args(["get", "pods", "-o", "name", "-l", selector])
            .ok();
        assert_eq!(found, want, "{selector}");
    }
    let set = kubectl.args(["get", "pods", "-o", "name", "-l", "app in (db, cache)"]);
    assert_eq!(set.ok(), "pod/a\n");
    let bad = kubectl.args(["get", "pods", "-l", "app in"]).failed(1);
    assert!(
        bad.starts_with("Error from server (BadRequest): Unable to find \"/v1, Resource=pods\" that match label selector \"app in\", field selector \"\": unable to parse"),
        "{bad}"
    );
}

fn field_selector(kubectl: &Kubectl) {
    some_pods(kubectl);
    let found =
        |selector: &str| kubectl.run(&format!("get pods -o name --field-selector {selector}"));
    assert_eq!(found("metadata.name=b").ok(), "pod/b\n");
    assert_eq!(found("status.phase!=Pending").ok(), "");
    assert_eq!(
        found("status.phase=Pending,metadata.name!=b").ok(),
        "pod/a\npod/c\n"
    );
    assert_eq!(found("spec.nodeName=").ok(), "pod/a\npod/b\npod/c\n");
    let bad = found("spec.image=x").failed(1);
    assert!(
        bad.contains("field label not supported: spec.image"),
        "{bad}"
    );
}

fn chunks(kubectl: &Kubectl) {
    some_pods(kubectl);
    let args = ["get", "pods", "-A", "--chunk-size=2", "-o", "name", "-v=6"];
    let answer = kubectl.args(args);
    let pages = answer.stderr.matches("continue=").count();
    assert!(pages >= 1, "{}", answer.stderr);
    let found = answer.ok();
    for name in ["a", "b", "c"] {
        assert!(
            found.lines().any(|line| line == format!("pod/{name}")),
            "{found}"
        );
    }
}

fn file(kubectl: &Kubectl) {
    some_pods(kubectl);
    let path = kubectl.file(
        "pod.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n",
    );
    let table = kubectl.run(&format!("get -f {}", path.display())).ok();
    assert_eq!(row(&table, "a")[2], "Pending");
}

fn subresource(kubectl: &Kubectl) {
    let node = kubectl.node();
    let name = kubectl
        .run(&format!("get node {node} --subresource=status -o name"))
        .ok();
    assert_eq!(name, format!("node/{node}\n"));
}

fn watch(kubectl: &Kubectl) {
    kubectl.pod("first");
    let mut watching = kubectl.start("get pods -w");
    // It watches from the revision of the list, so from here on nothing is missed.
    watching.until("the list", |seen| seen.contains("first"));
    kubectl.pod("web");
    kubectl.run("delete pod web").ok();
    let seen = watching.until("the pod comes, runs and goes", |seen| {
        seen.contains("Pending") && seen.contains("Running") && seen.contains("Terminating")
    });
    assert_eq!(
        header(&seen),
        ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    );
    assert_eq!(seen.matches("NAME").count(), 1, "one header: {seen}");
}

fn watch_only(kubectl: &Kubectl) {
    some_pods(kubectl);
    let mut watching = kubectl.start("get pods --watch-only --output-watch-events -l app=web");
    // A watch shows only what comes after its beginning, so changes must go on.
    let mut number = 0;
    let seen = loop {
        number += 1;
        kubectl
            .run(&format!("annotate --overwrite pod b number={number}"))
            .ok();
        let seen = watching.until("anything", |_| true);
        if seen.contains("MODIFIED") {
            break seen;
        }
        assert!(number < 100, "{seen}");
    };
    assert_eq!(header(&seen)[..2], ["EVENT", "NAME"], "{seen}");
    kubectl.run("label pod b app=other --overwrite").ok();
    let seen = watching.until("it left the selection", |seen| seen.contains("DELETED"));
    assert!(!seen.contains("ADDED"), "only what is new: {seen}");
    assert_eq!(row(&seen, "DELETED")[1], "b");
}

fn watch_one(kubectl: &Kubectl) {
    some_pods(kubectl);
    let mut watching = kubectl.start("get pod b -w -o yaml");
    watching.until("the pod as it is", |seen| seen.contains("name: b"));
    kubectl.run("annotate pod b seen=yes").ok();
    let seen = watching.until("the change", |seen| seen.contains("seen: \"yes\""));
    assert!(seen.contains("\n---\n"), "two documents: {seen}");
}

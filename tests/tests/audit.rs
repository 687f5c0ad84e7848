//! `podplane audit` on kubectl's output of a cluster, on its server and through its kubeconfig; and
//! the repair that it writes, carried out with kubectl.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::fs;

use anyhow::Result;
use podplane_tests::{
    Cluster, Network, builder,
    kubectl::{self, Kubectl, VersionOrder},
    programs::{ProgramOutput, finish, podplane},
};
use serde_json::{Value, json};

const FLAGS: [&str; 4] = [
    "--cluster-cidr",
    "10.244.0.0/16",
    "--node-cidr-mask-size",
    "24",
];

fn audit(source: &[&str], more: &[&str]) -> ProgramOutput {
    finish(podplane(["audit"]).args(source).args(FLAGS).args(more))
}

/// The findings, and the exit code.
fn findings(source: &[&str]) -> (Option<i32>, Value) {
    let done = audit(source, &["-o", "json"]);
    let report: Value = serde_json::from_str(&done.stdout)
        .unwrap_or_else(|error| panic!("{error}: {source:?}: {done:#?}"));
    (done.code, report["findings"].clone())
}

/// A node without a machine, so that only the test writes it.
fn node(name: &str, block: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"pool": "spare"}},
        "spec": {"podCIDR": block, "podCIDRs": [block]}})
}

fn duplicates_are_found_and_repaired(kubectl: &Kubectl) {
    let name = kubectl.own("worker289");
    let block = kubectl.json("node node-0")["spec"]["podCIDR"].clone();
    kubectl.apply(&node(&name, &block).to_string());
    // A pod on node-0, so that the other node is the one to move.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stays"},
        "spec": {"nodeName": "node-0", "containers": [{"name": "c", "image": "registry.k8s.io/pause"}]}});
    kubectl.apply(&pod.to_string());
    kubectl.run("wait --for=condition=Ready pod/stays").ok();

    let dump = |form: &str| {
        let text = kubectl.run(&format!("get nodes,pods -A -o {form}")).ok();
        let path = kubectl.file(&format!("dump.{form}"), &text);
        path.to_str().unwrap().to_owned()
    };
    let (json, yaml) = (dump("json"), dump("yaml"));
    let kubeconfig = kubectl.path("kubeconfig");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let (code, found) = findings(&[&json]);
    assert_eq!(code, Some(1), "{found:#}");
    let [duplicate] = found.as_array().unwrap().as_slice() else {
        panic!("{found:#}")
    };
    assert_eq!(duplicate["code"], "duplicate-pod-cidr");
    assert_eq!(duplicate["severity"], "error");
    assert_eq!(
        duplicate["objects"],
        json!(["Node/node-0", format!("Node/{name}")])
    );
    for source in [&[yaml.as_str()][..], &["--kubeconfig", kubeconfig]] {
        assert_eq!(
            findings(source),
            (Some(1), found.clone()),
            "of {source:?} as of {json}"
        );
    }

    let dir = kubectl.path("repair");
    let dir = dir.to_str().unwrap();
    assert_eq!(audit(&[&json], &["--repair", dir]).code, Some(1));
    let again = audit(&[&json], &["--repair", dir]);
    assert!(again.failed(2).contains("not empty"));
    let manifest = format!("{dir}/{name}.yaml");
    let files: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(files.len(), 2, "the manifest and the runbook: {files:?}");
    let page = fs::read_to_string(format!("{dir}/RUNBOOK.md")).unwrap();
    // The steps that change the API. The others need the machine, which this node lacks.
    for step in ["cordon", "delete node", "apply -f", "uncordon"] {
        let argument = if step == "apply -f" { &manifest } else { &name };
        assert!(page.contains(&format!("kubectl {step} {name}")), "{page}");
        kubectl.run(&format!("{step} {argument}")).ok();
    }
    let repaired = kubectl.json(&format!("node {name}"));
    assert_eq!(repaired["metadata"]["labels"]["pool"], "spare");
    assert_ne!(repaired["spec"]["podCIDR"], block);
    assert_eq!(findings(&[&dump("json")]), (Some(0), json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn audits_a_live_cluster_with_duplicates() -> Result<()> {
    let up = builder(Network::Ledger).flags("--nodes 2 --compat upstream");
    let Some(cluster) = Cluster::up(up).await? else {
        return Ok(());
    };
    assert_eq!(
        findings(&["--data-dir", cluster.data_dir().to_str().unwrap()]),
        (Some(0), json!([]))
    );
    tokio::task::block_in_place(|| {
        kubectl::each(
            &cluster,
            VersionOrder::InTurn,
            &[(
                "audit, repair, apply, audit",
                duplicates_are_found_and_repaired,
            )],
        );
    });
    cluster.finish().await
}

#[test]
fn exit_code_follows_from_the_findings() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let list = |nodes: &[Value]| json!({"kind": "List", "items": nodes}).to_string();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"nodeName": "a"}, "status": {"phase": "Running", "podIP": "10.244.0.9"}});
    let good = node("a", &json!("10.244.0.0/24"));
    let clean = file("clean.json", &list(&[good.clone(), pod.clone()]));
    // A warning, and no error.
    let other = node("b", &json!("10.9.0.0/24"));
    let foreign = file("foreign.json", &list(&[good.clone(), other, pod.clone()]));
    let nodes = file("nodes.json", &list(&[good]));
    let pods = file("pods.json", &list(&[pod]));
    let empty = file("empty.json", &list(&[]));
    assert_eq!(audit(&[&nodes, &pods], &[]).code, Some(0));
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}});
    let other = file("other.json", &service.to_string());
    let done = audit(&[&nodes, &pods, &other], &[]);
    assert_eq!(done.code, Some(0), "{done:#?}");
    assert!(done.stderr.contains("other.json has no nodes"), "{done:#?}");
    for (source, want) in [
        (&nodes, "there are no pods in the input"),
        (&pods, "there are no nodes in the input"),
        (&empty, "there are no nodes and no pods in the input"),
    ] {
        let said = audit(&[source], &[]).failed(2);
        assert!(said.contains(want), "{said}");
    }
    let text = file("text", "No resources found\n");
    assert_eq!(audit(&[&clean], &[]).code, Some(0));
    assert_eq!(audit(&[&foreign], &[]).code, Some(1));
    assert_eq!(audit(&[&foreign], &["--fail-on", "error"]).code, Some(0));
    for (source, more, want) in [
        (text.as_str(), &[][..], "there are no nodes and pods in it"),
        ("/nowhere/dump.json", &[], "No such file"),
        (
            &clean,
            &["--node-cidr-mask-size-ipv4", "24"],
            "--node-cidr-mask-size-ipv4",
        ),
        (&clean, &["--fail-on", "fatal"], "--fail-on"),
    ] {
        let said = audit(&[source], more).failed(2);
        assert!(said.contains(want), "{source} {more:?}: {said}");
    }
    for form in ["sarif", "json"] {
        let done = audit(&[&foreign], &["-o", form]);
        let _: Value = serde_json::from_str(&done.stdout).unwrap();
    }
    let junit = audit(&[&foreign], &["-o", "junit"]).stdout;
    assert!(
        junit.contains(r#"tests="16""#) && junit.contains(r#"failures="1""#),
        "{junit}"
    );
}

#[test]
fn escapes_control_characters_of_the_input() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.json");
    let name = "a\u{1b}]0;title\u{7}\u{202e}b\nfindings: error 0";
    let block = json!("10.244.0.0/24");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": name},
        "spec": {"nodeName": name}, "status": {"phase": "Running", "podIP": "10.244.0.7"}});
    let items = [node(name, &block), node("c", &block), pod];
    fs::write(&file, json!({"kind": "List", "items": items}).to_string()).unwrap();
    let repair = dir.path().join("repair");
    let more = ["--repair", repair.to_str().unwrap()];
    let ProgramOutput { stdout, stderr, .. } = audit(&[file.to_str().unwrap()], &more);
    let shown = r"nodes: a\u{1b}]0;title\u{7}\u{202e}b findings: error 0 and c";
    assert!(stdout.contains(shown), "{stdout:?}");
    let runbook = fs::read_to_string(repair.join("RUNBOOK.md")).unwrap();
    assert!(runbook.contains("title??b"), "{runbook:?}");
    let drives = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    for text in [&stdout, &stderr, &runbook] {
        assert!(!text.contains(drives), "{text:?}");
        assert!(
            !text.lines().any(|line| line == "findings: error 0"),
            "{text}"
        );
    }
}

//! `run`, `wait`, `set`, and the commands that a pod without containers cannot serve.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

pub(super) const CASES: &[KubectlCase] = &[
    ("run", run),
    ("run --overrides --labels --env", run_with),
    ("run --rm -i", run_attached),
    ("wait --for=condition", wait_condition),
    ("wait --for=jsonpath", wait_jsonpath),
    ("wait --for=delete", wait_delete),
    ("wait --for=create", wait_create),
    ("wait, in vain", wait_in_vain),
    ("set image of a pod", set_image),
    ("exec", exec),
    ("attach", attach),
    ("port-forward", port_forward),
    ("cp", cp),
    ("proxy", proxy),
    ("top", top),
];

fn run(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run("run web --image=nginx").ok(),
        "pod/web created\n"
    );
    let pod = kubectl.json("pod web");
    assert_eq!(pod["metadata"]["labels"]["run"], "web");
    assert_eq!(pod["spec"]["containers"][0]["name"], "web");
    assert_eq!(
        kubectl.run("run web --image=nginx").failed(1),
        "Error from server (AlreadyExists): pods \"web\" already exists\n"
    );
    let dry = kubectl.run("run other --image=nginx --dry-run=server");
    assert_eq!(dry.ok(), "pod/other created (server dry run)\n");
    kubectl.run("get pod other").failed(1);
}

fn run_with(kubectl: &Kubectl) {
    kubectl
        .run("run web --image=nginx --labels=app=x,tier=y --env=A=b --port=80 --restart=Never --annotations=n=1 --command -- sleep 1h")
        .ok();
    let pod = kubectl.json("pod web");
    assert_eq!(pod["metadata"]["labels"]["tier"], "y");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["env"][0]["value"], "b");
    assert_eq!(container["ports"][0]["containerPort"], 80);
    assert_eq!(container["command"], serde_json::json!(["sleep", "1h"]));
    assert_eq!(pod["spec"]["restartPolicy"], "Never");
    let overrides = r#"--overrides={"spec":{"hostNetwork":true}}"#;
    kubectl
        .args(["run", "host", "--image=nginx", overrides])
        .ok();
    assert_eq!(kubectl.json("pod host")["spec"]["hostNetwork"], true);
}

/// No container runs in a pod, so nothing can be attached to; but the pod is removed as `--rm`
/// says.
fn run_attached(kubectl: &Kubectl) {
    let answer =
        kubectl.run("run web --image=nginx --rm -i --restart=Never --pod-running-timeout=20s");
    assert_ne!(answer.code, Some(0), "{answer:?}");
    assert!(answer.stderr.contains("no containers run"), "{answer:?}");
}

fn wait_condition(kubectl: &Kubectl) {
    kubectl.run("run web --image=nginx").ok();
    assert_eq!(
        kubectl.run("wait --for=condition=Ready pod/web").ok(),
        "pod/web condition met\n"
    );
    assert_eq!(
        kubectl.run("wait --for=condition=ready pod --all").ok(),
        "pod/web condition met\n"
    );
    let node = kubectl.node();
    assert_eq!(
        kubectl
            .run(&format!("wait --for=condition=Ready node/{node}"))
            .ok(),
        format!("node/{node} condition met\n")
    );
}

fn wait_jsonpath(kubectl: &Kubectl) {
    kubectl.run("run web --image=nginx").ok();
    assert_eq!(
        kubectl
            .run("wait --for=jsonpath={.status.phase}=Running pod/web")
            .ok(),
        "pod/web condition met\n"
    );
}

fn wait_delete(kubectl: &Kubectl) {
    kubectl.pod("web");
    // It prints nothing about a pod that is gone before it looks; its log shows when it watches.
    let mut waiting = kubectl.start("wait --for=delete pod/web -v=6");
    waiting.until("it watches", |log| log.contains("watch=true"));
    kubectl.run("delete pod web --wait=false").ok();
    let (code, said) = waiting.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.lines().any(|line| line == "pod/web condition met"),
        "{said}"
    );
}

fn wait_create(kubectl: &Kubectl) {
    if kubectl.minor() < 31 {
        return; // It came with 1.31.
    }
    let mut waiting = kubectl.start("wait --for=create pod/web");
    kubectl.run("run web --image=nginx").ok();
    assert_eq!(
        waiting.end(),
        (Some(0), "pod/web condition met\n".to_owned())
    );
}

fn wait_in_vain(kubectl: &Kubectl) {
    let overrides = r#"--overrides={"spec":{"nodeSelector":{"no":"such"}}}"#;
    kubectl
        .args(["run", "web", "--image=nginx", overrides])
        .ok();
    assert_eq!(
        kubectl
            .run("wait --for=condition=Ready pod/web --timeout=1s")
            .failed(1),
        "error: timed out waiting for the condition on pods/web\n"
    );
}

fn set_image(kubectl: &Kubectl) {
    kubectl.pod("web");
    assert_eq!(
        kubectl.run("set image pod/web web=other:1").ok(),
        "pod/web image updated\n"
    );
    let image = kubectl
        .run("get pod web -o jsonpath={.spec.containers[0].image}")
        .ok();
    assert_eq!(image, "other:1");
}

/// The server refuses the command at once.
#[track_caller]
fn refused(kubectl: &Kubectl, args: &str) {
    let answer = kubectl.run(args);
    assert_eq!(answer.code, Some(1), "{args}: {answer:?}");
    assert!(
        answer.stderr.contains("no containers run"),
        "{args}: {answer:?}"
    );
}

fn exec(kubectl: &Kubectl) {
    kubectl.pod("web");
    refused(kubectl, "exec web -- ls");
    refused(kubectl, "exec -i web -c web -- sh");
}

fn attach(kubectl: &Kubectl) {
    kubectl.pod("web");
    refused(kubectl, "attach web");
}

fn port_forward(kubectl: &Kubectl) {
    kubectl.pod("web");
    refused(kubectl, "port-forward web :80 --pod-running-timeout=5s");
}

fn cp(kubectl: &Kubectl) {
    kubectl.pod("web");
    let file = kubectl.file("a", "text");
    refused(kubectl, &format!("cp {} web:/tmp/a", file.display()));
}

fn proxy(kubectl: &Kubectl) {
    let mut proxy = kubectl.start("proxy --port=0");
    let said = proxy.until("where it listens", |seen| {
        seen.contains("Starting to serve on")
    });
    let address = said.split_whitespace().last().unwrap_or_default();
    let version = kubectl.run(&format!("--server=http://{address} get --raw /version"));
    assert!(version.ok().contains("podplane"));
}

fn top(kubectl: &Kubectl) {
    for what in ["nodes", "pods"] {
        assert_eq!(
            kubectl.run(&format!("top {what}")).failed(1),
            "error: Metrics API not available\n"
        );
    }
}

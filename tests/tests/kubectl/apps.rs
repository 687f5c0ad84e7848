//! Deployments: `create deployment`, `scale`, `rollout`, `set image`, and deletion with its ways to
//! propagate.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::{has_lines, header, row, words};

pub(super) const CASES: &[KubectlCase] = &[
    ("create deployment", create),
    ("get deployments and replica sets", tables),
    ("describe deployment", describe),
    ("scale", scale),
    ("scale a replica set", scale_set),
    ("rollout status", status),
    ("set image and rollout history", history),
    ("rollout undo", undo),
    ("rollout restart", restart),
    ("rollout pause and resume", pause),
    ("set env and resources", set),
    ("apply a deployment", apply),
    ("edit a deployment", edit),
    ("delete --cascade=background", delete_background),
    ("delete --cascade=foreground", delete_foreground),
    ("delete --cascade=orphan", delete_orphan),
    ("logs of a deployment", logs),
    ("expose", expose),
    ("create service nodeport", node_ports),
    ("drain what a deployment owns", evict),
    ("autoscale", autoscale),
];

fn deployment(kubectl: &Kubectl, replicas: u32) {
    let text = kubectl
        .run(&format!(
            "create deployment web --image=nginx:1 --replicas={replicas}"
        ))
        .ok();
    assert_eq!(text, "deployment.apps/web created\n");
    kubectl.run("rollout status deployment/web").ok();
}

fn pods(kubectl: &Kubectl, count: usize) {
    kubectl.until("get pods -l app=web -o name", |seen| {
        seen.stdout.lines().count() == count
    });
}

fn create(kubectl: &Kubectl) {
    deployment(kubectl, 2);
    let made = kubectl.json("deployment web");
    assert_eq!(made["spec"]["replicas"], 2);
    assert_eq!(made["spec"]["selector"]["matchLabels"]["app"], "web");
    assert_eq!(
        made["spec"]["strategy"]["type"], "RollingUpdate",
        "defaulted"
    );
    assert_eq!(made["metadata"]["labels"]["app"], "web");
    assert_eq!(
        made["spec"]["template"]["spec"]["containers"][0]["name"],
        "nginx"
    );
    pods(kubectl, 2);
}

fn tables(kubectl: &Kubectl) {
    deployment(kubectl, 2);
    let table = kubectl.run("get deploy").ok();
    assert_eq!(
        header(&table),
        ["NAME", "READY", "UP-TO-DATE", "AVAILABLE", "AGE"]
    );
    assert_eq!(row(&table, "web")[..4], ["web", "2/2", "2", "2"]);
    let wide = kubectl.run("get deploy -o wide").ok();
    assert_eq!(
        header(&wide),
        words("NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR")
    );
    assert_eq!(row(&wide, "web")[5..], ["nginx", "nginx:1", "app=web"]);
    let sets = kubectl.run("get rs -o wide").ok();
    assert_eq!(
        header(&sets),
        words("NAME DESIRED CURRENT READY AGE CONTAINERS IMAGES SELECTOR")
    );
    let all = kubectl.run("get all").ok();
    for kind in ["pod/web-", "deployment.apps/web", "replicaset.apps/web-"] {
        assert!(all.contains(kind), "{kind}: {all}");
    }
}

fn describe(kubectl: &Kubectl) {
    deployment(kubectl, 2);
    let text = kubectl.run("describe deployment web").ok();
    has_lines(
        &text,
        &[
            "Name: web",
            "Labels: app=web",
            "Selector: app=web",
            "Replicas: 2 desired | 2 updated | 2 total | 2 available | 0 unavailable",
            "StrategyType: RollingUpdate",
            "RollingUpdateStrategy: 25% max unavailable, 25% max surge",
            "Pod Template:",
            "Image: nginx:1",
            "Conditions:",
            "Available True MinimumReplicasAvailable",
            "Progressing True NewReplicaSetAvailable",
            "OldReplicaSets: <none>",
            "Events:",
        ],
    );
    assert!(text.contains("ScalingReplicaSet"), "{text}");
    let set = kubectl.run("describe rs -l app=web").ok();
    assert!(set.contains("Controlled By:  Deployment/web"), "{set}");
    let pod = kubectl.run("describe pod -l app=web").ok();
    assert!(pod.contains("Controlled By:  ReplicaSet/web-"), "{pod}");
}

fn scale(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    assert_eq!(
        kubectl.run("scale deployment web --replicas=3").ok(),
        "deployment.apps/web scaled\n"
    );
    pods(kubectl, 3);
    assert_eq!(
        kubectl
            .run("scale --current-replicas=5 --replicas=1 deployment/web")
            .failed(1),
        "error: Expected replicas to be 5, was 3\n"
    );
    kubectl
        .run("scale --current-replicas=3 --replicas=0 deployment/web")
        .ok();
    pods(kubectl, 0);
    let missing = kubectl
        .run("scale deployment nobody --replicas=1")
        .failed(1);
    assert!(
        missing.starts_with("error: no objects passed to scale"),
        "{missing}"
    );
}

fn scale_set(kubectl: &Kubectl) {
    let manifest = serde_json::json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "pause"}]}}}});
    assert_eq!(
        kubectl.apply(&manifest.to_string()),
        "replicaset.apps/web created\n"
    );
    pods(kubectl, 1);
    assert_eq!(
        kubectl
            .run("scale rs web --current-replicas=1 --replicas=2")
            .ok(),
        "replicaset.apps/web scaled\n"
    );
    pods(kubectl, 2);
    assert_eq!(
        kubectl
            .run("scale rs web --current-replicas=1 --replicas=3")
            .failed(1),
        "error: Expected replicas to be 1, was 2\n"
    );
    assert_eq!(
        kubectl.run("scale rs --all --replicas=0 --timeout=1m").ok(),
        "replicaset.apps/web scaled\n"
    );
    pods(kubectl, 0);
}

fn status(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    let text = kubectl.run("rollout status deployment web").ok();
    assert_eq!(text, "deployment \"web\" successfully rolled out\n");
    kubectl.run("set image deployment/web nginx=nginx:2").ok();
    let text = kubectl
        .run("rollout status deployment/web --timeout=60s")
        .ok();
    assert!(
        text.ends_with("deployment \"web\" successfully rolled out\n"),
        "{text}"
    );
}

fn image(kubectl: &Kubectl) -> String {
    kubectl
        .run("get deployment web -o jsonpath={.spec.template.spec.containers[0].image}")
        .ok()
}

fn history(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    assert_eq!(
        kubectl.run("set image deployment/web nginx=nginx:2").ok(),
        "deployment.apps/web image updated\n"
    );
    kubectl
        .run("annotate deployment/web kubernetes.io/change-cause=second")
        .ok();
    kubectl.run("rollout status deployment/web").ok();
    let seen = kubectl.until("rollout history deployment/web", |seen| {
        seen.stdout.contains("second")
    });
    has_lines(
        &seen.stdout,
        &[
            "deployment.apps/web",
            "REVISION CHANGE-CAUSE",
            "1 <none>",
            "2 second",
        ],
    );
    let one = kubectl
        .run("rollout history deployment/web --revision=1")
        .ok();
    has_lines(
        &one,
        &[
            "deployment.apps/web with revision #1",
            "Pod Template:",
            "Image: nginx:1",
        ],
    );
}

fn undo(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    kubectl.run("set image deployment/web nginx=nginx:2").ok();
    kubectl.run("rollout status deployment/web").ok();
    assert_eq!(
        kubectl.run("rollout undo deployment/web").ok(),
        "deployment.apps/web rolled back\n"
    );
    assert_eq!(image(kubectl), "nginx:1");
    kubectl.run("rollout status deployment/web").ok();
    kubectl
        .run("rollout undo deployment/web --to-revision=2")
        .ok();
    assert_eq!(image(kubectl), "nginx:2");
    kubectl.run("rollout status deployment/web").ok();
    let missing = kubectl
        .run("rollout undo deployment/web --to-revision=9")
        .failed(1);
    assert_eq!(
        missing,
        "error: unable to find specified revision 9 in history\n"
    );
}

fn restart(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    let before = kubectl.run("get pods -l app=web -o name").ok();
    assert_eq!(
        kubectl.run("rollout restart deployment/web").ok(),
        "deployment.apps/web restarted\n"
    );
    kubectl.run("rollout status deployment/web").ok();
    kubectl.until("get pods -l app=web -o name", |seen| {
        seen.stdout.lines().count() == 1 && seen.stdout != before
    });
}

fn pause(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    assert_eq!(
        kubectl.run("rollout pause deployment/web").ok(),
        "deployment.apps/web paused\n"
    );
    kubectl.run("set image deployment/web nginx=nginx:2").ok();
    let images = "get pods -l app=web -o jsonpath={.items[*].spec.containers[*].image}";
    assert_eq!(kubectl.run(images).ok(), "nginx:1");
    let again = kubectl.run("rollout pause deployment/web").failed(1);
    assert_eq!(again, "error: deployments.apps \"web\" is already paused\n");
    assert_eq!(
        kubectl.run("rollout resume deployment/web").ok(),
        "deployment.apps/web resumed\n"
    );
    kubectl.until(images, |seen| seen.stdout == "nginx:2");
}

fn set(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    assert_eq!(
        kubectl.run("set env deployment/web A=b").ok(),
        "deployment.apps/web env updated\n"
    );
    assert_eq!(
        kubectl
            .run("set resources deployment/web --requests=cpu=10m")
            .ok(),
        "deployment.apps/web resource requirements updated\n"
    );
    let made = kubectl.json("deployment web");
    let container = &made["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["env"][0]["value"], "b");
    assert_eq!(container["resources"]["requests"]["cpu"], "10m");
    kubectl.run("rollout status deployment/web").ok();
}

fn apply(kubectl: &Kubectl) {
    let manifest = |image: &str, more: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 2\n  selector:\n    matchLabels:\n      app: web\n  template:\n    metadata:\n      labels:\n        app: web\n    spec:\n      containers:\n      - name: a\n        image: {image}\n        ports:\n        - containerPort: 80\n{more}"
        )
    };
    let sidecar = "      - name: b\n        image: sidecar\n";
    assert_eq!(
        kubectl.apply(&manifest("nginx:1", sidecar)),
        "deployment.apps/web created\n"
    );
    assert_eq!(
        kubectl.apply(&manifest("nginx:1", sidecar)),
        "deployment.apps/web unchanged\n"
    );
    assert_eq!(
        kubectl.apply(&manifest("nginx:2", "")),
        "deployment.apps/web configured\n"
    );
    let made = kubectl.json("deployment web");
    let containers = made["spec"]["template"]["spec"]["containers"].as_array();
    assert_eq!(containers.map(Vec::len), Some(1), "the sidecar went");
    assert_eq!(image(kubectl), "nginx:2");
    kubectl.run("rollout status deployment/web").ok();
    let other = manifest("nginx:2", "").replace("      app: web", "      app: other");
    let refused = kubectl.fed("apply -f -", &other).failed(1);
    assert!(
        refused.contains("spec.selector: Invalid value") && refused.contains("field is immutable"),
        "{refused}"
    );
}

fn edit(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    let text = kubectl
        .edited(
            "edit deployment web",
            "sed -i 's/replicas: 1/replicas: 2/' \"$1\"",
        )
        .ok();
    assert_eq!(text, "deployment.apps/web edited\n");
    pods(kubectl, 2);
}

fn delete_background(kubectl: &Kubectl) {
    deployment(kubectl, 2);
    let text = kubectl.run("delete deployment web").ok();
    assert!(
        text.starts_with("deployment.apps \"web\" deleted"),
        "{text}"
    );
    pods(kubectl, 0);
    kubectl.until("get rs -o name", |seen| seen.stdout.is_empty());
}

fn delete_foreground(kubectl: &Kubectl) {
    deployment(kubectl, 2);
    kubectl
        .run("delete deployment web --cascade=foreground")
        .ok();
    // When it is gone, all objects that it owned are gone.
    assert_eq!(kubectl.run("get rs,pods -o name").ok(), "");
}

fn delete_orphan(kubectl: &Kubectl) {
    deployment(kubectl, 2);
    kubectl.run("delete deployment web --cascade=orphan").ok();
    kubectl.run("get deployment web").failed(1);
    kubectl.until(
        "get rs -o jsonpath={.items[*].metadata.ownerReferences}",
        |seen| seen.stdout.is_empty(),
    );
    let sets = kubectl.run("get rs -o name").ok();
    assert_eq!(sets.lines().count(), 1, "{sets}");
    pods(kubectl, 2);
}

fn logs(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    let text = kubectl.run("logs deployment/web").ok();
    assert!(text.contains("created"), "{text}");
}

fn expose(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    assert_eq!(
        kubectl.run("expose deployment web --port=80").ok(),
        "service/web exposed\n"
    );
    let table = kubectl.run("get svc").ok();
    assert_eq!(
        header(&table),
        words("NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE")
    );
    assert_eq!(row(&table, "web")[1], "ClusterIP");
    let address = row(&table, "web")[2];
    let addresses = kubectl.run("get ipaddress").ok();
    assert_eq!(header(&addresses), ["NAME", "PARENTREF"]);
    let parent = format!("services/{}/web", kubectl.namespace);
    assert_eq!(row(&addresses, address)[1], parent);
    let ranges = kubectl.run("get servicecidr").ok();
    assert_eq!(row(&ranges, "kubernetes")[1], "10.96.0.0/16");
    kubectl.run("delete svc web").ok();
    let addresses = kubectl.run("get ipaddress").ok();
    assert!(!addresses.contains(&parent), "{addresses}");
}

fn node_ports(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run("create service nodeport web --tcp=80").ok(),
        "service/web created\n"
    );
    let table = kubectl.run("get svc").ok();
    let ports = row(&table, "web")[4];
    let port = ports
        .strip_prefix("80:")
        .and_then(|text| text.strip_suffix("/TCP"));
    let port = port.unwrap_or_else(|| panic!("{table}"));
    let refused = kubectl.run(&format!(
        "create service nodeport other --tcp=80 --node-port={port}"
    ));
    assert!(
        refused
            .failed(1)
            .contains("provided port is already allocated"),
        "{table}"
    );
    kubectl.run("delete svc web").ok();
}

fn evict(kubectl: &Kubectl) {
    deployment(kubectl, 1);
    let pod = kubectl.run("get pods -l app=web -o name").ok();
    let pod = pod.trim();
    kubectl.run(&format!("delete {pod} --wait=false")).ok();
    kubectl.until("get pods -l app=web -o name", |seen| {
        seen.stdout.lines().count() == 1 && seen.stdout.trim() != pod
    });
}

/// HorizontalPodAutoscalers are stored and shown; nothing here scales by them. `kubectl autoscale`
/// asks for autoscaling/v1 before 1.33, which is not served.
fn autoscale(kubectl: &Kubectl) {
    let manifest = serde_json::json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 1, "maxReplicas": 3,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]}});
    kubectl.apply(&manifest.to_string());
    let table = kubectl.run("get hpa").ok();
    let web = row(&table, "web");
    assert_eq!(web[1], "Deployment/web");
    let bounds = web.windows(2).any(|pair| pair == ["1", "3"]);
    assert!(bounds, "{table}");
    kubectl.run("delete hpa web").ok();
}

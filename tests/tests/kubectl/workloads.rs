//! DaemonSets, StatefulSets, Jobs and the endpoints of Services: their tables, `rollout`, `scale`,
//! `wait`, and deletion with its ways to propagate.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;

use podplane_tests::kubectl::{Kubectl, KubectlCase};
use serde_json::{Value, json};

use super::{has_lines, header, row, words};

pub(super) const CASES: &[KubectlCase] = &[
    ("daemon sets and their rollout", daemon_set),
    ("daemon sets deleted and orphaned", daemon_set_deleted),
    ("stateful sets and their rollout", stateful_set),
    ("stateful sets deleted and orphaned", stateful_set_deleted),
    ("stateful sets with claims", claims),
    ("jobs until they complete", job),
    ("jobs that fail", failed_job),
    ("indexed jobs", indexed_job),
    ("suspended jobs", suspended_job),
    ("jobs deleted with their pods", job_deleted),
    ("endpoints of an exposed deployment", endpoints),
];

/// A template of pods that are labelled with that app, and end as the annotations say.
fn template(app: &str, annotations: Value) -> Value {
    json!({
        "metadata": {"labels": {"app": app}, "annotations": annotations},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": format!("{app}:1")}]},
    })
}

fn apply(kubectl: &Kubectl, kind: &str, name: &str, spec: &Value) {
    let version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
    let manifest =
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let said = kubectl.apply(&manifest.to_string());
    assert!(said.ends_with("created\n"), "{said}");
}

fn apply_daemon_set(kubectl: &Kubectl) {
    let spec = json!({"selector": {"matchLabels": {"app": "agent"}}, "template": template("agent", json!({}))});
    apply(kubectl, "DaemonSet", "agent", &spec);
    rolled_out(kubectl, "ds/agent");
}

fn apply_stateful_set(kubectl: &Kubectl) {
    let spec = json!({"serviceName": "db", "replicas": 2, "selector": {"matchLabels": {"app": "db"}}, "template": template("db", json!({}))});
    apply(kubectl, "StatefulSet", "db", &spec);
    rolled_out(kubectl, "sts/db");
}

fn apply_job(kubectl: &Kubectl, name: &str, after: &str, code: &str, more: Value) {
    let annotations = json!({"podplane.io/exit-after": after, "podplane.io/exit-code": code});
    let mut template = template(name, annotations);
    template["spec"]["restartPolicy"] = "Never".into();
    let mut spec = more;
    spec["template"] = template;
    apply(kubectl, "Job", name, &spec);
}

fn rolled_out(kubectl: &Kubectl, workload: &str) -> String {
    kubectl
        .run(&format!("rollout status {workload} --timeout=60s"))
        .ok()
}

/// The UIDs of the pods with that label, sorted.
fn uids(kubectl: &Kubectl, selector: &str) -> Vec<String> {
    let uids = "-o jsonpath={.items[*].metadata.uid}";
    let text = kubectl.run(&format!("get pods -l {selector} {uids}")).ok();
    let mut uids: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    uids.sort();
    uids
}

fn no_pods(kubectl: &Kubectl) {
    kubectl.until("get pods -o name", |seen| seen.stdout.is_empty());
}

/// The count of nodes, which the versions do not change here.
fn nodes(kubectl: &Kubectl) -> String {
    let names = kubectl.run("get nodes -o name").ok();
    names.lines().count().to_string()
}

fn daemon_set(kubectl: &Kubectl) {
    apply_daemon_set(kubectl);
    let nodes = nodes(kubectl);
    let count = nodes.as_str();
    let table = kubectl.run("get ds -o wide").ok();
    assert_eq!(
        header(&table),
        words(
            "NAME DESIRED CURRENT READY UP-TO-DATE AVAILABLE NODE SELECTOR AGE CONTAINERS IMAGES SELECTOR"
        )
    );
    let seen = row(&table, "agent");
    assert_eq!(
        seen[..7],
        ["agent", count, count, count, count, count, "<none>"]
    );
    let pods = kubectl.json("pods -l app=agent");
    let pods = pods["items"].as_array().unwrap();
    let bound: BTreeSet<_> = pods
        .iter()
        .map(|pod| pod["spec"]["nodeName"].as_str())
        .collect();
    assert_eq!(bound.len().to_string(), nodes, "on each node");
    assert_eq!(pods.len(), bound.len(), "one on each node");
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unschedulable",
    ] {
        let mut tolerations = pods[0]["spec"]["tolerations"].as_array().unwrap().iter();
        assert!(tolerations.any(|it| it["key"] == key), "{key}");
    }
    kubectl.run("set image ds/agent c=agent:2").ok();
    let said = rolled_out(kubectl, "ds/agent");
    assert!(
        said.ends_with("daemon set \"agent\" successfully rolled out\n"),
        "{said}"
    );
    let history = kubectl.run("rollout history ds/agent").ok();
    has_lines(&history, &["REVISION CHANGE-CAUSE", "1 <none>", "2 <none>"]);
    let said = kubectl.run("rollout undo ds/agent").ok();
    assert_eq!(said, "daemonset.apps/agent rolled back\n");
    rolled_out(kubectl, "ds/agent");
    let images = "get pods -l app=agent -o jsonpath={.items[*].spec.containers[0].image}";
    let images = kubectl.run(images).ok();
    assert!(!images.is_empty());
    assert!(images.split_whitespace().all(|image| image == "agent:1"));
    let text = kubectl.run("describe ds agent").ok();
    has_lines(
        &text,
        &[
            "Name: agent",
            "Selector: app=agent",
            &format!("Desired Number of Nodes Scheduled: {nodes}"),
            &format!("Number of Nodes Scheduled with Available Pods: {nodes}"),
            "Number of Nodes Misscheduled: 0",
        ],
    );
    assert!(text.contains("SuccessfulCreate"), "{text}");
}

fn daemon_set_deleted(kubectl: &Kubectl) {
    apply_daemon_set(kubectl);
    let before = uids(kubectl, "app=agent");
    kubectl.run("delete ds agent --cascade=orphan").ok();
    assert_eq!(uids(kubectl, "app=agent"), before);
    // The same template: it adopts the pods.
    apply_daemon_set(kubectl);
    assert_eq!(uids(kubectl, "app=agent"), before);
    kubectl.run("delete ds agent --cascade=foreground").ok();
    no_pods(kubectl);
    let left = kubectl.run("get controllerrevisions -o name").ok();
    assert_eq!(left, "");
}

fn stateful_set(kubectl: &Kubectl) {
    apply_stateful_set(kubectl);
    let table = kubectl.run("get sts -o wide").ok();
    assert_eq!(header(&table), words("NAME READY AGE CONTAINERS IMAGES"));
    assert_eq!(row(&table, "db")[..2], ["db", "2/2"]);
    let said = kubectl.run("scale sts db --replicas=3").ok();
    assert_eq!(said, "statefulset.apps/db scaled\n");
    rolled_out(kubectl, "sts/db");
    let names = kubectl.run("get pods -l app=db -o name").ok();
    assert_eq!(names, "pod/db-0\npod/db-1\npod/db-2\n");
    let before = uids(kubectl, "app=db");
    // kubectl's own wait may take the new pod, which has the same name, for the deleted one.
    kubectl.run("delete pod db-1 --wait=false").ok();
    let again = |uid: &&str| !before.iter().any(|other| other == uid);
    kubectl.until(
        "get pods -l app=db -o jsonpath={.items[*].metadata.uid}",
        |seen| {
            let uids: Vec<_> = seen.stdout.split(' ').collect();
            uids.len() == 3 && uids.iter().copied().filter(again).count() == 1
        },
    );
    rolled_out(kubectl, "sts/db");
    let patch = r#"{"spec":{"updateStrategy":{"rollingUpdate":{"partition":2}}}}"#;
    kubectl.args(["patch", "sts", "db", "-p", patch]).ok();
    kubectl.run("set image sts/db c=db:2").ok();
    let said = rolled_out(kubectl, "sts/db");
    assert!(
        said.ends_with("partitioned roll out complete: 1 new pods have been updated...\n"),
        "{said}"
    );
    let images = || {
        kubectl
            .run("get pods -l app=db -o jsonpath={.items[*].spec.containers[0].image}")
            .ok()
    };
    assert_eq!(images(), "db:1 db:1 db:2");
    let patch = patch.replace('2', "0");
    kubectl.args(["patch", "sts", "db", "-p", &patch]).ok();
    rolled_out(kubectl, "sts/db");
    assert_eq!(images(), "db:2 db:2 db:2");
    kubectl.run("rollout undo sts/db").ok();
    rolled_out(kubectl, "sts/db");
    assert_eq!(images(), "db:1 db:1 db:1");
    kubectl.run("scale sts db --replicas=1").ok();
    kubectl.until("get pods -l app=db -o name", |seen| {
        seen.stdout == "pod/db-0\n"
    });
    let text = kubectl.run("describe sts db").ok();
    has_lines(
        &text,
        &[
            "Name: db",
            "Selector: app=db",
            "Replicas: 1 desired | 1 total",
        ],
    );
    assert!(
        text.contains("create Pod db-0 in StatefulSet db successful"),
        "{text}"
    );
    assert!(
        text.contains("delete Pod db-2 in StatefulSet db successful"),
        "{text}"
    );
}

fn stateful_set_deleted(kubectl: &Kubectl) {
    apply_stateful_set(kubectl);
    let before = uids(kubectl, "app=db");
    kubectl.run("delete sts db --cascade=orphan").ok();
    assert_eq!(uids(kubectl, "app=db"), before);
    apply_stateful_set(kubectl);
    assert_eq!(uids(kubectl, "app=db"), before);
    kubectl.run("delete sts db --cascade=foreground").ok();
    no_pods(kubectl);
}

/// Nothing binds claims, and the pod says that it waits for one.
fn claims(kubectl: &Kubectl) {
    let mut spec = json!({"serviceName": "kept", "replicas": 1, "selector": {"matchLabels": {"app": "kept"}}, "template": template("kept", json!({}))});
    spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]);
    apply(kubectl, "StatefulSet", "kept", &spec);
    let unscheduled =
        "get pod kept-0 -o jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}";
    kubectl.until(unscheduled, |seen| {
        let unbound = "pod has unbound immediate PersistentVolumeClaims: data-kept-0";
        seen.stdout.contains(unbound)
    });
    let table = kubectl.run("get pvc").ok();
    assert_eq!(row(&table, "data-kept-0")[1], "Pending");
    kubectl.run("delete sts kept").ok();
    no_pods(kubectl);
    let left = kubectl.run("get pvc -o name").ok();
    assert_eq!(left, "persistentvolumeclaim/data-kept-0\n", "retained");
}

fn job(kubectl: &Kubectl) {
    let more = json!({"completions": 3, "parallelism": 2});
    apply_job(kubectl, "work", "300ms", "0", more);
    kubectl
        .run("wait --for=condition=complete job/work --timeout=60s")
        .ok();
    let table = kubectl.run("get jobs").ok();
    assert_eq!(
        header(&table),
        words("NAME STATUS COMPLETIONS DURATION AGE")
    );
    assert_eq!(row(&table, "work")[..3], ["work", "Complete", "3/3"]);
    let pods = kubectl.json("pods -l job-name=work");
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 3);
    for pod in pods {
        assert_eq!(pod["status"]["phase"], "Succeeded");
        assert_eq!(pod["metadata"]["finalizers"], Value::Null, "counted");
    }
    let table = kubectl.run("get pods --no-headers").ok();
    for line in table.lines() {
        assert_eq!(words(line)[1..3], ["0/1", "Completed"], "{table}");
    }
    let status = &kubectl.json("job work")["status"];
    for (field, want) in [("succeeded", 3), ("ready", 0), ("terminating", 0)] {
        assert_eq!(status[field], want, "{field}: {status}");
    }
    assert_eq!(status["uncountedTerminatedPods"], json!({}));
    let types = status["conditions"].as_array().unwrap().iter();
    let types: Vec<_> = types.map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["SuccessCriteriaMet", "Complete"]);
    let text = kubectl.run("describe job work").ok();
    has_lines(
        &text,
        &[
            "Name: work",
            "Parallelism: 2",
            "Completions: 3",
            "Pods Statuses: 0 Active (0 Ready) / 3 Succeeded / 0 Failed",
        ],
    );
    assert!(text.contains("SuccessfulCreate"), "{text}");
    kubectl.until("events --for job/work", |seen| {
        seen.stdout.contains("Job completed")
    });
}

fn failed_job(kubectl: &Kubectl) {
    apply_job(kubectl, "bad", "200ms", "3", json!({"backoffLimit": 0}));
    kubectl
        .run("wait --for=condition=failed job/bad --timeout=60s")
        .ok();
    let table = kubectl.run("get jobs").ok();
    assert_eq!(row(&table, "bad")[..3], ["bad", "Failed", "0/1"]);
    let table = kubectl.run("get pods --no-headers").ok();
    assert_eq!(words(&table)[1..3], ["0/1", "Error"], "{table}");
    let conditions = &kubectl.json("job bad")["status"]["conditions"];
    let reasons = conditions.as_array().unwrap().iter();
    let reasons: Vec<_> = reasons.map(|it| (&it["type"], &it["reason"])).collect();
    assert_eq!(
        json!(reasons),
        json!([
            ["FailureTarget", "BackoffLimitExceeded"],
            ["Failed", "BackoffLimitExceeded"]
        ])
    );
    kubectl.until("events --for job/bad", |seen| {
        seen.stdout
            .contains("Job has reached the specified backoff limit")
    });
}

fn indexed_job(kubectl: &Kubectl) {
    let more = json!({"completions": 3, "parallelism": 3, "completionMode": "Indexed"});
    apply_job(kubectl, "shards", "200ms", "0", more);
    kubectl
        .run("wait --for=condition=complete job/shards --timeout=60s")
        .ok();
    let status = &kubectl.json("job shards")["status"];
    assert_eq!(status["completedIndexes"], "0-2");
    let pods = kubectl.json("pods -l job-name=shards");
    let mut seen: Vec<_> = pods["items"].as_array().unwrap().iter().collect();
    seen.sort_by_key(|pod| pod["spec"]["hostname"].to_string());
    assert_eq!(seen.len(), 3);
    for (index, pod) in seen.iter().enumerate() {
        let label = &pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"];
        assert_eq!(*label, index.to_string());
        assert_eq!(pod["spec"]["hostname"], format!("shards-{index}"));
    }
}

fn suspended_job(kubectl: &Kubectl) {
    apply_job(kubectl, "later", "300ms", "0", json!({"suspend": true}));
    let suspended = r#"{"spec":{"suspend":true}}"#;
    kubectl
        .run("wait --for=condition=suspended job/later --timeout=60s")
        .ok();
    let table = kubectl.run("get jobs").ok();
    assert_eq!(row(&table, "later")[..3], ["later", "Suspended", "0/1"]);
    assert_eq!(kubectl.run("get pods -o name").ok(), "");
    let resumed = suspended.replace("true", "false");
    kubectl.args(["patch", "job", "later", "-p", &resumed]).ok();
    kubectl
        .run("wait --for=condition=complete job/later --timeout=60s")
        .ok();
    kubectl.until("events --for job/later", |seen| {
        seen.stdout.contains("Job suspended") && seen.stdout.contains("Job resumed")
    });
}

fn job_deleted(kubectl: &Kubectl) {
    apply_job(kubectl, "ended", "100ms", "0", json!({}));
    apply_job(kubectl, "running", "1h", "0", json!({}));
    kubectl
        .run("wait --for=condition=complete job/ended --timeout=60s")
        .ok();
    kubectl.run("delete job ended running").ok();
    no_pods(kubectl);
    // A finished one may go by itself.
    let more = json!({"ttlSecondsAfterFinished": 1});
    apply_job(kubectl, "brief", "100ms", "0", more);
    kubectl
        .run("wait --for=delete job/brief --timeout=60s")
        .ok();
    no_pods(kubectl);
}

fn endpoints(kubectl: &Kubectl) {
    kubectl
        .run("create deployment web --image=nginx:1 --replicas=2")
        .ok();
    rolled_out(kubectl, "deployment/web");
    kubectl
        .run("expose deployment web --port=80 --target-port=8080")
        .ok();
    let shown = kubectl.run("get pods -l app=web -o jsonpath={.items[*].status.podIP}");
    let shown = shown.ok();
    let mut ips: Vec<_> = shown.split_whitespace().collect();
    ips.sort_unstable();
    let table = kubectl.until("get endpointslices --no-headers", |seen| {
        seen.stdout.contains("8080")
    });
    let cells = words(&table.stdout);
    assert!(cells[0].starts_with("web-"), "{table:?}");
    assert_eq!(cells[1..3], ["IPv4", "8080"]);
    let mut seen: Vec<_> = cells[3].split(',').collect();
    seen.sort_unstable();
    assert_eq!(seen, ips);
    let slice = kubectl.json("endpointslices -l kubernetes.io/service-name=web");
    let slice = &slice["items"][0];
    assert_eq!(
        slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"],
        "endpointslice-controller.k8s.io"
    );
    assert_eq!(slice["metadata"]["ownerReferences"][0]["kind"], "Service");
    for endpoint in slice["endpoints"].as_array().unwrap() {
        let conditions = json!({"ready": true, "serving": true, "terminating": false});
        assert_eq!(endpoint["conditions"], conditions);
        assert_eq!(endpoint["targetRef"]["kind"], "Pod");
    }
    let mut wanted: Vec<_> = ips.iter().map(|ip| format!("{ip}:8080")).collect();
    wanted.sort();
    kubectl.until("get endpoints web --no-headers", |seen| {
        let cells = words(&seen.stdout);
        let mut seen: Vec<_> = cells
            .get(1)
            .into_iter()
            .flat_map(|it| it.split(','))
            .collect();
        seen.sort_unstable();
        seen == wanted
    });
    let text = kubectl.run("describe svc web").ok();
    assert!(text.contains(&format!("{}:8080", ips[0])), "{text}");
    kubectl.run("scale deployment web --replicas=0").ok();
    kubectl.until("get endpoints web --no-headers", |seen| {
        words(&seen.stdout).get(1) == Some(&"<none>")
    });
    kubectl.until("get endpointslices --no-headers", |seen| {
        words(&seen.stdout)[1..4] == ["IPv4", "<unset>", "<unset>"]
    });
    kubectl.run("delete svc web").ok();
    for kind in ["endpoints", "endpointslices"] {
        kubectl.until(&format!("get {kind} -o name"), |seen| {
            seen.stdout.is_empty()
        });
    }
}

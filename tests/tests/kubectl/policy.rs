//! PriorityClasses, disruption budgets, and the drain of a node under a budget.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::{has_lines, row, words};

pub(super) const CASES: &[KubectlCase] = &[
    ("create priorityclass", create_class),
    ("a pod's priority class", class_of_pod),
    ("create poddisruptionbudget", create_budget),
    ("describe poddisruptionbudget", describe_budget),
    ("drain under a disruption budget", drain),
];

/// The name of an object in the cluster, which all versions share.
fn unique(kubectl: &Kubectl, name: &str) -> String {
    format!("{name}-{}", kubectl.namespace)
}

fn create_class(kubectl: &Kubectl) {
    let name = unique(kubectl, "high");
    let created = kubectl.args([
        "create",
        "priorityclass",
        &name,
        "--value=1000",
        "--preemption-policy=Never",
        "--description=for the tests",
    ]);
    assert_eq!(
        created.ok(),
        format!("priorityclass.scheduling.k8s.io/{name} created\n")
    );
    let table = kubectl.run("get pc").ok();
    assert_eq!(
        words(table.lines().next().unwrap_or_default()),
        words("NAME VALUE GLOBAL-DEFAULT AGE PREEMPTIONPOLICY")
    );
    let shown = row(&table, &name);
    assert_eq!(
        (&shown[..3], shown[4]),
        (&[&*name, "1000", "false"][..], "Never")
    );
    assert_eq!(row(&table, "system-node-critical")[1], "2000001000");
    assert_eq!(row(&table, "system-cluster-critical")[1], "2000000000");
    let text = kubectl.run(&format!("describe priorityclass {name}")).ok();
    for line in [
        "Value: 1000",
        "GlobalDefault: false",
        "Description: for the tests",
    ] {
        assert!(
            text.lines().any(|shown| words(shown) == words(line)),
            "{line}: {text}"
        );
    }
    let refused = kubectl
        .run("create priorityclass system-mine --value=1")
        .failed(1);
    assert!(
        refused.contains("prefix are reserved for system use only"),
        "{refused}"
    );
    let refused = kubectl
        .run("delete priorityclass system-node-critical")
        .failed(1);
    assert!(
        refused.contains("this is a system priority class and cannot be deleted"),
        "{refused}"
    );
    kubectl.run(&format!("delete priorityclass {name}")).ok();
}

fn class_of_pod(kubectl: &Kubectl) {
    let name = unique(kubectl, "class");
    kubectl
        .run(&format!("create priorityclass {name} --value=77"))
        .ok();
    let pod = |class: &str| format!(r#"--overrides={{"spec":{{"priorityClassName":"{class}"}}}}"#);
    let refused = kubectl.args(["run", "web", "--image=nginx", &pod("missing")]);
    assert_eq!(
        refused.failed(1),
        "Error from server (Forbidden): pods \"web\" is forbidden: no PriorityClass with name missing was found\n"
    );
    kubectl
        .args(["run", "web", "--image=nginx", &pod(&name)])
        .ok();
    let text = kubectl.run("describe pod web").ok();
    has_lines(
        &text,
        &["Priority: 77", &format!("Priority Class Name: {name}")],
    );
    kubectl.run(&format!("delete priorityclass {name}")).ok();
    assert_eq!(kubectl.json("pod web")["spec"]["priority"], 77);
}

/// Creates a deployment of two ready pods, and a budget that allows one of them to be missing.
fn guarded(kubectl: &Kubectl) {
    kubectl
        .run("create deployment web --image=nginx --replicas=2")
        .ok();
    kubectl.run("rollout status deployment/web").ok();
    assert_eq!(
        kubectl
            .run("create poddisruptionbudget web --selector=app=web --max-unavailable=1")
            .ok(),
        "poddisruptionbudget.policy/web created\n"
    );
    kubectl.until("get pdb web", |table| {
        table
            .stdout
            .lines()
            .nth(1)
            .is_some_and(|row| words(row)[..4] == ["web", "N/A", "1", "1"])
    });
}

fn create_budget(kubectl: &Kubectl) {
    guarded(kubectl);
    let table = kubectl.run("get pdb").ok();
    assert_eq!(
        words(table.lines().next().unwrap_or_default()),
        words("NAME MIN AVAILABLE MAX UNAVAILABLE ALLOWED DISRUPTIONS AGE")
    );
    kubectl
        .run("create pdb share --selector=app=web --min-available=50%")
        .ok();
    kubectl.until("get pdb share", |table| {
        table
            .stdout
            .lines()
            .nth(1)
            .is_some_and(|row| words(row)[..4] == ["share", "50%", "N/A", "1"])
    });
    let both = kubectl.run("create pdb x --selector=app=web --min-available=1 --max-unavailable=1");
    both.failed(1);
}

fn describe_budget(kubectl: &Kubectl) {
    guarded(kubectl);
    let text = kubectl.run("describe pdb web").ok();
    has_lines(
        &text,
        &[
            "Name: web",
            "Max unavailable: 1",
            "Selector: app=web",
            "Status:",
            "Allowed disruptions: 1",
            "Current: 2",
            "Desired: 1",
            "Total: 2",
        ],
    );
}

fn drain(kubectl: &Kubectl) {
    let node = kubectl.node();
    let all = kubectl.run("get nodes -o name").ok();
    let others: Vec<_> = all
        .lines()
        .filter(|name| *name != format!("node/{node}"))
        .collect();
    for other in &others {
        kubectl.run(&format!("cordon {other}")).ok();
    }
    guarded(kubectl);
    for other in &others {
        kubectl.run(&format!("uncordon {other}")).ok();
    }
    // kubectl drains the pods of all namespaces, those of other cases included.
    let mine = format!("drained={}", kubectl.namespace);
    kubectl.run(&format!("label pods --all {mine}")).ok();
    let drained = kubectl.run(&format!("drain {node} --pod-selector={mine} --timeout=60s"));
    assert!(
        drained
            .stderr
            .contains("Cannot evict pod as it would violate the pod's disruption budget."),
        "{drained:?}"
    );
    has_lines(&drained.ok(), &[&format!("node/{node} drained")]);
    kubectl.until("get pods -l app=web -o wide", |table| {
        let rows: Vec<_> = table.stdout.lines().skip(1).map(words).collect();
        rows.len() == 2
            && rows
                .iter()
                .all(|row| row[2] == "Running" && !row.contains(&&*node))
    });
    kubectl.run(&format!("uncordon {node}")).ok();
}

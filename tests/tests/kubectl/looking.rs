//! Ways of looking other than `get`: `describe`, `events`, `explain`, `diff`.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::{has_lines, header, row, words};

pub(super) const CASES: &[KubectlCase] = &[
    ("describe node", describe_node),
    ("describe pod", describe_pod),
    ("describe namespace", describe_namespace),
    ("describe lease", describe_lease),
    ("events", events),
    ("get events", get_events),
    ("events --watch", events_watch),
    ("explain pods", explain),
    ("explain --recursive", explain_recursive),
    ("explain --output plaintext-openapiv2", explain_v2),
    ("explain of every resource", explain_all),
    ("diff", diff),
    ("diff of what was got", diff_of_got),
    ("debug", debug),
    ("events and logs with escape sequences", escape_sequences),
    ("logs", logs),
    ("logs with options", logs_options),
    ("logs -f", logs_follow),
    ("logs of what has none", logs_errors),
    ("logs -l --prefix", logs_selector),
];

fn describe_node(kubectl: &Kubectl) {
    let manifest = format!(
        r#"{{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "here"}},
            "spec": {{"nodeName": "{}", "containers": [{{"name": "c", "image": "pause", "resources": {{"requests": {{"cpu": "100m"}}}}}}]}}}}"#,
        kubectl.node()
    );
    kubectl.apply(&manifest);
    let node = kubectl.node();
    let text = kubectl.run(&format!("describe node {node}")).ok();
    has_lines(
        &text,
        &[
            &format!("Name: {node}"),
            "Roles: <none>",
            "Taints: <none>",
            "Unschedulable: false",
            "Lease:",
            &format!("HolderIdentity: {node}"),
            "Conditions:",
            "Type Status LastHeartbeatTime LastTransitionTime Reason Message",
            "Addresses:",
            "Capacity:",
            "Allocatable:",
            "System Info:",
        ],
    );
    let cidr = kubectl
        .run(&format!("get node {node} -o jsonpath={{.spec.podCIDR}}"))
        .ok();
    has_lines(
        &text,
        &[
            &format!("PodCIDR: {cidr}"),
            &format!("PodCIDRs: {cidr}"),
            "Namespace Name CPU Requests CPU Limits Memory Requests Memory Limits Age",
            "Allocated resources:",
            "Resource Requests Limits",
        ],
    );
    let namespace = &kubectl.namespace;
    let pod = text
        .lines()
        .map(words)
        .find(|row| row.get(1) == Some(&"here"));
    assert_eq!(
        pod.map(|row| row[..3].join(" ")),
        Some(format!("{namespace} here 100m")),
        "{text}"
    );
    assert!(text.contains("podplane.io/pod-ips"), "{text}");
    let ready = format!("Normal NodeReady kubelet Node {node} status is now: NodeReady");
    let event = text.lines().map(words).any(|mut event| {
        // The age, such as `12s`.
        event.len() > 2 && event.remove(2).ends_with(['s', 'm']) && event.join(" ") == ready
    });
    assert!(event, "{text}");
}

fn describe_pod(kubectl: &Kubectl) {
    kubectl.pod("web");
    kubectl.until("events --for pod/web", |seen| {
        seen.stdout.contains("Started") || seen.stdout.contains("Scheduled")
    });
    let text = kubectl.run("describe pod web").ok();
    let namespace = &kubectl.namespace;
    has_lines(
        &text,
        &[
            "Name: web",
            &format!("Namespace: {namespace}"),
            "Priority: 0",
            "Labels: run=web",
            "Annotations: <none>",
            "Status: Running",
            "IPs:",
            "Containers:",
            "web:",
            "Image: registry.k8s.io/pause",
            "State: Running",
            "Ready: True",
            "Restart Count: 0",
            "Conditions:",
            "PodScheduled True",
            "Ready True",
            "QoS Class: BestEffort",
            "Node-Selectors: <none>",
            "Events:",
            "Type Reason Age From Message",
        ],
    );
    let ip = kubectl.run("get pod web -o jsonpath={.status.podIP}").ok();
    has_lines(&text, &[&format!("IP: {ip}"), "IPs:", &format!("IP: {ip}")]);
    assert!(
        text.contains(&format!("Successfully assigned {namespace}/web to node-")),
        "{text}"
    );
    let missing = kubectl.run("describe pod nobody").failed(1);
    assert_eq!(
        missing,
        "Error from server (NotFound): pods \"nobody\" not found\n"
    );
}

fn describe_namespace(kubectl: &Kubectl) {
    let text = kubectl.run("describe ns default").ok();
    has_lines(
        &text,
        &[
            "Name: default",
            "Labels: kubernetes.io/metadata.name=default",
            "Status: Active",
        ],
    );
}

fn describe_lease(kubectl: &Kubectl) {
    let node = kubectl.node();
    let text = kubectl
        .run(&format!("describe lease {node} -n kube-node-lease"))
        .ok();
    has_lines(&text, &[&format!("Holder Identity: {node}")]);
}

fn events(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run("events").stderr,
        format!("No events found in {} namespace.\n", kubectl.namespace)
    );
    kubectl.pod("web");
    let seen = kubectl.until("events", |seen| seen.stdout.contains("Scheduled"));
    assert_eq!(
        header(&seen.stdout),
        ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    );
    let of_pod = kubectl.run("events --for pod/web --types=Normal").ok();
    assert!(of_pod.contains("Pod/web"), "{of_pod}");
    let warnings = kubectl.run("events --types=Warning");
    assert!(
        warnings.stderr.starts_with("No events found"),
        "{warnings:?}"
    );
    let all = kubectl.run("events -A").ok();
    assert_eq!(header(&all)[0], "NAMESPACE");
}

fn get_events(kubectl: &Kubectl) {
    kubectl.pod("web");
    let seen = kubectl.until("get events", |seen| seen.stdout.contains("Scheduled"));
    assert_eq!(
        header(&seen.stdout),
        ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    );
    let namespace = &kubectl.namespace;
    assert!(
        seen.stdout
            .contains(&format!("Successfully assigned {namespace}/web to node-")),
        "{}",
        seen.stdout
    );
    let wide = kubectl.run("get ev -o wide").ok();
    assert_eq!(
        header(&wide),
        words("LAST SEEN TYPE REASON OBJECT SUBOBJECT SOURCE MESSAGE FIRST SEEN COUNT NAME")
    );
    let sorted = kubectl
        .run("get events --sort-by=.lastTimestamp --field-selector involvedObject.name=web,type=Normal")
        .ok();
    assert!(sorted.contains("pod/web"), "{sorted}");
}

fn events_watch(kubectl: &Kubectl) {
    let mut watching = kubectl.start("events --watch");
    kubectl.pod("web");
    watching.until("the pod is scheduled", |seen| {
        seen.contains("Scheduled") && seen.contains("Pod/web")
    });
}

fn explain(kubectl: &Kubectl) {
    let text = kubectl.run("explain pods").ok();
    has_lines(
        &text,
        &["KIND: Pod", "VERSION: v1", "DESCRIPTION:", "FIELDS:"],
    );
    assert!(text.contains("  spec\t<PodSpec>\n"), "{text}");
    let text = kubectl.run("explain pod.spec.containers.resources").ok();
    has_lines(
        &text,
        &[
            "KIND: Pod",
            "VERSION: v1",
            "FIELD: resources <ResourceRequirements>",
        ],
    );
    assert!(text.contains("limits\t<map[string]Quantity>"), "{text}");
    let text = kubectl.run("explain node.spec.podCIDRs").ok();
    has_lines(&text, &["FIELD: podCIDRs <[]string>"]);
    let bad = kubectl.run("explain pod.spec.nothing").failed(1);
    assert_eq!(bad, "error: field \"nothing\" does not exist\n");
}

fn explain_recursive(kubectl: &Kubectl) {
    let text = kubectl.run("explain pod.spec --recursive").ok();
    for field in [
        "containers\t<[]Container> -required-",
        "  livenessProbe\t<Probe>",
        "tolerations\t<[]Toleration>",
    ] {
        assert!(text.contains(field), "{field}: {text}");
    }
}

/// The older format of the same definitions.
fn explain_v2(kubectl: &Kubectl) {
    let explain = |what: &str| {
        let command = format!("explain {what} --output plaintext-openapiv2");
        kubectl.run(&command).ok()
    };
    let text = explain("pods");
    has_lines(&text, &["KIND: Pod", "VERSION: v1", "FIELDS:"]);
    assert!(text.contains("spec\t<Object>"), "{text}");
    let text = explain("pod.spec.containers.resources");
    has_lines(&text, &["RESOURCE: resources <Object>"]);
    assert!(text.contains("limits\t<map[string]string>"), "{text}");
}

fn explain_all(kubectl: &Kubectl) {
    let names = kubectl.run("api-resources -o name --verbs=list").ok();
    for name in names.lines() {
        let plural = name.split('.').next().unwrap_or_default();
        let text = kubectl.run(&format!("explain {plural}")).ok();
        assert!(text.contains("FIELDS:"), "{name}: {text}");
    }
}

/// kubectl sends empty annotations, and no object has these.
fn diff_of_got(kubectl: &Kubectl) {
    kubectl
        .run("create deployment web --image=pause --replicas=0")
        .ok();
    let raw = format!("/api/v1/namespaces/{}/pods", kubectl.namespace);
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"nodeSelector":{"no":"such"},"containers":[{"name":"c","image":"pause"}]}}"#;
    kubectl.fed(&format!("create --raw {raw} -f -"), pod).ok();
    let observed = r#"deployment web -o jsonpath={.status.observedGeneration}"#;
    kubectl.until(&format!("get {observed}"), |seen| seen.stdout == "1");
    for what in ["deployment", "pod"] {
        let got = kubectl.run(&format!("get {what} web -o yaml")).ok();
        let same = kubectl.fed("diff -f -", &got);
        assert_eq!(same.stdout, "", "{what}");
        same.ok();
    }
}

/// Versions ask for a sub-resource that is not served; each says so instead of a panic.
fn debug(kubectl: &Kubectl) {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  nodeSelector: {no: such}\n  containers:\n  - name: c\n    image: pause\n";
    kubectl.apply(pod);
    let refused = kubectl.run("debug web --image=busybox --quiet").failed(1);
    assert!(
        refused.contains("ephemeral containers are disabled for this cluster"),
        "{refused}"
    );
}

/// Anybody may write the messages of events.
fn escape_sequences(kubectl: &Kubectl) {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  nodeSelector: {no: such}\n  containers:\n  - name: c\n    image: pause\n";
    kubectl.apply(pod);
    let uid = kubectl.run("get pod web -o jsonpath={.metadata.uid}").ok();
    let namespace = &kubectl.namespace;
    let event = serde_json::json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "evil"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": namespace, "uid": uid},
        "reason": "Evil", "message": "one\ntwo\u{1b}[31m\u{202e}three", "lastTimestamp": "2026-01-01T00:00:00Z"});
    kubectl.fed("create -f -", &event.to_string()).ok();
    for command in ["logs web", "get events"] {
        let text = kubectl.run(command).ok();
        let shown = "one two\\u{1b}[31m\\u{202e}three";
        assert!(text.contains(shown), "{command}: {text:?}");
        assert!(
            !text.contains(['\u{1b}', '\u{202e}']),
            "{command}: {text:?}"
        );
    }
    let exact = kubectl.run("get event evil -o jsonpath={.message}").ok();
    assert_eq!(exact, "one\ntwo\u{1b}[31m\u{202e}three");
}

fn diff(kubectl: &Kubectl) {
    let pod = |label: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels:\n    app: {label}\nspec:\n  containers:\n  - name: c\n    image: pause\n"
        )
    };
    kubectl.apply(&pod("one"));
    kubectl.run("wait --for=condition=Ready pod/web").ok();
    let same = kubectl.fed("diff -f -", &pod("one"));
    assert_eq!(same.stdout, "");
    same.ok();
    let other = kubectl.fed("diff -f -", &pod("two"));
    assert_eq!(other.code, Some(1), "{other:?}");
    has_lines(
        &other.stdout,
        &["-    app: one", "+    app: two"].map(|line| line),
    );
    let other = kubectl.fed("diff --server-side --force-conflicts -f -", &pod("three"));
    assert_eq!(other.code, Some(1), "{other:?}");
    has_lines(&other.stdout, &["-    app: one", "+    app: three"]);
    let still = kubectl
        .run("get pod web -o jsonpath={.metadata.labels.app}")
        .ok();
    assert_eq!(still, "one", "diff changes nothing");
}

fn logs(kubectl: &Kubectl) {
    kubectl.pod("web");
    let seen = kubectl.until("logs web", |seen| seen.stdout.contains("Scheduled"));
    let ip = kubectl.run("get pod web -o jsonpath={.status.podIP}").ok();
    let node = kubectl.run("get pod web -o jsonpath={.spec.nodeName}").ok();
    for text in [ip.as_str(), &node, "created"] {
        assert!(seen.stdout.contains(text), "{text}: {}", seen.stdout);
    }
    let lines = seen.stdout.lines();
    let lines: Vec<_> = lines
        .take_while(|line| !line.starts_with("trace "))
        .collect();
    let times: Vec<_> = lines.iter().map(|line| words(line)[0]).collect();
    assert!(times.is_sorted(), "{}", seen.stdout);
}

fn logs_options(kubectl: &Kubectl) {
    kubectl.pod("web");
    kubectl.until("logs web", |seen| seen.stdout.contains("status Running"));
    let all = kubectl.run("logs web").ok();
    let last = kubectl.run("logs web --tail=1").ok();
    assert_eq!(Some(last.trim_end()), all.lines().last());
    assert_eq!(kubectl.run("logs web --tail=0").ok(), "");
    assert_eq!(kubectl.run("logs web --limit-bytes=10").ok(), all[..10]);
    assert_eq!(kubectl.run("logs web -c web").ok(), all);
    assert_eq!(
        kubectl.run("logs web --since=1h --all-containers").ok(),
        all
    );
    assert_eq!(
        kubectl
            .run("logs web --since-time=2199-01-01T00:00:00Z")
            .ok(),
        ""
    );
    let stamped = kubectl.run("logs web --timestamps").ok();
    for (line, plain) in stamped.lines().zip(all.lines()) {
        let (time, rest) = line.split_once(' ').unwrap_or_default();
        assert!(time.ends_with('Z') && time.contains('T'), "{line}");
        assert_eq!(rest, plain);
    }
}

fn logs_follow(kubectl: &Kubectl) {
    kubectl.pod("web");
    let mut following = kubectl.start("logs -f web");
    following.until("the start", |seen| seen.contains("created"));
    following.until("the waterfall", |seen| {
        seen.contains("\ntrace ") && seen.contains("status Running")
    });
    kubectl.run("delete pod web --wait=false").ok();
    let (code, text) = following.end();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("delet"), "{text}");
}

fn logs_errors(kubectl: &Kubectl) {
    kubectl.pod("web");
    // Newer versions name the namespace too.
    let missing = kubectl.run("logs nobody").failed(1);
    assert!(
        missing
            .to_lowercase()
            .contains("error from server (notfound): pods \"nobody\" not found"),
        "{missing}"
    );
    assert_eq!(
        kubectl.run("logs web -c nobody").failed(1),
        "error: container nobody is not valid for pod web\n"
    );
    let previous = kubectl.run("logs web --previous").failed(1);
    assert!(
        previous.contains("previous terminated container \"web\" in pod \"web\" not found"),
        "{previous}"
    );
    let raw = format!(
        "get --raw /api/v1/namespaces/{}/pods/web/log?container=nobody",
        kubectl.namespace
    );
    assert_eq!(
        kubectl.run(&raw).failed(1),
        "Error from server (BadRequest): container nobody is not valid for pod web\n"
    );
}

fn logs_selector(kubectl: &Kubectl) {
    kubectl.pod("a");
    kubectl.run("label pod a app=x").ok();
    kubectl.pod("b");
    kubectl.run("label pod b app=x").ok();
    let text = kubectl.run("logs -l app=x --prefix").ok();
    assert!(
        text.lines().any(|line| line.starts_with("[pod/a/a] ")),
        "{text}"
    );
    assert!(
        text.lines().any(|line| line.starts_with("[pod/b/b] ")),
        "{text}"
    );
    let table = kubectl.run("get pods").ok();
    row(&table, "a");
}

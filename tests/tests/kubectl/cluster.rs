//! Requests about the server itself: its version, resources, health and metrics, and the user's
//! identity.

use podplane_tests::kubectl::{Kubectl, KubectlCase};

use super::{has_lines, header, row};

pub(super) const CASES: &[KubectlCase] = &[
    ("version", version),
    ("cluster-info", cluster_info),
    ("cluster-info dump", dump),
    ("api-resources", api_resources),
    ("api-resources -o wide --api-group", api_resources_of),
    ("api-versions", api_versions),
    ("auth whoami", whoami),
    ("auth can-i", can_i),
    ("auth can-i --list", can_i_list),
    ("get --raw health", health),
    ("get --raw metrics", metrics),
    ("get --raw of a list", raw_list),
    ("create --raw and delete --raw", raw_write),
    ("config", config),
    ("what is not served", not_served),
    ("a server that is not there", nobody_there),
];

fn version(kubectl: &Kubectl) {
    let answer = kubectl.run("version");
    assert!(
        answer
            .stdout
            .lines()
            .any(|line| line.starts_with("Server Version: v1.36.") && line.ends_with("+podplane")),
        "{answer:?}"
    );
    let json = kubectl.run("version -o json").ok();
    assert!(json.contains("\"minor\": \"36\""), "{json}");
}

fn cluster_info(kubectl: &Kubectl) {
    let text = kubectl.run("cluster-info").ok();
    let plain: String = text
        .replace("\u{1b}[0;32m", "")
        .replace("\u{1b}[0;33m", "")
        .replace("\u{1b}[0m", "");
    assert!(
        plain.starts_with(&format!(
            "Kubernetes control plane is running at {}\n",
            kubectl.server()
        )),
        "{text:?}"
    );
}

fn dump(kubectl: &Kubectl) {
    let answer = kubectl.run("cluster-info dump");
    assert!(
        answer.stdout.contains("\"kind\": \"NodeList\""),
        "{answer:?}"
    );
    assert!(
        answer.stdout.contains("\"kind\": \"DaemonSetList\""),
        "{answer:?}"
    );
    answer.ok();
}

fn api_resources(kubectl: &Kubectl) {
    let table = kubectl.run("api-resources").ok();
    assert_eq!(
        header(&table),
        ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]
    );
    for (name, rest) in [
        ("nodes", "no v1 false Node"),
        ("pods", "po v1 true Pod"),
        ("namespaces", "ns v1 false Namespace"),
        ("services", "svc v1 true Service"),
        ("leases", "coordination.k8s.io/v1 true Lease"),
        ("deployments", "deploy apps/v1 true Deployment"),
        ("replicasets", "rs apps/v1 true ReplicaSet"),
        ("controllerrevisions", "apps/v1 true ControllerRevision"),
        (
            "poddisruptionbudgets",
            "pdb policy/v1 true PodDisruptionBudget",
        ),
        (
            "priorityclasses",
            "pc scheduling.k8s.io/v1 false PriorityClass",
        ),
        ("serviceaccounts", "sa v1 true ServiceAccount"),
        ("roles", "rbac.authorization.k8s.io/v1 true Role"),
        (
            "clusterroles",
            "rbac.authorization.k8s.io/v1 false ClusterRole",
        ),
        (
            "rolebindings",
            "rbac.authorization.k8s.io/v1 true RoleBinding",
        ),
        (
            "clusterrolebindings",
            "rbac.authorization.k8s.io/v1 false ClusterRoleBinding",
        ),
        (
            "certificatesigningrequests",
            "csr certificates.k8s.io/v1 false CertificateSigningRequest",
        ),
        ("clustercidrs", "networking.x-k8s.io/v1 false ClusterCIDR"),
    ] {
        assert_eq!(row(&table, name)[1..].join(" "), rest);
    }
    has_lines(&table, &["events ev v1 true Event"]);
    has_lines(&table, &["events ev events.k8s.io/v1 true Event"]);
}

fn api_resources_of(kubectl: &Kubectl) {
    let table = kubectl
        .run("api-resources -o wide --api-group=coordination.k8s.io")
        .ok();
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(
        table.contains("create,delete,deletecollection,get,list,patch,update,watch"),
        "{table}"
    );
    let names = kubectl
        .run("api-resources -o name --namespaced=false --verbs=list,get")
        .ok();
    assert!(names.lines().any(|name| name == "nodes"), "{names}");
    assert!(!names.lines().any(|name| name == "pods"), "{names}");
}

fn api_versions(kubectl: &Kubectl) {
    let text = kubectl.run("api-versions").ok();
    for version in [
        "apps/v1",
        "authentication.k8s.io/v1",
        "authorization.k8s.io/v1",
        "certificates.k8s.io/v1",
        "coordination.k8s.io/v1",
        "events.k8s.io/v1",
        "networking.x-k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "scheduling.k8s.io/v1",
        "v1",
    ] {
        assert!(
            text.lines().any(|line| line == version),
            "{version}: {text}"
        );
    }
}

fn whoami(kubectl: &Kubectl) {
    let table = kubectl.run("auth whoami").ok();
    assert_eq!(header(&table), ["ATTRIBUTE", "VALUE"]);
    row(&table, "Username");
}

fn can_i(kubectl: &Kubectl) {
    assert_eq!(kubectl.run("auth can-i create pods").ok(), "yes\n");
    assert_eq!(
        kubectl
            .run("auth can-i delete nodes --all-namespaces")
            .ok()
            .lines()
            .last(),
        Some("yes")
    );
    assert_eq!(kubectl.run("auth can-i get /metrics").ok(), "yes\n");
}

fn can_i_list(kubectl: &Kubectl) {
    let table = kubectl.run("auth can-i --list").ok();
    has_lines(
        &table,
        &["Resources Non-Resource URLs Resource Names Verbs"],
    );
    let all = row(&table, "*.*");
    assert_eq!(all[1..], ["[]", "[]", "[*]"], "{table}");
    let table = kubectl.run("auth can-i --list --as ada").ok();
    let reviews = row(&table, "selfsubjectreviews.authentication.k8s.io");
    assert_eq!(reviews[1..], ["[]", "[]", "[create]"], "{table}");
    assert!(!table.contains("*.*"), "{table}");
}

fn health(kubectl: &Kubectl) {
    for path in ["/readyz", "/livez", "/healthz"] {
        assert_eq!(kubectl.run(&format!("get --raw {path}")).ok(), "ok");
    }
    let verbose = kubectl.run("get --raw /readyz?verbose").ok();
    assert!(verbose.contains("ok"), "{verbose}");
}

fn metrics(kubectl: &Kubectl) {
    let _watching = kubectl.start("get pods -w");
    // The other versions of kubectl watch the same server at the same time.
    let open = "apiserver_longrunning_requests{group=\"\",resource=\"pods\",subresource=\"\",verb=\"WATCH\",version=\"v1\"} ";
    let text = kubectl.until("get --raw /metrics", |seen| {
        let watches = seen.stdout.lines().find_map(|line| line.strip_prefix(open));
        watches.is_some_and(|watches| watches != "0")
    });
    let text = text.ok();
    for metric in [
        "# TYPE apiserver_request counter\n",
        "apiserver_request_total{",
        "# TYPE apiserver_storage_objects gauge\n",
        "apiserver_storage_objects{resource=\"nodes\"} ",
        "apiserver_longrunning_requests{",
    ] {
        assert!(text.contains(metric), "{metric}: {text}");
    }
    assert!(
        !text.contains(&kubectl.namespace),
        "no names in labels: {text}"
    );
}

fn raw_list(kubectl: &Kubectl) {
    let text = kubectl.run("get --raw /api/v1/nodes").ok();
    assert!(text.starts_with("{"), "{text}");
    let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(list["kind"], "NodeList");
    assert_eq!(
        kubectl.run("get --raw /api/v1/sheep").failed(1),
        "Error from server (NotFound): the server could not find the requested resource\n"
    );
}

fn raw_write(kubectl: &Kubectl) {
    let path = format!("/api/v1/namespaces/{}/pods", kubectl.namespace);
    let manifest = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"nodeSelector":{"no":"such"},"containers":[{"name":"c","image":"pause"}]}}"#;
    let text = kubectl
        .fed(&format!("create --raw {path} -f -"), manifest)
        .ok();
    assert!(text.contains("\"uid\""), "{text}");
    kubectl.run(&format!("delete --raw {path}/a")).ok();
    kubectl.run("get pod a").failed(1);
}

fn config(kubectl: &Kubectl) {
    let context = kubectl.run("config current-context").ok();
    assert!(context.starts_with("podplane"), "{context}");
    let table = kubectl.run("config get-contexts").ok();
    row(&table, "*");
    let view = kubectl.run("config view --minify").ok();
    assert!(view.contains(kubectl.server()), "{view}");
}

fn not_served(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run("get flowschemas").failed(1),
        "error: the server doesn't have a resource type \"flowschemas\"\n"
    );
    let manifest = r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":"a"}}"#;
    let refused = kubectl.fed("apply -f -", manifest).failed(1);
    let want = "no matches for kind \"FlowSchema\" in version \"flowcontrol.apiserver.k8s.io/v1\"";
    assert!(refused.contains(want), "{refused}");
}

fn nobody_there(kubectl: &Kubectl) {
    let refused = kubectl
        .run("--server=http://127.0.0.1:1 get pods")
        .failed(1);
    assert!(refused.contains("refused"), "{refused}");
}

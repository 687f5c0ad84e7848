//! ServiceAccounts, roles, bindings and certificate signing requests.

use std::fs;

use podplane_api::ByteString;
use podplane_tests::{
    kubectl::{Kubectl, KubectlCase},
    signing::signing_request,
};
use serde_json::{Value, json};

use super::{has_lines, header, row};

pub(super) const CASES: &[KubectlCase] = &[
    ("create serviceaccount", create_account),
    ("the default serviceaccount", default_account),
    ("a pod's serviceaccount", account_of_pod),
    ("create role and rolebinding", roles),
    ("create clusterrole and clusterrolebinding", cluster_roles),
    ("certificate approve and deny", decisions),
    ("a user's certificate", certificate),
];

/// A signer that nothing of the cluster answers for, so that requests stay as kubectl leaves them.
const SIGNER: &str = "podplane.example/people";

/// The name of an object in the cluster, which all versions share.
fn unique(kubectl: &Kubectl, name: &str) -> String {
    format!("{name}:{}", kubectl.namespace)
}

fn create_account(kubectl: &Kubectl) {
    assert_eq!(
        kubectl.run("create serviceaccount robot").ok(),
        "serviceaccount/robot created\n"
    );
    let table = kubectl.run("get sa").ok();
    assert_eq!(header(&table), ["NAME", "SECRETS", "AGE"]);
    assert_eq!(row(&table, "robot")[1], "0");
    let text = kubectl.run("describe sa robot").ok();
    let namespace = format!("Namespace: {}", kubectl.namespace);
    has_lines(&text, &["Name: robot", &namespace, "Tokens: <none>"]);
    assert_eq!(
        kubectl.run("delete sa robot").ok().lines().next(),
        Some("serviceaccount \"robot\" deleted")
    );
}

fn default_account(kubectl: &Kubectl) {
    let first = kubectl.json("sa default")["metadata"]["uid"].clone();
    kubectl.run("delete sa default").ok();
    kubectl.until("get sa default -o json", |answer| {
        let found = serde_json::from_str::<Value>(&answer.stdout);
        found.is_ok_and(|account| account["metadata"]["uid"] != first)
    });
}

fn account_of_pod(kubectl: &Kubectl) {
    let named = |name: &str| format!(r#"--overrides={{"spec":{{"serviceAccountName":"{name}"}}}}"#);
    let refused = kubectl.args(["run", "web", "--image=nginx", &named("robot")]);
    assert_eq!(
        refused.failed(1),
        format!(
            "Error from server (Forbidden): pods \"web\" is forbidden: error looking up service account {}/robot: serviceaccount \"robot\" not found\n",
            kubectl.namespace
        )
    );
    kubectl.run("create serviceaccount robot").ok();
    kubectl
        .args(["run", "web", "--image=nginx", &named("robot")])
        .ok();
    kubectl.run("run other --image=nginx").ok();
    for (pod, account) in [("web", "robot"), ("other", "default")] {
        let spec = &kubectl.json(&format!("pod {pod}"))["spec"];
        assert_eq!(spec["serviceAccountName"], account);
        assert_eq!(spec["serviceAccount"], account);
        let text = kubectl.run(&format!("describe pod {pod}")).ok();
        has_lines(&text, &[&format!("Service Account: {account}")]);
    }
}

fn roles(kubectl: &Kubectl) {
    assert_eq!(
        kubectl
            .run("create role reader --verb=get,list --resource=pods,pods/log,deployments.apps")
            .ok(),
        "role.rbac.authorization.k8s.io/reader created\n"
    );
    let table = kubectl.run("get roles").ok();
    assert_eq!(header(&table), ["NAME", "CREATED", "AT"]);
    let created = row(&table, "reader")[1];
    assert!(created.ends_with('Z') && created.contains('T'), "{table}");
    has_lines(
        &kubectl.run("describe role reader").ok(),
        &[
            "Name: reader",
            "pods/log [] [] [get list]",
            "deployments.apps [] [] [get list]",
        ],
    );
    let bound = kubectl.run(
        "create rolebinding readers --role=reader --user=me --user=you --group=all --serviceaccount=default:robot",
    );
    assert_eq!(
        bound.ok(),
        "rolebinding.rbac.authorization.k8s.io/readers created\n"
    );
    let table = kubectl.run("get rolebindings -o wide").ok();
    assert_eq!(
        header(&table),
        ["NAME", "ROLE", "AGE", "USERS", "GROUPS", "SERVICEACCOUNTS"]
    );
    let shown = row(&table, "readers");
    assert_eq!(shown[1], "Role/reader");
    assert_eq!(shown[3..], ["me,", "you", "all", "default/robot"]);
    has_lines(
        &kubectl.run("describe rolebinding readers").ok(),
        &["User me", "Group all", "ServiceAccount robot default"],
    );
    let patch = r#"--patch={"roleRef":{"name":"other"}}"#;
    let refused = kubectl.args(["patch", "rolebinding", "readers", patch]);
    let refused = refused.failed(1);
    assert!(refused.contains("cannot change roleRef"), "{refused}");
    let patch = r#"--patch={"rules":[{"verbs":["get"],"nonResourceURLs":["/"]}]}"#;
    let refused = kubectl.args(["patch", "role", "reader", patch]).failed(1);
    assert!(
        refused.contains("namespaced rules cannot apply to non-resource URLs"),
        "{refused}"
    );
    kubectl.run("delete role,rolebinding --all").ok();
}

fn cluster_roles(kubectl: &Kubectl) {
    let (role, binding) = (unique(kubectl, "metrics"), unique(kubectl, "scrapers"));
    let created = kubectl.run(&format!(
        "create clusterrole {role} --verb=get --non-resource-url=/metrics"
    ));
    assert_eq!(
        created.ok(),
        format!("clusterrole.rbac.authorization.k8s.io/{role} created\n")
    );
    assert_eq!(
        kubectl.json(&format!("clusterrole {role}"))["rules"],
        json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])
    );
    has_lines(
        &kubectl.run(&format!("describe clusterrole {role}")).ok(),
        &[&format!("Name: {role}"), "[/metrics] [] [get]"],
    );
    let created = kubectl.run(&format!(
        "create clusterrolebinding {binding} --clusterrole={role} --group=scrapers"
    ));
    assert_eq!(
        created.ok(),
        format!("clusterrolebinding.rbac.authorization.k8s.io/{binding} created\n")
    );
    let table = kubectl.run("get clusterrolebindings -o wide").ok();
    let shown = row(&table, &binding);
    assert_eq!(shown[1], format!("ClusterRole/{role}"));
    assert_eq!(shown[3..], ["scrapers"]);
    kubectl
        .run(&format!("delete clusterrolebinding {binding}"))
        .ok();
    kubectl.run(&format!("delete clusterrole {role}")).ok();
}

/// A manifest of a request for the user `ada` in two groups.
fn request(kubectl: &Kubectl, name: &str, signer: &str) -> String {
    let home = kubectl.path("");
    signing_request(&home, name, signer, "/O=dev/O=ops/CN=ada").to_string()
}

/// The decisions, on requests that nobody signs.
fn decisions(kubectl: &Kubectl) {
    let name = unique(kubectl, "decided");
    let manifest = request(kubectl, &name, SIGNER);
    kubectl.apply(&manifest);
    let table = kubectl
        .run(&format!(
            "get csr --field-selector=spec.signerName={SIGNER}"
        ))
        .ok();
    assert_eq!(
        header(&table),
        [
            "NAME",
            "AGE",
            "SIGNERNAME",
            "REQUESTOR",
            "REQUESTEDDURATION",
            "CONDITION"
        ]
    );
    assert_eq!(row(&table, &name)[2..], [SIGNER, "admin", "24h", "Pending"]);
    let approved = kubectl.run(&format!("certificate approve {name}")).ok();
    assert_eq!(
        approved,
        format!("certificatesigningrequest.certificates.k8s.io/{name} approved\n")
    );
    let table = kubectl.run(&format!("get csr {name}")).ok();
    assert_eq!(row(&table, &name).last(), Some(&"Approved"));
    let refused = kubectl.run(&format!("certificate deny {name}")).failed(1);
    assert!(refused.contains("is already Approved"), "{refused}");
    kubectl.run(&format!("delete csr {name}")).ok();
    kubectl.apply(&manifest);
    kubectl.run(&format!("certificate deny {name}")).ok();
    let table = kubectl.run(&format!("get csr {name}")).ok();
    assert_eq!(row(&table, &name).last(), Some(&"Denied"));
    kubectl.run(&format!("delete csr {name}")).ok();
}

/// A user's certificate, from the request to its use.
fn certificate(kubectl: &Kubectl) {
    let name = unique(kubectl, "issued");
    kubectl.apply(&request(
        kubectl,
        &name,
        "kubernetes.io/kube-apiserver-client",
    ));
    let get = format!("get csr {name}");
    let table = kubectl.run(&get).ok();
    assert_eq!(row(&table, &name).last(), Some(&"Pending"));
    kubectl.run(&format!("certificate approve {name}")).ok();
    kubectl.until(&get, |answer| {
        row(&answer.stdout, &name).last() == Some(&"Approved,Issued")
    });
    let issued = kubectl
        .run(&format!("{get} -o jsonpath={{.status.certificate}}"))
        .ok();
    let issued: ByteString = serde_json::from_value(issued.into()).expect("base64");
    let file = kubectl.path("ada.crt");
    fs::write(&file, issued.0).expect("a file in the home directory");
    let key = kubectl.path(&format!("{name}.key"));
    let (certificate, key) = (file.display(), key.display());
    let flags = format!("--client-certificate={certificate} --client-key={key}");
    kubectl
        .run(&format!("config set-credentials ada {flags}"))
        .ok();
    let answer = kubectl.run("auth whoami -o json --user=ada").ok();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let user = &answer["status"]["userInfo"];
    assert_eq!(user["username"], "ada");
    assert_eq!(
        user["groups"],
        json!(["dev", "ops", "system:authenticated"])
    );
    kubectl.run(&format!("delete csr {name}")).ok();
}

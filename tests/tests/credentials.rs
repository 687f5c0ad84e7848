//! Tokens of ServiceAccounts and certificates of nodes, as stock kubectl and OpenSSL get and judge
//! them.

use std::{path::Path, process::Command};

use anyhow::Result;
use http::Method;
use podplane_tests::{
    apiserver::Apiserver,
    eventually, peers,
    programs::{ProgramOutput, finish},
    service::Service,
    signing::signing_request,
};
use serde_json::{Value, json};

/// kubectl as the administrator of the server in a directory, which is its home, too.
struct Kubectl<'a> {
    home: &'a Path,
}

impl Kubectl<'_> {
    fn run(&self, arguments: &str) -> ProgramOutput {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home)
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .args(arguments.split_whitespace());
        finish(&mut kubectl)
    }
}

fn kubectl(home: &Path) -> Option<Kubectl<'_>> {
    peers::program("kubectl").then_some(Kubectl { home })
}

fn openssl(dir: &Path, arguments: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(arguments.split_whitespace()).current_dir(dir);
    finish(&mut openssl).ok()
}

/// The user of a token, by a review; null if it is nobody's.
async fn reviewed(server: &Apiserver, token: &str) -> Result<Value> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    let answer = server.rest().send_json(Method::POST, path, &review).await?;
    Ok(answer.document()?["status"]["user"]["username"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_creates_tokens_which_outlive_the_server() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let flags = ["--authentication=credentials"];
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    let Some(kubectl) = kubectl(dir.path()) else {
        return Ok(());
    };
    let user = json!("system:serviceaccount:default:default");
    let token = kubectl.run("create token default --duration=20m").ok();
    let token = token.trim();
    assert_eq!(reviewed(&server, token).await?, user);
    let other = kubectl.run("create token default --audience=vault").ok();
    assert_eq!(reviewed(&server, other.trim()).await?, Value::Null);
    kubectl.run("run p --image=nginx").ok();
    let bound = "create token default --bound-object-kind=Pod --bound-object-name=p";
    let bound = kubectl.run(bound).ok();
    assert_eq!(reviewed(&server, bound.trim()).await?, user);
    let refused = kubectl.run("create token default --duration=1m").failed(1);
    assert!(
        refused.contains("may not specify a duration less than 10 minutes"),
        "{refused}"
    );
    let refused = kubectl.run("create token none").failed(1);
    assert!(
        refused.contains("serviceaccounts \"none\" not found"),
        "{refused}"
    );
    kubectl.run("delete pod p --grace-period=0 --force").ok();
    assert_eq!(reviewed(&server, bound.trim()).await?, Value::Null);

    server.kill()?;
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    assert_eq!(reviewed(&server, token).await?, user);
    server.kill()?;
    std::fs::remove_dir_all(dir.path().join("service-account-keys"))?;
    let server = Apiserver::start_with(dir.path(), &flags).await?;
    assert_eq!(reviewed(&server, token).await?, Value::Null);
    let log = std::fs::read_to_string(dir.path().join("apiserver.log"))?;
    let payload = token.split('.').nth(1).unwrap();
    assert!(!log.contains(payload), "a token is in the log");
    server.kill()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_its_certificate_and_kubectl_approves_others() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let dir = dir.path();
    let tokens = dir.join("tokens.csv");
    let users = "s3cret,system:bootstrap:1,,system:bootstrappers\n\
                 b00t,carl,,\n\
                 n0de,system:node:n1,,system:nodes\n";
    std::fs::write(&tokens, users)?;
    let file = format!("--token-auth-file={}", tokens.display());
    let flags = ["--authentication=credentials", &file];
    let server = Apiserver::start_with(dir, &flags).await?;
    let Some(kubectl) = kubectl(dir) else {
        return Ok(());
    };
    openssl(
        dir,
        "req -x509 -new -nodes -newkey ec -pkeyopt ec_paramgen_curve:P-256 -keyout ca.key -out ca.crt -subj /CN=ca -days 30 -addext keyUsage=critical,keyCertSign",
    );
    let file = |name: &str| dir.join(name).display().to_string();
    let (certificate, key) = (file("ca.crt"), file("ca.key"));
    let flags = [
        "--server",
        server.local(),
        "--cluster-signing-cert-file",
        &certificate,
        "--cluster-signing-key-file",
        &key,
    ];
    let controllers = Service::start("controller-manager", "127.0.0.1:0", dir, &flags).await?;
    let request = async |name: &str, signer: &str, subject: &str, token: &str| -> Result<()> {
        let signer = format!("kubernetes.io/{signer}");
        let request = signing_request(dir, name, &signer, subject);
        let bearer = format!("Bearer {token}");
        let mut headers = vec![("content-type", "application/json")];
        if !token.is_empty() {
            headers.push(("authorization", &bearer));
        }
        let path = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
        let rest = server.rest();
        let answer = rest.exchange(Method::POST, path, &headers, request.to_string());
        answer.await?.document().map(drop)
    };
    let shown = |name: &str| {
        let table = kubectl.run("get csr --no-headers").ok();
        let row = table.lines().find(|row| row.starts_with(name));
        row.unwrap_or_default()
            .split_whitespace()
            .next_back()
            .unwrap_or_default()
            .to_owned()
    };
    let until = async |name: &str, want: &str| {
        let state = || std::future::ready(shown(name));
        eventually(&format!("{name} is {want}"), state, |state| state == want).await;
    };
    let node = "/O=system:nodes/CN=system:node:n1";
    request("node", "kube-apiserver-client-kubelet", node, "s3cret").await?;
    until("node", "Approved,Issued").await;
    let issued = kubectl
        .run("get csr node -o jsonpath={.status.certificate}")
        .ok();
    std::fs::write(dir.join("node.b64"), issued)?;
    openssl(dir, "base64 -d -A -in node.b64 -out node.crt");
    let verified = openssl(dir, "verify -purpose sslclient -CAfile ca.crt node.crt");
    assert_eq!(verified, "node.crt: OK\n");
    let subject = openssl(dir, "x509 -in node.crt -noout -subject");
    assert_eq!(subject, "subject=O = system:nodes, CN = system:node:n1\n");

    let reason = |name: &str| {
        let path = "jsonpath={.status.conditions[0].message}";
        kubectl.run(&format!("get csr {name} -o {path}")).ok()
    };
    let renewal = "renewal of the node's own client certificate";
    assert_eq!(reason("node"), "client certificate of a node that joins");
    request("own", "kube-apiserver-client-kubelet", node, "n0de").await?;
    until("own", "Approved,Issued").await;
    assert_eq!(reason("own"), renewal);

    // Whoever may not ask for a node's certificate gets none without a person, and so does the
    // node itself once its permission is taken.
    let bind = |binding: &str| {
        kubectl
            .run(&format!("create clusterrolebinding {binding}"))
            .ok()
    };
    let role = "system:certificates.k8s.io:certificatesigningrequests";
    bind("carl --clusterrole=system:node-bootstrapper --user=carl");
    kubectl
        .run("delete clusterrolebinding system:podplane:approve-node-renewal")
        .ok();
    request("carls", "kube-apiserver-client-kubelet", node, "b00t").await?;
    request("again", "kube-apiserver-client-kubelet", node, "n0de").await?;

    request("ada", "kube-apiserver-client", "/O=dev/O=ops/CN=ada", "").await?;
    request(
        "master",
        "kube-apiserver-client",
        "/O=system:masters/CN=root",
        "",
    )
    .await?;
    request("denied", "kube-apiserver-client", "/CN=eve", "").await?;
    let approved = kubectl.run("certificate approve ada master").ok();
    assert_eq!(approved.lines().count(), 2, "{approved}");
    kubectl.run("certificate deny denied").ok();
    until("ada", "Approved,Issued").await;
    until("master", "Approved,Failed").await;
    assert_eq!(shown("denied"), "Denied");
    // Their turn was before the ones that are answered.
    assert_eq!((&*shown("carls"), &*shown("again")), ("Pending", "Pending"));
    bind(&format!(
        "joins --clusterrole={role}:nodeclient --user=carl"
    ));
    bind(&format!(
        "renews --clusterrole={role}:selfnodeclient --group=system:nodes"
    ));
    until("carls", "Approved,Issued").await;
    until("again", "Approved,Issued").await;
    assert_eq!(reason("again"), renewal);
    let requestor = kubectl
        .run("get csr node -o jsonpath={.spec.username}")
        .ok();
    assert_eq!(requestor, "system:bootstrap:1");
    controllers.kill()?;
    server.kill()
}

//! Nodes that join a cluster with a bootstrap token, renew their certificates and leave.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_http_client::HttpClient;
use podplane_tests::{
    eventually, peers,
    programs::{ProgramOutput, finish, podplane},
    secure::SecureApiserver,
    service::Service,
    signing::signing_request,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

const TOKEN: &str = "0f7ccd0db7fb4c8aa6a5b9f0";
const ALLOCATE: [&str; 2] = ["--allocate-node-cidrs=true", "--cluster-cidr=10.244.0.0/16"];

/// `podplane node run` in ledger mode; killed when it is dropped.
struct JoiningNode {
    child: Child,
    dir: PathBuf,
}

impl JoiningNode {
    fn start(secure: &SecureApiserver, name: &str, token: &Path) -> Result<Self> {
        let dir = secure.path(name);
        let mut node = podplane(["node", "run", name, "--network", "ledger"]);
        node.args(["--leave-on-terminate", "--server", secure.address()])
            .arg("--certificate-authority")
            .arg(secure.path("pki/ca.crt"))
            .arg("--bootstrap-token-file")
            .arg(token)
            .arg("--cri-listen")
            .arg(Self::cri(secure, name))
            .arg("--data-dir")
            .arg(&dir);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(secure.path(&format!("{name}.log")))?;
        let child = node.stdout(Stdio::null()).stderr(log).spawn()?;
        Ok(Self { child, dir })
    }

    /// The address of the CRI server for metrics and health.
    fn cri(secure: &SecureApiserver, name: &str) -> String {
        format!(
            "unix:{}",
            secure.path(&format!("{name}-cri.sock")).display()
        )
    }

    fn pair(&self, name: &str) -> PathBuf {
        self.dir.join(format!("pki/node-{name}.pem"))
    }

    /// Ends it in order, and returns whether it ended well.
    fn terminate(&mut self) -> Result<bool> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        Ok(self.child.wait()?.success())
    }
}

impl Drop for JoiningNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn openssl(arguments: &str, file: &Path) -> String {
    let mut openssl = Command::new("openssl");
    let words = arguments.split_whitespace();
    finish(openssl.args(words).arg("-in").arg(file)).ok()
}

async fn ready(kubectl: &impl Fn(&str) -> ProgramOutput, node: &str) {
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let line = format!("get node {node} -o {path}");
    let look = || async { kubectl(&line).stdout };
    eventually(&format!("{node} is Ready"), look, |ready| ready == "True").await;
}

/// Waits until the log has the text.
async fn logged(secure: &SecureApiserver, name: &str, text: &str) {
    let file = secure.path(&format!("{name}.log"));
    let look = || async { fs::read_to_string(&file).unwrap_or_default() };
    eventually(&format!("{name} logs {text:?}"), look, |log| {
        log.contains(text)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_bootstrap_renew_and_leave() -> Result<()> {
    if !peers::program("kubectl") || !peers::program("openssl") {
        return Ok(());
    }
    let tokens = tempfile::tempdir()?;
    let path = |name: &str| tokens.path().join(name);
    let user = "system:bootstrap:a,,system:bootstrappers";
    fs::write(path("tokens.csv"), format!("{TOKEN},{user}\n"))?;
    fs::write(path("token"), TOKEN)?;
    fs::write(path("nobodys"), "0000")?;
    let file = path("tokens.csv").display().to_string();
    let secure = SecureApiserver::start(&["--token-auth-file", &file]).await?;
    let admin = secure.kubectl("admin")?;
    let _ipam = secure
        .service("ipam-controller", "ipam-controller", &ALLOCATE)
        .await?;

    // Without a controller-manager nobody approves: the node says what it waits for.
    let mut first = JoiningNode::start(&secure, "n1", &path("token"))?;
    logged(&secure, "n1", "waiting for the client certificate").await;
    let requests = || admin("get csr -o name").stdout;
    assert_eq!(requests().lines().count(), 1);
    // A start anew goes on with the same request.
    assert!(first.terminate()?);
    let mut first = JoiningNode::start(&secure, "n1", &path("token"))?;
    logged(&secure, "n1", "the client certificate is requested already").await;
    assert_eq!(requests().lines().count(), 1);

    let (ca, key) = (secure.text("pki/ca.crt"), secure.text("pki/ca.key"));
    let signing = [
        "--cluster-signing-cert-file",
        &ca,
        "--cluster-signing-key-file",
        &key,
    ];
    let controllers = secure
        .service("controller-manager", "controller-manager", &signing)
        .await?;
    ready(&admin, "n1").await;
    let cri = HttpClient::new(JoiningNode::cri(&secure, "n1"));
    let metrics = cri.get("/metrics").await?;
    assert!(String::from_utf8_lossy(&metrics.bytes).contains("podplane_cri_sandboxes"));
    let pair = first.pair("n1");
    assert_eq!(fs::metadata(&pair)?.permissions().mode() & 0o777, 0o600);
    let verify = format!("verify -purpose sslclient -CAfile {ca}");
    let mut openssl_verify = Command::new("openssl");
    let verify = openssl_verify.args(verify.split_whitespace()).arg(&pair);
    finish(verify).ok();
    let subject = openssl("x509 -noout -subject", &pair);
    assert!(
        subject.contains("O = system:nodes, CN = system:node:n1"),
        "{subject}"
    );

    // A node that was given a certificate with a short life renews it by itself: the token is not
    // one that anybody has.
    let pki = secure.path("n2/pki");
    fs::create_dir_all(&pki)?;
    fs::write(secure.path("n2/VERSION"), "3\n")?;
    let issue = format!(
        "certs issue node/n2 --lifetime 90s --dir {}",
        secure.text("pki")
    );
    finish(&mut podplane(issue.split_whitespace())).ok();
    fs::copy(secure.path("pki/node-n2.pem"), pki.join("node-n2.pem"))?;
    let mut second = JoiningNode::start(&secure, "n2", &path("nobodys"))?;
    let pair = second.pair("n2");
    let ends = || async { openssl("x509 -noout -enddate", &pair) };
    let soon = ends().await;
    eventually("n2 has renewed its certificate", ends, |end| *end != soon).await;
    ready(&admin, "n2").await;

    // One of another authority is replaced, for which the token is needed.
    assert!(second.terminate()?);
    let other = secure.text("other");
    for line in ["init", "issue node/n2"] {
        let line = format!("certs {line} --dir {other}");
        finish(&mut podplane(line.split_whitespace())).ok();
    }
    fs::copy(secure.path("other/node-n2.pem"), &pair)?;
    let mut refused = JoiningNode::start(&secure, "n2", &path("nobodys"))?;
    assert!(!refused.child.wait()?.success());
    let log = fs::read_to_string(secure.path("n2.log"))?;
    assert!(log.contains("signed by unknown authority"), "{log}");
    assert!(!log.contains("0000"), "{log}");
    let mut second = JoiningNode::start(&secure, "n2", &path("token"))?;
    ready(&admin, "n2").await;

    // A denied request ends the start with the reason.
    let mut third = {
        drop(controllers);
        let third = JoiningNode::start(&secure, "n3", &path("token"))?;
        logged(&secure, "n3", "waiting for the client certificate").await;
        let log = fs::read_to_string(secure.path("n3.log"))?;
        let name = log.split('"').find(|text| text.starts_with("node-csr-"));
        let name = name.context("the name of the request")?;
        admin(&format!("certificate deny {name}")).ok();
        third
    };
    assert!(!third.child.wait()?.success());
    let log = fs::read_to_string(secure.path("n3.log"))?;
    assert!(log.contains("was denied"), "{log}");

    // A node that left, and is back before anybody has deleted it, is a member again.
    assert!(first.terminate()?);
    let mark = r"get node n1 -o jsonpath={.metadata.annotations.podplane\.io/leaving}";
    assert_ne!(admin(mark).ok(), "");
    let mut first = JoiningNode::start(&secure, "n1", &path("nobodys"))?;
    let left = || async { admin(mark).stdout };
    eventually("n1 has not left", left, String::is_empty).await;

    // Nodes that leave take their objects along, though they may not delete them.
    let _controllers = secure
        .service("controller-manager", "controller-manager", &signing)
        .await?;
    ready(&admin, "n1").await;
    assert!(first.terminate()?);
    assert!(second.terminate()?);
    let nodes = || async { admin("get nodes -o name").stdout };
    eventually("no node is left", nodes, String::is_empty).await;
    Ok(())
}

/// A request is not dropped when its review fails, here since the controller may not ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_review_that_fails_is_repeated() -> Result<()> {
    if !peers::program("kubectl") || !peers::program("openssl") {
        return Ok(());
    }
    let files = tempfile::tempdir()?;
    let path = |name: &str| files.path().join(name).display().to_string();
    fs::write(path("tokens.csv"), format!("{TOKEN},manager,,\n"))?;
    fs::write(path("token"), TOKEN)?;
    let secure = SecureApiserver::start(&["--token-auth-file", &path("tokens.csv")]).await?;
    let admin = secure.kubectl("admin")?;
    let observer = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "observer"},
        "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]},
            {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        ],
    });
    fs::write(path("role.json"), observer.to_string())?;
    admin(&format!("apply -f {}", path("role.json"))).ok();
    let bind = |role: &str, name: &str| {
        let binding = format!("create clusterrolebinding {name} --clusterrole={role}");
        admin(&format!("{binding} --user=manager")).ok()
    };
    bind("observer", "observes");
    bind("system:podplane:controller-manager", "controls");

    let (signer, subject) = (
        "kubernetes.io/kube-apiserver-client-kubelet",
        "/O=system:nodes/CN=system:node:n1",
    );
    let request = signing_request(files.path(), "n1", signer, subject);
    fs::write(path("csr.json"), request.to_string())?;
    let bootstrap = "--as=system:bootstrap:a --as-group=system:bootstrappers";
    admin(&format!("create {bootstrap} -f {}", path("csr.json"))).ok();

    let (ca, key) = (secure.text("pki/ca.crt"), secure.text("pki/ca.key"));
    let (address, token) = (secure.address(), path("token"));
    let flags = [
        ("--server", address),
        ("--certificate-authority", &*ca),
        ("--token-file", &*token),
        ("--cluster-signing-cert-file", &*ca),
        ("--cluster-signing-key-file", &*key),
    ];
    let flags = flags.map(<[&str; 2]>::from).concat();
    let dir = secure.path("");
    let _controllers = Service::start("controller-manager", "127.0.0.1:0", &dir, &flags).await?;
    let refused = r#"User "manager" cannot create resource "subjectaccessreviews""#;
    logged(&secure, "controller-manager", refused).await;
    let shown = || async { admin("get csr n1 --no-headers").stdout };
    assert!(shown().await.trim_end().ends_with("Pending"));
    bind("system:auth-delegator", "asks");
    eventually("the request is answered", shown, |row| {
        row.trim_end().ends_with("Approved,Issued")
    })
    .await;
    Ok(())
}

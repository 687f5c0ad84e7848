//! An API server with TLS and its clients, as real processes: curl, openssl, kubectl, a scheduler,
//! and `podplane` itself.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::Result;
use podplane_tests::{
    eventually, peers,
    programs::{finish, podplane},
    secure::SecureApiserver,
};
use serde_json::Value;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;

/// An authority of openssl, for dates that ours does not give.
const CA_CONFIG: &str = "
[ca]
default_ca = this
[this]
database = index
rand_serial = yes
unique_subject = no
new_certs_dir = .
default_md = sha256
policy = names
x509_extensions = client
[names]
organizationName = optional
commonName = supplied
[client]
extendedKeyUsage = clientAuth
";

/// Runs openssl in the directory of an API server.
fn openssl(secure: &SecureApiserver, args: &str) {
    let mut openssl = Command::new("openssl");
    openssl.args(args.split_whitespace());
    finish(openssl.current_dir(secure.path(""))).ok();
}

/// The answer to "who am I" over REST, by curl with that certificate.
fn whoami(secure: &SecureApiserver, certificate: Option<PathBuf>) -> Value {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--cacert"])
        .arg(secure.path("pki/ca.crt"))
        .args(["--header", "Content-Type: application/json"])
        .args(["--data", REVIEW])
        .arg(format!("{}{REVIEWS}", secure.address()));
    if let Some(file) = certificate {
        curl.arg("--cert").arg(file);
    }
    let answer = finish(&mut curl).ok();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    match &answer["status"]["userInfo"]["username"] {
        Value::Null => answer["message"].clone(),
        user => user.clone(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_is_known_by_its_certificate_or_told_why_not() -> Result<()> {
    if !peers::program("curl") || !peers::program("openssl") {
        return Ok(());
    }
    let secure = SecureApiserver::start(&[]).await?;
    let pki = |name: &str| Some(secure.path(&format!("pki/{name}.pem")));
    let refused = whoami(&secure, None);
    let refused = refused.as_str().unwrap_or_default();
    assert!(
        refused.contains("User \"system:anonymous\" cannot create"),
        "{refused}"
    );
    assert_eq!(whoami(&secure, pki("admin")), "admin");
    assert_eq!(whoami(&secure, pki("scheduler")), "system:kube-scheduler");
    let usage = "Unauthorized: x509: certificate specifies an incompatible key usage";
    // Each time: refused before its body is read, some of them would be told of a reset instead.
    for _ in 0..20 {
        assert_eq!(whoami(&secure, pki("apiserver")), usage);
    }
    openssl(
        &secure,
        "req -newkey rsa:2048 -nodes -keyout key -subj /O=dev/CN=eve -out csr",
    );
    openssl(
        &secure,
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -subj /CN=podplane-ca -out ca.crt",
    );
    std::fs::write(secure.path("ca.cnf"), CA_CONFIG)?;
    let time = "Unauthorized: x509: certificate has expired or is not yet valid: current time ";
    for (ca, dates, want) in [
        ("pki/ca", "-days 1", "eve"),
        (
            "pki/ca",
            "-startdate 20250101000000Z -enddate 20250201000000Z",
            time,
        ),
        (
            "pki/ca",
            "-startdate 20400101000000Z -enddate 20410101000000Z",
            time,
        ),
        (
            "ca",
            "-days 1",
            "Unauthorized: x509: certificate signed by unknown authority",
        ),
    ] {
        std::fs::write(secure.path("index"), "")?;
        openssl(
            &secure,
            &format!(
                "ca -batch -notext -config ca.cnf -cert {ca}.crt -keyfile {ca}.key {dates} -in csr -out crt"
            ),
        );
        let pair = std::fs::read_to_string(secure.path("key"))?
            + &std::fs::read_to_string(secure.path("crt"))?;
        std::fs::write(secure.path("pair.pem"), pair)?;
        let said = whoami(&secure, Some(secure.path("pair.pem")));
        let said = said.as_str().unwrap();
        assert!(said.starts_with(want), "{dates}: {said}");
    }

    let plain = secure.address().replace("https:", "http:");
    let said = finish(Command::new("curl").args(["--silent", "--include", &plain])).ok();
    assert!(said.starts_with("HTTP/1.0 400 Bad Request"), "{said}");
    assert!(
        said.ends_with("Client sent an HTTP request to an HTTPS server.\n"),
        "{said}"
    );
    let said = finish(&mut podplane(["get", "nodes", "--server", &plain]));
    assert!(
        said.stderr
            .contains("Client sent an HTTP request to an HTTPS server."),
        "{said:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn openssl_gets_only_suites_with_forward_secrecy() -> Result<()> {
    if !peers::program("openssl") {
        return Ok(());
    }
    let secure = SecureApiserver::start(&[]).await?;
    let address = secure.address().replace("https://", "");
    let connect = |args: &str| {
        let mut openssl = Command::new("openssl");
        openssl
            .args(["s_client", "-brief", "-verify_return_error", "-connect"])
            .args([&address, "-CAfile"])
            .arg(secure.path("pki/ca.crt"))
            .args(args.split_whitespace())
            .stdin(Stdio::null());
        finish(&mut openssl)
    };
    for (args, want) in [
        ("-tls1_3 -alpn h2", "Protocol version: TLSv1.3"),
        ("-tls1_2", "Protocol version: TLSv1.2"),
        ("-verify_hostname kubernetes.default", "Verification: OK"),
    ] {
        let said = connect(args);
        let text = format!("{}{}", said.stdout, said.stderr);
        assert!(text.contains(want), "{args}: {text}");
    }
    for args in [
        "-tls1_1 -cipher DEFAULT@SECLEVEL=0",
        "-tls1_2 -cipher AES128-GCM-SHA256",
        "-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA",
        "-verify_hostname example.com",
    ] {
        let said = connect(args);
        assert!(said.code != Some(0), "{args}: {said:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_kubectl_and_podplane_work_with_certificates() -> Result<()> {
    if !peers::program("kubectl") {
        return Ok(());
    }
    let secure = SecureApiserver::start(&[]).await?;
    let _scheduler = secure.service("scheduler", "scheduler", &[]).await?;

    let kubeconfig = secure.podplane("admin", "kubeconfig").ok();
    assert!(kubeconfig.contains("client-key-data:"), "{kubeconfig}");
    let kubectl = secure.kubectl("admin")?;
    let whoami = kubectl("auth whoami -o json").ok();
    let whoami: Value = serde_json::from_str(&whoami)?;
    let groups = serde_json::json!(["system:masters", "system:authenticated"]);
    assert_eq!(whoami["status"]["userInfo"]["groups"], groups);
    let node = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "spec": {"podCIDR": "10.244.0.0/24", "podCIDRs": ["10.244.0.0/24"]},
        "status": {
            "allocatable": {"pods": "10"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    });
    std::fs::write(secure.path("node.json"), node.to_string())?;
    let apply = format!("apply -f {}", secure.text("node.json"));
    kubectl(&apply).ok();
    kubectl("run web --image=registry.k8s.io/pause").ok();
    let bound = || async {
        let pod = secure.podplane("admin", "get pods web -o json").ok();
        let pod: Value = serde_json::from_str(&pod).unwrap();
        pod["spec"]["nodeName"].clone()
    };
    eventually("the scheduler binds the pod", bound, |node| node == "n1").await;
    let watched = kubectl("get pods web --watch --request-timeout=2s -o name");
    assert!(watched.stdout.contains("pod/web"), "{watched:?}");

    // A name that the certificate does not have.
    let said = secure.podplane("admin", "get nodes --tls-server-name other");
    assert!(said.code != Some(0));
    assert!(said.stderr.contains("not valid for name"), "{said:?}");
    Ok(())
}

//! The audit log of an API server that stock kubectl, curl and grpcurl use.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    process::{Command, Stdio},
};

use anyhow::Result;
use podplane_tests::{eventually, peers, programs::finish, secure::SecureApiserver};
use serde_json::{Value, json};

const POLICY: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: [/livez, /readyz, '/api*', '/openapi/*', /version]
- level: RequestResponse
";
const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c","image":"i"}]}}"#;

/// Starts a server with an audit log, `audit.log` in its directory.
async fn audited() -> Result<(SecureApiserver, tempfile::TempDir)> {
    let dir = tempfile::tempdir()?;
    let policy = dir.path().join("policy.yaml");
    fs::write(&policy, POLICY)?;
    let policy = policy.display().to_string();
    let log = dir.path().join("audit.log").display().to_string();
    let flags = [
        "--authorization-mode=Node,RBAC",
        "--audit-policy-file",
        &policy,
        "--audit-log-path",
        &log,
    ];
    Ok((SecureApiserver::start(&flags).await?, dir))
}

/// The events so far.
fn events(dir: &tempfile::TempDir) -> Vec<Value> {
    let text = fs::read_to_string(dir.path().join("audit.log")).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    let event = |line: &str| serde_json::from_str(line).unwrap();
    text.lines().map(event).collect()
}

/// The events of the log, once it has this one: a request is answered before its line is written.
async fn events_with(dir: &tempfile::TempDir, last: impl Fn(&Value) -> bool) -> Vec<Value> {
    let written = || async { events(dir) };
    eventually("the last request is in the log", written, |events| {
        events.iter().any(&last)
    })
    .await
}

/// The events of requests with this verb for this resource by this user.
fn of(events: &[Value], user: &str, verb: &str, resource: &str) -> Vec<Value> {
    let is_asked = |event: &&Value| {
        event["user"]["username"] == user
            && event["verb"] == verb
            && event["objectRef"]["resource"] == resource
    };
    events.iter().filter(is_asked).cloned().collect()
}

fn decision(event: &Value) -> (&Value, &Value) {
    let decision = &event["annotations"]["authorization.k8s.io/decision"];
    (decision, &event["responseStatus"]["code"])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_kubectl_does_is_in_the_audit_log() -> Result<()> {
    if !peers::program("kubectl") || !peers::program("curl") {
        return Ok(());
    }
    let (secure, dir) = audited().await?;
    let admin = secure.kubectl("admin")?;
    let file = secure.path("pod.json");
    fs::write(&file, POD)?;
    admin(&format!("create -f {}", file.display())).ok();
    admin("get pod a").ok();
    let scheduler = secure.kubectl("scheduler")?;
    assert_ne!(scheduler("get deployments").code, Some(0));
    assert_ne!(admin("get pod a --as=eve").code, Some(0));
    let token = admin("create token default").ok();
    admin("delete pod a --wait=false").ok();

    let curl = |args: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--cacert"]);
        curl.arg(secure.path("pki/ca.crt")).args(args);
        finish(&mut curl).ok()
    };
    let pods = format!("{}/api/v1/namespaces/default/pods", secure.address());
    let bearer = format!("Authorization: Bearer {}", token.trim());
    assert!(curl(&["--header", &bearer, &pods]).contains("Forbidden"));
    let wrong = [
        "--header",
        "Authorization: Bearer wrong",
        "--header",
        "Audit-Id: of-curl",
    ];
    assert!(curl(&[&wrong[..], &["--include", &pods]].concat()).contains("audit-id: of-curl"));

    let text = fs::read_to_string(dir.path().join("audit.log"))?;
    for part in token.trim().split('.') {
        assert!(!text.contains(part), "the log has a token");
    }
    let events = events_with(&dir, |event| event["auditID"] == "of-curl").await;
    let created = of(&events, "admin", "create", "pods");
    let [created] = &*created else {
        panic!("{events:#?}");
    };
    assert_eq!(decision(created), (&json!("allow"), &json!(201)));
    assert_eq!(
        (&created["kind"], &created["apiVersion"]),
        (&json!("Event"), &json!("audit.k8s.io/v1"))
    );
    assert_eq!(created["requestObject"]["metadata"]["name"], "a");
    assert!(created["responseObject"]["metadata"]["uid"].is_string());
    assert_eq!(
        created["user"]["groups"],
        json!(["system:masters", "system:authenticated"])
    );
    assert!(
        created["userAgent"]
            .as_str()
            .unwrap()
            .starts_with("kubectl/")
    );

    let got = of(&events, "admin", "get", "pods");
    let (plain, as_eve): (Vec<_>, Vec<_>) = got
        .iter()
        .partition(|event| event["impersonatedUser"].is_null());
    assert_eq!(decision(plain[0]), (&json!("allow"), &json!(200)));
    assert_eq!(as_eve[0]["impersonatedUser"]["username"], "eve");
    assert_eq!(decision(as_eve[0]), (&json!("forbid"), &json!(403)));

    let listed = of(&events, "system:kube-scheduler", "list", "deployments");
    assert_eq!(decision(&listed[0]), (&json!("forbid"), &json!(403)));
    let message = listed[0]["responseStatus"]["message"].as_str().unwrap();
    assert!(
        message.contains("cannot list resource \"deployments\""),
        "{message}"
    );

    let issued = of(&events, "admin", "create", "serviceaccounts");
    assert_eq!(issued[0]["objectRef"]["subresource"], "token");
    assert_eq!(issued[0]["level"], "Metadata");
    let by_token = of(
        &events,
        "system:serviceaccount:default:default",
        "list",
        "pods",
    );
    assert_eq!(decision(&by_token[0]), (&json!("forbid"), &json!(403)));
    let deleted = of(&events, "admin", "delete", "pods");
    assert_eq!(decision(&deleted[0]), (&json!("allow"), &json!(200)));

    let unknown = events
        .iter()
        .find(|event| event["auditID"] == "of-curl")
        .unwrap();
    assert_eq!(
        (&unknown["user"], &unknown["responseStatus"]["code"]),
        (&json!({}), &json!(401))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_are_written_by_what_their_messages_say() -> Result<()> {
    let Some(grpcurl) = peers::grpcurl() else {
        return Ok(());
    };
    let (secure, dir) = audited().await?;
    let call = |name: &str, method: &str, message: &str| {
        let pair = secure.path(&format!("pki/{name}.pem"));
        let mut command = Command::new(grpcurl.join("grpcurl"));
        command.arg("-cacert").arg(secure.path("pki/ca.crt"));
        command.arg("-cert").arg(&pair).arg("-key").arg(&pair);
        let address = secure.address().trim_start_matches("https://");
        command.args(["-d", message, address, method]);
        finish(&mut command)
    };
    let method = "podplane.core.v1.PodService/ListPods";
    call("admin", method, r#"{"namespace": "kube-system"}"#).ok();
    let refused = call("route-agent", method, r#"{"namespace": "prod"}"#);
    assert_ne!(refused.code, Some(0));

    let agent = "system:podplane:route-agent";
    let events = events_with(&dir, |event| event["user"]["username"] == agent).await;
    let listed = of(&events, "admin", "list", "pods");
    assert_eq!(listed[0]["objectRef"]["namespace"], "kube-system");
    assert_eq!(listed[0]["responseObject"]["kind"], "PodList");
    assert_eq!(decision(&listed[0]), (&json!("allow"), &json!(200)));
    let refused = of(&events, agent, "list", "pods");
    assert_eq!(refused[0]["objectRef"]["namespace"], "prod");
    assert_eq!(decision(&refused[0]), (&json!("forbid"), &json!(403)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_end_loses_no_line() -> Result<()> {
    if !peers::program("kubectl") || !peers::program("curl") {
        return Ok(());
    }
    let (secure, dir) = audited().await?;
    // A watch that is open at the end.
    let pair = secure.path("pki/admin.pem");
    let mut watch = Command::new("curl");
    watch.args(["--silent", "--no-buffer", "--cacert"]);
    watch
        .arg(secure.path("pki/ca.crt"))
        .arg("--cert")
        .arg(&pair);
    watch.arg(format!("{}/api/v1/pods?watch=1", secure.address()));
    let mut watch = watch.stdout(Stdio::null()).spawn()?;
    let started = || async { of(&events(&dir), "admin", "watch", "pods").len() };
    eventually("the watch has begun", started, |events| *events == 1).await;

    let admin = secure.kubectl("admin")?;
    let manifests = secure.path("namespaces.yaml");
    let namespace =
        |number| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: n{number}}}\n---\n");
    fs::write(&manifests, (0..50).map(namespace).collect::<String>())?;
    admin(&format!("create -f {}", manifests.display())).ok();
    let (succeeded, _files) = secure.terminated().await?;
    assert!(succeeded);
    watch.wait()?;

    let events = events(&dir);
    assert_eq!(of(&events, "admin", "create", "namespaces").len(), 50);
    let watched = of(&events, "admin", "watch", "pods");
    let stages: Vec<_> = watched.iter().map(|event| &event["stage"]).collect();
    assert_eq!(stages, ["ResponseStarted", "ResponseComplete"]);
    Ok(())
}

//! `podplane ui` and `podplane replay --ui`: the login at the listener, and the data behind it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use http::{Method, header};
use podplane_http_client::{HttpAnswer, HttpClient};
use podplane_tests::{Cluster, Network, builder, eventually, programs::podplane};
use serde_json::{Value, json};

const CLUSTER: &str = "/summary/v1alpha1/cluster";

/// A listener of the page; killed when it is dropped.
struct Listener {
    child: Child,
    client: HttpClient,
    /// `NAME.localhost:PORT`
    host: String,
    token: String,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Listener {
    /// Starts a command that prints the address of its page.
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("its output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let rest = line.trim().strip_prefix("http://").context(line.clone())?;
        let (host, token) = rest.split_once("/ui/#token=").context(line.clone())?;
        let (name, port) = host.split_once(':').context(line.clone())?;
        assert!(name.ends_with(".localhost"), "{line}");
        Ok(Self {
            child,
            client: HttpClient::new(format!("127.0.0.1:{port}")),
            host: host.to_owned(),
            token: token.to_owned(),
        })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<HttpAnswer> {
        let mut all = vec![("content-type", "application/json")];
        if !headers.iter().any(|(name, _)| *name == "host") {
            all.push(("host", &self.host));
        }
        all.extend(headers);
        self.client.exchange(method, path, &all, body).await
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<HttpAnswer> {
        self.send(Method::GET, path, headers, String::new()).await
    }

    async fn log_in(&self, token: &str) -> Result<HttpAnswer> {
        let body = json!({"token": token}).to_string();
        self.send(Method::POST, "/ui/session", &[], body).await
    }

    /// Logs in with the token; returns the cookie.
    async fn cookie(&self) -> Result<String> {
        let answer = self.log_in(&self.token).await?;
        assert_eq!(answer.code, 204);
        let cookie = answer.headers[header::SET_COOKIE].to_str()?;
        let (pair, attributes) = cookie.split_once("; ").context("attributes")?;
        assert_eq!(attributes, "HttpOnly; SameSite=Strict; Path=/");
        Ok(pair.to_owned())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_cluster_needs_the_token_that_was_printed() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    cluster.podplane("run web --wait").ok();
    let listener = Listener::start(cluster.command("podplane", ["ui", "--no-open"]))?;

    // Without a login there is the page, and no data.
    let page = listener.get("/ui/", &[]).await?;
    assert_eq!(page.code, 200);
    assert!(page.headers.contains_key(header::CONTENT_SECURITY_POLICY));
    for path in [CLUSTER, "/api/v1/pods", "/ui/session", "/metrics", "/"] {
        let answer = listener.get(path, &[]).await?;
        assert_eq!(
            (answer.code, &answer.body["kind"]),
            (401, &json!("Status")),
            "{path}"
        );
    }
    for path in [
        "/ui/../api",
        "/ui/..%2f..%2fetc%2fpasswd",
        "/ui/%2e%2e/index.html",
    ] {
        let code = listener.get(path, &[]).await?.code;
        assert!(matches!(code, 401 | 404), "{path}: {code}");
    }
    for host in ["127.0.0.1", "localhost", "evil.example"] {
        assert_eq!(
            listener.get("/ui/", &[("host", host)]).await?.code,
            421,
            "{host}"
        );
    }

    // A token is good once, and nothing else is one.
    assert_eq!(listener.log_in("wrong").await?.code, 401);
    let cookie = listener.cookie().await?;
    assert_eq!(listener.log_in(&listener.token).await?.code, 401, "used");
    let wrong = [("cookie", "podplane-session=wrong")];
    assert_eq!(listener.get(CLUSTER, &wrong).await?.code, 401);

    let logged_in = [("cookie", cookie.as_str())];
    let session = listener.get("/ui/session", &logged_in).await?.document()?;
    assert_eq!(session["source"], "listener");
    let foreign = [
        ("cookie", cookie.as_str()),
        ("origin", "http://evil.example"),
    ];
    assert_eq!(listener.get(CLUSTER, &foreign).await?.code, 403);
    let summary = listener.get(CLUSTER, &logged_in).await?.document()?;
    assert_eq!(summary["nodes"][0]["name"], "node-0");
    let pods = listener.get("/api/v1/pods", &logged_in).await?.document()?;
    assert_eq!(pods["kind"], "PodList");
    let yaml = [logged_in[0], ("accept", "application/yaml")];
    let node = listener.get("/api/v1/nodes/node-0", &yaml).await?;
    assert!(
        node.bytes.starts_with(b"apiVersion: v1"),
        "{:?}",
        node.bytes
    );

    // What only this machine knows.
    let path = "/summary/v1alpha1/nodes/node-0";
    let node = listener.get(path, &logged_in).await?.document()?;
    assert_eq!(node["sandboxes"][0]["pod"], "default/web", "{node:#}");
    let lease = &node["leaseFiles"][0];
    assert_eq!(lease["ip"], node["sandboxes"][0]["ips"][0], "{node:#}");
    assert_eq!(lease["containerID"], node["sandboxes"][0]["id"]);
    assert_eq!(node["links"], Value::Null, "the network is a ledger");
    let path = "/summary/v1alpha1/pods/default/web/explanation";
    let explained = listener.get(path, &logged_in).await?.document()?;
    assert_eq!(explained["nodes"][0]["name"], "node-0", "{explained:#}");
    let path = "/summary/v1alpha1/pods/default/web/trace";
    let has_trace = || async { listener.get(path, &logged_in).await.ok() };
    let trace = eventually("the trace is there", has_trace, |answer| {
        answer.as_ref().is_some_and(|answer| answer.code == 200)
    });
    let trace = trace.await.context("a trace")?.document()?;
    assert_eq!(trace["spans"][0]["name"], "create", "{trace:#}");

    let out = listener.send(Method::DELETE, "/ui/session", &logged_in, String::new());
    assert_eq!(out.await?.code, 204);
    assert_eq!(listener.get(CLUSTER, &logged_in).await?.code, 401);
    drop(listener);
    cluster.finish().await
}

/// A line of a recording about a pod with the address that another one has, too.
fn entry(at: f64, change: &str, name: &str, node: &str) -> String {
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.244.1.2"}]},
    });
    let entry = json!({"at": at, "step": 1, "kind": "object", "change": change, "object": pod});
    format!("{entry}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_has_a_page_of_each_of_its_moments() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let lines = [
        entry(1.0, "added", "one", "a"),
        entry(2.0, "added", "two", "b"),
        entry(3.0, "deleted", "two", "b"),
    ];
    fs::write(dir.path().join("recording.jsonl"), lines.concat())?;
    let mut command = podplane(["replay", "--ui", "--no-open"]);
    command.arg(dir.path());
    let listener = Listener::start(command)?;
    assert_eq!(listener.get(CLUSTER, &[]).await?.code, 401);
    let cookie = listener.cookie().await?;
    let logged_in = [("cookie", cookie.as_str())];
    let recording = listener
        .get("/summary/v1alpha1/recording", &logged_in)
        .await?;
    assert_eq!(recording.document()?["times"], json!([1.0, 2.0, 3.0]));
    for (at, duplicates) in [("?at=1.5", 0), ("?at=2", 1), ("?at=2.9", 1), ("", 0)] {
        let summary = listener
            .get(&format!("{CLUSTER}{at}"), &logged_in)
            .await?
            .document()?;
        let findings = summary["findings"].as_array().context("findings")?;
        let duplicate = |finding: &&Value| finding["rule"] == "duplicate-address";
        assert_eq!(
            findings.iter().filter(duplicate).count(),
            duplicates,
            "{at}"
        );
    }
    let pods = listener
        .get("/api/v1/pods?at=2", &logged_in)
        .await?
        .document()?;
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(2));
    let odd = listener
        .get(&format!("{CLUSTER}?at=soon"), &logged_in)
        .await?;
    assert_eq!(odd.code, 400, "{:?}", odd.body);
    Ok(())
}

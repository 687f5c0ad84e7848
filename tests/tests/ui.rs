//! `podplane ui` and `podplane replay --ui`: the login at the listener, and the data behind it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::TcpListener,
    process::Command,
    thread,
};

use anyhow::{Context as _, Result};
use http::{Method, header};
use podplane_http_client::{HttpAnswer, HttpClient};
use podplane_tests::{
    Cluster, Network, builder, eventually,
    listener::PageListener,
    programs::{finish, podplane},
};
use serde_json::{Value, json};

const CLUSTER: &str = "/summary/v1alpha1/cluster";

/// A listener of the page, and a client that is not a browser.
struct Listener {
    page: PageListener,
    client: HttpClient,
}

impl Listener {
    /// Starts a command that prints the address of its page.
    fn start(command: Command) -> Result<Self> {
        let page = PageListener::start(command)?;
        let client = HttpClient::new(format!("127.0.0.1:{}", page.port()));
        Ok(Self { page, client })
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
            all.push(("host", &self.page.host));
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
        let answer = self.log_in(&self.page.token).await?;
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

    // Which server it is, everybody may know.
    let server = listener.get("/ui/server", &[]).await?.document()?;
    assert_eq!(server, json!({"source": "listener", "needsLogin": true}));

    // A token is good once, and nothing else is one.
    assert_eq!(listener.log_in("wrong").await?.code, 401);
    let cookie = listener.cookie().await?;
    assert_eq!(
        listener.log_in(&listener.page.token).await?.code,
        401,
        "used"
    );
    let wrong = [("cookie", "podplane-session=wrong")];
    assert_eq!(listener.get(CLUSTER, &wrong).await?.code, 401);

    let logged_in = [("cookie", cookie.as_str())];
    let session = listener.get("/ui/session", &logged_in).await?.document()?;
    assert_eq!(session["source"], "listener");
    let server = listener.get("/ui/server", &logged_in).await?.document()?;
    assert_eq!(server["needsLogin"], false);
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
    assert_eq!(node["topology"], Value::Null);
    let why = node["networkUnknown"].as_str().context("a reason")?;
    assert!(why.contains("in ledger mode"), "{why}");
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
        let duplicate = |finding: &&Value| finding["code"] == "duplicate-pod-ip";
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

/// A server that gives everybody the same answer, and its address.
fn other_server(code: u16, body: &'static str) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            lines.find(String::is_empty);
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {code} x\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            // The client may have gone.
            let _ = (&stream).write_all(format!("{head}{body}").as_bytes());
        }
    });
    Ok(address)
}

#[test]
fn a_server_that_is_not_podplanes_is_named() -> Result<()> {
    let dir = tempfile::tempdir()?;
    for (code, body) in [
        (404, "404 page not found"),
        // A user of Kubernetes without a rule for the path.
        (403, r#"{"kind":"Status","code":403}"#),
        (200, "<html>Welcome</html>"),
    ] {
        let address = other_server(code, body)?;
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "other",
            "clusters": [{"name": "other", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "other", "user": {}}],
            "contexts": [{"name": "other", "context": {"cluster": "other", "user": "other"}}],
        });
        let file = dir.path().join(format!("{code}.json"));
        fs::write(&file, kubeconfig.to_string())?;
        let mut command = podplane(["ui", "--no-open", "--kubeconfig"]);
        let error = finish(command.arg(&file)).failed(1);
        assert!(error.contains(&address), "{error}");
        assert!(error.contains("not an API server of podplane"), "{error}");
    }
    // The other way has HTTP/2 alone.
    let address = other_server(404, "404 page not found")?;
    let error = finish(&mut podplane(["ui", "--no-open", "--server", &address])).failed(2);
    assert!(error.contains(&address), "{error}");
    Ok(())
}

/// The findings, each as its code and its message, in order.
fn findings_of(document: &Value) -> Vec<(String, String)> {
    let findings = document["findings"].as_array().into_iter().flatten();
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap_or("").to_owned();
    let mut found: Vec<_> = findings
        .map(|finding| (text(finding, "code"), text(finding, "message")))
        .collect();
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_findings_of_the_page_are_those_of_the_audit() -> Result<()> {
    // One node of 5 addresses: it is full, and pods wait.
    let small = builder(Network::Ledger).nodes(1).node_cidr_mask_size(29);
    let Some(cluster) = Cluster::up(small).await? else {
        return Ok(());
    };
    cluster.podplane("run web --replicas 7").ok();
    let listener = Listener::start(cluster.command("podplane", ["ui", "--no-open"]))?;
    let cookie = listener.cookie().await?;
    let logged_in = [("cookie", cookie.as_str())];
    let page = || async {
        let answer = listener.get(CLUSTER, &logged_in).await.ok()?;
        answer.document().ok()
    };
    // Until then their number of addresses changes, and with it the findings.
    let page = eventually("five pods run and two wait", page, |page| {
        let found = page.as_ref().map(findings_of).unwrap_or_default();
        let is_of = |part| found.iter().any(|(_, message)| message.contains(part));
        is_of("for 2 pods") && !is_of("wait for an address")
    });
    let page = page.await.context("a summary")?;
    let audit = "audit -o json --cluster-cidr 10.244.0.0/16 --service-cidr 10.96.0.0/16";
    let audited = cluster.podplane(audit);
    let audit: Value = serde_json::from_str(&audited.stdout).context(audited.stderr)?;
    assert_eq!(findings_of(&page), findings_of(&audit));
    let made = page["checks"].as_array().context("checks")?.iter();
    let made = made.filter(|check| check["isMade"] == true).count();
    let all = audit["summary"]["checks"].as_object().context("checks")?;
    assert!(made > 0 && made < all.len(), "{:#}", page["checks"]);
    drop(listener);
    cluster.finish().await
}

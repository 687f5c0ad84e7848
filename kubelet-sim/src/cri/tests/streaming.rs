//! Exec, attach and port-forward by kubectl, a client that we did not write. Between it and the CRI
//! server is what an API server and a kubelet do: discovery, the pod, and a proxy of the upgraded
//! connection.

use std::{
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Output, Stdio},
};

use podplane_proto::cri::ContainerState;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use super::{processes::ProcessNode, *};

/// The requests of kubectl before it opens a stream, with their answers.
const DISCOVERY: [(&str, &str); 4] = [
    (
        "/api",
        r#"{"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}"#,
    ),
    (
        "/apis",
        r#"{"kind": "APIGroupList", "apiVersion": "v1", "groups": []}"#,
    ),
    (
        "/api/v1",
        r#"{"kind": "APIResourceList", "groupVersion": "v1", "resources": [{"name": "pods",
            "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get", "list"]}]}"#,
    ),
    (
        POD,
        r#"{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "main", "image": "busybox", "stdin": true}]},
            "status": {"phase": "Running"}}"#,
    ),
];
const POD: &str = "/api/v1/namespaces/default/pods/web";

/// An API server with one pod.
struct Frontend {
    client: CriClient,
    sandbox: String,
    container: String,
}

impl Frontend {
    /// Serves until the set is dropped; returns its address.
    async fn start(self, tasks: &mut JoinSet<()>) -> String {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            let frontend = std::sync::Arc::new(self);
            loop {
                let (connection, _) = listener.accept().await.unwrap();
                connections.spawn(frontend.clone().serve(connection));
            }
        });
        address
    }

    async fn serve(self: std::sync::Arc<Self>, mut connection: TcpStream) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match connection.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(_) => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let (line, headers) = head.split_once("\r\n").unwrap();
        let target = line.split(' ').nth(1).unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let found = DISCOVERY.iter().find(|(known, _)| *known == path);
        if let Some((_, body)) = found {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
            connection.write_all(answer.as_bytes()).await.unwrap();
            return;
        }
        let url = self
            .url(path.strip_prefix(POD).unwrap_or(path), query)
            .await;
        let url = url.strip_prefix("http://").unwrap();
        let (address, path) = url.split_once('/').unwrap();
        let mut server = TcpStream::connect(address).await.unwrap();
        let request = format!("POST /{path} HTTP/1.1\r\n{headers}");
        server.write_all(request.as_bytes()).await.unwrap();
        // The end of either side is the end of the connection.
        _ = copy_bidirectional(&mut connection, &mut server).await;
    }

    /// The URL that the CRI server answers for a request of kubectl.
    async fn url(&self, action: &str, query: &str) -> String {
        let query: Vec<_> = form_urlencoded::parse(query.as_bytes()).collect();
        let is = |name: &str| {
            query
                .iter()
                .any(|(key, value)| key == name && value == "true")
        };
        let mut client = self.client.clone();
        match action {
            "/exec" => {
                let words = query.iter().filter(|(key, _)| key == "command");
                let request = wire::ExecRequest {
                    container_id: self.container.clone(),
                    cmd: words.map(|(_, word)| word.clone().into_owned()).collect(),
                    tty: is("tty"),
                    stdin: is("stdin"),
                    stdout: is("stdout"),
                    stderr: is("stderr"),
                };
                client.exec(request).await.unwrap().into_inner().url
            }
            "/attach" => {
                let request = wire::AttachRequest {
                    container_id: self.container.clone(),
                    tty: is("tty"),
                    stdin: is("stdin"),
                    stdout: is("stdout"),
                    stderr: is("stderr"),
                };
                client.attach(request).await.unwrap().into_inner().url
            }
            "/portforward" => {
                let request = wire::PortForwardRequest {
                    pod_sandbox_id: self.sandbox.clone(),
                    port: Vec::new(),
                };
                client.port_forward(request).await.unwrap().into_inner().url
            }
            other => panic!("kubectl asks for {other}"),
        }
    }
}

/// A node, a pod with a container that executes a script, and its API server.
struct Cluster {
    node: ProcessNode,
    container: String,
    server: String,
    _tasks: JoinSet<()>,
}

impl Cluster {
    /// `None` if the environment says to do without.
    async fn start(script: &str) -> Option<Self> {
        let mut node = ProcessNode::start().await?;
        let has_kubectl = Command::new("kubectl").arg("--help").output().is_ok();
        if !require("kubectl", has_kubectl, "put it into a directory of PATH") {
            node.server.0.end().await;
            return None;
        }
        let sandbox = node.sandbox("a", &[]).await;
        let image = node.pull("busybox").await;
        let mut wanted = node.wanted_of(&sandbox, "main", &image);
        let config = wanted.config.as_mut().unwrap();
        config.command = vec!["sh".into(), "-c".into(), script.into()];
        config.stdin = true;
        config.stdin_once = true;
        let container = node.run_wanted(wanted).await;
        let frontend = Frontend {
            client: node.client.clone(),
            sandbox,
            container: container.clone(),
        };
        let mut tasks = JoinSet::new();
        let server = frontend.start(&mut tasks).await;
        Some(Self {
            node,
            container,
            server,
            _tasks: tasks,
        })
    }

    /// kubectl with SPDY, which is what reaches a CRI server.
    fn kubectl(&self, args: &[&str]) -> Command {
        let mut kubectl = Command::new("kubectl");
        kubectl
            .args(["--kubeconfig", "/dev/null", "--server", &self.server])
            .args(args)
            .env("HOME", self.node.log_dir())
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        kubectl
    }

    /// The output of kubectl, which reads this input.
    async fn run(&self, args: &[&str], input: &'static [u8]) -> (Option<i32>, String, String) {
        let mut kubectl = self.kubectl(args);
        let run = move || -> Output {
            let mut child = kubectl.spawn().unwrap();
            // A program that does not read it may have ended.
            _ = child.stdin.take().unwrap().write_all(input);
            child.wait_with_output().unwrap()
        };
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_executes_commands() {
    let Some(mut cluster) = Cluster::start("exec sleep 1000").await else {
        return;
    };
    let script = ["exec", "web", "--", "sh", "-c"];
    let with = |last: &'static str| [&script[..], &[last]].concat();
    let (code, stdout, stderr) = cluster
        .run(&with("echo out; echo err >&2; exit 7"), b"")
        .await;
    assert_eq!((code, stdout.as_str()), (Some(7), "out\n"), "{stderr}");
    assert!(stderr.starts_with("err\n"), "{stderr}");
    let cat = ["exec", "-i", "web", "--", "sh", "-c", "cat; echo end"];
    let (code, stdout, stderr) = cluster.run(&cat, b"one\ntwo\n").await;
    assert_eq!(
        (code, stdout.as_str()),
        (Some(0), "one\ntwo\nend\n"),
        "{stderr}"
    );
    // More than any buffer on the way, both ways.
    let large: &'static [u8] = vec![b'x'; 3 << 20].leak();
    let cat = ["exec", "-i", "web", "--", "cat"];
    let (code, stdout, stderr) = cluster.run(&cat, large).await;
    assert_eq!((code, stdout.len()), (Some(0), large.len()), "{stderr}");
    let missing = ["exec", "web", "--", "no-such-program"];
    let (code, _, stderr) = cluster.run(&missing, b"").await;
    assert_eq!(code, Some(1));
    assert!(stderr.contains("no-such-program"), "{stderr}");
    cluster.node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_ends_with_its_client() {
    let Some(mut cluster) = Cluster::start("exec sleep 1000").await else {
        return;
    };
    let mut kubectl = cluster.kubectl(&["exec", "web", "--", "sh", "-c", "echo $$; sleep 1000"]);
    let mut child = kubectl.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut line = [0; 8];
    std::io::Read::read(&mut stdout, &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let request = wire::ExecSyncRequest {
            container_id: cluster.container.clone(),
            cmd: vec!["sh".into(), "-c".into(), "echo /proc/[0-9]*".into()],
            timeout: 10,
        };
        let left = cluster.node.client.exec_sync(request).await.unwrap();
        let left = String::from_utf8(left.into_inner().stdout).unwrap();
        // The container's own, and the shell that asks.
        if left.split_whitespace().count() == 2 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{left}");
    }
    cluster.node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_attaches() {
    let script = "while read line; do echo \"got $line\"; done; echo end";
    let Some(mut cluster) = Cluster::start(script).await else {
        return;
    };
    let attach = ["attach", "-i", "web"];
    let (code, stdout, stderr) = cluster.run(&attach, b"one\ntwo\n").await;
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.contains("got one\ngot two\nend\n"),
        "{stdout} {stderr}"
    );
    // The input of the first client was the last (stdinOnce).
    let exited = cluster.node.exited(&cluster.container).await;
    assert_eq!(exited.state(), ContainerState::ContainerExited);
    assert_eq!(exited.exit_code, 0);
    cluster.node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_forwards_ports() {
    let script = "echo ready; exec busybox httpd -f -p 127.0.0.1:8080 -h /bin";
    let Some(mut cluster) = Cluster::start(script).await else {
        return;
    };
    cluster.node.logged("main", "ready").await;
    let mut child = cluster
        .kubectl(&[
            "port-forward",
            "pod/web",
            ":8080",
            ":81",
            "--address",
            "127.0.0.1",
        ])
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let port = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let address = line
            .split_whitespace()
            .nth(2)
            .unwrap_or_default()
            .to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        address
    };
    let mut port = port;
    let (served, closed) = (port(), port());
    let fetch = async |address: &str| {
        let mut connection = TcpStream::connect(address).await.unwrap();
        connection
            .write_all(b"GET /busybox HTTP/1.0\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        // A connection to a closed port is ended.
        _ = connection.read_to_end(&mut answer).await;
        answer
    };
    let size = usize::try_from(fs::metadata("/bin/busybox").unwrap().len()).unwrap();
    // The server may not listen yet when it has said so.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let mut answer = fetch(&served).await;
    while answer.is_empty() && tokio::time::Instant::now() < deadline {
        answer = fetch(&served).await;
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK") || answer.starts_with(b"HTTP/1.0 200 OK"));
    assert!(answer.len() > size, "{} of {size}", answer.len());
    let (a, b) = tokio::join!(fetch(&served), fetch(&served));
    assert_eq!((a.len(), b.len()), (answer.len(), answer.len()), "at once");
    assert_eq!(fetch(&closed).await, b"");
    child.kill().unwrap();
    child.wait().unwrap();
    cluster.node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_are_used_once_and_only_for_their_protocol() {
    let Some(mut cluster) = Cluster::start("exec sleep 1000").await else {
        return;
    };
    let request = wire::ExecRequest {
        container_id: cluster.container.clone(),
        cmd: vec!["true".into()],
        stdout: true,
        ..wire::ExecRequest::default()
    };
    let url = cluster
        .node
        .client
        .exec(request)
        .await
        .unwrap()
        .into_inner()
        .url;
    let url = url.strip_prefix("http://").unwrap().to_owned();
    let (address, path) = url.split_once('/').unwrap();
    assert!(address.starts_with("127.0.0.1:"), "{address}");
    let ask = async |path: &str, upgrade: &str| {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let request = format!(
            "POST /{path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = vec![0; 12];
        connection.read_exact(&mut answer).await.unwrap();
        String::from_utf8(answer).unwrap()
    };
    assert_eq!(ask(path, "websocket").await, "HTTP/1.1 400");
    assert_eq!(ask("exec/0123", "SPDY/3.1").await, "HTTP/1.1 404");
    assert_eq!(ask(path, "SPDY/3.1").await, "HTTP/1.1 101");
    assert_eq!(ask(path, "SPDY/3.1").await, "HTTP/1.1 404", "used");
    let bad = wire::ExecRequest {
        container_id: cluster.container.clone(),
        cmd: vec!["true".into()],
        stderr: true,
        tty: true,
        ..wire::ExecRequest::default()
    };
    let refused = cluster.node.client.exec(bad).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    cluster.node.server.0.end().await;
}

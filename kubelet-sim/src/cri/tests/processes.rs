//! Containers with processes (`--containers=process`): Debian's busybox, in kernel mode.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use podplane_proto::cri::{ContainerState, image_service_client::ImageServiceClient};

use super::{
    containers::{ContainerNode, image_spec},
    *,
};

const BUSYBOX: &str = "/bin/busybox";
const APPLETS: [&str; 11] = [
    "cat", "echo", "head", "hostname", "httpd", "id", "ls", "sh", "sleep", "stty", "true",
];
/// A user of these tests alone.
const USER: i64 = 47_120;

/// A node that runs processes.
pub(super) type ProcessNode = ContainerNode<Kernel>;

/// The program that starts containers: `cargo build -p podplane-container-init` puts it there.
fn container_init() -> PathBuf {
    let program = own_plugins().join(podplane_container_init::NAME);
    assert!(
        program.exists(),
        "no {}: run cargo build -p podplane-container-init",
        program.display()
    );
    program
}

/// Returns true if busybox is there, and false if the environment says to do without.
fn has_busybox() -> bool {
    let is_there = Path::new(BUSYBOX).exists();
    require("busybox", is_there, "apt-get install busybox-static")
}

impl ProcessNode {
    /// `None` if the environment says to do without.
    pub(super) async fn start() -> Option<Self> {
        if !root() || !has_busybox() {
            return None;
        }
        let mut server = Kernel::prepare();
        let root = server.0.dir.path().join("images");
        let bin = root.join("busybox/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(BUSYBOX, bin.join("busybox")).unwrap();
        for applet in APPLETS {
            symlink("busybox", bin.join(applet)).unwrap();
        }
        let config = r#"{"config": {"Env": ["FROM_IMAGE=yes"], "Cmd": ["sh"]}}"#;
        fs::write(root.join("busybox.json"), config).unwrap();
        let config = &mut server.0.config;
        config.cluster.containers = ContainerMode::Process;
        config.cluster.container_roots = Some(root.to_str().unwrap().parse().unwrap());
        config.container_init = Some(container_init());
        let mut client = server.0.launch().await;
        configure(&mut client, "10.9.0.0/24").await.unwrap();
        let images = ImageServiceClient::new(server.0.channel());
        Some(Self {
            server,
            client,
            images,
        })
    }

    /// The request for a container that executes a shell script.
    async fn scripted(
        &mut self,
        sandbox: &str,
        name: &str,
        script: &str,
    ) -> wire::CreateContainerRequest {
        let image = self.pull("busybox").await;
        let mut wanted = self.wanted_of(sandbox, name, &image);
        let config = wanted.config.as_mut().unwrap();
        config.command = vec!["sh".into(), "-c".into(), script.into()];
        config.linux = Some(wire::LinuxContainerConfig {
            security_context: Some(wire::LinuxContainerSecurityContext {
                run_as_user: Some(wire::Int64Value { value: USER }),
                ..wire::LinuxContainerSecurityContext::default()
            }),
            ..wire::LinuxContainerConfig::default()
        });
        wanted
    }

    pub(super) async fn run_wanted(&mut self, wanted: wire::CreateContainerRequest) -> String {
        let created = Box::pin(self.client.create_container(wanted))
            .await
            .unwrap();
        let id = created.into_inner().container_id;
        self.start_container(&id).await.unwrap();
        id
    }

    /// Starts a container that executes a shell script.
    pub(super) async fn script(&mut self, sandbox: &str, name: &str, script: &str) -> String {
        let wanted = self.scripted(sandbox, name, script).await;
        self.run_wanted(wanted).await
    }

    /// The exit code and the output of a container that executes a shell script.
    async fn finished(&mut self, sandbox: &str, name: &str, script: &str) -> (i32, String) {
        let id = self.script(sandbox, name, script).await;
        let code = self.exited(&id).await.exit_code;
        (code, self.log(&format!("{name}/0.log")).join("\n"))
    }

    async fn exec(&mut self, id: &str, script: &str, timeout: i64) -> Result<Executed, Status> {
        let request = wire::ExecSyncRequest {
            container_id: id.into(),
            cmd: vec!["sh".into(), "-c".into(), script.into()],
            timeout,
        };
        let answer = self.client.exec_sync(request).await?.into_inner();
        Ok(Executed {
            code: answer.exit_code,
            stdout: String::from_utf8(answer.stdout).unwrap(),
            stderr: String::from_utf8(answer.stderr).unwrap(),
        })
    }

    /// Waits until a container has logged a line with this text.
    pub(super) async fn logged(&mut self, name: &str, text: &str) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let log = self.log(&format!("{name}/0.log"));
            if log.iter().any(|line| line.contains(text)) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{log:?}");
            tokio::task::yield_now().await;
        }
    }

    async fn restart(&mut self) {
        self.server.0.end().await;
        self.client = self.server.0.launch().await;
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Executed {
    code: i32,
    stdout: String,
    stderr: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_runs_in_the_sandbox_and_its_output_is_logged() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let sandbox = node.sandbox("a", &[]).await;
    let script = "echo user $(id -u); echo $FROM_IMAGE $OWN; echo problem >&2; cat /proc/net/dev; \
                  printf unfinished; exit 7";
    let mut wanted = node.scripted(&sandbox, "main", script).await;
    wanted.config.as_mut().unwrap().envs = vec![wire::KeyValue {
        key: "OWN".into(),
        value: "env".into(),
    }];
    let id = node.run_wanted(wanted).await;
    let exited = node.exited(&id).await;
    assert_eq!((exited.exit_code, exited.reason.as_str()), (7, "Error"));
    assert!(exited.finished_at >= exited.started_at && exited.started_at > 0);
    let log = node.log("main/0.log");
    let has = |record: &str| log.iter().any(|line| line.contains(record));
    assert!(has(&format!(" stdout F user {USER}")), "{log:?}");
    assert!(has(" stdout F yes env"), "{log:?}");
    assert!(has(" stderr F problem"), "{log:?}");
    assert!(has("eth0:"), "the network of the pod: {log:?}");
    assert!(
        log.last().unwrap().ends_with(" stdout P unfinished"),
        "{log:?}"
    );
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_ends_by_its_code_by_signals_and_with_its_sandbox() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let sandbox = node.sandbox("a", &[]).await;
    let (code, _) = node.finished(&sandbox, "ok", "true").await;
    assert_eq!(code, 0);
    let trap = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let obeys = node.script(&sandbox, "obeys", trap).await;
    node.logged("obeys", "ready").await;
    node.stop_container(&obeys, 60).await;
    assert_eq!(node.status(&obeys).await.unwrap().exit_code, 3);
    // The first process of a namespace ignores SIGTERM, unless it handles it.
    let ignores = node.script(&sandbox, "ignores", "exec sleep 1000").await;
    node.stop_container(&ignores, 1).await;
    let killed = node.status(&ignores).await.unwrap();
    assert_eq!((killed.exit_code, killed.reason.as_str()), (137, "Error"));
    let left = node.script(&sandbox, "left", "exec sleep 1000").await;
    stop(&mut node.client, &sandbox).await;
    assert_eq!(node.status(&left).await.unwrap().exit_code, 137);
    remove(&mut node.client, &sandbox).await;
    assert!(node.list(wire::ContainerFilter::default()).await.is_empty());
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_sync_has_the_code_and_the_output_of_its_command() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let sandbox = node.sandbox("a", &[]).await;
    let id = node.script(&sandbox, "main", "exec sleep 1000").await;
    let executed = node.exec(&id, "echo out; echo err >&2; exit 9", 10).await;
    let want = Executed {
        code: 9,
        stdout: "out\n".into(),
        stderr: "err\n".into(),
    };
    assert_eq!(executed.unwrap(), want);
    let status = node.exec(&id, "cat /proc/self/status", 10).await.unwrap();
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000000"] {
        assert!(status.stdout.contains(line), "{line} in {status:?}");
    }
    let late = node.exec(&id, "sleep 1000", 1).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    // By the shell itself, so that no process of a pipe is missing yet.
    let left = node.exec(&id, "echo /proc/[0-9]*", 10).await.unwrap();
    let left: Vec<_> = left.stdout.split_whitespace().collect();
    assert_eq!(left.len(), 2, "sleep and sh: {left:?}");
    let request = wire::ExecSyncRequest {
        container_id: id.clone(),
        cmd: vec!["no-such-program".into()],
        timeout: 1,
    };
    let missing = node.client.exec_sync(request).await.unwrap_err();
    assert!(missing.message().contains("no-such-program"), "{missing}");
    node.stop_container(&id, 0).await;
    let ended = node.exec(&id, "true", 1).await.unwrap_err();
    assert_eq!(ended.code(), Code::FailedPrecondition);
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_end_with_the_server() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let sandbox = node.sandbox("a", &[]).await;
    let id = node
        .script(&sandbox, "main", "echo ready; exec sleep 1000")
        .await;
    node.logged("main", "ready").await;
    node.restart().await;
    let killed = node.status(&id).await.unwrap();
    assert_eq!(killed.state(), ContainerState::ContainerExited);
    assert_eq!(
        killed.exit_code, 137,
        "a server that stops sees its processes end"
    );
    node.server.0.end().await;
    // As if the server had been killed.
    let records = node.server.0.node().containers();
    let path = records.join(format!("{id}.json"));
    let text = fs::read_to_string(&path).unwrap();
    let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
    record["state"] = serde_json::json!({"running": {"startedAt": 1}});
    fs::write(&path, record.to_string()).unwrap();
    node.client = node.server.0.launch().await;
    let lost = node.status(&id).await.unwrap();
    assert_eq!((lost.exit_code, lost.reason.as_str()), (255, "Unknown"));
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_pods_own_volumes_are_mounted() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let pods = node.server.0.config.kubelet_pods_dir.clone();
    for uid in ["a", "b"] {
        fs::create_dir_all(pods.join(uid).join("volumes/data")).unwrap();
    }
    let volume = pods.join("a/volumes/data");
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o777)).unwrap();
    let hosts = pods.join("a/etc-hosts");
    fs::write(&hosts, "10.9.0.2 pod-a\n").unwrap();
    symlink("/etc", volume.join("link")).unwrap();
    let sandbox = node.sandbox("a", &[]).await;
    let mount = |host: &Path, target: &str| wire::Mount {
        host_path: host.to_str().unwrap().into(),
        container_path: target.into(),
        ..wire::Mount::default()
    };
    let script = "cat /etc/hosts; echo kept > /data/file; echo done > /dev/termination-log";
    let mut wanted = node.scripted(&sandbox, "main", script).await;
    let log = pods.join("a/termination");
    fs::write(&log, "").unwrap();
    fs::set_permissions(&log, fs::Permissions::from_mode(0o666)).unwrap();
    wanted.config.as_mut().unwrap().mounts = vec![
        mount(&hosts, "/etc/hosts"),
        mount(&volume, "/data"),
        mount(&log, "/dev/termination-log"),
    ];
    let id = node.run_wanted(wanted).await;
    assert_eq!(
        node.exited(&id).await.exit_code,
        0,
        "{:?}",
        node.log("main/0.log")
    );
    assert!(node.log("main/0.log")[0].contains("10.9.0.2 pod-a"));
    assert_eq!(fs::read_to_string(volume.join("file")).unwrap(), "kept\n");
    assert_eq!(fs::read_to_string(&log).unwrap(), "done\n");

    for (index, path) in [
        Path::new("/etc"),
        &pods.join("b/volumes/data"),
        &pods.join("a/../b/volumes/data"),
        &pods,
    ]
    .into_iter()
    .enumerate()
    {
        let mut wanted = node.scripted(&sandbox, &format!("x{index}"), "true").await;
        wanted.config.as_mut().unwrap().mounts = vec![mount(path, "/data")];
        let refused = node.client.create_container(wanted).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("hostPath"), "{refused}");
    }
    // A link in the pod's own directory leads nowhere.
    let mut wanted = node.scripted(&sandbox, "link", "true").await;
    wanted.config.as_mut().unwrap().mounts = vec![mount(&volume.join("link"), "/data")];
    let created = node.client.create_container(wanted).await.unwrap();
    let id = created.into_inner().container_id;
    let refused = node.start_container(&id).await.unwrap_err();
    assert!(refused.message().contains("beneath"), "{refused}");
    let failed = node.status(&id).await.unwrap();
    assert_eq!(
        (failed.exit_code, failed.reason.as_str()),
        (128, "StartError")
    );
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn images_are_those_of_the_roots() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let request = wire::PullImageRequest {
        image: Some(image_spec("registry.example/other:v1")),
        ..wire::PullImageRequest::default()
    };
    let missing = node.images.pull_image(request).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    assert!(
        missing
            .message()
            .contains("/images/registry.example/other:v1"),
        "{missing}"
    );
    let sandbox = node.sandbox("a", &[]).await;
    let mut wanted = node.scripted(&sandbox, "main", "").await;
    let config = wanted.config.as_mut().unwrap();
    config.command.clear();
    config.args = vec!["id".into(), "-u".into()];
    config.linux = None;
    let image = node.image("busybox").await.unwrap();
    assert_eq!(image.uid.unwrap().value, 65534, "an image without a user");
    let id = node.run_wanted(wanted).await;
    assert_eq!(node.exited(&id).await.exit_code, 0);
    assert!(node.log("main/0.log")[0].ends_with("stdout F 65534"));
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_moved_away_is_made_again_and_stats_are_of_the_processes() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let sandbox = node.sandbox("a", &[]).await;
    let script = "trap 'echo second' USR1; echo first; while :; do sleep 0.1; done";
    let id = node.script(&sandbox, "main", script).await;
    node.logged("main", "first").await;
    let log = node.log_dir().join("main/0.log");
    fs::rename(&log, log.with_extension("1")).unwrap();
    let reopen = wire::ReopenContainerLogRequest {
        container_id: id.clone(),
    };
    node.client.reopen_container_log(reopen).await.unwrap();
    node.exec(&id, "kill -USR1 1", 10).await.unwrap();
    node.logged("main", "second").await;
    assert!(!fs::read_to_string(&log).unwrap().contains("first"));

    let request = wire::PodSandboxStatsRequest {
        pod_sandbox_id: sandbox.clone(),
    };
    let stats = node.client.pod_sandbox_stats(request).await.unwrap();
    let stats = stats.into_inner().stats.unwrap().linux.unwrap();
    let processes = stats.process.unwrap().process_count.unwrap().value;
    assert!((1..=3).contains(&processes), "{processes}");
    let memory = stats.containers[0].memory.as_ref().unwrap();
    assert!(memory.working_set_bytes.unwrap().value > 0);
    let written = stats.containers[0].writable_layer.as_ref().unwrap();
    assert!(written.used_bytes.unwrap().value > 0);
    node.server.0.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_in_their_nodes_network_get_no_process() {
    let Some(mut node) = ProcessNode::start().await else {
        return;
    };
    let host = request("h", 0, NamespaceMode::Node);
    let host = node
        .client
        .run_pod_sandbox(host)
        .await
        .unwrap()
        .into_inner();
    let wanted = node.scripted(&host.pod_sandbox_id, "main", "true").await;
    let created = node.client.create_container(wanted).await.unwrap();
    let refused = node
        .start_container(&created.into_inner().container_id)
        .await;
    let refused = refused.unwrap_err();
    assert!(refused.message().contains("hostNetwork"), "{refused}");
    node.server.0.end().await;
}

#[tokio::test]
async fn processes_need_namespaces_and_authentication() {
    let mut server = CriFixture::prepare(&own_plugins());
    server.config.cluster.containers = ContainerMode::Process;
    let refused = run(server.config.clone(), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(refused, CriRunError::NoNamespaces), "{refused}");
    server.config.nodes.truncate(1);
    server.config.network = PodNetworkMode::Kernel;
    server.config.serving.authentication = AuthenticationMode::None;
    let refused = run(server.config.clone(), CancellationToken::new())
        .await
        .unwrap_err();
    assert!(
        matches!(refused, CriRunError::NoAuthentication),
        "{refused}"
    );
}

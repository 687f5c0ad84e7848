//! Containers without processes (`--containers=pretend`), as a kubelet uses them.

use std::{collections::HashMap, fs};

use super::*;
use podplane_proto::cri::{
    self as wire, ContainerEventType as EventType, ContainerState,
    image_service_client::ImageServiceClient,
};

const IMAGE: &str = "registry.example/app:v1";

/// A node with a network, and with containers.
pub(super) struct ContainerNode<S> {
    pub(super) server: S,
    pub(super) client: CriClient,
    pub(super) images: ImageServiceClient<Channel>,
}

/// A node that pretends to run containers.
type Pretend = ContainerNode<CriFixture>;

impl Pretend {
    async fn start() -> Self {
        let mut server = CriFixture::prepare(&own_plugins());
        server.config.cluster.containers = ContainerMode::Pretend;
        let mut client = server.launch().await;
        configure(&mut client, "10.1.0.0/24").await.unwrap();
        let images = ImageServiceClient::new(server.channel());
        Self {
            server,
            client,
            images,
        }
    }

    async fn restart(&mut self) {
        self.server.end().await;
        self.client = self.server.launch().await;
        self.images = ImageServiceClient::new(self.server.channel());
    }
}

impl<S: AsRef<CriFixture>> ContainerNode<S> {
    pub(super) async fn pull(&mut self, image: &str) -> String {
        let request = wire::PullImageRequest {
            image: Some(image_spec(image)),
            ..wire::PullImageRequest::default()
        };
        let answer = self.images.pull_image(request).await.unwrap();
        answer.into_inner().image_ref
    }

    pub(super) async fn image(&mut self, image: &str) -> Option<wire::Image> {
        let request = wire::ImageStatusRequest {
            image: Some(image_spec(image)),
            verbose: false,
        };
        let answer = self.images.image_status(request).await.unwrap();
        answer.into_inner().image
    }

    /// A sandbox whose pod has these annotations.
    pub(super) async fn sandbox(&mut self, uid: &str, annotations: &[(&str, &str)]) -> String {
        let mut wanted = request(uid, 0, NamespaceMode::Pod);
        let config = wanted.config.as_mut().unwrap();
        config.annotations = texts(annotations);
        let answer = self.client.run_pod_sandbox(wanted).await.unwrap();
        answer.into_inner().pod_sandbox_id
    }

    pub(super) fn log_dir(&self) -> PathBuf {
        self.server.as_ref().dir.path().join("logs")
    }

    pub(super) fn log(&self, path: &str) -> Vec<String> {
        let text = fs::read_to_string(self.log_dir().join(path)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The request that a kubelet makes, with the image that PullImage answered.
    pub(super) async fn wanted(
        &mut self,
        sandbox: &str,
        name: &str,
    ) -> wire::CreateContainerRequest {
        let image = self.pull(IMAGE).await;
        let mut wanted = self.wanted_of(sandbox, name, &image);
        let config = wanted.config.as_mut().unwrap();
        config.image.as_mut().unwrap().user_specified_image = IMAGE.into();
        wanted
    }

    /// A request for a container of an image, whose log has a directory.
    pub(super) fn wanted_of(
        &self,
        sandbox: &str,
        name: &str,
        image: &str,
    ) -> wire::CreateContainerRequest {
        let directory = self.log_dir();
        fs::create_dir_all(directory.join(name)).unwrap();
        wire::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(wire::ContainerConfig {
                metadata: Some(wire::ContainerMetadata {
                    name: name.into(),
                    attempt: 0,
                }),
                image: Some(image_spec(image)),
                labels: texts(&[("name", name)]),
                annotations: texts(&[("hash", "1")]),
                log_path: format!("{name}/0.log"),
                ..wire::ContainerConfig::default()
            }),
            sandbox_config: Some(wire::PodSandboxConfig {
                log_directory: directory.to_string_lossy().into_owned(),
                ..wire::PodSandboxConfig::default()
            }),
        }
    }

    pub(super) async fn create(&mut self, sandbox: &str, name: &str) -> String {
        let wanted = self.wanted(sandbox, name).await;
        let answer = self.client.create_container(wanted).await.unwrap();
        answer.into_inner().container_id
    }

    pub(super) async fn start_container(&mut self, id: &str) -> Result<(), Status> {
        let request = wire::StartContainerRequest {
            container_id: id.into(),
        };
        self.client.start_container(request).await.map(drop)
    }

    pub(super) async fn run(&mut self, sandbox: &str, name: &str) -> String {
        let id = self.create(sandbox, name).await;
        self.start_container(&id).await.unwrap();
        id
    }

    pub(super) async fn stop_container(&mut self, id: &str, timeout: i64) {
        let request = wire::StopContainerRequest {
            container_id: id.into(),
            timeout,
        };
        self.client.stop_container(request).await.unwrap();
    }

    pub(super) async fn remove_container(&mut self, id: &str) {
        let request = wire::RemoveContainerRequest {
            container_id: id.into(),
        };
        self.client.remove_container(request).await.unwrap();
    }

    pub(super) async fn status(&mut self, id: &str) -> Result<wire::ContainerStatus, Status> {
        let request = wire::ContainerStatusRequest {
            container_id: id.into(),
            verbose: false,
        };
        let answer = self.client.container_status(request).await?;
        Ok(answer.into_inner().status.unwrap())
    }

    pub(super) async fn list(&mut self, filter: wire::ContainerFilter) -> Vec<String> {
        let request = wire::ListContainersRequest {
            filter: Some(filter),
        };
        let answer = self.client.list_containers(request).await.unwrap();
        let containers = answer.into_inner().containers.into_iter();
        let mut names: Vec<_> = containers.map(|c| c.metadata.unwrap().name).collect();
        names.sort();
        names
    }

    /// The status of a container once it has exited.
    pub(super) async fn exited(&mut self, id: &str) -> wire::ContainerStatus {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let status = self.status(id).await.unwrap();
            if status.state() == ContainerState::ContainerExited {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "{status:?}");
            tokio::task::yield_now().await;
        }
    }
}

pub(super) fn image_spec(image: &str) -> wire::ImageSpec {
    wire::ImageSpec {
        image: image.into(),
        ..wire::ImageSpec::default()
    }
}

pub(super) fn texts(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[tokio::test]
async fn a_pulled_image_is_present_until_it_is_removed_also_after_a_restart() {
    let mut node = Pretend::start().await;
    assert_eq!(node.image("busybox").await, None);
    let id = node.pull("busybox").await;
    assert_eq!(node.pull("docker.io/library/busybox:latest").await, id);
    node.restart().await;
    let image = node.image("busybox").await.unwrap();
    assert_eq!(image.id, id);
    assert_eq!(image.repo_tags, ["docker.io/library/busybox:latest"]);
    assert!(image.repo_digests[0].starts_with("docker.io/library/busybox@sha256:"));
    assert!(image.size > 0);
    assert_eq!(node.image(&id).await.as_ref(), Some(&image));
    let info = wire::ImageFsInfoRequest {};
    let info = node.images.image_fs_info(info).await.unwrap().into_inner();
    let used = info.image_filesystems[0].used_bytes;
    assert_eq!(used.map(|bytes| bytes.value), Some(image.size));

    for name in [id.as_str(), "busybox"] {
        let request = wire::RemoveImageRequest {
            image: Some(image_spec(name)),
        };
        node.images.remove_image(request).await.unwrap();
        assert_eq!(node.image(&id).await, None);
    }
    let request = wire::PullImageRequest {
        image: Some(image_spec("Not An Image")),
        ..wire::PullImageRequest::default()
    };
    let refused = node.images.pull_image(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    node.server.end().await;
}

#[tokio::test]
async fn a_container_runs_until_it_is_stopped() {
    let mut node = Pretend::start().await;
    let sandbox = node.sandbox("a", &[]).await;
    let id = node.create(&sandbox, "main").await;
    let created = node.status(&id).await.unwrap();
    assert_eq!(created.state(), ContainerState::ContainerCreated);
    assert_eq!((created.started_at, created.finished_at), (0, 0));
    assert!(created.created_at > 0);
    let wanted = node.wanted(&sandbox, "main").await;
    let again = node.client.create_container(wanted).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    assert!(
        again
            .message()
            .contains(&format!("is reserved for \"{id}\"")),
        "{again}"
    );

    node.start_container(&id).await.unwrap();
    let twice = node.start_container(&id).await.unwrap_err();
    assert!(twice.message().contains("CONTAINER_RUNNING"), "{twice}");
    let running = node.status(&id[..12]).await.unwrap();
    assert_eq!(running.state(), ContainerState::ContainerRunning);
    assert!(running.started_at >= running.created_at);
    let image = node.image(IMAGE).await.unwrap();
    assert_eq!(running.image_id, image.id);
    assert_eq!(running.image_ref, image.repo_digests[0]);
    assert_eq!(running.image.unwrap().user_specified_image, IMAGE);
    assert!(running.log_path.ends_with("/logs/main/0.log"));
    assert_eq!(running.labels["name"], "main");

    node.stop_container(&id, 30).await;
    node.stop_container(&id, 0).await;
    let exited = node.status(&id).await.unwrap();
    assert_eq!(exited.state(), ContainerState::ContainerExited);
    assert_eq!((exited.exit_code, exited.reason.as_str()), (143, "Error"));
    assert!(exited.finished_at >= exited.started_at);
    assert!(
        node.start_container(&id).await.is_err(),
        "another attempt does"
    );
    let log = node.log("main/0.log");
    assert_eq!(log.len(), 2, "{log:?}");
    assert!(log[0].contains(" stdout F podplane: container main started"));
    assert!(log[1].ends_with("exited with code 143"));

    node.remove_container(&id).await;
    node.remove_container(&id).await;
    node.stop_container(&id, 1).await;
    assert_eq!(node.status(&id).await.unwrap_err().code(), Code::NotFound);
    node.create(&sandbox, "main").await;
    node.server.end().await;
}

#[tokio::test]
async fn containers_exit_as_annotations_of_their_pod_say() {
    let mut node = Pretend::start().await;
    let annotations = [
        ("podplane.io/exit-after", "20ms"),
        ("podplane.io/exit-code", "7"),
        ("exit-after.podplane.io/init", "0s"),
        ("exit-code.podplane.io/init", "0"),
        ("exit-after.podplane.io/server", "1h"),
    ];
    let sandbox = node.sandbox("a", &annotations).await;
    let init = node.run(&sandbox, "init").await;
    let init = node.exited(&init).await;
    assert_eq!((init.exit_code, init.reason.as_str()), (0, "Completed"));
    let main = node.run(&sandbox, "main").await;
    let main = node.exited(&main).await;
    assert_eq!((main.exit_code, main.reason.as_str()), (7, "Error"));
    assert_eq!(main.finished_at - main.started_at, 20_000_000);
    let server = node.run(&sandbox, "server").await;
    let server = node.status(&server).await.unwrap();
    assert_eq!(server.state(), ContainerState::ContainerRunning);

    let bad = node.sandbox(
        "b",
        &[
            ("exit-code.podplane.io/x", "256"),
            ("podplane.io/exit-after", "1s"),
        ],
    );
    let bad = bad.await;
    let wanted = node.wanted(&bad, "x").await;
    let refused = node.client.create_container(wanted).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("exit-code.podplane.io/x"),
        "{refused}"
    );
    node.server.end().await;
}

#[tokio::test]
async fn a_restart_loses_no_container_and_runs_none_twice() {
    let mut node = Pretend::start().await;
    let sandbox = node
        .sandbox("a", &[("exit-after.podplane.io/short", "30ms")])
        .await;
    let created = node.create(&sandbox, "created").await;
    let long = node.run(&sandbox, "long").await;
    let short = node.run(&sandbox, "short").await;
    let stopped = node.run(&sandbox, "stopped").await;
    node.stop_container(&stopped, 1).await;
    let before = [
        node.status(&created).await.unwrap(),
        node.status(&long).await.unwrap(),
        node.status(&stopped).await.unwrap(),
    ];
    node.restart().await;
    let after = [
        node.status(&created).await.unwrap(),
        node.status(&long).await.unwrap(),
        node.status(&stopped).await.unwrap(),
    ];
    assert_eq!(after, before);
    let short = node.exited(&short).await;
    assert_eq!(short.finished_at - short.started_at, 30_000_000);
    assert_eq!(node.log("short/0.log").len(), 2, "started once");
    let wanted = node.wanted(&sandbox, "long").await;
    let again = node.client.create_container(wanted).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists);
    node.server.end().await;
}

#[tokio::test]
async fn containers_of_lost_sandboxes_end_at_start() {
    let mut node = Pretend::start().await;
    let stopped = node.sandbox("stopped", &[]).await;
    let ended = node.run(&stopped, "ended").await;
    let lost = node.sandbox("lost", &[]).await;
    node.run(&lost, "gone").await;
    node.server.end().await;
    let sandboxes = node.server.node().sandboxes();
    fs::remove_file(sandboxes.join(format!("{lost}.json"))).unwrap();
    // As after a power cycle of the machine.
    let records = record::SandboxRecords::open(sandboxes).unwrap();
    records.power_cycle().unwrap();
    node.client = node.server.launch().await;
    let all = wire::ContainerFilter::default();
    assert_eq!(node.list(all).await, ["ended"]);
    let status = node.status(&ended).await.unwrap();
    assert_eq!((status.exit_code, status.reason.as_str()), (255, "Unknown"));
    node.server.end().await;
}

#[tokio::test]
async fn a_sandbox_takes_its_containers_with_it() {
    let mut node = Pretend::start().await;
    let sandbox = node.sandbox("a", &[]).await;
    let other = node.sandbox("b", &[]).await;
    let running = node.run(&sandbox, "running").await;
    let created = node.create(&sandbox, "created").await;
    node.run(&other, "other").await;
    stop(&mut node.client, &sandbox).await;
    let killed = node.status(&running).await.unwrap();
    assert_eq!(killed.exit_code, 137);
    let refused = node.start_container(&created).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let wanted = node.wanted(&sandbox, "late").await;
    let refused = node.client.create_container(wanted).await.unwrap_err();
    assert!(refused.message().contains("is not ready"), "{refused}");

    let of = |pod_sandbox_id: &str, state: Option<ContainerState>| wire::ContainerFilter {
        pod_sandbox_id: pod_sandbox_id.into(),
        state: state.map(|state| wire::ContainerStateValue {
            state: state.into(),
        }),
        ..wire::ContainerFilter::default()
    };
    assert_eq!(node.list(of(&sandbox, None)).await, ["created", "running"]);
    let exited = of("", Some(ContainerState::ContainerExited));
    assert_eq!(node.list(exited).await, ["running"]);
    let labelled = wire::ContainerFilter {
        label_selector: texts(&[("name", "other")]),
        ..wire::ContainerFilter::default()
    };
    assert_eq!(node.list(labelled).await, ["other"]);
    remove(&mut node.client, &sandbox).await;
    assert_eq!(node.list(wire::ContainerFilter::default()).await, ["other"]);
    node.server.end().await;
}

#[tokio::test]
async fn resources_logs_and_stats_are_those_of_a_running_container() {
    let mut node = Pretend::start().await;
    let sandbox = node.sandbox("a", &[]).await;
    let id = node.run(&sandbox, "main").await;
    let update = wire::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(wire::LinuxContainerResources {
            cpu_quota: 5000,
            ..wire::LinuxContainerResources::default()
        }),
        ..wire::UpdateContainerResourcesRequest::default()
    };
    node.client
        .update_container_resources(update)
        .await
        .unwrap();
    let status = node.status(&id).await.unwrap();
    assert_eq!(status.resources.unwrap().linux.unwrap().cpu_quota, 5000);

    let log = node.log_dir().join("main/0.log");
    fs::rename(&log, log.with_extension("1")).unwrap();
    let reopen = wire::ReopenContainerLogRequest {
        container_id: id.clone(),
    };
    node.client
        .reopen_container_log(reopen.clone())
        .await
        .unwrap();
    assert!(log.exists(), "a kubelet looks for the new file");

    let stats = node
        .client
        .list_container_stats(wire::ListContainerStatsRequest::default());
    let stats = stats.await.unwrap().into_inner().stats;
    assert_eq!(stats[0].attributes.as_ref().unwrap().id, id);
    let pods = node
        .client
        .list_pod_sandbox_stats(wire::ListPodSandboxStatsRequest::default());
    let pods = pods.await.unwrap().into_inner().stats;
    assert_eq!(pods[0].attributes.as_ref().unwrap().id, sandbox);
    assert_eq!(pods[0].linux.as_ref().unwrap().containers.len(), 1);
    let exec = wire::ExecSyncRequest {
        container_id: id.clone(),
        cmd: vec!["true".into()],
        timeout: 1,
    };
    let refused = node.client.exec_sync(exec).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("has no process"), "{refused}");

    node.stop_container(&id, 1).await;
    let refused = node.client.reopen_container_log(reopen).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let stats = node
        .client
        .list_container_stats(wire::ListContainerStatsRequest::default());
    assert!(stats.await.unwrap().into_inner().stats.is_empty());
    node.server.end().await;
}

#[tokio::test]
async fn a_container_without_a_directory_for_its_log_does_not_start() {
    let mut node = Pretend::start().await;
    let sandbox = node.sandbox("a", &[]).await;
    let id = node.create(&sandbox, "main").await;
    fs::remove_dir_all(node.log_dir()).unwrap();
    let refused = node.start_container(&id).await.unwrap_err();
    assert!(refused.message().contains("0.log"), "{refused}");
    let status = node.status(&id).await.unwrap();
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError")
    );
    assert!(status.message.contains("0.log"));
    node.server.end().await;
}

#[tokio::test]
async fn refuses_containers_of_unknown_images_and_sandboxes() {
    let mut node = Pretend::start().await;
    let sandbox = node.sandbox("a", &[]).await;
    let mut wanted = node.wanted(&sandbox, "main").await;
    let config = wanted.config.as_mut().unwrap();
    config.image = Some(image_spec("never-pulled"));
    let refused = node.client.create_container(wanted).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    assert!(refused.message().contains("\"never-pulled\""), "{refused}");
    let wanted = node.wanted("0123", "main").await;
    let refused = node.client.create_container(wanted).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound);
    let empty = node
        .client
        .create_container(wire::CreateContainerRequest::default());
    assert_eq!(empty.await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(
        node.start_container("0123").await.unwrap_err().code(),
        Code::NotFound
    );
    node.server.end().await;
}

#[tokio::test]
async fn events_tell_each_step_of_a_pod() {
    let mut node = Pretend::start().await;
    let events = node.client.get_container_events(wire::GetEventsRequest {});
    let mut events = events.await.unwrap().into_inner();
    let sandbox = node.sandbox("a", &[]).await;
    let id = node.run(&sandbox, "main").await;
    node.stop_container(&id, 1).await;
    node.remove_container(&id).await;
    stop(&mut node.client, &sandbox).await;
    remove(&mut node.client, &sandbox).await;
    for (of, kind, containers) in [
        (&sandbox, EventType::ContainerCreatedEvent, 0),
        (&sandbox, EventType::ContainerStartedEvent, 0),
        (&id, EventType::ContainerCreatedEvent, 1),
        (&id, EventType::ContainerStartedEvent, 1),
        (&id, EventType::ContainerStoppedEvent, 1),
        (&id, EventType::ContainerDeletedEvent, 0),
        (&sandbox, EventType::ContainerStoppedEvent, 0),
        (&sandbox, EventType::ContainerDeletedEvent, 0),
    ] {
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(
            (&event.container_id, event.container_event_type()),
            (of, kind)
        );
        assert_eq!(event.containers_statuses.len(), containers, "{kind:?}");
    }
    node.server.end().await;
}

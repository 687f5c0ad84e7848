//! The calls of the runtime that are about containers and images.

use std::{collections::HashMap, time::Duration};

use podplane_api::jiff::Timestamp;
use podplane_proto::cri::{self, ContainerFilter, ContainerState};
use tonic::{Code, Status, Streaming};

use super::{
    super::{
        containers::{ContainerPhase, PodContainer},
        sandbox_config::{
            CONTAINER_NAME_LABEL, NAME_LABEL, NAMESPACE_LABEL, RESTART_COUNT_ANNOTATION, UID_LABEL,
        },
    },
    RuntimeClient,
};

/// A container as the runtime's list has it: enough to see that it changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedContainer {
    /// The UID of its pod.
    pub pod_uid: String,
    /// Its id.
    pub id: String,
    /// Its state, by CRI's number.
    pub state: i32,
}

/// An image that the runtime has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeImage {
    /// Its id, by which containers are made of it.
    pub id: String,
    /// The user of its configuration, if that is a number.
    pub uid: Option<i64>,
    /// The user of its configuration, if that is a name.
    pub username: String,
    /// Its size in bytes.
    pub size: u64,
}

impl RuntimeClient {
    /// Returns false if the runtime makes no containers at all: it does not serve their creation.
    ///
    /// It is asked for a container in a sandbox that does not exist, which any other runtime refuses
    /// for that reason.
    ///
    /// # Errors
    ///
    /// The runtime's, if it cannot be reached.
    pub async fn makes_containers(&self) -> Result<bool, Status> {
        let mut client = self.client.clone();
        // Not counted: it fails in any case.
        let asked = client.create_container(cri::CreateContainerRequest {
            pod_sandbox_id: "none".into(),
            config: Some(cri::ContainerConfig::default()),
            sandbox_config: Some(cri::PodSandboxConfig::default()),
        });
        match asked.await {
            Err(status) if status.code() == Code::Unimplemented => Ok(false),
            Err(status) if status.code() == Code::Unavailable => Err(status),
            _ => Ok(true),
        }
    }

    async fn list_containers(
        &self,
        filter: ContainerFilter,
    ) -> Result<Vec<cri::Container>, Status> {
        let request = cri::ListContainersRequest {
            filter: Some(filter),
        };
        let mut client = self.client.clone();
        let call = client.list_containers(request);
        let answer = self.metrics.call("list_containers", call).await?;
        Ok(answer.containers)
    }

    /// All containers of pods, by pod and id.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn all_containers(&self) -> Result<Vec<ListedContainer>, Status> {
        let listed = self.list_containers(ContainerFilter::default()).await?;
        let listed = listed.into_iter().filter_map(|mut container| {
            Some(ListedContainer {
                pod_uid: container.labels.remove(UID_LABEL)?,
                id: container.id,
                state: container.state,
            })
        });
        let mut containers: Vec<_> = listed.collect();
        containers.sort();
        Ok(containers)
    }

    /// The containers of one pod, with their states: by name, the newest of a name first.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub(crate) async fn containers_of(&self, uid: &str) -> Result<Vec<PodContainer>, Status> {
        let filter = ContainerFilter {
            label_selector: HashMap::from([(UID_LABEL.to_owned(), uid.to_owned())]),
            ..ContainerFilter::default()
        };
        let mut containers = Vec::new();
        for listed in self.list_containers(filter).await? {
            if let Some(status) = self.container_status(&listed.id).await? {
                containers.push(pod_container(listed, status));
            }
        }
        containers.sort_by(|a, b| a.name.cmp(&b.name).then(b.attempt.cmp(&a.attempt)));
        Ok(containers)
    }

    async fn container_status(&self, id: &str) -> Result<Option<cri::ContainerStatus>, Status> {
        let request = cri::ContainerStatusRequest {
            container_id: id.into(),
            verbose: false,
        };
        let mut client = self.client.clone();
        let call = client.container_status(request);
        match self.metrics.call("container_status", call).await {
            Err(status) if status.code() == Code::NotFound => Ok(None),
            answer => Ok(answer?.status),
        }
    }

    /// Creates a container in a sandbox; returns its id.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn create_container(
        &self,
        sandbox: &str,
        config: cri::ContainerConfig,
        sandbox_config: cri::PodSandboxConfig,
    ) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        let mut client = self.client.clone();
        let call = client.create_container(request);
        let answer = self.metrics.call("create_container", call).await?;
        Ok(answer.container_id)
    }

    /// Starts a container that was created.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn start_container(&self, id: &str) -> Result<(), Status> {
        let request = cri::StartContainerRequest {
            container_id: id.into(),
        };
        let mut client = self.client.clone();
        let call = client.start_container(request);
        self.metrics.call("start_container", call).await?;
        Ok(())
    }

    /// Stops a container, by force after `grace`; a missing one is fine.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), Status> {
        let request = cri::StopContainerRequest {
            container_id: id.into(),
            timeout: i64::try_from(grace.as_secs()).unwrap_or(i64::MAX),
        };
        let mut client = self.client.clone();
        let call = client.stop_container(request);
        match self.metrics.call("stop_container", call).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// Removes a container; a missing one is fine.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn remove_container(&self, id: &str) -> Result<(), Status> {
        let request = cri::RemoveContainerRequest {
            container_id: id.into(),
        };
        let mut client = self.client.clone();
        let call = client.remove_container(request);
        match self.metrics.call("remove_container", call).await {
            Err(status) if status.code() == Code::NotFound => Ok(()),
            answer => answer.map(drop),
        }
    }

    /// The events of containers.
    ///
    /// # Errors
    ///
    /// The runtime's: `Unimplemented` from one without events.
    pub async fn container_events(&self) -> Result<Streaming<cri::ContainerEventResponse>, Status> {
        let mut client = self.client.clone();
        let call = client.get_container_events(cri::GetEventsRequest::default());
        Ok(call.await?.into_inner())
    }

    /// The image that a reference names; `None` if the runtime does not have it.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn image(&self, reference: &str) -> Result<Option<RuntimeImage>, Status> {
        let request = cri::ImageStatusRequest {
            image: Some(image_spec(reference)),
            verbose: false,
        };
        let mut client = self.images.clone();
        let call = client.image_status(request);
        let answer = self.metrics.call("image_status", call).await?;
        Ok(answer.image.map(|image| RuntimeImage {
            id: image.id,
            uid: image.uid.map(|uid| uid.value),
            username: image.username,
            size: image.size,
        }))
    }

    /// Makes the runtime pull an image.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn pull_image(&self, reference: &str) -> Result<(), Status> {
        let request = cri::PullImageRequest {
            image: Some(image_spec(reference)),
            ..cri::PullImageRequest::default()
        };
        let mut client = self.images.clone();
        let call = client.pull_image(request);
        self.metrics.call("pull_image", call).await?;
        Ok(())
    }
}

/// The name of an image in CRI's terms.
pub(crate) fn image_spec(reference: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: reference.into(),
        ..cri::ImageSpec::default()
    }
}

/// The labels of a container of a pod, which are Kubernetes'.
pub(crate) fn labels(
    namespace: &str,
    name: &str,
    uid: &str,
    container: &str,
) -> HashMap<String, String> {
    let labels = [
        (NAMESPACE_LABEL, namespace),
        (NAME_LABEL, name),
        (UID_LABEL, uid),
        (CONTAINER_NAME_LABEL, container),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
    HashMap::from(labels)
}

fn pod_container(listed: cri::Container, status: cri::ContainerStatus) -> PodContainer {
    let phase = match status.state() {
        ContainerState::ContainerCreated => ContainerPhase::Created,
        ContainerState::ContainerRunning => ContainerPhase::Running,
        ContainerState::ContainerExited => ContainerPhase::Exited,
        ContainerState::ContainerUnknown => ContainerPhase::Unknown,
    };
    let time = |nanoseconds: i64| {
        let time = Timestamp::from_nanosecond(nanoseconds.into()).ok();
        time.filter(|_| nanoseconds > 0)
    };
    let (created, started) = (time(status.created_at), time(status.started_at));
    let finished = time(status.finished_at);
    let restarts = status.annotations.get(RESTART_COUNT_ANNOTATION);
    let metadata = status.metadata.unwrap_or_default();
    let image_id = match status.image_id.as_str() {
        "" => status.image_ref,
        _ => status.image_id,
    };
    PodContainer {
        id: listed.id,
        sandbox: listed.pod_sandbox_id,
        name: metadata.name,
        attempt: metadata.attempt,
        phase,
        created: created.unwrap_or_default(),
        started,
        finished,
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        image_id,
        restarts: restarts
            .and_then(|count| count.parse().ok())
            .unwrap_or_default(),
    }
}

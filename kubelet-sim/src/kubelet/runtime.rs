//! The kubelet's client of CRI.

mod containers;

use std::{collections::HashMap, net::IpAddr, path::Path};

use podplane_api::{ObjectKey, core::Pod, jiff::Timestamp};
use podplane_client::{Channel, TracedChannel, traced};
use podplane_host::fs;
use podplane_proto::cri::{
    self, PodSandboxFilter, PodSandboxStateValue, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use tonic::Status;

use super::{
    metrics::KubeletMetrics,
    plan::Sandbox,
    sandbox_config::{self, UID_LABEL},
    status::ReadySandbox,
};
use crate::PodCidrs;

pub use self::containers::{ListedContainer, RuntimeImage};
pub(super) use self::containers::{image_spec, labels};

/// The runtime of one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RuntimeClient {
    client: RuntimeServiceClient<TracedChannel>,
    images: ImageServiceClient<TracedChannel>,
    metrics: KubeletMetrics,
}

impl RuntimeClient {
    /// A runtime at the other end of a channel, whose calls are counted.
    pub fn new(channel: Channel, metrics: KubeletMetrics) -> Self {
        Self {
            client: RuntimeServiceClient::new(traced(channel.clone())),
            images: ImageServiceClient::new(traced(channel)),
            metrics,
        }
    }

    /// The runtime's `NAME://VERSION`, as nodes report it.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn version(&self) -> Result<String, Status> {
        let mut client = self.client.clone();
        let call = client.version(cri::VersionRequest::default());
        let cri::VersionResponse {
            runtime_name,
            runtime_version,
            ..
        } = self.metrics.call("version", call).await?;
        Ok(format!("{runtime_name}://{runtime_version}"))
    }

    /// The reason why pods cannot have a network, in the words of Kubernetes' node condition;
    /// `None` if they can.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn network_fault(&self) -> Result<Option<String>, Status> {
        let mut client = self.client.clone();
        let call = client.status(cri::StatusRequest::default());
        let answer = self.metrics.call("status", call).await?;
        let conditions = answer.status.unwrap_or_default().conditions;
        let mut conditions = conditions.into_iter();
        Ok(match conditions.find(|c| c.r#type == "NetworkReady") {
            Some(ready) if ready.status => None,
            Some(cri::RuntimeCondition {
                reason, message, ..
            }) => Some(format!(
                "container runtime network not ready: NetworkReady=false reason:{reason} message:{message}"
            )),
            None => {
                Some("container runtime status does not say whether its network is ready".into())
            }
        })
    }

    /// Configures the runtime with the node's blocks.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn configure(&self, cidrs: &PodCidrs) -> Result<(), Status> {
        let network_config = cri::NetworkConfig {
            pod_cidr: cidrs.to_string(),
        };
        let request = cri::UpdateRuntimeConfigRequest {
            runtime_config: Some(cri::RuntimeConfig {
                network_config: Some(network_config),
            }),
        };
        let mut client = self.client.clone();
        let call = client.update_runtime_config(request);
        self.metrics.call("update_runtime_config", call).await?;
        Ok(())
    }

    /// All sandboxes, by id.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn list(&self) -> Result<Vec<Sandbox>, Status> {
        self.list_matching(HashMap::new()).await
    }

    /// The sandboxes of one pod, by id.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn list_of(&self, uid: &str) -> Result<Vec<Sandbox>, Status> {
        self.list_matching(HashMap::from([(UID_LABEL.to_owned(), uid.to_owned())]))
            .await
    }

    async fn list_matching(&self, labels: HashMap<String, String>) -> Result<Vec<Sandbox>, Status> {
        let filter = PodSandboxFilter {
            id: String::new(),
            state: None::<PodSandboxStateValue>,
            label_selector: labels,
        };
        let request = cri::ListPodSandboxRequest {
            filter: Some(filter),
        };
        let mut client = self.client.clone();
        let call = client.list_pod_sandbox(request);
        let answer = self.metrics.call("list_podsandbox", call).await?;
        let items = answer.items.into_iter();
        let mut sandboxes: Vec<_> = items.map(Sandbox::from).collect();
        sandboxes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(sandboxes)
    }

    /// A sandbox as it is reported; `None` if it is not ready any more, or gone.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn ready(&self, id: &str) -> Result<Option<ReadySandbox>, Status> {
        let answer = self.status_of(id, false).await?;
        answer.map_or(Ok(None), |answer| ready_sandbox(&answer))
    }

    /// As [`ready`](Self::ready), with a text for people on the result of CNI: the sandbox's
    /// addresses and, if the runtime has them, the plugins. The text is `None` without a network of
    /// its own.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn ready_with_attachment(
        &self,
        id: &str,
    ) -> Result<Option<(ReadySandbox, Option<String>)>, Status> {
        let Some(answer) = self.status_of(id, true).await? else {
            return Ok(None);
        };
        let ready = ready_sandbox(&answer)?;
        Ok(ready.map(|ready| (ready, attachment(&answer))))
    }

    /// The runtime's answer; `None` for a sandbox that is gone.
    async fn status_of(
        &self,
        id: &str,
        verbose: bool,
    ) -> Result<Option<cri::PodSandboxStatusResponse>, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.into(),
            verbose,
        };
        let mut client = self.client.clone();
        let call = client.pod_sandbox_status(request);
        match self.metrics.call("podsandbox_status", call).await {
            Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
            answer => Ok(Some(answer?)),
        }
    }

    /// The addresses of a sandbox, ready or not; empty if it is gone, or on its node's network.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn addresses(&self, id: &str) -> Result<Vec<IpAddr>, Status> {
        let answer = self.status_of(id, false).await?;
        let texts = answer.iter().flat_map(addresses);
        Ok(texts.filter_map(|text| text.parse().ok()).collect())
    }

    async fn sandbox_request(&self, pod: &Pod, logs: Option<&Path>) -> cri::RunPodSandboxRequest {
        // A node without the file has no servers of its own.
        let resolv_conf = fs::read_to_string_async(sandbox_config::NODE_RESOLV_CONF).await;
        sandbox_config::request(pod, &resolv_conf.unwrap_or_default(), logs)
    }

    /// The configuration of the pod's sandbox, which a container of it repeats.
    pub async fn sandbox_config(&self, pod: &Pod, logs: Option<&Path>) -> cri::PodSandboxConfig {
        let request = self.sandbox_request(pod, logs).await;
        request.config.unwrap_or_default()
    }

    /// Runs a sandbox for the pod, which has none; returns its id. `logs` is the directory of its
    /// containers' logs, if it is to have containers.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn run(&self, pod: &Pod, logs: Option<&Path>) -> Result<String, Status> {
        let request = self.sandbox_request(pod, logs).await;
        let mut client = self.client.clone();
        let call = client.run_pod_sandbox(request);
        let answer = self.metrics.call("run_podsandbox", call).await?;
        Ok(answer.pod_sandbox_id)
    }

    /// Stops and removes a sandbox; a missing one is fine.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn remove(&self, id: &str) -> Result<(), Status> {
        let mut client = self.client.clone();
        let stop = cri::StopPodSandboxRequest {
            pod_sandbox_id: id.into(),
        };
        let call = client.stop_pod_sandbox(stop);
        self.metrics.call("stop_podsandbox", call).await?;
        let remove = cri::RemovePodSandboxRequest {
            pod_sandbox_id: id.into(),
        };
        let call = client.remove_pod_sandbox(remove);
        self.metrics.call("remove_podsandbox", call).await?;
        Ok(())
    }
}

impl From<cri::PodSandbox> for Sandbox {
    fn from(sandbox: cri::PodSandbox) -> Self {
        let ready = sandbox.state() == cri::PodSandboxState::SandboxReady;
        let cri::PodSandboxMetadata {
            name,
            uid,
            namespace,
            attempt,
        } = sandbox.metadata.unwrap_or_default();
        Self {
            id: sandbox.id,
            pod: ObjectKey::new(namespace, name),
            uid,
            attempt,
            ready,
        }
    }
}

/// The addresses in an answer, the primary one first.
fn addresses(answer: &cri::PodSandboxStatusResponse) -> impl Iterator<Item = &str> {
    let status = answer.status.iter();
    let networks = status.filter_map(|status| status.network.as_ref());
    let texts = networks.flat_map(|network| {
        let additional = network.additional_ips.iter().map(|ip| ip.ip.as_str());
        [network.ip.as_str()].into_iter().chain(additional)
    });
    texts.filter(|text| !text.is_empty())
}

fn ready_sandbox(answer: &cri::PodSandboxStatusResponse) -> Result<Option<ReadySandbox>, Status> {
    let status = answer.status.as_ref();
    let is_ready =
        |status: &&cri::PodSandboxStatus| status.state() == cri::PodSandboxState::SandboxReady;
    let Some(status) = status.filter(is_ready) else {
        return Ok(None);
    };
    let ips = addresses(answer).map(|text| {
        let refused = |_| {
            Status::internal(format!(
                "invalid address {text:?} from the container runtime"
            ))
        };
        text.parse().map_err(refused)
    });
    Ok(Some(ReadySandbox {
        ips: ips.collect::<Result<_, _>>()?,
        created: Timestamp::from_nanosecond(status.created_at.into()).unwrap_or_default(),
    }))
}

/// The text on a sandbox's network; `None` without a network of its own.
fn attachment(answer: &cri::PodSandboxStatusResponse) -> Option<String> {
    let ips: Vec<_> = addresses(answer).collect();
    let info = answer.info.get("info");
    let record = info.and_then(|text| serde_json::from_str(text).ok());
    (!ips.is_empty()).then(|| attachment_text(&ips.join(", "), &record.unwrap_or_default()))
}

/// The text `Add eth0 [10.244.1.2] from NETWORK (bridge, host-local)`, in the words of Multus on
/// its attachments.
fn attachment_text(ips: &str, record: &serde_json::Value) -> String {
    let network = &record["network"];
    let plugins = network["config"]["plugins"].as_array();
    let of_each = |plugin: &serde_json::Value| {
        let types = [&plugin["type"], &plugin["ipam"]["type"]];
        types.map(|text| text.as_str().map(str::to_owned))
    };
    let types = plugins.into_iter().flatten().map(of_each);
    // If pods have addresses alone, the plugins that make interfaces are not executed.
    let is_ledger = network["plugins"] == "ipam";
    let executed: Vec<_> = types
        .flat_map(|[main, ipam]| [main.filter(|_| !is_ledger), ipam])
        .flatten()
        .collect();
    let what = if is_ledger { "address" } else { "eth0" };
    match network["config"]["name"].as_str() {
        Some(name) => format!("Add {what} [{ips}] from {name} ({})", executed.join(", ")),
        None => format!("Add {what} [{ips}]"),
    }
}

/// A status as a Go client prints it, which is how kubelets put it into events.
pub fn rpc_error(status: &Status) -> String {
    let code = match status.code() {
        tonic::Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

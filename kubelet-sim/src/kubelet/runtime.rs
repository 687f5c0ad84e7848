//! The kubelet's side of CRI.

use std::{collections::HashMap, net::IpAddr};

use podplane_api::{ObjectKey, core::Pod, jiff::Timestamp};
use podplane_client::{Traced, traced};
use podplane_proto::cri::{
    self, PodSandboxFilter, PodSandboxStateValue, runtime_service_client::RuntimeServiceClient,
};
use tonic::{Status, transport::Channel};

use super::{
    metrics::Metrics,
    plan::Sandbox,
    sandbox_config::{self, UID_LABEL},
    status::ReadySandbox,
};
use crate::PodCidrs;

/// The runtime of one node. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Runtime {
    client: RuntimeServiceClient<Traced>,
    metrics: Metrics,
}

impl Runtime {
    /// A runtime at the other end of a channel, whose calls are counted.
    pub fn new(channel: Channel, metrics: Metrics) -> Self {
        Self {
            client: RuntimeServiceClient::new(traced(channel)),
            metrics,
        }
    }

    /// `NAME://VERSION`, as nodes report it.
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

    /// `None` if pods can have a network, else why not, in the words of Kubernetes' node condition.
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

    /// Tells the runtime the node's blocks.
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

    /// What is to be reported of a sandbox, `None` if it is no longer ready, or gone.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn ready(&self, id: &str) -> Result<Option<ReadySandbox>, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.into(),
            verbose: false,
        };
        let mut client = self.client.clone();
        let call = client.pod_sandbox_status(request);
        let answer = match self.metrics.call("podsandbox_status", call).await {
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(None),
            answer => answer?,
        };
        let status = answer.status.unwrap_or_default();
        if status.state() != cri::PodSandboxState::SandboxReady {
            return Ok(None);
        }
        let network = status.network.unwrap_or_default();
        let additional = network.additional_ips.into_iter().map(|ip| ip.ip);
        let texts = [network.ip].into_iter().chain(additional);
        let ips = texts.filter(|text| !text.is_empty()).map(|text| {
            let refused =
                |_| Status::internal(format!("the runtime says that {text:?} is an address"));
            text.parse().map_err(refused)
        });
        Ok(Some(ReadySandbox {
            ips: ips.collect::<Result<_, _>>()?,
            created: Timestamp::from_nanosecond(status.created_at.into()).unwrap_or_default(),
        }))
    }

    /// The addresses of a sandbox, ready or not; none of one that is gone, or on its node's
    /// network.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn addresses(&self, id: &str) -> Result<Vec<IpAddr>, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.into(),
            verbose: false,
        };
        let mut client = self.client.clone();
        let call = client.pod_sandbox_status(request);
        let answer = match self.metrics.call("podsandbox_status", call).await {
            Err(status) if status.code() == tonic::Code::NotFound => return Ok(Vec::new()),
            answer => answer?,
        };
        let network = answer
            .status
            .unwrap_or_default()
            .network
            .unwrap_or_default();
        let additional = network.additional_ips.into_iter().map(|ip| ip.ip);
        let ips = [network.ip].into_iter().chain(additional);
        Ok(ips.filter_map(|ip| ip.parse().ok()).collect())
    }

    /// What CNI gave a sandbox, for people to read: its addresses and, where the runtime tells, by which plugins. `None` without a
    /// network of its own.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn attachment(&self, id: &str) -> Result<Option<String>, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.into(),
            verbose: true,
        };
        let mut client = self.client.clone();
        let call = client.pod_sandbox_status(request);
        let answer = self.metrics.call("podsandbox_status", call).await?;
        let cri::PodSandboxStatusResponse { status, info, .. } = answer;
        let network = status.unwrap_or_default().network.unwrap_or_default();
        if network.ip.is_empty() {
            return Ok(None);
        }
        let additional = network.additional_ips.into_iter().map(|ip| ip.ip);
        let ips: Vec<_> = [network.ip].into_iter().chain(additional).collect();
        let record = info
            .get("info")
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        Ok(Some(attachment_text(&ips.join(", "), &record)))
    }

    /// Runs a sandbox for the pod, which has none; returns its id.
    ///
    /// # Errors
    ///
    /// The runtime's.
    pub async fn run(&self, pod: &Pod) -> Result<String, Status> {
        // A node without the file has no servers of its own.
        let resolv_conf = tokio::fs::read_to_string(sandbox_config::NODE_RESOLV_CONF).await;
        let request = sandbox_config::request(pod, &resolv_conf.unwrap_or_default());
        let mut client = self.client.clone();
        let call = client.run_pod_sandbox(request);
        let answer = self.metrics.call("run_podsandbox", call).await?;
        Ok(answer.pod_sandbox_id)
    }

    /// Stops and removes a sandbox; one that is gone is fine.
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

/// `Add eth0 [10.244.1.2] from NETWORK (bridge, host-local)`, as Multus tells it of its attachments.
fn attachment_text(ips: &str, record: &serde_json::Value) -> String {
    let network = &record["network"];
    let plugins = network["config"]["plugins"].as_array();
    let of_each = |plugin: &serde_json::Value| {
        let types = [&plugin["type"], &plugin["ipam"]["type"]];
        types.map(|text| text.as_str().map(str::to_owned))
    };
    let types = plugins.into_iter().flatten().map(of_each);
    // Where only addresses are given, the plugins that make interfaces are not executed.
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

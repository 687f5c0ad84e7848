//! RunPodSandbox beside containerd's, and beside what the kernel alone needs for a pod's interface.

use std::{path::Path, time::Instant};

use anyhow::{Context as _, Result};
use podplane_client::{
    Channel,
    endpoint::{self, Endpoint},
};
use podplane_proto::cri::{
    LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, RemovePodSandboxRequest,
    RunPodSandboxRequest, StatusRequest, runtime_service_client::RuntimeServiceClient,
};

use super::{containerd::Containerd, floor::Floor, kernel, say_error, say_pairs};

/// The directory of a node's CNI configuration, in the cluster's data directory.
const NET_D: &str = "nodes/node-0/net.d";

/// Measures sandboxes one at a time in `8 * rounds` rounds, and eight at a time in `rounds`. The
/// sides take turns, and the one that begins changes from round to round; sandboxes are removed
/// when both sides have made theirs.
pub(crate) async fn run(rounds: u32) -> Result<()> {
    let cluster = kernel::cluster(1).await?;
    let status = cluster.status().await?;
    let mut services = status.services.into_iter();
    let server = services.find(|service| service.name.starts_with("cri-"));
    let address = server.context("the node has no CRI server")?.address;
    let ours = CriServer::new(&address.parse()?, "")?;
    let mut floor = Floor::start()?;
    let containerd = Containerd::start(&cluster.files().join(NET_D)).await;
    for (line, at_once, rounds) in [("sandbox", 1, 8 * rounds), ("sandbox-8", 8, rounds)] {
        let (mut alone, mut least) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let sandboxes = ours.run(&format!("{line}-{round}"), at_once).await?;
            // The first round makes the bridge.
            if round > 0 {
                alone.push(sandboxes.milliseconds);
                least.push(floor.measure(at_once)?);
            }
            ours.remove(sandboxes).await?;
        }
        say_pairs(line, &alone, &least);
        let beside = format!("{line}-containerd");
        let compared = match &containerd {
            Ok(containerd) => compare(&ours, &containerd.server, line, at_once, rounds).await,
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        match compared {
            Ok([ours, theirs]) => say_pairs(&beside, &ours, &theirs),
            Err(error) => say_error(&beside, &error),
        }
    }
    if let Ok(containerd) = containerd {
        containerd.stop()?;
    }
    floor.stop()?;
    Ok(cluster.stop().await?)
}

async fn compare(
    ours: &CriServer,
    theirs: &CriServer,
    line: &str,
    at_once: u32,
    rounds: u32,
) -> Result<[Vec<f64>; 2]> {
    let sides = [ours, theirs];
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let mut made = Vec::new();
        for turn in 0..2 {
            let side = (round as usize + turn) % 2;
            let uid = format!("beside-{line}-{round}");
            let sandboxes = sides[side].run(&uid, at_once).await?;
            if round > 0 {
                times[side].push(sandboxes.milliseconds);
            }
            made.push((side, sandboxes));
        }
        for (side, sandboxes) in made {
            sides[side].remove(sandboxes).await?;
        }
    }
    Ok(times)
}

/// A CRI server under load.
pub(crate) struct CriServer {
    runtime: RuntimeServiceClient<Channel>,
    cgroup_parent: String,
}

/// Sandboxes that were made together.
struct Sandboxes {
    ids: Vec<String>,
    /// The time for each sandbox.
    milliseconds: f64,
}

impl CriServer {
    pub(crate) fn new(endpoint: &Endpoint, cgroup_parent: &str) -> Result<Self> {
        let runtime = RuntimeServiceClient::new(endpoint::channel(endpoint)?);
        let cgroup_parent = cgroup_parent.to_owned();
        Ok(Self {
            runtime,
            cgroup_parent,
        })
    }

    pub(crate) fn at(socket: &Path, cgroup_parent: &str) -> Result<Self> {
        let endpoint = format!("unix://{}", socket.display());
        Self::new(&endpoint.parse()?, cgroup_parent)
    }

    /// Returns the runtime conditions that are not true, once the server answers.
    pub(crate) async fn not_ready(&self) -> Result<Vec<String>> {
        let answer = self
            .runtime
            .clone()
            .status(StatusRequest::default())
            .await?;
        let status = answer.into_inner().status.unwrap_or_default();
        let conditions = status.conditions.into_iter();
        let missing = conditions.filter(|condition| !condition.status);
        Ok(missing
            .map(|condition| format!("{}: {}", condition.r#type, condition.message))
            .collect())
    }

    async fn run(&self, uid: &str, at_once: u32) -> Result<Sandboxes> {
        let begun = Instant::now();
        let made = (0..at_once).map(|number| self.run_one(format!("{uid}-{number}")));
        let ids = futures::future::try_join_all(made).await?;
        let milliseconds = begun.elapsed().as_secs_f64() * 1e3 / f64::from(at_once);
        Ok(Sandboxes { ids, milliseconds })
    }

    async fn run_one(&self, uid: String) -> Result<String> {
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: uid.clone(),
                namespace: "default".into(),
                uid,
                attempt: 0,
            }),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_parent.clone(),
                ..LinuxPodSandboxConfig::default()
            }),
            ..PodSandboxConfig::default()
        };
        let request = RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: String::new(),
        };
        let answer = self.runtime.clone().run_pod_sandbox(request).await;
        Ok(answer?.into_inner().pod_sandbox_id)
    }

    async fn remove(&self, sandboxes: Sandboxes) -> Result<()> {
        for id in sandboxes.ids {
            let request = RemovePodSandboxRequest { pod_sandbox_id: id };
            self.runtime.clone().remove_pod_sandbox(request).await?;
        }
        Ok(())
    }
}

//! `demo exhaustion`: story A, a node with fewer addresses than pods.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::Context as _;
use ipnet::Ipv4Net;
use podplane_api::{
    Object as _, ObjectKey,
    core::{Container, Event, Pod, PodSpec},
    meta::ObjectMeta,
};
use podplane_client::{Cache, Changes, Client, DeleteParams, ListParams, reflector};
use podplane_cluster::{
    data_dir::DataDir,
    extra::ExtraConfig,
    launch::{self, LaunchOutcome, Lifetime},
    settings::{Network, Settings, name_of},
};
use podplane_ipam::IpPolicy;
use podplane_kubelet::cri::template::NetworkTemplate;
use podplane_service_runtime::shutdown;

use super::super::duration;
use crate::{
    global::block_on,
    output::{self, table::TextTable},
    progress::Progress,
    ready::{ReadinessGoal, phase},
};

/// Story A's pods: system pods in the node's network first, then others.
const HOST_PODS: usize = 2;
const OTHER_PODS: usize = 9;

/// Show a node that runs out of pod addresses
///
/// Creates one node with few addresses, two hostNetwork pods, which need no pod address, and then
/// nine other pods. With --ip-policy off the scheduler sends all pods to the node, as Kubernetes
/// does; with pod-cidr it counts pods, including hostNetwork pods; with resource it counts
/// addresses.
///
/// Exit codes: 0 everything happened as expected with the policy; 1 not.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane demo exhaustion --node-cidr-mask-size 30 --ip-policy off\n  podplane demo exhaustion --node-cidr-mask-size 29 --ip-policy resource\n  podplane demo exhaustion --cluster-cidr 10.77.0.0/24 --service-cidr 10.78.0.0/24"
)]
pub(super) struct Exhaustion {
    /// Assign the node a pod CIDR of this prefix length: 30 leaves 1 address for pods, 29 leaves 5
    #[arg(long, value_name = "BITS", default_value_t = 30, value_parser = clap::value_parser!(u8).range(28..=32))]
    node_cidr_mask_size: u8,

    /// Assign the node's pod CIDR from this IPv4 range
    #[arg(long, value_name = "CIDR", default_value = "10.255.0.0/19")]
    cluster_cidr: Ipv4Net,

    /// Reserve this IPv4 range for services
    #[arg(long, value_name = "CIDR", default_value = "10.255.31.0/24")]
    service_cidr: Ipv4Net,

    /// Limit the pods of a node by its pod addresses
    #[arg(long, value_enum, value_name = "POLICY", default_value = "resource")]
    ip_policy: IpPolicy,

    /// Set the pod network mode: kernel (network namespaces and interfaces), ledger (addresses
    /// only) or auto (kernel if permitted, else ledger)
    #[arg(long, value_enum, value_name = "MODE", default_value = "auto")]
    network: Network,

    /// Fail if a step takes longer than this, such as 30s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "30s")]
    timeout: Duration,
}

pub(super) fn run(demo: &Exhaustion) -> anyhow::Result<ExitCode> {
    let temporary = tempfile::Builder::new()
        .prefix("podplane-demo-")
        .tempdir()
        .context("failed to make a directory for the cluster")?;
    let dir = DataDir::new(temporary.path())?;
    let mut extra_config = ExtraConfig::default();
    extra_config.set("cri", "cni-template", name_of(&NetworkTemplate::Kubenet));
    let settings = Settings {
        nodes: 1,
        cluster_cidr: demo.cluster_cidr.to_string(),
        node_cidr_mask_size: Some(demo.node_cidr_mask_size),
        service_cluster_ip_range: demo.service_cidr.to_string(),
        network: demo.network,
        ip_policy: demo.ip_policy,
        extra_config,
        ..Settings::default()
    };
    settings.ranges()?;
    settings.plugins()?;
    dir.prepare()?;
    block_on(async {
        let mut launched = launch::launch(&dir, settings, None, Lifetime::Attached)?;
        let progress = Progress::new("starting a cluster of one node");
        let played = async {
            anyhow::ensure!(
                launched.serving(|text| progress.done(text)).await? == LaunchOutcome::Serves,
                "the new directory has a cluster already"
            );
            let status = launch::find(&dir, demo.timeout)
                .await?
                .context("the cluster ended")?;
            let client = Client::connect(&status.server.parse()?)?;
            play(demo, &client, &status.nodes, &progress).await
        };
        let played = tokio::select! {
            played = played => played,
            signal = shutdown::requested() => Err(anyhow::anyhow!("interrupted by {}", signal?)),
        };
        // The cluster is stopped in any case, before the verdict.
        launched.stop().await?;
        drop(progress);
        played
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn play(
    demo: &Exhaustion,
    client: &Client,
    nodes: &[String],
    progress: &Progress,
) -> anyhow::Result<()> {
    let node = nodes.first().context("the cluster has no node")?;
    let ready = ReadinessGoal {
        nodes: nodes.to_vec(),
        ..ReadinessGoal::default()
    };
    let missing = ready.wait(client, demo.timeout, progress).await;
    anyhow::ensure!(missing.is_empty(), "the node is not Ready: {missing:?}");

    let (pods, pod_driver) = reflector(client.all::<Pod>(), ListParams::default());
    let (events, event_driver) = reflector(client.all::<Event>(), ListParams::default());
    let stage = DemoState {
        node,
        expected: ExpectedPods::of(demo.ip_policy, demo.node_cidr_mask_size),
        policy: demo.ip_policy,
        changes: (pods.subscribe(), events.subscribe()),
        pods,
        events,
        timeout: demo.timeout,
    };
    // The drivers never end; the play does.
    tokio::select! {
        played = scenes(demo, client, stage, progress) => played,
        () = pod_driver => Ok(()),
        () = event_driver => Ok(()),
    }
}

async fn scenes(
    demo: &Exhaustion,
    client: &Client,
    mut stage: DemoState<'_>,
    progress: &Progress,
) -> anyhow::Result<()> {
    let api = client.namespaced::<Pod>("default");
    let expected = stage.expected.clone();

    progress.doing("two hostNetwork pods");
    for number in 0..HOST_PODS {
        api.create(&pod(&format!("host-{number}"), true)).await?;
    }
    let first = ExpectedPods {
        others: 0,
        waiting_others: 0,
        ..expected.clone()
    };
    stage.expect(&first).await?;

    progress.doing("nine others");
    for number in 0..OTHER_PODS {
        api.create(&pod(&format!("pod-{number}"), false)).await?;
    }
    stage.expect(&expected).await?;
    progress.done(&stage.describe());
    output::line(stage.table())?;
    output::line(format_args!(
        "with --ip-policy {} and a /{} block: {}",
        name_of(&demo.ip_policy),
        demo.node_cidr_mask_size,
        expected.sentence(demo.ip_policy)
    ))?;

    let running = stage
        .running_other()
        .filter(|_| demo.ip_policy == IpPolicy::Resource && expected.waiting_others > 0);
    if let Some(name) = running {
        progress.doing("one of the others ends");
        let at_once = DeleteParams {
            grace_period_seconds: Some(0),
            ..DeleteParams::default()
        };
        api.delete(&name, &at_once).await?;
        let after = ExpectedPods {
            waiting_others: expected.waiting_others - 1,
            ..expected
        };
        stage.expect(&after).await?;
        output::line(format_args!(
            "pod {name} was deleted: exactly one pod that waited runs in its stead"
        ))?;
    }
    Ok(())
}

fn pod(name: &str, host_network: bool) -> Pod {
    let container = Container {
        name: "pause".into(),
        image: Some("registry.k8s.io/pause:3.10".into()),
        ..Container::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(name.into()),
            namespace: Some("default".into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            host_network: host_network.then_some(true),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The numbers of running and waiting pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ExpectedPods {
    hosts: usize,
    others: usize,
    waiting_hosts: usize,
    waiting_others: usize,
    /// The reason for which pods wait.
    why: &'static str,
}

impl ExpectedPods {
    fn of(policy: IpPolicy, mask: u8) -> Self {
        // The network, broadcast and gateway addresses are not for pods.
        let addresses = (1_usize << (32 - mask)).saturating_sub(3);
        let (hosts, others, why) = match policy {
            IpPolicy::Off if mask > 30 => (HOST_PODS, 0, "too small to allocate from"),
            IpPolicy::Off => (
                HOST_PODS,
                addresses,
                "no IP addresses available in range set",
            ),
            IpPolicy::Resource => (
                HOST_PODS,
                addresses,
                "0/1 nodes are available: 1 Insufficient pod IPs.",
            ),
            IpPolicy::PodCidr => {
                let hosts = HOST_PODS.min(addresses);
                (
                    hosts,
                    addresses - hosts,
                    "0/1 nodes are available: 1 Too many pods.",
                )
            }
        };
        let others = others.min(OTHER_PODS);
        Self {
            hosts,
            others,
            waiting_hosts: HOST_PODS - hosts,
            waiting_others: OTHER_PODS - others,
            why,
        }
    }

    fn sentence(&self, policy: IpPolicy) -> String {
        let Self {
            hosts,
            others,
            waiting_hosts,
            waiting_others,
            ..
        } = self;
        let waiting = waiting_hosts + waiting_others;
        let fate = if policy == IpPolicy::Off {
            "are bound to the full node, where their sandboxes fail again and again"
        } else {
            "wait, and no node is made to fail"
        };
        format!("{hosts} hostNetwork pods and {others} others run, {waiting} {fate}")
    }
}

/// The state of the play.
struct DemoState<'a> {
    node: &'a str,
    policy: IpPolicy,
    expected: ExpectedPods,
    pods: Cache<Pod>,
    events: Cache<Event>,
    changes: (Changes<Pod>, Changes<Event>),
    timeout: Duration,
}

impl DemoState<'_> {
    /// Waits until all pods are as expected.
    async fn expect(&mut self, expected: &ExpectedPods) -> anyhow::Result<()> {
        let timeout = self.timeout;
        let reached = async {
            tokio::join!(self.pods.synced(), self.events.synced());
            loop {
                while self.changes.0.try_next().is_some() || self.changes.1.try_next().is_some() {}
                if self.observed(expected.why) == Some(expected.clone()) {
                    return;
                }
                // Both are cancel safe.
                tokio::select! {
                    _ = self.changes.0.next() => {}
                    _ = self.changes.1.next() => {}
                }
            }
        };
        if tokio::time::timeout(timeout, reached).await.is_err() {
            output::line(self.table())?;
            anyhow::bail!(
                "not as it should be after {} s: {expected:?} was expected, {:?} is seen",
                timeout.as_secs_f32(),
                self.observed(expected.why)
            );
        }
        Ok(())
    }

    /// The counts; `None` while a pod neither runs nor waits for the reason `why`.
    fn observed(&self, why: &'static str) -> Option<ExpectedPods> {
        let mut seen = ExpectedPods {
            why,
            ..ExpectedPods::default()
        };
        let reasons = self.reasons();
        for pod in self.pods.list() {
            let counter = match (is_host(&pod), phase(&pod) == "Running") {
                (true, true) => &mut seen.hosts,
                (false, true) => &mut seen.others,
                (is_host, false) => {
                    let is_bound = node_of(&pod) == Some(self.node);
                    let is_told = reasons
                        .get(&pod.key())
                        .is_some_and(|reason| reason.contains(why));
                    if !is_told || is_bound != (self.policy == IpPolicy::Off) {
                        return None;
                    }
                    if is_host {
                        &mut seen.waiting_hosts
                    } else {
                        &mut seen.waiting_others
                    }
                }
            };
            *counter += 1;
        }
        Some(seen)
    }

    /// The reason for which each pod waits: the scheduler's condition, or, for a bound pod, the
    /// kubelet's warning.
    fn reasons(&self) -> BTreeMap<ObjectKey, String> {
        let mut reasons = BTreeMap::new();
        for event in self.events.list() {
            let object = &event.involved_object;
            if event.reason.as_deref() == Some("FailedCreatePodSandBox")
                && let (Some(name), Some(message)) = (&object.name, &event.message)
            {
                reasons.insert(
                    ObjectKey::new(event.namespace(), name.as_str()),
                    message.clone(),
                );
            }
        }
        for pod in self.pods.list() {
            let conditions = pod
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            let mut unscheduled = conditions.filter(|condition| {
                condition.type_ == "PodScheduled" && condition.status == "False"
            });
            if let Some(message) = unscheduled
                .next()
                .and_then(|condition| condition.message.clone())
            {
                reasons.insert(pod.key(), message);
            }
        }
        reasons
    }

    fn running_other(&self) -> Option<String> {
        let pods = self.pods.list();
        let mut others = pods
            .iter()
            .filter(|pod| !is_host(pod) && phase(pod) == "Running");
        others.next().map(|pod| pod.name().to_owned())
    }

    fn describe(&self) -> String {
        format!("{} pods have been dealt with", self.pods.list().len())
    }

    fn table(&self) -> String {
        let reasons = self.reasons();
        let row = |pod: &std::sync::Arc<Pod>| {
            let status = pod.status.clone().unwrap_or_default();
            let runs = phase(pod) == "Running";
            let reason = reasons.get(&pod.key()).filter(|_| !runs).cloned();
            vec![
                pod.name().to_owned(),
                if is_host(pod) { "yes" } else { "no" }.to_owned(),
                phase(pod).to_owned(),
                node_of(pod).unwrap_or("<none>").to_owned(),
                status.pod_ip.unwrap_or_else(|| "<none>".into()),
                reason.unwrap_or_default(),
            ]
        };
        let mut table = TextTable::new(vec!["NAME", "HOST-NETWORK", "PHASE", "NODE", "IP", "WHY"]);
        table.rows(self.pods.list().iter().map(row))
    }
}

fn is_host(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .is_some_and(|spec| spec.host_network == Some(true))
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec
        .as_ref()?
        .node_name
        .as_deref()
        .filter(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(policy: IpPolicy, mask: u8) -> [usize; 4] {
        let expected = ExpectedPods::of(policy, mask);
        [
            expected.hosts,
            expected.others,
            expected.waiting_hosts,
            expected.waiting_others,
        ]
    }

    #[test]
    fn counts_match_the_documented_numbers_of_story_a() {
        assert_eq!(counts(IpPolicy::Off, 30), [2, 1, 0, 8]);
        assert_eq!(counts(IpPolicy::Off, 29), [2, 5, 0, 4]);
        assert_eq!(counts(IpPolicy::PodCidr, 30), [1, 0, 1, 9]);
        assert_eq!(counts(IpPolicy::PodCidr, 29), [2, 3, 0, 6]);
        assert_eq!(counts(IpPolicy::PodCidr, 31), [0, 0, 2, 9]);
        assert_eq!(counts(IpPolicy::PodCidr, 32), [0, 0, 2, 9]);
        assert_eq!(counts(IpPolicy::Resource, 30), [2, 1, 0, 8]);
        assert_eq!(counts(IpPolicy::Resource, 29), [2, 5, 0, 4]);
    }
}

//! The stage of the demo: a cluster in a temporary directory, commands that are printed and
//! executed, claims that are checked.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use podplane_api::{
    Object as _,
    core::{Event, Node, Pod},
};
use podplane_client::{Client, ListParams};
use podplane_cluster::{
    data_dir::DataDir,
    extra::ExtraConfig,
    launch::{self, LaunchOutcome, LaunchedSupervisor, Lifetime},
    settings::{Network, Settings, name_of},
};
use podplane_scenario::metrics;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::{blocks::ObservedBlocks, objects, ranges::DemoRanges};
use crate::{output, progress::Progress, ready::phase};

/// The interval of polls while the demo waits.
const LOOK: Duration = Duration::from_millis(100);
/// The number of arguments that are shown of a longer command line.
const SHOWN: usize = 8;
/// Keeps nodes from reporting an unchanged status during the demo: Kubernetes' allocator marks the
/// block of each reporting node as used again, so a block that was released by mistake would not be
/// reused.
const HEARTBEAT: &str = "kubelet.heartbeat-interval=86400";
/// The metric of the share of used blocks of each range.
const USAGE: &str = "node_ipam_controller_cidrset_usage_cidrs";
/// The file of the network that does not use podCIDR.
const POOL: &str = "05-pool.conflist";

/// A cluster, and the number of failed claims about it.
#[derive(Debug)]
pub(super) struct DemoCluster {
    temporary: TempDir,
    dir: DataDir,
    settings: Settings,
    launched: Option<LaunchedSupervisor>,
    client: Option<Client>,
    timeout: Duration,
    started: Instant,
    failed: usize,
    /// The number of nodes that were added.
    pub(super) nodes: usize,
    pub(super) ranges: DemoRanges,
}

/// A snapshot of the cluster.
#[derive(Debug, Default)]
pub(super) struct ClusterSnapshot {
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<Pod>,
}

impl ClusterSnapshot {
    pub(super) fn blocks(&self) -> ObservedBlocks {
        ObservedBlocks::of(&self.nodes)
    }

    /// The number of Ready nodes.
    pub(super) fn ready(&self) -> usize {
        let is_ready = |node: &&Node| {
            let status = node.status.as_ref();
            let mut conditions = status
                .into_iter()
                .flat_map(|s| s.conditions.iter().flatten());
            conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        self.nodes.iter().filter(is_ready).count()
    }

    /// The number of running pods.
    pub(super) fn running(&self) -> usize {
        let pods = self.pods.iter();
        pods.filter(|pod| phase(pod) == "Running").count()
    }

    /// The address of a pod, if it has one.
    pub(super) fn address(&self, name: &str) -> Option<String> {
        let pod = self.pods.iter().find(|pod| pod.name() == name)?;
        pod.status.as_ref()?.pod_ip.clone()
    }
}

impl DemoCluster {
    pub(super) fn open(
        compat: &str,
        ranges: DemoRanges,
        network: Network,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let temporary = tempfile::Builder::new()
            .prefix("podplane-demo-")
            .tempdir()
            .context("failed to make a directory for the cluster")?;
        let dir = DataDir::new(temporary.path())?;
        let settings = Settings {
            nodes: 0,
            cluster_cidr: ranges.cluster().to_string(),
            node_cidr_mask_size: Some(24),
            network,
            compat: compat.parse()?,
            ip_policy: podplane_ipam::IpPolicy::Off,
            extra_config: ExtraConfig::default().with(&[HEARTBEAT.parse()?]),
            ..Settings::default()
        };
        settings.ranges()?;
        settings.plugins()?;
        dir.prepare()?;
        Ok(Self {
            temporary,
            dir,
            settings,
            launched: None,
            client: None,
            timeout,
            started: Instant::now(),
            failed: 0,
            nodes: 0,
            ranges,
        })
    }

    /// Runs `up`.
    pub(super) async fn up(&mut self) -> anyhow::Result<()> {
        let Settings {
            nodes,
            cluster_cidr,
            compat,
            network,
            ..
        } = &self.settings;
        self.announce(&format!(
            "podplane up --detach --nodes {nodes} --network {} --cluster-cidr {cluster_cidr} --node-cidr-mask-size 24 --compat {compat} --ip-policy off --extra-config {HEARTBEAT}",
            name_of(network)
        ))?;
        let launched = launch::launch(&self.dir, self.settings.clone(), None, Lifetime::Attached)?;
        let launched = self.launched.insert(launched);
        let progress = Progress::new("starting");
        let outcome = launched.serving(|text| progress.done(text)).await?;
        anyhow::ensure!(
            outcome == LaunchOutcome::Serves,
            "the new directory has a cluster already"
        );
        drop(progress);
        let status = launch::find(&self.dir, self.timeout)
            .await?
            .context("the cluster ended")?;
        self.client = Some(Client::connect(&status.server.parse()?)?);
        Ok(())
    }

    /// Stops the cluster; its directory is removed when the stage is dropped.
    pub(super) async fn close(&mut self) -> anyhow::Result<()> {
        match &mut self.launched {
            Some(launched) => launched.stop().await,
            None => Ok(()),
        }
    }

    /// The number of failed claims.
    pub(super) fn failed(&self) -> usize {
        self.failed
    }

    /// Prints a heading.
    pub(super) fn scene(&self, text: &str) -> anyhow::Result<()> {
        let seconds = self.started.elapsed().as_secs();
        output::line(format_args!("\n[{seconds} s] {text}"))
    }

    fn announce(&self, command: &str) -> anyhow::Result<()> {
        output::line(format_args!("$ {command}"))
    }

    /// Prints the output of a command, or another text.
    pub(super) fn show(&self, text: &str) -> anyhow::Result<()> {
        text.trim_end()
            .lines()
            .try_for_each(|line| output::line(format_args!("  {line}")))
    }

    /// Prints a claim and checks it.
    pub(super) fn claim(&mut self, holds: bool, text: &str) -> anyhow::Result<()> {
        if !holds {
            self.failed += 1;
        }
        output::line(format_args!(
            "{} {text}",
            if holds { "✓" } else { "✗ NOT:" }
        ))
    }

    /// Prints a `podplane` command and runs it.
    pub(super) async fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let shown = if args.len() > SHOWN + 2 {
            let (head, last) = (args[..SHOWN].join(" "), args[args.len() - 1]);
            format!("{head} … {last}")
        } else {
            args.join(" ")
        };
        self.announce(&format!("podplane {shown}"))?;
        self.quietly(args).await
    }

    /// Runs `podplane`; a failure is an error.
    pub(super) async fn must(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.run(args).await?;
        succeeded(args, output)
    }

    async fn quietly(&self, args: &[&str]) -> anyhow::Result<Output> {
        let program = std::env::current_exe().context("failed to find the program's own file")?;
        let output = Command::new(program)
            .args(args)
            .env("PODPLANE_DATA_DIR", self.dir.path())
            .env_remove("PODPLANE_SERVER")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await;
        output.with_context(|| format!("failed to run podplane {}", args.join(" ")))
    }

    /// Writes objects to a file and applies it.
    pub(super) async fn apply(&self, name: &str, objects: &[Value]) -> anyhow::Result<Output> {
        let path = self.write(name, objects)?;
        self.announce(&format!("podplane apply -f {name}"))?;
        self.quietly(&["apply", "-f", &path]).await
    }

    /// The same; a failure is an error.
    pub(super) async fn must_apply(&self, name: &str, objects: &[Value]) -> anyhow::Result<String> {
        let output = self.apply(name, objects).await?;
        succeeded(&["apply", "-f", name], output)
    }

    fn write(&self, name: &str, objects: &[Value]) -> anyhow::Result<String> {
        let path = self.temporary.path().join(name);
        let documents = objects.iter().map(output::yaml_text);
        let documents: Vec<_> = documents.collect::<anyhow::Result<_>>()?;
        fs::write(&path, documents.join("---\n"))
            .with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path.display().to_string())
    }

    /// Reads the present state of the cluster.
    pub(super) async fn snapshot(&self) -> anyhow::Result<ClusterSnapshot> {
        let client = self.client()?;
        let params = ListParams::default();
        let nodes = client.all::<Node>();
        let pods = client.all::<Pod>();
        let (nodes, pods) = tokio::try_join!(nodes.list(&params), pods.list(&params))?;
        Ok(ClusterSnapshot {
            nodes: nodes.items,
            pods: pods.items,
        })
    }

    pub(super) fn client(&self) -> anyhow::Result<&Client> {
        self.client.as_ref().context("the cluster is not up")
    }

    /// Waits until `wanted` returns true, and claims it; returns the snapshot.
    pub(super) async fn wait_until(
        &mut self,
        text: &str,
        wanted: impl Fn(&ClusterSnapshot) -> bool,
    ) -> anyhow::Result<ClusterSnapshot> {
        let seen = self.within(self.timeout, &wanted).await?;
        let holds = wanted(&seen);
        self.claim(holds, text)?;
        anyhow::ensure!(
            holds,
            "after {} s: {} nodes, {} Ready, {} with a block, {} overlaps, {} of {} pods Running",
            self.timeout.as_secs(),
            seen.nodes.len(),
            seen.ready(),
            seen.blocks().count(),
            seen.blocks().overlaps().len(),
            seen.running(),
            seen.pods.len()
        );
        Ok(seen)
    }

    /// Polls until `wanted` returns true or the time is over; returns the last snapshot.
    pub(super) async fn within(
        &self,
        time: Duration,
        wanted: impl Fn(&ClusterSnapshot) -> bool,
    ) -> anyhow::Result<ClusterSnapshot> {
        let deadline = Instant::now() + time;
        loop {
            let seen = self.snapshot().await?;
            if wanted(&seen) || Instant::now() > deadline {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the running ipam-controller counts all blocks of its ranges as used, and claims
    /// it. A controller that was just restarted has listed the nodes by then.
    pub(super) async fn until_all_blocks_are_used(&mut self, text: &str) -> anyhow::Result<()> {
        let address = self.must(&["status", "ipam-controller", "--http"]).await?;
        let deadline = Instant::now() + self.timeout;
        loop {
            // Before it has listed the nodes it does not answer, or has no series.
            let series = metrics::series(address.trim(), USAGE, &BTreeMap::new()).await;
            let is_used = |series: &Vec<(String, f64)>| {
                !series.is_empty() && series.iter().all(|(_, usage)| *usage >= 1.0)
            };
            if series.as_ref().is_ok_and(is_used) {
                return self.claim(true, text);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "after {} s the ipam-controller at {} has {USAGE} {series:?}",
                self.timeout.as_secs(),
                address.trim()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Runs `podplane audit` and returns its number of findings about shared blocks.
    pub(super) async fn audit(&self) -> anyhow::Result<usize> {
        let args = ["audit", "-o", "json"];
        let output = self.run(&args).await?;
        let report: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("failed to parse the output of podplane audit: {said}")
        })?;
        let findings = report["findings"].as_array().into_iter().flatten();
        let shared = ["duplicate-pod-cidr", "overlapping-pod-cidr"];
        Ok(findings
            .filter(|finding| shared.iter().any(|code| finding["code"] == *code))
            .count())
    }

    /// The last event about an object with this reason.
    pub(super) async fn event(&self, name: &str, reason: &str) -> anyhow::Result<Option<String>> {
        let events = self.client()?.all::<Event>();
        let events = events.list(&ListParams::default()).await?.items;
        let about = events.into_iter().rfind(|event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        });
        Ok(about.and_then(|event| event.message))
    }

    /// Waits for an event, and claims it.
    pub(super) async fn expect_event(
        &mut self,
        name: &str,
        reason: &str,
    ) -> anyhow::Result<String> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(message) = self.event(name, reason).await? {
                self.claim(true, &format!("{name}: {reason}: {message}"))?;
                return Ok(message);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "no event {reason} about {name} after {} s",
                self.timeout.as_secs()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Pings from a pod until the outcome is as `wanted`; returns false if it was not in time.
    pub(super) async fn pings(&self, from: &str, to: &str, wanted: bool) -> anyhow::Result<bool> {
        let args = ["ping", from, to, "--count", "1", "--verify"];
        self.announce(&format!("podplane {}", args.join(" ")))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // Routes follow the nodes, so the first pings may be too early.
            let output = self.quietly(&args).await?;
            if output.status.success() == wanted || Instant::now() > deadline {
                self.show(&String::from_utf8_lossy(&output.stdout))?;
                self.show(&String::from_utf8_lossy(&output.stderr))?;
                return Ok(output.status.success() == wanted);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Installs the network that does not use podCIDR on nodes, before their kubelets start.
    pub(super) fn install_pool(&self, nodes: std::ops::Range<usize>) -> anyhow::Result<()> {
        self.announce(&format!(
            "# nodes/node-{}…{}/net.d/{POOL}: host-local in a /26 of {} each, as Calico's IPAM",
            nodes.start,
            nodes.end - 1,
            self.ranges.pool()
        ))?;
        for number in nodes {
            let net_d = self.net_d(&format!("node-{number}"));
            fs::create_dir_all(&net_d)
                .with_context(|| format!("failed to make {}", net_d.display()))?;
            let text =
                serde_json::to_vec_pretty(&objects::pool_of(&self.ranges.subnet_of(number)?))?;
            let path = net_d.join(POOL);
            fs::write(&path, text)
                .with_context(|| format!("failed to write {}", path.display()))?;
        }
        Ok(())
    }

    /// Removes the configuration of that network.
    pub(super) fn remove_pool(&self, nodes: std::ops::Range<usize>) -> anyhow::Result<()> {
        self.announce(&format!("rm nodes/*/net.d/{POOL}"))?;
        for number in nodes {
            let path = self.net_d(&format!("node-{number}")).join(POOL);
            fs::remove_file(&path)
                .with_context(|| format!("failed to remove {}", path.display()))?;
        }
        Ok(())
    }

    fn net_d(&self, node: &str) -> PathBuf {
        self.dir.nodes().join(node).join("net.d")
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.dir.kubeconfig()
    }

    pub(super) fn has_devices(&self) -> bool {
        self.settings.network != Network::Ledger
    }
}

fn succeeded(args: &[&str], output: Output) -> anyhow::Result<String> {
    anyhow::ensure!(
        output.status.success(),
        "podplane {} failed:\n{}",
        args.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

//! Where the demo plays: a cluster in a directory of its own, commands that are printed and executed, claims that are checked.

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
use podplane_scenario::metrics;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use super::{blocks::Blocks, objects, ranges::DemoRanges};
use crate::{
    cluster::{
        data_dir::DataDir,
        extra::ExtraConfig,
        launch::{self, Launched, Lifetime, Outcome},
        progress::Progress,
        ready::phase,
        settings::{Network, Settings, name_of},
    },
    output,
};

/// How often the cluster is looked at while something is waited for.
const LOOK: Duration = Duration::from_millis(100);
/// Longer command lines are shown in part.
const SHOWN: usize = 8;
/// Nodes report what has not changed so seldom that they do not during the demo: Kubernetes' allocator marks the block of each
/// node that reports as used once more, and so a block that was released by mistake is not given away if its node is fast.
const HEARTBEAT: &str = "kubelet.heartbeat-interval=86400";
/// The share of the blocks of each range that are used.
const USAGE: &str = "node_ipam_controller_cidrset_usage_cidrs";
/// The file of the network that does not use podCIDR.
const POOL: &str = "05-pool.conflist";

/// A cluster, and what was claimed of it.
#[derive(Debug)]
pub(super) struct Stage {
    temporary: TempDir,
    dir: DataDir,
    settings: Settings,
    launched: Option<Launched>,
    client: Option<Client>,
    timeout: Duration,
    started: Instant,
    failed: usize,
    /// How many nodes were added.
    pub(super) nodes: usize,
    pub(super) ranges: DemoRanges,
}

/// The cluster at one moment.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) nodes: Vec<Node>,
    pub(super) pods: Vec<Pod>,
}

impl Seen {
    pub(super) fn blocks(&self) -> Blocks {
        Blocks::of(&self.nodes)
    }

    /// How many nodes are Ready.
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

    /// How many pods run.
    pub(super) fn running(&self) -> usize {
        let pods = self.pods.iter();
        pods.filter(|pod| phase(pod) == "Running").count()
    }

    /// The address of a pod that runs.
    pub(super) fn address(&self, name: &str) -> Option<String> {
        let pod = self.pods.iter().find(|pod| pod.name() == name)?;
        pod.status.as_ref()?.pod_ip.clone()
    }
}

impl Stage {
    pub(super) fn open(
        compat: &str,
        ranges: DemoRanges,
        network: Network,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let temporary = tempfile::Builder::new()
            .prefix("podplane-demo-")
            .tempdir()
            .context("make a directory for the cluster")?;
        let dir = DataDir::new(temporary.path())?;
        let settings = Settings {
            nodes: 0,
            cluster_cidr: ranges.cluster().to_string(),
            node_cidr_mask_size: Some(24),
            network,
            compat: compat.parse()?,
            ip_policy: podplane_scheduler::IpPolicy::Off,
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

    /// `up`.
    pub(super) async fn up(&mut self) -> anyhow::Result<()> {
        let Settings {
            nodes,
            cluster_cidr,
            compat,
            network,
            ..
        } = &self.settings;
        self.say(&format!(
            "podplane up --detach --nodes {nodes} --network {} --cluster-cidr {cluster_cidr} --node-cidr-mask-size 24 --compat {compat} --ip-policy off --extra-config {HEARTBEAT}",
            name_of(network)
        ))?;
        let launched = launch::launch(&self.dir, self.settings.clone(), None, Lifetime::Attached)?;
        let launched = self.launched.insert(launched);
        let progress = Progress::new("starting");
        let outcome = launched.serving(&progress).await?;
        anyhow::ensure!(
            outcome == Outcome::Serves,
            "the new directory has a cluster already"
        );
        drop(progress);
        let status = launch::find(&self.dir, self.timeout)
            .await?
            .context("the cluster ended")?;
        self.client = Some(Client::connect(&status.server.parse()?)?);
        Ok(())
    }

    /// Ends the cluster; the directory goes with the stage.
    pub(super) async fn close(&mut self) -> anyhow::Result<()> {
        match &mut self.launched {
            Some(launched) => launched.stop().await,
            None => Ok(()),
        }
    }

    /// How many claims did not hold.
    pub(super) fn failed(&self) -> usize {
        self.failed
    }

    /// A heading.
    pub(super) fn scene(&self, text: &str) -> anyhow::Result<()> {
        let seconds = self.started.elapsed().as_secs();
        output::line(format_args!("\n[{seconds} s] {text}"))
    }

    fn say(&self, command: &str) -> anyhow::Result<()> {
        output::line(format_args!("$ {command}"))
    }

    /// Text that a command printed, or that is worth seeing.
    pub(super) fn show(&self, text: &str) -> anyhow::Result<()> {
        text.trim_end()
            .lines()
            .try_for_each(|line| output::line(format_args!("  {line}")))
    }

    /// Says what should be true now, and whether it is.
    pub(super) fn claim(&mut self, holds: bool, text: &str) -> anyhow::Result<()> {
        if !holds {
            self.failed += 1;
        }
        output::line(format_args!(
            "{} {text}",
            if holds { "✓" } else { "✗ NOT:" }
        ))
    }

    /// Runs `podplane`, having shown the command.
    pub(super) async fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let shown = if args.len() > SHOWN + 2 {
            let (head, last) = (args[..SHOWN].join(" "), args[args.len() - 1]);
            format!("{head} … {last}")
        } else {
            args.join(" ")
        };
        self.say(&format!("podplane {shown}"))?;
        self.quietly(args).await
    }

    /// Runs `podplane`; what fails is an error.
    pub(super) async fn must(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.run(args).await?;
        succeeded(args, output)
    }

    async fn quietly(&self, args: &[&str]) -> anyhow::Result<Output> {
        let program = std::env::current_exe().context("find the program's own file")?;
        let output = Command::new(program)
            .args(args)
            .env("PODPLANE_DATA_DIR", self.dir.path())
            .env_remove("PODPLANE_SERVER")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await;
        output.with_context(|| format!("run podplane {}", args.join(" ")))
    }

    /// Writes a file with objects and applies it.
    pub(super) async fn apply(&self, name: &str, objects: &[Value]) -> anyhow::Result<Output> {
        let path = self.write(name, objects)?;
        self.say(&format!("podplane apply -f {name}"))?;
        self.quietly(&["apply", "-f", &path]).await
    }

    /// The same; what fails is an error.
    pub(super) async fn must_apply(&self, name: &str, objects: &[Value]) -> anyhow::Result<String> {
        let output = self.apply(name, objects).await?;
        succeeded(&["apply", "-f", name], output)
    }

    fn write(&self, name: &str, objects: &[Value]) -> anyhow::Result<String> {
        let path = self.temporary.path().join(name);
        let documents = objects.iter().map(output::yaml_text);
        let documents: Vec<_> = documents.collect::<anyhow::Result<_>>()?;
        fs::write(&path, documents.join("---\n"))
            .with_context(|| format!("write {}", path.display()))?;
        Ok(path.display().to_string())
    }

    /// The cluster now.
    pub(super) async fn seen(&self) -> anyhow::Result<Seen> {
        let client = self.client()?;
        let params = ListParams::default();
        let nodes = client.all::<Node>();
        let pods = client.all::<Pod>();
        let (nodes, pods) = tokio::try_join!(nodes.list(&params), pods.list(&params))?;
        Ok(Seen {
            nodes: nodes.items,
            pods: pods.items,
        })
    }

    pub(super) fn client(&self) -> anyhow::Result<&Client> {
        self.client.as_ref().context("the cluster is not up")
    }

    /// Waits until the cluster is as `wanted` says, and claims it; what it is then.
    pub(super) async fn until(
        &mut self,
        text: &str,
        wanted: impl Fn(&Seen) -> bool,
    ) -> anyhow::Result<Seen> {
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

    /// The cluster as soon as it is as `wanted` says, or when the time is over.
    pub(super) async fn within(
        &self,
        time: Duration,
        wanted: impl Fn(&Seen) -> bool,
    ) -> anyhow::Result<Seen> {
        let deadline = Instant::now() + time;
        loop {
            let seen = self.seen().await?;
            if wanted(&seen) || Instant::now() > deadline {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until the ipam-controller that runs takes all blocks of its ranges for used, and claims it. One that was just
    /// restarted has listed the nodes by then.
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

    /// How many findings of shared blocks `podplane audit` has.
    pub(super) async fn audit(&self) -> anyhow::Result<usize> {
        let args = ["audit", "-o", "json"];
        let output = self.run(&args).await?;
        let report: Value = serde_json::from_slice(&output.stdout).with_context(|| {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            format!("read what podplane audit printed: {said}")
        })?;
        let findings = report["findings"].as_array().into_iter().flatten();
        let shared = ["duplicate-pod-cidr", "overlapping-pod-cidr"];
        Ok(findings
            .filter(|finding| shared.iter().any(|code| finding["code"] == *code))
            .count())
    }

    /// The last event about an object for a reason.
    pub(super) async fn event(&self, name: &str, reason: &str) -> anyhow::Result<Option<String>> {
        let events = self.client()?.all::<Event>();
        let events = events.list(&ListParams::default()).await?.items;
        let about = events.into_iter().rfind(|event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.reason.as_deref() == Some(reason)
        });
        Ok(about.and_then(|event| event.message))
    }

    /// Waits for an event, shows it and claims it.
    pub(super) async fn told(&mut self, name: &str, reason: &str) -> anyhow::Result<String> {
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

    /// Pings from a pod until the answer is as `wanted`; whether it was in time.
    pub(super) async fn pings(&self, from: &str, to: &str, wanted: bool) -> anyhow::Result<bool> {
        let args = ["ping", from, to, "--count", "1", "--verify"];
        self.say(&format!("podplane {}", args.join(" ")))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // Routes follow the nodes, so the first may be early.
            let output = self.quietly(&args).await?;
            if output.status.success() == wanted || Instant::now() > deadline {
                self.show(&String::from_utf8_lossy(&output.stdout))?;
                self.show(&String::from_utf8_lossy(&output.stderr))?;
                return Ok(output.status.success() == wanted);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Installs the network that does not use podCIDR on nodes, before their kubelets begin.
    pub(super) fn install_pool(&self, nodes: std::ops::Range<usize>) -> anyhow::Result<()> {
        self.say(&format!(
            "# nodes/node-{}…{}/net.d/{POOL}: host-local in a /26 of {} each, as Calico's IPAM",
            nodes.start,
            nodes.end - 1,
            self.ranges.pool()
        ))?;
        for number in nodes {
            let net_d = self.net_d(&format!("node-{number}"));
            fs::create_dir_all(&net_d).with_context(|| format!("make {}", net_d.display()))?;
            let text =
                serde_json::to_vec_pretty(&objects::pool_of(&self.ranges.subnet_of(number)?))?;
            let path = net_d.join(POOL);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Takes it away again.
    pub(super) fn remove_pool(&self, nodes: std::ops::Range<usize>) -> anyhow::Result<()> {
        self.say(&format!("rm nodes/*/net.d/{POOL}"))?;
        for number in nodes {
            let path = self.net_d(&format!("node-{number}")).join(POOL);
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
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

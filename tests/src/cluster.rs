//! A cluster of real processes.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podplane_api::core::{Node, Pod};
use podplane_client::{Client, Endpoint, ListParams};
use podplane_ipam::audit::{self, Violation};
use podplane_proto::cluster::{
    GetStatusRequest, GetStatusResponse, cluster_service_client::ClusterServiceClient,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    Machine, eventually,
    leftovers::processes_of,
    peers,
    programs::{Finished, finish, podplane},
    wait::within,
    world::{self, Limit},
};

/// How pods get their network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Real namespaces.
    Kernel,
    /// Allocation files alone.
    Ledger,
}

impl Network {
    /// As the flag has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Ledger => "ledger",
        }
    }
}

/// How to start a cluster.
#[derive(Clone, Debug)]
pub struct Up {
    network: Network,
    limit: Limit,
    args: Vec<String>,
}

impl Up {
    /// Three nodes and all defaults.
    pub fn new(network: Network) -> Self {
        Self {
            network,
            limit: Limit::Addresses,
            args: Vec::new(),
        }
    }

    /// More flags of `podplane up`, separated by blanks.
    #[must_use]
    pub fn with(mut self, args: &str) -> Self {
        if args.contains("--ip-policy off") {
            self.limit = Limit::None;
        }
        self.args.extend(args.split_whitespace().map(Into::into));
        self
    }
}

/// A running cluster. Dropping it takes it down; [`Cluster::finish`] also looks whether all was well.
#[derive(Debug)]
pub struct Cluster {
    dir: TempDir,
    limit: Limit,
    before: Machine,
    /// A client of its apiserver.
    pub client: Client,
}

impl Cluster {
    /// Starts a cluster and waits until its nodes are Ready. `None` if this needs what the machine lacks and `PODPLANE_SKIP` names.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn up(up: Up) -> Result<Option<Self>> {
        Self::start(up, &["--detach", "--wait"]).await
    }

    /// The same, for a cluster of which not every node will be Ready.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn up_without_waiting(up: Up) -> Result<Option<Self>> {
        Self::start(up, &["--detach"]).await
    }

    async fn start(up: Up, mode: &[&str]) -> Result<Option<Self>> {
        if up.network == Network::Kernel && !peers::root() {
            return Ok(None);
        }
        let dir = tempfile::Builder::new()
            .prefix("pp-")
            .tempdir()
            .context("make a data directory")?;
        let before = Machine::now();
        start(dir.path(), &up, mode)?;
        let client = connect(dir.path())?;
        Ok(Some(Self {
            dir,
            limit: up.limit,
            before,
            client,
        }))
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `podplane` on this cluster.
    pub fn podplane(&self, args: &str) -> Finished {
        self.run(args.split_whitespace())
    }

    /// Runs `podplane` on this cluster, with arguments that may have blanks.
    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Finished {
        finish(podplane(args).env("PODPLANE_DATA_DIR", self.dir()))
    }

    /// What `podplane get … -o json` prints.
    ///
    /// # Panics
    ///
    /// If it fails, or prints no JSON.
    pub fn get(&self, what: &str) -> Value {
        let text = self.podplane(&format!("get {what} -o json")).ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Starts it again on the same data directory, with the same or other flags.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub fn up_again(&mut self, up: &Up) -> Result<()> {
        start(self.dir.path(), up, &["--detach", "--wait"])?;
        self.client = connect(self.dir.path())?;
        Ok(())
    }

    /// What its supervisor says.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub async fn status(&self) -> Result<GetStatusResponse> {
        let endpoint: Endpoint =
            format!("unix:{}", self.dir().join("control.sock").display()).parse()?;
        let channel = podplane_client::endpoint::channel(&endpoint)?;
        Ok(ClusterServiceClient::new(channel)
            .get_status(GetStatusRequest {})
            .await?
            .into_inner())
    }

    /// All pods of all namespaces.
    ///
    /// # Errors
    ///
    /// If the apiserver does not answer.
    pub async fn pods(&self) -> Result<Vec<Pod>> {
        Ok(self
            .client
            .all::<Pod>()
            .list(&ListParams::default())
            .await?
            .items)
    }

    /// All nodes.
    ///
    /// # Errors
    ///
    /// If the apiserver does not answer.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        Ok(self
            .client
            .all::<Node>()
            .list(&ListParams::default())
            .await?
            .items)
    }

    /// Waits until the pods satisfy `enough`; returns them.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub async fn pods_until(&self, what: &str, enough: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
        let seen = eventually(
            what,
            || self.pods(),
            |pods| pods.as_ref().is_ok_and(|pods| enough(pods)),
        )
        .await;
        seen.unwrap_or_default()
    }

    /// The invariants that are broken now.
    ///
    /// # Errors
    ///
    /// If the cluster cannot be observed.
    pub async fn violations(&self) -> Result<Vec<Violation>> {
        Ok(audit::check(
            &world::observe(&self.client, self.dir(), self.limit).await?,
        ))
    }

    /// Waits until no invariant is broken, then takes the cluster down and looks whether it left anything on the machine.
    ///
    /// A leak or an overlap does not go away by itself; what does is a sandbox that is being made or removed at this moment.
    ///
    /// # Errors
    ///
    /// If it cannot be taken down, or left something.
    pub async fn finish(self) -> Result<()> {
        let clean = |seen: &Result<Vec<Violation>>| seen.as_ref().is_ok_and(Vec::is_empty);
        within(
            Duration::from_secs(20),
            "no violation",
            || self.violations(),
            clean,
        )
        .await?;
        finish(podplane(["down", "--purge", "--data-dir"]).arg(self.dir())).ok();
        let left = self.left();
        ensure!(left.is_empty(), "processes left: {left:?}");
        ensure!(
            !self.dir().join("store").exists(),
            "down --purge left the store"
        );
        let after = Machine::now();
        ensure!(
            self.before == after,
            "the machine changed:\nbefore {:#?}\nafter {after:#?}",
            self.before
        );
        Ok(())
    }

    /// Processes that have this data directory in their command line.
    pub fn left(&self) -> Vec<(u32, String)> {
        processes_of(&self.dir().display().to_string())
    }

    /// The log of a service.
    pub fn log(&self, service: &str) -> String {
        let file: PathBuf = self.dir().join("logs").join(format!("{service}.log"));
        fs::read_to_string(&file).unwrap_or_else(|error| format!("{}: {error}", file.display()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir().exists() {
            let keep = std::thread::panicking() && std::env::var_os("PODPLANE_KEEP").is_some();
            let _ = finish(podplane(["down", "--data-dir"]).arg(self.dir()));
            if keep {
                self.dir.disable_cleanup(true);
            }
        }
    }
}

fn start(dir: &Path, up: &Up, mode: &[&str]) -> Result<()> {
    let Up { network, args, .. } = up;
    let mut command = podplane(["up", "--network", network.as_str(), "--data-dir"]);
    let up = finish(command.arg(dir).args(mode).args(args));
    ensure!(
        up.code == Some(0),
        "up failed with {:?}:\n{}{}",
        up.code,
        up.stdout,
        up.stderr
    );
    Ok(())
}

/// A client of the cluster that runs on a data directory.
///
/// # Errors
///
/// If none runs there.
pub fn connect(dir: &Path) -> Result<Client> {
    let address = fs::read_to_string(dir.join("apiserver.address"))
        .context("read the apiserver's address")?;
    Ok(Client::connect(&address.trim().parse()?)?)
}

/// How many pods are Running.
pub fn running(pods: &[Pod]) -> usize {
    in_phase(pods, "Running").count()
}

/// The pods in a phase.
pub fn in_phase<'a>(pods: &'a [Pod], phase: &'a str) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |pod| {
        pod.status
            .as_ref()
            .and_then(|status| status.phase.as_deref())
            == Some(phase)
    })
}

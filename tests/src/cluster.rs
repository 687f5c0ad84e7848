//! A cluster of the test cluster, for tests that check what it leaves on the machine.

use std::{
    fs,
    ops::{Deref, DerefMut},
};

use anyhow::{Result, ensure};
use podplane_api::core::Pod;
use podplane_http_client::HttpClient;
use podplane_test_cluster::{ClusterBuilder, Network, ProgramOutput, processes_of};
use serde_json::Value;

use crate::{Machine, peers, programs::finish};

/// A builder of a cluster with three nodes and all defaults.
pub fn builder(network: Network) -> ClusterBuilder {
    podplane_test_cluster::Cluster::builder().network(network)
}

/// A running cluster, and the machine as it was before.
#[derive(Debug)]
pub struct Cluster {
    cluster: podplane_test_cluster::Cluster,
    before: Machine,
}

impl Cluster {
    /// Starts a cluster and waits until its nodes are Ready. `None` if this needs something that
    /// the machine lacks and `PODPLANE_SKIP` names.
    ///
    /// # Errors
    ///
    /// If it does not come up.
    pub async fn up(builder: ClusterBuilder) -> Result<Option<Self>> {
        if builder.network_mode() == Network::Kernel && !peers::root() {
            return Ok(None);
        }
        let before = Machine::now();
        let cluster = builder.start().await?;
        Ok(Some(Self { cluster, before }))
    }

    /// Runs `podplane` on this cluster.
    pub fn podplane(&self, args: &str) -> ProgramOutput {
        self.run(args.split_whitespace())
    }

    /// Runs `podplane` on this cluster, with arguments that may have blanks.
    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> ProgramOutput {
        finish(&mut self.command("podplane", args))
    }

    /// The object that `podplane get … -o json` prints.
    ///
    /// # Panics
    ///
    /// If it fails, or prints invalid JSON.
    pub fn get(&self, what: &str) -> Value {
        let text = self.podplane(&format!("get {what} -o json")).ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Waits until the pods satisfy `enough`; returns them.
    ///
    /// # Panics
    ///
    /// If they do not in time.
    pub async fn pods_until(&self, what: &str, enough: impl Fn(&[Pod]) -> bool) -> Vec<Pod> {
        let pods = self.cluster.pods_until(what, enough).await;
        pods.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until no invariant is broken, then takes the cluster down and checks that it left
    /// nothing on the machine.
    ///
    /// # Errors
    ///
    /// If an invariant stays broken, if it cannot be taken down, or if it left something.
    pub async fn finish(self) -> Result<()> {
        let Self { cluster, before } = self;
        cluster.finish().await?;
        let after = Machine::now();
        ensure!(
            before == after,
            "the machine changed:\nbefore {before:#?}\nafter {after:#?}"
        );
        Ok(())
    }

    /// Processes that have this data directory in their command line.
    ///
    /// # Panics
    ///
    /// If /proc cannot be read.
    pub fn left(&self) -> Vec<(u32, String)> {
        processes_of(&self.data_dir().display().to_string()).expect("/proc")
    }

    /// An HTTP client of one of its processes, at this address. One with TLS is shown the
    /// administrator's certificate.
    ///
    /// # Errors
    ///
    /// If the certificates cannot be used.
    pub fn http(&self, address: &str) -> Result<HttpClient> {
        HttpClient::as_admin_of(&self.pki_dir(), address)
    }

    /// The log of a service.
    pub fn log(&self, service: &str) -> String {
        let file = self.data_dir().join("logs").join(format!("{service}.log"));
        fs::read_to_string(&file).unwrap_or_else(|error| format!("{}: {error}", file.display()))
    }
}

impl Deref for Cluster {
    type Target = podplane_test_cluster::Cluster;

    fn deref(&self) -> &Self::Target {
        &self.cluster
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.cluster
    }
}

//! A cluster that a scenario is played on.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use podplane_proto::cluster::ServiceStatus;
use podplane_testkit::{Cluster, ClusterBuilder, Process, Program};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use serde_json::{Value, json};

use crate::{
    format::{self, NodeSpec, Nodes, Several},
    objects::Objects,
    plan::{Case, glob},
};

/// A cluster, and what has been done to it that is to be undone.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    pub(crate) case: &'a Case,
    pub(crate) cluster: Cluster,
    pub(crate) objects: Objects,
    pub(crate) random: StdRng,
    /// For files of the scenario's commands.
    pub(crate) scratch: PathBuf,
    /// Processes that were paused, by name.
    pub(crate) paused: BTreeMap<String, Process>,
    /// Nodes whose uplink is cut.
    pub(crate) cut: BTreeSet<String>,
}

impl<'a> Stage<'a> {
    /// Starts the cluster of a scenario in `dir`, which is empty.
    pub(crate) async fn set(
        case: &'a Case,
        program: &Program,
        dir: &Path,
        seed: u64,
        keep: bool,
    ) -> Result<Self> {
        let scratch = dir.join("scratch");
        std::fs::create_dir_all(&scratch).with_context(|| format!("make {}", scratch.display()))?;
        let mut builder = builder(case, program)
            .program(program.path())
            .data_dir(data_dir(dir));
        if keep {
            builder = builder.keep();
        }
        let cluster = builder.start().await?;
        let objects = Objects::new(cluster.server());
        let stage = Self {
            case,
            cluster,
            objects,
            random: StdRng::seed_from_u64(seed),
            scratch,
            paused: BTreeMap::new(),
            cut: BTreeSet::new(),
        };
        if let Some(Nodes::Named(nodes)) = &case.cluster.nodes {
            stage.add_nodes(nodes).await?;
        }
        Ok(stage)
    }

    /// Lets nodes join, with their labels and blocks. Those that are alike join together, and may share processes then.
    pub(crate) async fn add_nodes(&self, nodes: &[NodeSpec]) -> Result<()> {
        for alike in nodes.chunk_by(|a, b| {
            a.pod_cidr.is_none()
                && b.pod_cidr.is_none()
                && a.labels == b.labels
                && a.network == b.network
        }) {
            let [
                NodeSpec {
                    name,
                    network,
                    labels,
                    pod_cidr,
                },
                ..,
            ] = alike
            else {
                continue;
            };
            let mut args = vec!["node".to_owned(), "add".into()];
            args.extend(alike.iter().map(|node| node.name.clone()));
            if let Some(network) = network {
                args.extend(["--network".into(), network.as_str().into()]);
            }
            match pod_cidr {
                // The kubelet takes over what is there.
                Some(cidr) => {
                    let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
                        "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}});
                    self.cluster.apply(&object.to_string()).await?;
                }
                None => args.extend(
                    labels
                        .iter()
                        .flat_map(|(key, value)| ["--label".into(), format!("{key}={value}")]),
                ),
            }
            self.cluster.podplane(args).await?;
        }
        Ok(())
    }

    /// Takes the cluster down, and looks whether all of it is gone.
    pub(crate) async fn strike(self) -> Result<()> {
        // A process that stands still does not end when it is told to.
        self.paused.values().try_for_each(Process::resume)?;
        Ok(self.cluster.stop().await?)
    }

    /// What runs, as the supervisor has it.
    pub(crate) async fn services(&self) -> Result<Vec<ServiceStatus>> {
        Ok(self.cluster.status().await?.services)
    }

    /// Where a service listens.
    pub(crate) async fn address(&self, service: &str) -> Result<String> {
        let services = self.services().await?;
        let found = services.into_iter().find(|status| status.name == service);
        let address = found
            .with_context(|| format!("no process is called {service}"))?
            .address;
        ensure!(!address.is_empty(), "{service} is not up");
        Ok(address)
    }

    /// The process of that name; for a pattern one of those that match.
    pub(crate) async fn one_process(&mut self, pattern: &str) -> Result<String> {
        let names: Vec<_> = match glob(pattern) {
            None => return Ok(pattern.to_owned()),
            Some(_) => self
                .services()
                .await?
                .into_iter()
                .map(|service| service.name)
                .collect(),
        };
        self.one_of(pattern, names)
    }

    /// The node of that name; for a pattern one of those that match.
    pub(crate) async fn one_node(&mut self, pattern: &str) -> Result<String> {
        let names: Vec<_> = match glob(pattern) {
            None => return Ok(pattern.to_owned()),
            Some(_) => self.cluster.status().await?.nodes,
        };
        self.one_of(pattern, names)
    }

    fn one_of(&mut self, pattern: &str, names: Vec<String>) -> Result<String> {
        let is_meant = |name: &String| glob(pattern).is_none_or(|glob| glob.is_match(name));
        let each: BTreeSet<_> = names.into_iter().filter(is_meant).collect();
        ensure!(!each.is_empty(), "nothing is called {pattern}");
        let chosen = self.random.random_range(..each.len());
        each.into_iter()
            .nth(chosen)
            .context("there are as many as counted")
    }

    /// A process, and what it is called if it runs not by itself.
    pub(crate) async fn process(&self, name: &str) -> Result<Process> {
        Ok(self.cluster.process(name).await?)
    }

    /// How many calls of a method a service has made.
    pub(crate) fn calls(&self, of: &str, method: &str) -> Result<f64> {
        anyhow::bail!("this version cannot count the calls of {method} that {of} makes")
    }

    /// Whether the cluster can be observed: not while its API server stands still.
    pub(crate) fn is_observable(&self) -> bool {
        !self.paused.contains_key("apiserver")
    }
}

/// The data directory inside of a run's directory.
pub(crate) fn data_dir(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn builder(case: &Case, program: &Program) -> ClusterBuilder {
    let format::Cluster {
        nodes,
        network,
        cluster_cidr,
        node_cidr_mask_size,
        node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6,
        service_cluster_ip_range,
        ip_policy,
        compat,
        cidr_allocator_type,
        cloud_endpoint,
        release_delay,
        cni_template,
        cni_bin_dir,
        cri_endpoint,
        nodes_per_process,
        extra_config,
        seed: _,
    } = &case.cluster;
    let number = match nodes {
        None => 3,
        Some(Nodes::Number(number)) => *number,
        // They join one by one, because each has labels of its own.
        Some(Nodes::Named(_)) => 0,
    };
    let text = |number: &Option<u8>| number.map(|number| number.to_string());
    let flags = [
        ("--cluster-cidr", cluster_cidr.clone()),
        ("--node-cidr-mask-size", text(node_cidr_mask_size)),
        ("--node-cidr-mask-size-ipv4", text(node_cidr_mask_size_ipv4)),
        ("--node-cidr-mask-size-ipv6", text(node_cidr_mask_size_ipv6)),
        (
            "--service-cluster-ip-range",
            service_cluster_ip_range.clone(),
        ),
        ("--ip-policy", ip_policy.clone()),
        ("--compat", compat.clone()),
        ("--cidr-allocator-type", cidr_allocator_type.clone()),
        ("--cloud-endpoint", cloud_endpoint.clone()),
        ("--release-delay", release_delay.clone()),
        ("--cni-template", cni_template.clone()),
        ("--cri-endpoint", cri_endpoint.clone()),
        (
            "--nodes-per-process",
            nodes_per_process.map(|number| number.to_string()),
        ),
    ];
    let network = match network {
        format::Network::Ledger => podplane_testkit::Network::Ledger,
        format::Network::Kernel => podplane_testkit::Network::Kernel,
        format::Network::Auto => podplane_testkit::Network::Auto,
    };
    // A scenario waits for what it needs; a node without a block is never Ready.
    let mut builder = Cluster::builder()
        .network(network)
        .nodes(number)
        .without_waiting();
    for (flag, value) in flags {
        if let Some(value) = value {
            builder = builder.flag(flag, value);
        }
    }
    if let Some(Several(dirs)) = cni_bin_dir {
        // What a plugin of one's own delegates to is podplane's, unless it is there too.
        let each = dirs.iter().map(|dir| case.resolve(dir));
        let each = each.chain([program.dir().to_owned()]);
        let joined = std::env::join_paths(each).unwrap_or_default();
        builder = builder.cni_bin_dir(joined);
    }
    let extra = extra_config.iter().flat_map(|(service, flags)| {
        flags
            .iter()
            .map(move |(flag, value)| format!("{service}.{flag}={}", plain(value)))
    });
    for extra in extra {
        builder = builder.args(["--extra-config", &extra]);
    }
    builder
}

/// A value of a flag.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

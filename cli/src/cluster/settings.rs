//! What a cluster is made of: the flags of `up`, checked before anything starts and kept in the data directory.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Args as _, Command, FromArgMatches as _, ValueEnum};
use podplane_client::Endpoint;
use podplane_ipam::{
    Compat, ServiceRanges,
    cluster::{RangeConfig, RangeFlags},
};
use podplane_ipam_controller::{AllocatorType, RunError};
use podplane_kubelet::cri::template::Template;
use podplane_scheduler::IpPolicy;
use podplane_telemetry::{server::Listen, trace::TraceConfig};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    extra::{ExtraConfig, ExtraFlag, in_a_line},
    trust,
};
use crate::report::UsageError;

/// The CNI plugins that the templates name.
const PLUGINS: [&str; 3] = ["bridge", "host-local", "loopback"];

/// More nodes than this need more processes and addresses than `up` is made for.
const MAX_NODES: i64 = 10_000;

/// A bridge takes 1,024 ports, and the fabric has one for each node.
pub(crate) const MAX_KERNEL_NODES: usize = 1_000;

/// The flags that shape a cluster. One that is not given is as it was when the cluster ran last, or has its default.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// How many nodes [default: 3]
    #[arg(long, env = "PODPLANE_NODES", value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_NODES))]
    pub(crate) nodes: Option<u32>,

    /// The range that nodes' blocks are cut from; one for each address family, separated by a comma [default: 10.244.0.0/16]
    #[arg(long, env = "PODPLANE_CLUSTER_CIDR", value_name = "CIDR")]
    pub(crate) cluster_cidr: Option<String>,

    /// Prefix length of a node's block, for a cluster of one address family [default: 24, IPv6: 64]
    #[arg(long, env = "PODPLANE_NODE_CIDR_MASK_SIZE", value_name = "BITS")]
    pub(crate) node_cidr_mask_size: Option<u8>,

    /// Prefix length of a node's IPv4 block [default: 24]
    #[arg(long, env = "PODPLANE_NODE_CIDR_MASK_SIZE_IPV4", value_name = "BITS")]
    pub(crate) node_cidr_mask_size_ipv4: Option<u8>,

    /// Prefix length of a node's IPv6 block [default: 64]
    #[arg(long, env = "PODPLANE_NODE_CIDR_MASK_SIZE_IPV6", value_name = "BITS")]
    pub(crate) node_cidr_mask_size_ipv6: Option<u8>,

    /// The range of services, which no node's block may touch; one for each address family [default: 10.96.0.0/16]
    #[arg(long, env = "PODPLANE_SERVICE_CLUSTER_IP_RANGE", value_name = "CIDR")]
    pub(crate) service_cluster_ip_range: Option<String>,

    /// Give nodes their blocks as another system does, its faults included, and refuse none that overlap: upstream (Kubernetes),
    /// upstream-1.30, upstream-1.31, upstream-1.32 or gcp [default: none]
    #[arg(long, env = "PODPLANE_COMPAT", value_name = "SYSTEM")]
    pub(crate) compat: Option<Compat>,

    /// Who decides about nodes' blocks: RangeAllocator (from --cluster-cidr), MultiCIDRRangeAllocator (from ClusterCIDR objects) or CloudAllocator (the
    /// cloud has) [default: RangeAllocator]
    #[arg(long, env = "PODPLANE_CIDR_ALLOCATOR_TYPE", value_name = "TYPE")]
    pub(crate) cidr_allocator_type: Option<AllocatorType>,

    /// Where the cloud is, for CloudAllocator; it knows the nodes as podplane://NODE
    #[arg(long, env = "PODPLANE_CLOUD_ENDPOINT", value_name = "ADDR")]
    pub(crate) cloud_endpoint: Option<Endpoint>,

    /// How long a block that nothing uses any more is kept back before another node may have it [default: 0s]
    #[arg(long, env = "PODPLANE_RELEASE_DELAY", value_name = "DURATION")]
    pub(crate) release_delay: Option<humantime::Duration>,

    /// End the hold of a deleted node's block when the node has been silent for so long, though its
    /// sandboxes may still have addresses of it; 0s: never [default: 0s]
    #[arg(long, env = "PODPLANE_RELEASE_AFTER", value_name = "DURATION", value_parser = release_after)]
    pub(crate) release_after: Option<humantime::Duration>,

    /// Whether pods get real interfaces: kernel, ledger (addresses alone, no privileges), or auto, which takes kernel if it can [default: auto]
    #[arg(long, env = "PODPLANE_NETWORK", value_enum, value_name = "MODE")]
    pub(crate) network: Option<Network>,

    /// How the addresses of a node limit its pods [default: resource]
    #[arg(long, env = "PODPLANE_IP_POLICY", value_enum, value_name = "POLICY")]
    pub(crate) ip_policy: Option<IpPolicy>,

    /// The CNI configuration that a node gets when its block is known [default: containerd]
    #[arg(
        long,
        env = "PODPLANE_CNI_TEMPLATE",
        value_enum,
        value_name = "TEMPLATE"
    )]
    pub(crate) cni_template: Option<Template>,

    /// Where the CNI plugins are: a directory, or several, of which the first that has a plugin wins [default: beside podplane]
    #[arg(long, env = "PODPLANE_CNI_BIN_DIR", value_name = "DIR[:DIR…]")]
    pub(crate) cni_bin_dir: Option<OsString>,

    /// The CRI runtime of each node, {node} standing for its name; `up` then starts none, and --network is ledger [default: its own]
    #[arg(long, env = "PODPLANE_CRI_ENDPOINT", value_name = "ENDPOINT")]
    pub(crate) cri_endpoint: Option<String>,

    /// How many nodes without devices share a kubelet and a CRI server; nodes with devices never do [default: 500]
    #[arg(long, env = "PODPLANE_NODES_PER_PROCESS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_NODES))]
    pub(crate) nodes_per_process: Option<u32>,

    /// A flag of a service that `up` has none for, as in scheduler.log=debug; may be repeated. SERVICE.FLAG- gives it no more. Services: apiserver,
    /// ipam-controller, controller-manager, scheduler, kubelet, cri; `podplane SERVICE --help` has their flags
    #[arg(long, value_name = "SERVICE.FLAG=VALUE")]
    pub(crate) extra_config: Vec<ExtraFlag>,

    /// Where the API server listens: HOST:PORT, port 0 for any free one, or unix:PATH [default: 127.0.0.1:0]
    #[arg(long, env = "PODPLANE_LISTEN", value_name = "ADDR")]
    pub(crate) listen: Option<Listen>,

    #[command(flatten)]
    pub(crate) trace: TraceConfig,
}

/// Whether pods get devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Network {
    /// kernel if that is possible here, else ledger
    #[default]
    Auto,
    /// Real namespaces, interfaces and routes
    Kernel,
    /// Addresses alone
    Ledger,
}

/// The flags with everything filled in. What is kept of a cluster that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) nodes: u32,
    pub(crate) cluster_cidr: String,
    pub(crate) node_cidr_mask_size: Option<u8>,
    pub(crate) node_cidr_mask_size_ipv4: Option<u8>,
    pub(crate) node_cidr_mask_size_ipv6: Option<u8>,
    pub(crate) service_cluster_ip_range: String,
    #[serde(default, with = "as_text")]
    pub(crate) compat: Compat,
    #[serde(default, with = "as_text")]
    pub(crate) cidr_allocator_type: AllocatorType,
    pub(crate) cloud_endpoint: Option<String>,
    /// Absent: the controller's default.
    pub(crate) release_delay: Option<String>,
    /// Absent: the API server's default.
    pub(crate) release_after: Option<String>,
    pub(crate) network: Network,
    #[serde(with = "by_name")]
    pub(crate) ip_policy: IpPolicy,
    #[serde(with = "by_name")]
    pub(crate) cni_template: Template,
    /// Absent: beside the program, wherever that is next time.
    pub(crate) cni_bin_dir: Option<PathBuf>,
    /// Absent: `up` starts CRI servers.
    pub(crate) cri_endpoint: Option<String>,
    #[serde(default = "nodes_per_process")]
    pub(crate) nodes_per_process: u32,
    #[serde(default)]
    pub(crate) extra_config: ExtraConfig,
    pub(crate) listen: String,
    pub(crate) otlp_endpoint: Option<String>,
}

/// How many nodes one CRI process and one kubelet serve where nothing runs inside nodes.
fn nodes_per_process() -> u32 {
    500
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            nodes: 3,
            cluster_cidr: "10.244.0.0/16".into(),
            node_cidr_mask_size: None,
            node_cidr_mask_size_ipv4: None,
            node_cidr_mask_size_ipv6: None,
            service_cluster_ip_range: "10.96.0.0/16".into(),
            compat: Compat::default(),
            cidr_allocator_type: AllocatorType::default(),
            cloud_endpoint: None,
            release_delay: None,
            release_after: None,
            network: Network::default(),
            ip_policy: IpPolicy::default(),
            cni_template: Template::default(),
            cni_bin_dir: None,
            cri_endpoint: None,
            nodes_per_process: nodes_per_process(),
            extra_config: ExtraConfig::default(),
            listen: "127.0.0.1:0".into(),
            otlp_endpoint: None,
        }
    }
}

/// A flag that says otherwise than the cluster that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) flag: &'static str,
    pub(crate) running: String,
    pub(crate) given: String,
}

impl Flags {
    /// Whether `up` would start a new cluster with these arguments alone.
    pub(crate) fn check(line: impl Iterator<Item = String>) -> anyhow::Result<()> {
        let command = Self::augment_args(Command::new("up").no_binary_name(true));
        // What is in the environment is of others.
        let command = command.mut_args(|arg| arg.env(None::<&str>));
        let parsed = command.try_get_matches_from(line);
        let parsed = parsed.and_then(|matches| Self::from_arg_matches(&matches));
        let flags = parsed.map_err(|error| anyhow::anyhow!(in_a_line(&error)))?;
        let settings = flags.over(&Settings::default())?;
        settings.ranges()?;
        settings.runtimes()?;
        Ok(())
    }

    /// These flags, and for those not given what `base` has.
    pub(crate) fn over(&self, base: &Settings) -> anyhow::Result<Settings> {
        let Self {
            nodes,
            cluster_cidr,
            node_cidr_mask_size,
            node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6,
            service_cluster_ip_range,
            compat,
            cidr_allocator_type,
            cloud_endpoint,
            release_delay,
            release_after,
            network,
            ip_policy,
            cni_template,
            cni_bin_dir,
            cri_endpoint,
            nodes_per_process,
            extra_config,
            listen,
            trace: TraceConfig { otlp_endpoint },
        } = self;
        // The mask of one family and the common one exclude each other, so a given one displaces what was kept of the other kind.
        let any = node_cidr_mask_size.is_some();
        let each = node_cidr_mask_size_ipv4.is_some() || node_cidr_mask_size_ipv6.is_some();
        let kept = |mask: Option<u8>, displaced: bool| mask.filter(|_| !displaced);
        let cni_bin_dir = match cni_bin_dir {
            Some(dirs) => Some(absolute(dirs)?),
            None => base.cni_bin_dir.clone(),
        };
        Ok(Settings {
            nodes: nodes.unwrap_or(base.nodes),
            cluster_cidr: cluster_cidr.as_ref().unwrap_or(&base.cluster_cidr).clone(),
            node_cidr_mask_size: node_cidr_mask_size.or(kept(base.node_cidr_mask_size, each)),
            node_cidr_mask_size_ipv4: node_cidr_mask_size_ipv4
                .or(kept(base.node_cidr_mask_size_ipv4, any)),
            node_cidr_mask_size_ipv6: node_cidr_mask_size_ipv6
                .or(kept(base.node_cidr_mask_size_ipv6, any)),
            service_cluster_ip_range: service_cluster_ip_range
                .as_ref()
                .unwrap_or(&base.service_cluster_ip_range)
                .clone(),
            compat: compat.unwrap_or(base.compat),
            cidr_allocator_type: cidr_allocator_type.unwrap_or(base.cidr_allocator_type),
            cloud_endpoint: cloud_endpoint
                .as_ref()
                .map(ToString::to_string)
                .or_else(|| base.cloud_endpoint.clone()),
            release_delay: release_delay
                .as_ref()
                .map(ToString::to_string)
                .or_else(|| base.release_delay.clone()),
            release_after: release_after
                .as_ref()
                .map(ToString::to_string)
                .or_else(|| base.release_after.clone()),
            network: network.unwrap_or(base.network),
            ip_policy: ip_policy.unwrap_or(base.ip_policy),
            cni_template: cni_template.unwrap_or(base.cni_template),
            cni_bin_dir,
            cri_endpoint: cri_endpoint.clone().or_else(|| base.cri_endpoint.clone()),
            nodes_per_process: nodes_per_process.unwrap_or(base.nodes_per_process),
            extra_config: base.extra_config.with(extra_config),
            listen: listen
                .as_ref()
                .map_or_else(|| base.listen.clone(), ToString::to_string),
            otlp_endpoint: otlp_endpoint.clone().or_else(|| base.otlp_endpoint.clone()),
        })
    }
}

impl Settings {
    /// Checks what can be checked before anything starts: the ranges, with the words of the controller that uses them.
    pub(crate) fn ranges(&self) -> Result<RangeConfig, UsageError> {
        let flags = RangeFlags {
            cluster_cidr: self.cluster_cidr.clone(),
            node_cidr_mask_size: self.node_cidr_mask_size,
            node_cidr_mask_size_ipv4: self.node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6: self.node_cidr_mask_size_ipv6,
            service_cluster_ip_range: self.service_cluster_ip_range.clone(),
        };
        let config = flags
            .validate()
            .map_err(|error| UsageError(error.to_string()))?;
        // The API server takes the same flag, and less of it than the controller.
        self.service_cluster_ip_range
            .parse::<ServiceRanges>()
            .map_err(|error| UsageError(error.to_string()))?;
        if self.cidr_allocator_type == AllocatorType::CloudAllocator
            && self.cloud_endpoint.is_none()
        {
            return Err(UsageError(RunError::NoCloud.to_string()));
        }
        if config.max_nodes() == 0 {
            return Err(UsageError(format!(
                "--service-cluster-ip-range {} leaves no block of --cluster-cidr {} for a node",
                self.service_cluster_ip_range, self.cluster_cidr
            )));
        }
        Ok(config)
    }

    /// Checks what `--cri-endpoint` says, and how it goes with the rest.
    pub(crate) fn runtimes(&self) -> Result<(), UsageError> {
        let Some(endpoint) = &self.cri_endpoint else {
            return Ok(());
        };
        endpoint
            .replace("{node}", "node-0")
            .parse::<Endpoint>()
            .map_err(|error| UsageError(format!("--cri-endpoint: {error}")))?;
        if self.nodes > 1 && !endpoint.contains("{node}") {
            return Err(UsageError(format!(
                "--cri-endpoint {endpoint} is one runtime for {} nodes: put {{node}} into it, or take --nodes 1",
                self.nodes
            )));
        }
        if self.network == Network::Kernel {
            return Err(UsageError(
                "--network kernel makes the nodes' networks for CRI servers of `up`; the runtime of --cri-endpoint has its own: take --network ledger".into(),
            ));
        }
        Ok(())
    }

    /// The directories of the CNI plugins, as `CNI_PATH` has them; absent where the runtime is others'. They must have those that the templates name.
    pub(crate) fn plugins(&self) -> anyhow::Result<Option<PathBuf>> {
        if self.cri_endpoint.is_some() {
            return Ok(None);
        }
        let dirs = match &self.cni_bin_dir {
            Some(dirs) => dirs.clone(),
            None => env::current_exe()
                .context("find the program's own file")?
                .parent()
                .map(Path::to_owned)
                .unwrap_or_default(),
        };
        let has = |plugin: &&str| env::split_paths(&dirs).any(|dir| dir.join(plugin).is_file());
        let missing: Vec<_> = PLUGINS.into_iter().filter(|plugin| !has(plugin)).collect();
        anyhow::ensure!(
            missing.is_empty(),
            "no CNI plugin {} in {}: run `cargo xtask build`, or name another directory with --cni-bin-dir",
            missing.join(", "),
            dirs.display()
        );
        Ok(Some(dirs))
    }

    /// What these settings, in which everything not given is taken from `running`, say otherwise.
    pub(crate) fn differences(&self, running: &Self) -> Vec<Difference> {
        let pairs = self.values().into_iter().zip(running.values());
        pairs
            .filter(|((_, given), (_, running))| given != running)
            .map(|((flag, given), (_, running))| Difference {
                flag,
                running,
                given,
            })
            .collect()
    }

    /// Each flag with what it comes to, so that a default and the same value given are equal.
    fn values(&self) -> [(&'static str, String); 20] {
        let ranges = self.ranges().ok();
        let mask = |v6: bool, given: Option<u8>| {
            let ranges = ranges.as_ref().map_or(&[][..], |config| &config.ranges);
            let effective = ranges
                .iter()
                .find(|range| range.cidr().addr().is_ipv6() == v6);
            let mask = effective.map(|range| range.node_mask()).or(given);
            mask.map_or_else(|| "none".into(), |mask| mask.to_string())
        };
        let common = self.node_cidr_mask_size.filter(|_| ranges.is_none());
        [
            ("--nodes", self.nodes.to_string()),
            ("--cluster-cidr", canonical(&self.cluster_cidr)),
            (
                "--node-cidr-mask-size",
                common.map_or_else(String::new, |mask| mask.to_string()),
            ),
            (
                "--node-cidr-mask-size (IPv4)",
                mask(false, self.node_cidr_mask_size_ipv4),
            ),
            (
                "--node-cidr-mask-size (IPv6)",
                mask(true, self.node_cidr_mask_size_ipv6),
            ),
            (
                "--service-cluster-ip-range",
                canonical(&self.service_cluster_ip_range),
            ),
            ("--compat", self.compat.to_string()),
            (
                "--cidr-allocator-type",
                self.cidr_allocator_type.to_string(),
            ),
            (
                "--cloud-endpoint",
                self.cloud_endpoint.clone().unwrap_or_else(|| "none".into()),
            ),
            (
                "--release-delay",
                self.release_delay.clone().unwrap_or_else(|| "0s".into()),
            ),
            (
                "--release-after",
                self.release_after.clone().unwrap_or_else(|| "0s".into()),
            ),
            ("--network", name_of(&self.network)),
            ("--ip-policy", name_of(&self.ip_policy)),
            ("--cni-template", name_of(&self.cni_template)),
            (
                "--cni-bin-dir",
                self.cni_bin_dir
                    .as_ref()
                    .map_or_else(|| "beside podplane".into(), |dir| dir.display().to_string()),
            ),
            (
                "--cri-endpoint",
                self.cri_endpoint.clone().unwrap_or_else(|| "none".into()),
            ),
            ("--nodes-per-process", self.nodes_per_process.to_string()),
            ("--extra-config", self.extra_config.to_string()),
            ("--listen", self.listen.clone()),
            (
                "--otlp-endpoint",
                self.otlp_endpoint.clone().unwrap_or_else(|| "none".into()),
            ),
        ]
    }
}

fn release_after(text: &str) -> Result<humantime::Duration, String> {
    podplane_apiserver::release_after(text).map(Into::into)
}

/// The same directories, wherever one is.
fn absolute(dirs: &OsStr) -> anyhow::Result<PathBuf> {
    let each: io::Result<Vec<_>> = env::split_paths(dirs).map(std::path::absolute).collect();
    let each = each.context("find the current directory")?;
    Ok(env::join_paths(each)?.into())
}

/// A list of ranges without host bits; as it is where it is none.
fn canonical(list: &str) -> String {
    let each: Vec<_> = list
        .split(',')
        .map(|text| match text.trim().parse::<ipnet::IpNet>() {
            Ok(net) => net.trunc().to_string(),
            Err(_) => text.to_owned(),
        })
        .collect();
    each.join(",")
}

/// The name of a flag's value on the command line.
pub(crate) fn name_of(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Values of flags that belong to other crates, by their names on the command line.
mod by_name {
    use clap::ValueEnum;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<T: ValueEnum, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::name_of(value))
    }

    pub(super) fn deserialize<'de, T: ValueEnum, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        T::from_str(&String::deserialize(from)?, false).map_err(D::Error::custom)
    }
}

/// Values that are written and read back as text.
mod as_text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// Reads a JSON file of the data directory; absent if there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    let text = match trust::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(line: &str) -> Flags {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: Flags,
        }
        let words = std::iter::once("up").chain(line.split_whitespace());
        <Line as clap::Parser>::try_parse_from(words).unwrap().flags
    }

    fn differing(running: &str, given: &str) -> Vec<&'static str> {
        let running = flags(running).over(&Settings::default()).unwrap();
        let given = flags(given).over(&running).unwrap();
        given
            .differences(&running)
            .into_iter()
            .map(|difference| difference.flag)
            .collect()
    }

    #[test]
    fn flags_that_are_not_given_agree() {
        assert!(differing("--nodes 5 --cluster-cidr 10.0.0.0/8 --network ledger", "").is_empty());
    }

    #[test]
    fn a_default_agrees_with_the_same_value_given() {
        let given = "--nodes 3 --nodes-per-process 500 --node-cidr-mask-size 24 --cluster-cidr 10.244.1.0/16 --ip-policy resource";
        assert!(differing("", given).is_empty());
        assert!(differing("", "--node-cidr-mask-size-ipv4 24").is_empty());
        assert!(differing("", "--release-delay 0s").is_empty());
        assert!(differing("", "--release-after 0s").is_empty());
        assert!(differing("--release-delay 60s", "--release-delay 1m").is_empty());
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        assert_eq!(
            differing("", "--nodes 4 --listen 127.0.0.1:9"),
            ["--nodes", "--listen"]
        );
        let running = Settings::default();
        let given = flags("--node-cidr-mask-size 26").over(&running).unwrap();
        let want = Difference {
            flag: "--node-cidr-mask-size (IPv4)",
            running: "24".into(),
            given: "26".into(),
        };
        assert_eq!(given.differences(&running), [want]);
    }

    #[test]
    fn a_given_mask_displaces_one_of_the_other_kind() {
        let base = flags("--node-cidr-mask-size 26")
            .over(&Settings::default())
            .unwrap();
        let dual = "--cluster-cidr 10.0.0.0/16,fd00::/56 --node-cidr-mask-size-ipv4 25";
        let dual = flags(dual).over(&base).unwrap();
        let masks: Vec<_> = dual
            .ranges()
            .unwrap()
            .ranges
            .iter()
            .map(|range| range.node_mask())
            .collect();
        assert_eq!(masks, [25, 64]);
    }

    #[test]
    fn impossible_ranges_are_refused() {
        let refused = |line: &str| {
            flags(line)
                .over(&Settings::default())
                .unwrap()
                .ranges()
                .unwrap_err()
                .to_string()
        };
        assert!(
            refused("--node-cidr-mask-size 8")
                .contains("must be less than or equal to --node-cidr-mask-size")
        );
        let error = refused("--service-cluster-ip-range 10.0.0.0/8");
        assert!(
            error.contains("leaves no block of --cluster-cidr 10.244.0.0/16"),
            "{error}"
        );
    }

    #[test]
    fn a_runtime_of_others_is_one_for_each_node() {
        let refused = |line: &str| {
            let settings = flags(line).over(&Settings::default()).unwrap();
            settings.runtimes().map_err(|error| error.to_string())
        };
        assert_eq!(refused(""), Ok(()));
        assert_eq!(refused("--cri-endpoint unix:/run/{node}.sock"), Ok(()));
        let one = "--cri-endpoint unix:/run/cri.sock";
        assert_eq!(refused(&format!("{one} --nodes 1")), Ok(()));
        assert!(refused(one).unwrap_err().contains("put {node} into it"));
        assert!(refused("--cri-endpoint cri.sock").is_err());
        assert!(refused(&format!("{one} --nodes 1 --network kernel")).is_err());
    }

    #[test]
    fn settings_read_back() {
        let settings = flags("--ip-policy pod-cidr --cni-template kubenet --network kernel --extra-config kubelet.max-pods=3")
            .over(&Settings::default())
            .unwrap();
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(r#""ipPolicy":"pod-cidr""#), "{text}");
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }
}

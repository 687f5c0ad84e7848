//! The settings of a cluster: the flags of `up` with their defaults, checked before anything starts
//! and kept in the data directory.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use clap::ValueEnum;
use podplane_api::{node::NetworkBackend, pod_ips::PodIpResource};
use podplane_client::Endpoint;
use podplane_host::fs;
use podplane_ipam::{
    AllocatorType, Compat, IpPolicy, NO_CLOUD, ServiceRanges,
    cluster::{RangeConfig, RangeFlags},
};
use podplane_pki::owner;
use podplane_service_runtime::trace::SamplingRatio;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{extra::ExtraConfig, services::CLIENTS};

/// The CNI plugins that the templates name.
const PLUGINS: [&str; 2] = ["bridge", "host-local"];

/// The maximum number of nodes with devices: a bridge takes 1,024 ports, and the fabric has one for
/// each node.
pub const MAX_KERNEL_NODES: usize = 1_000;

/// The network mode: pods with devices or without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// kernel if permitted here, else ledger; for `node add`: as in the cluster
    #[default]
    Auto,
    /// Network namespaces, interfaces and routes
    Kernel,
    /// Addresses only: no interfaces, no privileges
    Ledger,
}

impl Network {
    /// Its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Ledger => "ledger",
        }
    }
}

/// The flags with defaults filled in, as kept while the cluster is down.
///
/// Flags that services interpret are in `extra_config`. In JSON the oldest of them have fields of
/// their own (`STORED_FLAGS`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self", rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    pub nodes: u32,
    pub cluster_cidr: String,
    pub node_cidr_mask_size: Option<u8>,
    pub node_cidr_mask_size_ipv4: Option<u8>,
    pub node_cidr_mask_size_ipv6: Option<u8>,
    pub service_cluster_ip_range: String,
    #[serde(default, with = "as_text")]
    pub compat: Compat,
    #[serde(default, with = "as_text")]
    pub cidr_allocator_type: AllocatorType,
    pub network: Network,
    /// The backend of nodes that have none of their own.
    #[serde(default)]
    pub node_network_backend: NetworkBackend,
    #[serde(with = "by_name")]
    pub ip_policy: IpPolicy,
    #[serde(default, with = "as_text", skip_serializing_if = "is_default")]
    pub pod_ip_resource: PodIpResource,
    /// `None`: beside the program, wherever that is next time.
    pub cni_bin_dir: Option<PathBuf>,
    /// `None`: `up` starts CRI servers.
    pub cri_endpoint: Option<String>,
    #[serde(default = "nodes_per_process")]
    pub nodes_per_process: u32,
    /// True to run two of each service that elects a leader.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
    #[serde(default)]
    pub extra_config: ExtraConfig,
    pub listen: String,
    pub otlp_endpoint: Option<String>,
    #[serde(default, with = "as_text", skip_serializing_if = "is_default")]
    pub trace_sampling_ratio: SamplingRatio,
}

/// The default number of nodes without devices that one CRI process and one kubelet serve.
fn nodes_per_process() -> u32 {
    2500
}

/// The fields of the stored settings that are flags of services: field, service, flag, and the
/// value that programs require which know the field alone.
const STORED_FLAGS: [(&str, &str, &str, Option<&str>); 4] = [
    ("cloudEndpoint", "ipam-controller", "cloud-endpoint", None),
    ("releaseDelay", "ipam-controller", "release-delay", None),
    ("releaseAfter", "apiserver", "release-after", None),
    ("cniTemplate", "cri", "cni-template", Some("containerd")),
];

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut settings = self.clone();
        let moved = STORED_FLAGS.map(|(field, service, flag, required)| {
            let value = settings.extra_config.remove(service, flag);
            (field, value.or(required.map(Into::into)))
        });
        let mut stored = Self::serialize(&settings, serde_json::value::Serializer)
            .map_err(serde::ser::Error::custom)?;
        for (field, value) in moved {
            stored[field] = value.into();
        }
        stored.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut stored = serde_json::Map::deserialize(from)?;
        let moved = STORED_FLAGS.map(|(field, service, flag, required)| {
            let value = stored.remove(field);
            let text = value.as_ref().and_then(serde_json::Value::as_str);
            let text = text.filter(|text| Some(*text) != required);
            (service, flag, text.map(str::to_owned))
        });
        let mut settings = Self::deserialize(serde_json::Value::Object(stored))
            .map_err(serde::de::Error::custom)?;
        for (service, flag, value) in moved {
            let value = value.filter(|_| settings.extra_config.get(service, flag).is_none());
            if let Some(value) = value {
                settings.extra_config.set(service, flag, value);
            }
        }
        Ok(settings)
    }
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
            network: Network::default(),
            node_network_backend: NetworkBackend::default(),
            ip_policy: IpPolicy::default(),
            pod_ip_resource: PodIpResource::default(),
            cni_bin_dir: None,
            cri_endpoint: None,
            nodes_per_process: nodes_per_process(),
            standby: false,
            extra_config: ExtraConfig::default(),
            listen: "127.0.0.1:0".into(),
            otlp_endpoint: None,
            trace_sampling_ratio: SamplingRatio::default(),
        }
    }
}

/// Settings that cannot be carried out as they stand.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// The text about a node, a service or a block that does not exist, with the `remedy`. Objects of
/// the API server have its own text, as kubectl prints it.
#[must_use]
pub fn not_found(what: &str, name: &str, remedy: &str) -> String {
    format!("{what} `{name}` not found: {remedy}")
}

/// The text about a node that the cluster does not run.
#[must_use]
pub fn node_not_found(name: &str) -> String {
    not_found(
        "node",
        name,
        "`podplane status` shows the nodes of the cluster",
    )
}

/// The text about a service that the cluster does not have.
#[must_use]
pub fn service_not_found(name: &str) -> String {
    not_found(
        "service",
        name,
        "`podplane status` shows the services of the cluster",
    )
}

/// A flag that differs from the running cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagDifference {
    pub flag: String,
    pub running: String,
    pub given: String,
}

impl Settings {
    /// Checks the ranges before anything starts, by the rules of the controller that uses them.
    pub fn ranges(&self) -> Result<RangeConfig, UsageError> {
        let flags = RangeFlags {
            cluster_cidr: self.cluster_cidr.clone(),
            node_cidr_mask_size: self.node_cidr_mask_size,
            node_cidr_mask_size_ipv4: self.node_cidr_mask_size_ipv4,
            node_cidr_mask_size_ipv6: self.node_cidr_mask_size_ipv6,
            service_cluster_ip_range: self.service_cluster_ip_range.clone(),
        };
        let config = flags
            .validate()
            .map_err(|error| UsageError(flags.refusal(&error)))?;
        // The API server takes the same flag, and accepts less than the controller.
        self.service_cluster_ip_range
            .parse::<ServiceRanges>()
            .map_err(|error| UsageError(error.to_string()))?;
        if self.cidr_allocator_type == AllocatorType::CloudAllocator
            && self
                .extra_config
                .get("ipam-controller", "cloud-endpoint")
                .is_none()
        {
            return Err(UsageError(NO_CLOUD.into()));
        }
        if config.max_nodes() == 0 {
            return Err(UsageError(format!(
                "--service-cluster-ip-range {} leaves no block of --cluster-cidr {} for a node",
                self.service_cluster_ip_range, self.cluster_cidr
            )));
        }
        Ok(config)
    }

    /// Checks `--containers` and `--cri-endpoint`, alone and with the other flags.
    pub fn runtimes(&self) -> Result<(), UsageError> {
        if self.extra_config.get("cri", "containers") == Some("process") {
            self.processes()?;
        }
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

    /// Checks that containers can have processes, and that not everybody may start some.
    fn processes(&self) -> Result<(), UsageError> {
        if !self.is_authenticated() {
            return Err(UsageError(
                "--containers process is refused with --authentication none, where everybody may run programs on this machine: choose --authentication credentials".into(),
            ));
        }
        match self.network {
            Network::Auto | Network::Kernel => Ok(()),
            Network::Ledger => Err(UsageError(
                "--containers process needs --network kernel: in ledger mode pods have no network namespace to run a process in".into(),
            )),
        }
    }

    /// Returns true if the processes know each other by certificates: unless authentication is off,
    /// or the API server has no port.
    pub fn has_certificates(&self) -> bool {
        self.is_authenticated() && !self.listen.starts_with("unix:")
    }

    /// Returns true unless everyone may do everything.
    pub fn is_authenticated(&self) -> bool {
        self.extra_config.get("apiserver", "authentication") != Some("none")
    }

    /// The life of the certificates of processes and nodes, which is that of the API server's.
    pub fn certificate_lifetime(&self) -> Result<Duration, UsageError> {
        let flag = "certificate-lifetime";
        match self.extra_config.get("apiserver", flag) {
            Some(text) => owner::renewed_lifetime(text)
                .map_err(|error| UsageError(format!("--{flag}: {error}"))),
            None => Ok(owner::LIFETIME),
        }
    }

    /// Checks `--standby` with the flags of services.
    pub fn standbys(&self) -> Result<(), UsageError> {
        let leads_always =
            |service: &&str| self.extra_config.get(service, "leader-elect") == Some("false");
        let service = CLIENTS.into_iter().find(leads_always);
        match service.filter(|_| self.standby) {
            None => Ok(()),
            Some(service) => Err(UsageError(format!(
                "--standby runs two of {service}, which would both work with --extra-config {service}.leader-elect=false: give {service}.leader-elect-, or --standby=false"
            ))),
        }
    }

    /// The directories of the CNI plugins, in the form of `CNI_PATH`; `None` if the runtime belongs
    /// to others. They must contain the plugins that the templates name.
    pub fn plugins(&self) -> anyhow::Result<Option<PathBuf>> {
        if self.cri_endpoint.is_some() {
            return Ok(None);
        }
        let dirs = match &self.cni_bin_dir {
            Some(dirs) => dirs.clone(),
            None => env::current_exe()
                .context("failed to find the program's own file")?
                .parent()
                .map(Path::to_owned)
                .unwrap_or_default(),
        };
        let has = |plugin: &&str| env::split_paths(&dirs).any(|dir| fs::is_file(dir.join(plugin)));
        let missing: Vec<_> = PLUGINS.into_iter().filter(|plugin| !has(plugin)).collect();
        anyhow::ensure!(
            missing.is_empty(),
            "no CNI plugin {} in {}: run `cargo xtask build`, or name another directory with --cni-bin-dir",
            missing.join(", "),
            dirs.display()
        );
        Ok(Some(dirs))
    }

    /// The differences from `running`. Flags that were not given must have been taken from it.
    pub fn differences(&self, running: &Self) -> Vec<FlagDifference> {
        let pairs = self.values().into_iter().zip(running.values());
        pairs
            .filter(|((_, given), (_, running))| given != running)
            .map(|((flag, given), (_, running))| FlagDifference {
                flag: flag.into(),
                running,
                given,
            })
            .collect()
    }

    /// Each flag with its effective value, so that a default and the same value given are equal.
    fn values(&self) -> [(&'static str, String); 19] {
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
            ("--network", self.network.as_str().into()),
            (
                "--node-network-backend",
                name_of(&self.node_network_backend),
            ),
            ("--ip-policy", name_of(&self.ip_policy)),
            ("--pod-ip-resource", self.pod_ip_resource.to_string()),
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
            ("--standby", self.standby.to_string()),
            ("--listen", self.listen.clone()),
            (
                "--otlp-endpoint",
                self.otlp_endpoint.clone().unwrap_or_else(|| "none".into()),
            ),
            (
                "--trace-sampling-ratio",
                self.trace_sampling_ratio.to_string(),
            ),
        ]
    }
}

/// A list of ranges without host bits; other texts stay as they are.
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
pub fn name_of(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|value| value.get_name().to_owned())
        .unwrap_or_default()
}

/// Returns true for a default that is not stored, so that older programs read the settings.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Values of flags that belong to other crates, by their names on the command line.
mod by_name {
    use clap::ValueEnum;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<T: ValueEnum, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::name_of(value))
    }

    pub(crate) fn deserialize<'de, T: ValueEnum, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        T::from_str(&String::deserialize(from)?, false).map_err(D::Error::custom)
    }
}

/// Values that are written and read back as text.
mod as_text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(crate) fn serialize<T: Display, S: Serializer>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::flags::tests::flags;

    fn differing(running: &str, given: &str) -> Vec<String> {
        let running = flags(running).over(&Settings::default()).unwrap();
        let given = flags(given).over(&running).unwrap();
        given
            .differences(&running)
            .into_iter()
            .map(|difference| difference.flag)
            .collect()
    }

    #[test]
    fn omitted_flags_do_not_differ() {
        assert!(differing("--nodes 5 --cluster-cidr 10.0.0.0/8 --network ledger", "").is_empty());
    }

    #[test]
    fn a_default_agrees_with_the_same_value_given() {
        let given = "--nodes 3 --nodes-per-process 2500 --node-cidr-mask-size 24 --cluster-cidr 10.244.1.0/16 --ip-policy resource";
        assert!(differing("", given).is_empty());
        assert!(differing("", "--node-cidr-mask-size-ipv4 24").is_empty());
    }

    #[test]
    fn names_differing_flags_with_both_values() {
        assert_eq!(
            differing("", "--nodes 4 --listen 127.0.0.1:9"),
            ["--nodes", "--listen"]
        );
        let running = Settings::default();
        let given = flags("--node-cidr-mask-size 26").over(&running).unwrap();
        let want = FlagDifference {
            flag: "--node-cidr-mask-size (IPv4)".into(),
            running: "24".into(),
            given: "26".into(),
        };
        assert_eq!(given.differences(&running), [want]);
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
    fn each_node_needs_its_own_external_runtime() {
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
    fn processes_need_authentication_and_namespaces() {
        let refused = |line: &str| {
            let line = format!("--extra-config cri.containers=process {line}");
            let settings = flags(&line).over(&Settings::default()).unwrap();
            settings.runtimes().map_err(|error| error.to_string())
        };
        assert_eq!(refused(""), Ok(()));
        assert_eq!(refused("--network kernel"), Ok(()));
        let ledger = refused("--network ledger").unwrap_err();
        assert!(ledger.contains("needs --network kernel"), "{ledger}");
        let open = refused("--extra-config apiserver.authentication=none").unwrap_err();
        assert!(open.contains("--authentication credentials"), "{open}");
    }

    #[test]
    fn standbys_need_an_election() {
        let refused = |line: &str| {
            let settings = flags(line).over(&Settings::default()).unwrap();
            settings.standbys().map_err(|error| error.to_string())
        };
        let alone = "--extra-config scheduler.leader-elect=false";
        assert_eq!(refused("--standby"), Ok(()));
        assert_eq!(refused(alone), Ok(()));
        let error = refused(&format!("{alone} --standby")).unwrap_err();
        assert!(
            error.starts_with("--standby runs two of scheduler"),
            "{error}"
        );
        assert_eq!(refused(&format!("{alone} --standby=false")), Ok(()));
    }

    #[test]
    fn settings_round_trip() {
        let mut settings = flags(
            "--ip-policy pod-cidr --network kernel --standby --extra-config kubelet.max-pods=3",
        )
        .over(&Settings::default())
        .unwrap();
        settings
            .extra_config
            .set("cri", "cni-template", "kubenet".into());
        let text = serde_json::to_string(&settings).unwrap();
        assert!(text.contains(r#""ipPolicy":"pod-cidr""#), "{text}");
        assert_eq!(serde_json::from_str::<Settings>(&text).unwrap(), settings);
    }

    /// As a program writes them that knows no flags of services but these four and `extraConfig`.
    #[test]
    fn stores_service_flags_where_earlier_versions_expect_them() {
        let mut earlier = json!({
            "nodes": 2, "clusterCidr": "10.244.0.0/16", "nodeCidrMaskSize": null,
            "nodeCidrMaskSizeIpv4": null, "nodeCidrMaskSizeIpv6": null,
            "serviceClusterIpRange": "10.96.0.0/16", "compat": "none",
            "cidrAllocatorType": "CloudAllocator", "cloudEndpoint": "unix:/cloud.sock",
            "releaseDelay": "1m", "releaseAfter": null, "network": "auto",
            "nodeNetworkBackend": "host-gw", "ipPolicy": "resource", "cniTemplate": "containerd",
            "cniBinDir": null, "criEndpoint": null, "nodesPerProcess": 2500,
            "extraConfig": {"kubelet": {"max-pods": "3"}}, "listen": "127.0.0.1:0",
            "otlpEndpoint": null
        });
        let read: Settings = serde_json::from_value(earlier.clone()).unwrap();
        assert_eq!(
            read.extra_config.to_string(),
            "ipam-controller.cloud-endpoint=unix:/cloud.sock, ipam-controller.release-delay=1m, kubelet.max-pods=3"
        );
        assert_eq!(serde_json::to_value(&read).unwrap(), earlier);
        // What was given by its name as well had the last word.
        earlier["extraConfig"]["ipam-controller"] = json!({"release-delay": "2m"});
        let read: Settings = serde_json::from_value(earlier).unwrap();
        let delay = read.extra_config.get("ipam-controller", "release-delay");
        assert_eq!(delay, Some("2m"));
    }
}

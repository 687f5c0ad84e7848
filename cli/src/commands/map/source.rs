//! The sources of a map: an API server, any cluster, a dump, or a moment of a recording.
//!
//! [`MapSource::read`] reads all facts anew, as often as it is called.

pub(crate) mod dump;
mod live;
mod recording;

use std::path::PathBuf;

use ipnet::IpNet;
use podplane_ipam::cidr_of_flag;
use podplane_map::{Network, NetworkRole, SpaceParts};

use crate::{
    any_cluster::{ANY_CLUSTER, AnyClusterFlags},
    global::GlobalOptions,
    report::{self, UsageError},
};

/// The flags that name the source of a map.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct SourceArgs {
    /// Show these dumps of `kubectl get nodes,pods,services -A` as JSON or YAML, gzipped or not; -
    /// for standard input; may be repeated
    #[arg(long, value_name = "DUMP", conflicts_with = ANY_CLUSTER)]
    from: Vec<PathBuf>,

    #[command(flatten)]
    cluster: AnyClusterFlags,

    /// Show a moment of this recording: a recording.jsonl, or the directory with one, as kept by
    /// `podplane test --output`
    #[arg(long, value_name = "DIR|FILE", conflicts_with_all = ["from", ANY_CLUSTER])]
    recording: Option<PathBuf>,

    /// Show the recording as it was SECONDS after its beginning, such as 12.5 [default: its end]
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "recording",
        value_parser = seconds,
        allow_negative_numbers = true
    )]
    at: Option<f64>,

    /// Show this range as the network of pods; for dual stack one IPv4 and one IPv6 range [default:
    /// that of the cluster's flags and objects, else the smallest range around all blocks]
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',', value_parser = cidr_of_flag)]
    cluster_cidr: Vec<IpNet>,

    /// Show this service range; for dual stack one IPv4 and one IPv6 range [default: that of the
    /// cluster's objects, else the smallest range around the addresses of Services]
    #[arg(
        long,
        visible_alias = "service-cluster-ip-range",
        value_name = "CIDR[,CIDR]",
        value_delimiter = ',',
        value_parser = cidr_of_flag
    )]
    service_cidr: Vec<IpNet>,
}

impl SourceArgs {
    /// Returns true if standard input is the dump, or one of them.
    pub(super) fn reads_standard_input(&self) -> bool {
        self.from.iter().any(|file| file.as_os_str() == "-")
    }

    /// The flags that name a cluster of any kind.
    pub(super) fn cluster(&self) -> AnyClusterFlags {
        self.cluster.clone()
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds.is_finite() && seconds >= 0.0 => Ok(seconds),
        _ => Err("want a number of seconds from 0, such as 12.5".into()),
    }
}

/// A source of the facts of a map.
#[derive(Clone, Debug)]
pub(crate) struct MapSource {
    kind: SourceKind,
    ranges: StatedRanges,
}

#[derive(Clone, Debug)]
enum SourceKind {
    Dump(Vec<PathBuf>),
    AnyCluster(AnyClusterFlags),
    Recording { path: PathBuf, at: Option<f64> },
    Server(Box<GlobalOptions>),
}

/// The ranges that flags state.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatedRanges {
    pub(crate) pods: Vec<IpNet>,
    pub(crate) services: Vec<IpNet>,
}

impl StatedRanges {
    /// Adds the networks of the flags. Those of pods replace inferred ones.
    pub(crate) fn add_to(&self, parts: &mut SpaceParts) -> Result<(), UsageError> {
        self.add_named(parts, "--cluster-cidr", "--service-cidr")
    }

    /// Adds the networks with names for those of pods and those of services, which say where the
    /// ranges are from.
    pub(crate) fn add_named(
        &self,
        parts: &mut SpaceParts,
        of_pods: &str,
        of_services: &str,
    ) -> Result<(), UsageError> {
        let pods = self.pods.iter();
        let pods = pods.map(|cidr| (NetworkRole::Pods, *cidr, of_pods));
        let services = self.services.iter();
        let services = services.map(|cidr| (NetworkRole::Services, *cidr, of_services));
        for (role, cidr, name) in pods.chain(services) {
            let is_known = |network: &Network| network.role() == role && network.cidr() == cidr;
            if !parts.networks.iter().any(is_known) {
                let network = Network::new(role, cidr, name);
                let network = network.map_err(|error| UsageError(error.to_string()))?;
                parts.networks.push(network);
            }
        }
        Ok(())
    }
}

impl MapSource {
    /// The source that the flags name; by default the API server.
    pub(crate) fn new(args: &SourceArgs, global: &GlobalOptions) -> Self {
        let kind = match &args.recording {
            Some(path) => SourceKind::Recording {
                path: path.clone(),
                at: args.at,
            },
            None if !args.from.is_empty() => SourceKind::Dump(args.from.clone()),
            None if args.cluster.is_given() => SourceKind::AnyCluster(args.cluster.clone()),
            None => SourceKind::Server(Box::new(global.clone())),
        };
        let ranges = StatedRanges {
            pods: without_host_bits(&args.cluster_cidr),
            services: without_host_bits(&args.service_cidr),
        };
        Self { kind, ranges }
    }

    /// The name of a source that does not change, such as a dump.
    pub(super) fn fixed_name(&self) -> Option<String> {
        match &self.kind {
            SourceKind::Dump(files) => {
                let names: Vec<_> = files
                    .iter()
                    .map(|file| file.display().to_string())
                    .collect();
                Some(names.join(" "))
            }
            SourceKind::Recording { path, at: None } => Some(path.display().to_string()),
            SourceKind::Recording { path, at: Some(at) } => {
                Some(format!("{} at {at} s", path.display()))
            }
            SourceKind::AnyCluster(_) | SourceKind::Server(_) => None,
        }
    }

    /// The ranges that flags state.
    pub(super) const fn ranges(&self) -> &StatedRanges {
        &self.ranges
    }

    /// Reads the facts of this moment. To be called inside
    /// [`block_on`](crate::global::block_on).
    ///
    /// # Errors
    ///
    /// If the source cannot be read; an error of the server has its address.
    pub(crate) async fn read(&self) -> anyhow::Result<SpaceParts> {
        let Self { kind, ranges } = self;
        match kind {
            SourceKind::Dump(files) => dump::of_files(files, ranges),
            SourceKind::AnyCluster(flags) => live::of_any_cluster(flags, ranges).await,
            SourceKind::Recording { path, at } => recording::at(path, *at, ranges),
            SourceKind::Server(global) => live::of_server(global, ranges)
                .await
                .map_err(|error| global.locate(error)),
        }
    }
}

/// The ranges of a flag without host bits, with a note for each that has some.
fn without_host_bits(ranges: &[IpNet]) -> Vec<IpNet> {
    for range in ranges {
        report::note_host_bits(&range.to_string());
    }
    ranges.iter().map(IpNet::trunc).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::parse_args;

    #[test]
    fn invalid_flags_name_what_is_wanted() {
        for (line, want) in [
            ("test --at 3", "--recording"),
            ("test --recording a --at=-1", "want a number of seconds"),
            ("test --recording a --at -1", "want a number of seconds"),
            ("test --recording a --at nan", "want a number of seconds"),
            ("test --from a --kubeconfig b", "cannot be used with"),
            ("test --from a --recording b", "cannot be used with"),
            ("test --service-cidr 10.0.0.0", "not a CIDR"),
        ] {
            let parsed = parse_args::<SourceArgs>(line.split(' '));
            let error = parsed.unwrap_err().to_string();
            assert!(error.contains(want), "{line}: {error}");
        }
        assert!(
            parse_args::<SourceArgs>("test --cluster-cidr 10.0.0.0/8,fd00::/48".split(' ')).is_ok()
        );
    }
}

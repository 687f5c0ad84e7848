//! `audit`: what is wrong with the addresses of a cluster, podplane's or anybody's.

mod forms;
mod junit;
mod repair;
mod sarif;
mod source;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ValueEnum, builder::PossibleValuesParser, builder::TypedValueParser as _};
use podplane_api::printable;
use podplane_audit::{Expected, Flags, IpamChoice, Keep, Repair, Report, Severity, audit};

use crate::{
    global::Global,
    output,
    report::{Unusable, UsageError},
};

/// The exit code of an audit that found nothing, and could not read everything that it needs.
const INCOMPLETE: u8 = 3;

/// Find duplicate, overlapping, foreign and missing node blocks, wrong pod addresses and nodes without a free one
///
/// Exits with 0 if there is no finding of at least --fail-on, with 1 if there is, with 2 if there
/// is nothing to audit, and with 3 if there is no such finding, but objects of the cluster's
/// network could not be read.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl get nodes,pods -A -o json | podplane audit - --cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24\n  podplane audit dump.yaml.gz --cluster-cidr 10.244.0.0/16 --service-cidr 10.96.0.0/12 -o json\n  podplane audit --kubeconfig ~/.kube/config --fail-on error\n  podplane audit"
)]
pub(crate) struct Args {
    /// What `kubectl get nodes,pods -A` printed as JSON or YAML, gzipped or not, in one file or several; - for standard input. Without it: podplane's own server
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    /// The cluster of this kubeconfig instead, which is only read. Without a value: of KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "files")]
    kubeconfig: Option<Option<PathBuf>>,

    /// Where the blocks of nodes come from: a range, or one for each address family
    #[arg(long, value_name = "CIDR[,CIDR]")]
    cluster_cidr: Option<String>,

    /// Length of a node's block, with ranges of one family. Default: what most nodes have
    #[arg(long, value_name = "LENGTH")]
    node_cidr_mask_size: Option<u8>,

    /// Length of a node's IPv4 block
    #[arg(long, value_name = "LENGTH")]
    node_cidr_mask_size_ipv4: Option<u8>,

    /// Length of a node's IPv6 block
    #[arg(long, value_name = "LENGTH")]
    node_cidr_mask_size_ipv6: Option<u8>,

    /// The range of services, or one for each address family
    #[arg(
        long,
        visible_alias = "service-cluster-ip-range",
        value_name = "CIDR[,CIDR]"
    )]
    service_cidr: Option<String>,

    /// Source of pods' addresses
    #[arg(long, value_enum, value_name = "IPAM", default_value = "auto")]
    ipam: IpamFlag,

    /// The form of the report
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    output: Form,

    /// Write manifests and a runbook that repair what --fail-on counts into this directory, which must be empty or not there
    #[arg(long, value_name = "DIR")]
    repair: Option<PathBuf>,

    /// Which findings make the command fail
    #[arg(long, value_name = "SEVERITY", default_value = "warning",
        value_parser = PossibleValuesParser::new(Severity::ALL.map(Severity::as_str)).try_map(|text| text.parse::<Severity>()))]
    fail_on: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IpamFlag {
    /// Find out from where the addresses of pods lie
    Auto,
    /// Blocks in spec.podCIDRs of nodes
    PodCidr,
    /// Anything else: apply no rule on blocks of nodes
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    Table,
    /// Findings and summary
    Json,
    /// SARIF 2.1.0, for code hosts
    Sarif,
    /// JUnit XML, for CI: a test case for each code
    Junit,
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let flags = Flags {
        cluster_cidr: args.cluster_cidr.clone(),
        node_cidr_mask_size: args.node_cidr_mask_size,
        node_cidr_mask_size_ipv4: args.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6: args.node_cidr_mask_size_ipv6,
        service_cidr: args.service_cidr.clone(),
        ipam: match args.ipam {
            IpamFlag::Auto => None,
            IpamFlag::PodCidr => Some(IpamChoice::PodCidr),
            IpamFlag::Own => Some(IpamChoice::Own),
        },
    };
    let keep = match &args.repair {
        Some(dir) => {
            repair::check(dir)?;
            Keep::Nodes
        }
        None => Keep::Fields,
    };
    let dump = source::read(&args, &flags, global, keep).map_err(Unusable)?;
    for note in dump.notes() {
        anstream::eprintln!("note: {}", printable::line(note));
    }
    let expected = Expected::new(&flags, &dump).map_err(|error| UsageError(error.to_string()))?;
    let report = audit(&dump, &expected);
    print(&args, &report)?;
    if let Some(dir) = &args.repair {
        let repair = Repair::new(&dump, &expected, &report, args.fail_on)
            .map_err(|error| UsageError(error.to_string()))?;
        repair::write(dir, &repair.files(&repair::command(&args)))?;
    }
    Ok(if report.is_at_least(args.fail_on) {
        ExitCode::FAILURE
    } else if report.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INCOMPLETE)
    })
}

fn print(args: &Args, report: &Report) -> anyhow::Result<()> {
    match args.output {
        Form::Table => forms::table(report),
        Form::Json => output::json(&serde_json::to_value(report)?),
        Form::Sarif => {
            let mut files = args.files.iter().filter(|file| *file != Path::new("-"));
            let file = files.next().map(|file| file.to_string_lossy());
            output::json(&sarif::log(report, file.as_deref()))
        }
        Form::Junit => output::bytes(junit::xml(report, args.fail_on)?.as_bytes()),
    }
}

//! `audit`: finds faults in the addresses of any cluster, podplane's or not.

mod forms;
mod history;
mod html;
mod junit;
mod metrics;
mod repair;
mod sarif;
pub(super) mod source;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ValueEnum, builder::PossibleValuesParser, builder::TypedValueParser as _};
use jiff::Timestamp;
use podplane_api::{pod_ips::PodIpResource, printable};
use podplane_audit::{
    AuditReport, ControllerFlags, DumpScope, ExpectedBlocks, IpamChoice, Repair, Severity, audit,
};
use podplane_ipam::{cidrs_of_flag, mask_size_of_flag};
use podplane_progress::{PlainLines, Progress};

use self::metrics::PushUrl;
use crate::{
    any_cluster::{ANY_CLUSTER, AnyClusterFlags},
    global::{GlobalOptions, block_on},
    output,
    report::{self, UnusableInput, UsageError},
};

/// The exit code of an audit without findings that could not read all of its input.
const INCOMPLETE: u8 = 3;

/// Find duplicate, overlapping, out-of-range and missing pod CIDRs, wrong pod addresses, and nodes
/// without free addresses
///
/// Exit codes: 0 no finding at or above --fail-on; 1 such findings, or metrics that could not be
/// sent; 2 nothing to audit; 3 incomplete: no such finding, but some objects of the cluster's
/// network, or revisions of its history, could not be read.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl get nodes,pods -A -o json | podplane audit - --cluster-cidr 10.244.0.0/16 --node-cidr-mask-size 24\n  podplane audit dump.yaml.gz --cluster-cidr 10.244.0.0/16 --service-cidr 10.96.0.0/12 -o json\n  podplane audit --kubeconfig ~/.kube/config --context prod --fail-on error\n  podplane audit\n  podplane audit --history\n  podplane audit dump.json --cluster-cidr 10.244.0.0/16 --html audit.html"
)]
pub(crate) struct AuditArgs {
    /// Audit these dumps of `kubectl get nodes,pods -A` as JSON or YAML, gzipped or not; - for
    /// standard input [default: the running podplane cluster]
    #[arg(value_name = "FILE", conflicts_with = ANY_CLUSTER)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    cluster: AnyClusterFlags,

    /// Audit every revision that the API server still has, in order: pods bound beyond the
    /// addresses of their node, pods bound twice, shared addresses, overlapping pod CIDRs
    #[arg(long, conflicts_with_all = ["files", "cluster_cidr", "node_cidr_mask_size", "node_cidr_mask_size_ipv4", "node_cidr_mask_size_ipv6", "service_cidr", "ipam", "repair"])]
    history: bool,

    /// Go on with each new revision until Ctrl-C, then print the summary; requires --history
    #[arg(long, requires = "history")]
    follow: bool,

    /// Report pod CIDRs of nodes outside of this range; for dual stack one IPv4 and one IPv6 range
    /// [default: that of podplane's own server, else not checked]
    #[arg(long, value_name = "CIDR[,CIDR]", value_parser = cidrs_of_flag)]
    cluster_cidr: Option<String>,

    /// Expect pod CIDRs of this prefix length in a single-stack cluster [default: that of most
    /// nodes]
    #[arg(long, value_name = "BITS", value_parser = mask_size_of_flag, allow_negative_numbers = true)]
    node_cidr_mask_size: Option<u8>,

    /// Expect IPv4 pod CIDRs of this prefix length [default: that of most nodes]
    #[arg(long, value_name = "BITS", value_parser = mask_size_of_flag, allow_negative_numbers = true)]
    node_cidr_mask_size_ipv4: Option<u8>,

    /// Expect IPv6 pod CIDRs of this prefix length [default: that of most nodes]
    #[arg(long, value_name = "BITS", value_parser = mask_size_of_flag, allow_negative_numbers = true)]
    node_cidr_mask_size_ipv6: Option<u8>,

    /// Report pod CIDRs of nodes that overlap this service range; for dual stack one IPv4 and one
    /// IPv6 range [default: that of podplane's own server, else not checked]
    #[arg(
        long,
        visible_alias = "service-cluster-ip-range",
        value_name = "CIDR[,CIDR]",
        value_parser = cidrs_of_flag
    )]
    service_cidr: Option<String>,

    /// Set the source of the pods' addresses
    #[arg(long, value_enum, value_name = "IPAM", default_value = "auto")]
    ipam: IpamFlag,

    /// Count this extended resource as the addresses of a node [default: the name that the node's
    /// kubelet reports, else podplane.io/pod-ips]
    #[arg(long, value_name = "NAME")]
    pod_ip_resource: Option<PodIpResource>,

    /// Print in this format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    output: AuditFormat,

    /// Write manifests and a runbook that repair the findings at or above --fail-on to DIR, which
    /// must be empty or missing; requires a known cluster CIDR
    ///
    /// Nothing is applied to the cluster.
    #[arg(long, value_name = "DIR")]
    repair: Option<PathBuf>,

    /// Also write the report to FILE as one HTML page: the findings, the map of the address space,
    /// and the repair of the findings at or above --fail-on
    #[arg(long, value_name = "FILE", conflicts_with = "history")]
    html: Option<PathBuf>,

    /// Write the numbers of the report to FILE as metrics, in Prometheus' text format, such as for
    /// the textfile collector of its node exporter
    #[arg(long, value_name = "FILE", conflicts_with = "history")]
    metrics_file: Option<PathBuf>,

    /// Send the same metrics to the Prometheus Pushgateway at URL; a path /metrics/job/… names
    /// another group than job podplane-audit
    #[arg(
        long,
        env = "PODPLANE_AUDIT_METRICS_PUSH",
        value_name = "URL",
        conflicts_with = "history"
    )]
    metrics_push: Option<String>,

    /// Exit with 1 if there are findings of this severity or higher
    #[arg(long, value_name = "SEVERITY", default_value = "warning",
        value_parser = PossibleValuesParser::new(Severity::ALL.map(Severity::as_str)).try_map(|text| text.parse::<Severity>()))]
    fail_on: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum IpamFlag {
    /// Detect it from the pods' addresses
    Auto,
    /// Pods have addresses of spec.podCIDRs of their node
    PodCidr,
    /// The network has its own IPAM: skip the checks of pod CIDRs
    Own,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AuditFormat {
    /// Text for people
    Table,
    /// Findings and summary
    Json,
    /// SARIF 2.1.0, for code hosts
    Sarif,
    /// JUnit XML, for CI: a test case for each code
    Junit,
}

impl AuditFormat {
    fn plain_lines(self) -> PlainLines {
        match self {
            Self::Table => PlainLines::IfSlow,
            Self::Json | Self::Sarif | Self::Junit => PlainLines::Never,
        }
    }
}

pub(crate) fn run(mut args: AuditArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    if args.history {
        return history::run(&args, global);
    }
    // Parsed here, since clap prints invalid values, and this one may have a password.
    let push_url = args.metrics_push.as_deref().map(str::parse::<PushUrl>);
    let push_url = push_url
        .transpose()
        .map_err(|error| UsageError(format!("invalid --metrics-push: {error}")))?;
    for ranges in args.cluster_cidr.iter().chain(&args.service_cidr) {
        report::note_host_bits(ranges);
    }
    let mut flags = ControllerFlags {
        cluster_cidr: args.cluster_cidr.clone(),
        node_cidr_mask_size: args.node_cidr_mask_size,
        node_cidr_mask_size_ipv4: args.node_cidr_mask_size_ipv4,
        node_cidr_mask_size_ipv6: args.node_cidr_mask_size_ipv6,
        service_cidr: args.service_cidr.clone(),
        pod_ip_resource: args.pod_ip_resource.as_ref().map(ToString::to_string),
        ipam: match args.ipam {
            IpamFlag::Auto => None,
            IpamFlag::PodCidr => Some(IpamChoice::PodCidr),
            IpamFlag::Own => Some(IpamChoice::Own),
        },
    };
    if let Some(dir) = &args.repair {
        repair::check(dir)?;
    }
    output::page::check(&args.html)?;
    if let Some(file) = &args.metrics_file {
        output::page::check_replaceable(file)?;
    }
    let keep = match args.repair.is_some() || args.html.is_some() {
        true => DumpScope::Nodes,
        false => DumpScope::Fields,
    };
    let progress = Progress::with_lines("reading", args.output.plain_lines());
    let dump = source::read(&args, &mut flags, global, keep, &progress).map_err(UnusableInput)?;
    let given = html::GivenRanges {
        pods: args.cluster_cidr.is_some(),
        services: args.service_cidr.is_some(),
    };
    // The runbook audits the repaired cluster with them.
    args.cluster_cidr.clone_from(&flags.cluster_cidr);
    args.service_cidr.clone_from(&flags.service_cidr);
    let expected =
        ExpectedBlocks::new(&flags, &dump).map_err(|error| UsageError(error.to_string()))?;
    let report = audit(&dump, &expected);
    drop(progress);
    for note in dump.notes() {
        anstream::eprintln!("note: {}", printable::line(note));
    }
    let repair = || Repair::new(&dump, &expected, &report, args.fail_on);
    if let Some(file) = &args.html {
        let page = html::AuditPage {
            args: &args,
            given,
            dump: &dump,
            expected: &expected,
            report: &report,
            repair: repair(),
        };
        output::page::write(file, page.report().html())?;
    }
    // Without a repair there are the findings.
    let repaired = args.repair.as_deref().map(|dir| {
        let repair = repair().map_err(|error| UsageError(error.to_string()))?;
        repair::write(dir, &repair.files(&repair::command(&args)))
    });
    let published = publish(args.metrics_file.as_deref(), push_url.as_ref(), &report);
    output::unless_closed(print(&args, &report))?;
    published?;
    repaired.transpose()?;
    Ok(if report.is_at_least(args.fail_on) {
        ExitCode::FAILURE
    } else if report.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(INCOMPLETE)
    })
}

/// Writes and sends the metrics, if they are wanted.
fn publish(file: Option<&Path>, url: Option<&PushUrl>, report: &AuditReport) -> anyhow::Result<()> {
    if file.is_none() && url.is_none() {
        return Ok(());
    }
    let text = metrics::text(report, Timestamp::now())?;
    if let Some(file) = file {
        metrics::write(file, &text)?;
    }
    if let Some(url) = url {
        block_on(metrics::push(url, text))?;
    }
    Ok(())
}

fn print(args: &AuditArgs, report: &AuditReport) -> anyhow::Result<()> {
    match args.output {
        AuditFormat::Table => forms::table(report),
        AuditFormat::Json => output::json(&serde_json::to_value(report)?),
        AuditFormat::Sarif => {
            let mut files = args.files.iter().filter(|file| *file != Path::new("-"));
            let file = files.next().map(|file| file.to_string_lossy());
            output::json(&sarif::log(report, file.as_deref()))
        }
        AuditFormat::Junit => output::bytes(junit::xml(report, args.fail_on)?.as_bytes()),
    }
}

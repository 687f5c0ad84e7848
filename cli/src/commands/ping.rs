//! `ping`: sends echo requests from a pod, without any program of the machine.

use std::{
    io::{self, ErrorKind},
    net::IpAddr,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use podplane_api::{Object as _, core::Pod};
use podplane_client::{Client, ListParams};
use podplane_cluster::{
    data_dir::DataDir,
    echo::{self, Echo, EchoReply},
};

use super::{NamespaceArgs, completion::candidates, duration};
use crate::{
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output, pods,
    report::UnusableInput,
};

/// Send echo requests from a pod to a pod or an address
///
/// Kernel mode only. If two pods share an address, the wrong pod may reply; --verify detects this.
/// Exit codes: 0 a reply came; 1 no reply, or from the wrong pod; 2 requests could not be sent.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane ping web-0 web-1\n  podplane ping web-0 web-1 --verify\n  podplane ping web-0 kube-system/dns-0\n  podplane ping web-0 10.244.1.2 --count 1"
)]
pub(crate) struct PingArgs {
    /// Name of the pod that sends the requests
    #[arg(value_name = "POD", add = candidates::of(ResourceKind::Pod))]
    source: String,

    /// Target of the requests: a pod NAME or NAMESPACE/NAME, or an IP address
    #[arg(value_name = "POD|IP", add = candidates::of(ResourceKind::Pod))]
    target: String,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Start a responder in the target pod and check that the reply comes from it; for an address,
    /// in the pod that has it
    #[arg(long)]
    verify: bool,

    /// Send N requests
    #[arg(short, long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    count: u16,

    /// Time out each request after this time, such as 500ms or 1s
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "1s")]
    timeout: Duration,
}

/// The source and the target of the requests.
struct PingRoute {
    source: PathBuf,
    address: IpAddr,
    /// The target pod and its namespace; `None` for an address without --verify.
    target: Option<(String, PathBuf)>,
}

pub(crate) fn run(args: PingArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let answered = ask(&args, global).map_err(|error| UnusableInput(global.locate(error)))?;
    Ok(if answered {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns true if the right pod answers.
fn ask(args: &PingArgs, global: &GlobalOptions) -> anyhow::Result<bool> {
    let dir = DataDir::new(&global.data_dir)?;
    pods::enter_cluster(&dir)?;
    let route = block_on(find(args, global, &dir))?;
    let answered = ping(args, &route)?;
    let verified = match &route.target {
        Some((name, netns)) if args.verify => verify(args, &route, name, netns)?,
        _ => true,
    };
    Ok(answered && verified)
}

async fn find(args: &PingArgs, global: &GlobalOptions, dir: &DataDir) -> anyhow::Result<PingRoute> {
    let client = global.client()?;
    let namespace = args.namespace.namespace.as_str();
    let source = client
        .namespaced::<Pod>(namespace)
        .get(&args.source)
        .await?;
    let netns = pods::netns(dir, &source)?;
    let (address, target) = match args.target.parse::<IpAddr>() {
        Ok(address) if args.verify => (address, Some(owner(&client, address).await?)),
        Ok(address) => (address, None),
        Err(_) => {
            let (namespace, name) = args
                .target
                .split_once('/')
                .unwrap_or((namespace, &args.target));
            let target = client.namespaced::<Pod>(namespace).get(name).await?;
            (common_family(&source, &target)?, Some(target))
        }
    };
    let target = match target {
        Some(pod) if args.verify => Some((pod.key().to_string(), pods::netns(dir, &pod)?)),
        _ => None,
    };
    Ok(PingRoute {
        source: netns,
        address,
        target,
    })
}

fn addresses(pod: &Pod) -> Vec<IpAddr> {
    let status = pod.status.clone().unwrap_or_default();
    status
        .pod_ips
        .into_iter()
        .flatten()
        .filter_map(|ip| ip.ip.parse().ok())
        .collect()
}

/// The target's first address of a family that the source has too.
fn common_family(source: &Pod, target: &Pod) -> anyhow::Result<IpAddr> {
    let own = addresses(source);
    let mut candidates = addresses(target).into_iter();
    candidates
        .find(|address| own.iter().any(|own| own.is_ipv4() == address.is_ipv4()))
        .with_context(|| {
            format!(
                "pod {} has no address of a family that pod {} has",
                target.key(),
                source.key()
            )
        })
}

async fn owner(client: &Client, address: IpAddr) -> anyhow::Result<Pod> {
    let pods = client
        .all::<Pod>()
        .list(&ListParams::default())
        .await?
        .items;
    let has_own = |pod: &Pod| {
        pod.spec
            .as_ref()
            .is_some_and(|spec| spec.host_network != Some(true))
    };
    let mut owners = pods
        .into_iter()
        .filter(|pod| has_own(pod) && addresses(pod).contains(&address));
    let owner = owners
        .next()
        .with_context(|| format!("no pod has the address {address}: cannot verify who answers"))?;
    if let Some(other) = owners.next() {
        anyhow::bail!(
            "pods {} and {} both have the address {address}: name the pod",
            owner.key(),
            other.key()
        );
    }
    Ok(owner)
}

/// Pings; returns true if there was an answer.
fn ping(args: &PingArgs, route: &PingRoute) -> anyhow::Result<bool> {
    let address = route.address;
    let echo = Echo::open(&route.source, address)?;
    output::line(format_args!(
        "PING {} ({address}) from {}",
        args.target, args.source
    ))?;
    let (mut times, mut failed) = (Vec::new(), None);
    for seq in 1..=args.count {
        match echo.request(seq, args.timeout) {
            Ok(Some(EchoReply { bytes, ttl, time })) => {
                let ttl = ttl.map(|ttl| format!(" ttl={ttl}")).unwrap_or_default();
                let milliseconds = millis(time);
                output::line(format_args!(
                    "{bytes} bytes from {address}: icmp_seq={seq}{ttl} time={milliseconds:.3} ms"
                ))?;
                times.push(milliseconds);
            }
            Ok(None) => output::line(format_args!(
                "no answer from {address}: icmp_seq={seq} within {:.1} s",
                args.timeout.as_secs_f32()
            ))?,
            Err(error) => {
                output::line(format_args!(
                    "cannot send to {address}: icmp_seq={seq} {error}"
                ))?;
                if !is_unreachable(&error) {
                    failed = Some(error);
                }
            }
        }
    }
    if let Some(error) = failed.filter(|_| times.is_empty()) {
        return Err(error).with_context(|| format!("failed to send to {address}"));
    }
    let (sent, received) = (usize::from(args.count), times.len());
    let lost = (sent - received) * 100 / sent;
    output::line(format_args!(
        "{sent} packets transmitted, {received} received, {lost}% packet loss"
    ))?;
    if let (Some(least), Some(most)) = (
        times.iter().copied().reduce(f64::min),
        times.iter().copied().reduce(f64::max),
    ) {
        let number: f64 = u32::try_from(received).unwrap_or(u32::MAX).into();
        let mean = times.iter().sum::<f64>() / number;
        output::line(format_args!(
            "rtt min/avg/max = {least:.3}/{mean:.3}/{most:.3} ms"
        ))?;
    }
    Ok(received > 0)
}

/// Returns true if the network reports that the target is unreachable.
fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown
    )
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn verify(
    args: &PingArgs,
    route: &PingRoute,
    name: &str,
    netns: &std::path::Path,
) -> anyhow::Result<bool> {
    let address = route.address;
    let is_right = echo::is_answered_by(&route.source, netns, address, args.timeout)?;
    if is_right {
        output::line(format_args!(
            "verified: it is pod {name} that answers at {address}"
        ))?;
    } else {
        output::line(format_args!(
            "NOT verified: packets to {address} do not reach pod {name}"
        ))?;
    }
    Ok(is_right)
}

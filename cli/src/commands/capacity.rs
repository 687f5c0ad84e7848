//! `capacity`: the number of further pods of one kind that fit a cluster.

pub(super) mod source;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use clap::ValueEnum;
use podplane_api::{pod_ips::PodIpResource, printable, table::NONE};
use podplane_ipam::IpPolicy;
use podplane_progress::PlainLines;
use podplane_scheduler::{
    PlacementPolicy,
    cache::NodeCache,
    capacity::{CapacityReport, NodeRoom, capacity},
    config::DEFAULT_POD_IPS_WEIGHT,
    framework::Framework,
    pod::PodInfo,
    service::hypothetical,
};
use serde_json::{Value, json};

use crate::{
    any_cluster::{ANY_CLUSTER, AnyClusterFlags},
    global::GlobalOptions,
    output::{self, table::TextTable},
    pod_file,
    report::{UnusableInput, UsageError},
};

/// The most invalid objects of a dump that are named.
const NAMED_INVALID: usize = 5;

/// Count how many more pods like the one of a file fit the cluster, and what limits each node
///
/// Pods are placed one after the other as the scheduler would place them, until none fits. Pending
/// pods of the cluster are not counted.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane capacity -f pod.yaml\n  kubectl get nodes,pods -A -o json | podplane capacity -f deployment.yaml --from -\n  podplane capacity -f pod.yaml --from dump.json.gz -o json\n  podplane capacity -f pod.yaml --kubeconfig ~/.kube/config"
)]
pub(crate) struct CapacityArgs {
    /// Place copies of the pod of this file: a Pod, or the template of a Deployment or ReplicaSet;
    /// - for standard input
    #[arg(short, long, value_name = "FILE")]
    filename: PathBuf,

    /// Read nodes and pods from this dump of `kubectl get nodes,pods -A` as JSON or YAML, gzipped
    /// or not; - for standard input [default: the running podplane cluster]
    ///
    /// Services and ReplicaSets in it decide on the default spread of pods. A pod with a
    /// priorityClassName needs the PriorityClasses: `kubectl get
    /// nodes,pods,services,replicasets,priorityclasses -A`.
    #[arg(long, value_name = "DUMP", conflicts_with = ANY_CLUSTER)]
    from: Option<PathBuf>,

    #[command(flatten)]
    cluster: AnyClusterFlags,

    /// Put a pod that names no namespace into this one
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// Stop at this number of pods; if their places do not depend on each other, at this number
    /// for each node
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,

    /// Limit the pods of a node by its pod addresses, as the scheduler's flag does
    #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
    ip_policy: IpPolicy,

    /// Count this extended resource of nodes as their pod addresses, as the scheduler's flag does
    #[arg(long, default_value_t, value_name = "NAME")]
    pod_ip_resource: PodIpResource,

    /// Print in this format
    #[arg(
        short,
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "table"
    )]
    output: CapacityFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CapacityFormat {
    /// Text for people
    Table,
    /// One JSON document
    Json,
}

pub(crate) fn run(args: &CapacityArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let stdin = PathBuf::from("-");
    if args.filename == stdin && args.from.as_ref() == Some(&stdin) {
        let why = "--filename and --from cannot both be standard input";
        return Err(UsageError(why.to_owned()).into());
    }
    let pod = pod_file::read(&args.filename, &args.namespace)?;
    let file = args.filename.display();
    let mut pod = hypothetical::complete(pod)
        .map_err(|errors| anyhow::anyhow!("{file}: invalid pod: {errors}"))?;
    let resource = &args.pod_ip_resource;
    let lines = match args.output {
        CapacityFormat::Table => PlainLines::IfSlow,
        CapacityFormat::Json => PlainLines::Never,
    };
    let objects = match &args.from {
        Some(file) => source::from_dump(file, resource, lines)?,
        None if args.cluster.is_given() => source::from_cluster(&args.cluster, resource, lines)?,
        None => source::from_server(global, resource, lines)?,
    };
    for invalid in objects.invalid.iter().take(NAMED_INVALID) {
        anstream::eprintln!("warning: left out {}", printable::line(invalid));
    }
    if objects.invalid.len() > NAMED_INVALID {
        let more = objects.invalid.len() - NAMED_INVALID;
        anstream::eprintln!("warning: left out {more} more invalid objects");
    }
    if objects.nodes.is_empty() {
        let place = match &args.from {
            Some(file) => file.display().to_string(),
            None => "the cluster".to_owned(),
        };
        return Err(UnusableInput(anyhow::anyhow!(
            "there are no nodes in {place}: want what `kubectl get nodes,pods -A -o json` prints"
        ))
        .into());
    }
    hypothetical::prioritise(&mut pod, objects.classes).map_err(|why| match &args.from {
        Some(_) => anyhow::anyhow!(
            "{file}: {why}; want a dump of `kubectl get nodes,pods,priorityclasses -A` if the cluster has it"
        ),
        None => anyhow::anyhow!("{file}: {why}"),
    })?;
    let mut cache = NodeCache::of(objects.nodes, objects.pods, &objects.namespaces, resource);
    let cluster = cache.cluster_mut();
    let services = objects.services.iter();
    services.for_each(|service| cluster.apply_service(service));
    let sets = objects.replica_sets.iter();
    sets.for_each(|set| cluster.apply_replica_set(set));
    let framework = Framework::new(PlacementPolicy {
        ips: args.ip_policy,
        pod_ip_resource: resource.clone(),
        pod_ips_weight: DEFAULT_POD_IPS_WEIGHT,
        ..IpPolicy::default().into()
    });
    let pod = PodInfo::new(&pod, resource);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let report = capacity(&mut cache, &framework, &pod, limit);
    match args.output {
        CapacityFormat::Json => output::json(&document(&report))?,
        CapacityFormat::Table => print(&report)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The reasons for which a node takes no more pods, without numbers.
fn reasons(room: &NodeRoom) -> String {
    room.refusal.as_ref().map_or_else(
        || "limit reached".to_owned(),
        |refusal| refusal.reasons.join(", "),
    )
}

/// The nodes by the reason for which they take no more pods, most nodes first.
fn limits(report: &CapacityReport) -> Vec<(String, usize)> {
    let mut limits = BTreeMap::<String, usize>::new();
    for room in &report.nodes {
        *limits.entry(reasons(room)).or_default() += 1;
    }
    let mut limits: Vec<_> = limits.into_iter().collect();
    limits.sort_by_key(|(_, nodes)| std::cmp::Reverse(*nodes));
    limits
}

fn document(report: &CapacityReport) -> Value {
    let nodes = report.nodes.iter().map(|room| {
        let limited_by = room.refusal.as_ref().map(|refusal| {
            let detail = refusal.detail.as_ref().map(|detail| detail.text.as_str());
            json!({"plugin": refusal.by, "reasons": refusal.reasons, "detail": detail.unwrap_or_default()})
        });
        json!({"node": room.node.as_str(), "fits": room.fits, "limitedBy": limited_by})
    });
    let limits = limits(report).into_iter();
    let limits = limits.map(|(reason, nodes)| json!({"reason": reason, "nodes": nodes}));
    json!({
        "total": report.total,
        "limitReached": report.is_limited,
        "rejection": report.rejection.as_ref().map(|one| json!({"plugin": one.by, "reason": one.reason})),
        "nodes": nodes.collect::<Vec<_>>(),
        "limits": limits.collect::<Vec<_>>(),
    })
}

fn print(report: &CapacityReport) -> anyhow::Result<()> {
    if let Some(rejection) = &report.rejection {
        return output::text(format_args!("0 more pods fit: {}", rejection.reason));
    }
    let rows = report.nodes.iter().map(|room| {
        let detail = room.refusal.as_ref().and_then(|one| one.detail.as_ref());
        let limit = match detail {
            Some(detail) => format!("{}: {}", reasons(room), detail.text),
            None => reasons(room),
        };
        let by = room.refusal.as_ref().map_or(NONE, |refusal| refusal.by);
        vec![
            room.node.to_string(),
            room.fits.to_string(),
            by.to_owned(),
            limit,
        ]
    });
    let mut table = TextTable::new(vec!["NODE", "FITS", "LIMITED BY", "REASON"]);
    output::line(table.rows(rows))?;
    output::line("")?;
    for (reason, nodes) in limits(report) {
        let s = if nodes == 1 { "" } else { "s" };
        output::text(format_args!("{nodes} node{s}: {reason}"))?;
    }
    let total = report.total;
    match report.is_limited {
        true => output::line(format_args!(
            "at least {total} more pods fit; the count ended there (--limit)"
        )),
        false => output::line(format_args!(
            "{total} more pod{} fit{}",
            if total == 1 { "" } else { "s" },
            if total == 1 { "s" } else { "" }
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use podplane_api::pod_ips::PodIpResource;

    use super::*;

    #[test]
    fn reads_nodes_and_pods_of_a_dump() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("dump.json");
        let from_dump =
            |file: &Path| source::from_dump(file, &PodIpResource::default(), PlainLines::Never);
        let node = json!({"kind": "Node", "metadata": {"name": "n"}, "status": {"images": [{"names": ["x"]}]}});
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "namespace": "default"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "env": [{"name": "E"}]}]}});
        let selector = json!({"app": "web"});
        let service = json!({"kind": "Service", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": selector}});
        let set = json!({"kind": "ReplicaSet", "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"matchLabels": selector}, "template": {"spec": {"containers": []}}}});
        let other = json!({"kind": "ConfigMap", "metadata": {"name": "web"}});
        let list = json!({"kind": "List",
            "items": [node, service, pod, set, other, {"kind": "Pod", "metadata": 7}]});
        fs::write(&file, list.to_string()).unwrap();
        let objects = from_dump(&file).unwrap();
        assert_eq!((objects.nodes.len(), objects.pods.len()), (1, 1));
        assert_eq!(objects.pods[0].uid.as_str(), "default/a");
        let status = objects.nodes[0].status.as_ref().unwrap();
        assert_eq!(status.images.as_ref().unwrap().len(), 1);
        assert_eq!((objects.services.len(), objects.replica_sets.len()), (1, 1));
        assert_eq!(objects.invalid.len(), 1);
        assert_eq!(objects.classes.len(), 2, "the built-in ones");
        let class = json!({"kind": "PriorityClass", "metadata": {"name": "vip"}, "value": 9});
        let with_class =
            json!({"kind": "List", "items": [class, {"kind": "Node", "metadata": {"name": "n"}}]});
        fs::write(&file, with_class.to_string()).unwrap();
        let objects = from_dump(&file).unwrap();
        assert_eq!((objects.nodes.len(), objects.pods.len()), (1, 0));
        let mut pod = podplane_api::core::Pod::default();
        pod.spec.get_or_insert_default().priority_class_name = Some("vip".into());
        hypothetical::prioritise(&mut pod, objects.classes).unwrap();
        assert_eq!(pod.spec.unwrap().priority, Some(9));
        let without_kinds = json!({"apiVersion": "v1", "items": [{"metadata": {"name": "n"}},
            {"metadata": {"name": "a"}, "spec": {"containers": []}}]});
        fs::write(&file, without_kinds.to_string()).unwrap();
        let objects = from_dump(&file).unwrap();
        assert_eq!((objects.nodes.len(), objects.pods.len()), (1, 1));
        fs::write(&file, "{}").unwrap();
        assert!(from_dump(&file).is_err());
    }
}

//! The sources of nodes and pods: files, podplane's server, or any cluster.

use std::{collections::BTreeSet, fs::File, io, path::Path};

use anyhow::Context as _;
use ipnet::IpNet;
use kube::api::{ListParams, Request};
use podplane_api::{
    Object as _,
    core::{Node, Pod, Service},
    networking::ClusterCIDR,
    pod_ips,
};
use podplane_audit::{ControllerFlags, Dump, DumpCollector, DumpScope, InputError, UnreadResource};
use podplane_client::{Client, Permission, Reason};
use podplane_ipam::{invariants::DrainingBlock, net::Family, parse_cidr};
use podplane_map::{BlockState, NodeBlock};
use podplane_progress::Progress;
use podplane_summary::{ListedBlock, node_block};
use serde::Deserialize;

use super::AuditArgs;
use crate::{
    any_cluster::{AnyClusterFlags, block_listing, if_permitted, list},
    global::{GlobalOptions, block_on},
};

/// The number of objects requested at once; kubectl's number.
const PAGE: u32 = 500;

/// The rights without which nothing is audited. The kinds of networks are optional.
const NEEDED: &[Permission] = &[list("", "nodes"), list("", "pods")];

/// Reads everything that the arguments name. Flags that were not given are set to what the server
/// says, where it is podplane's own.
pub(super) fn read(
    args: &AuditArgs,
    flags: &mut ControllerFlags,
    global: &GlobalOptions,
    keep: DumpScope,
    progress: &Progress,
) -> anyhow::Result<Dump> {
    let mut collector = DumpCollector::new(keep);
    match &args.cluster {
        _ if !args.files.is_empty() => {
            for file in &args.files {
                match from_file(file, &mut collector, progress) {
                    // One of several files may contain nothing for the audit.
                    Err(error) if args.files.len() > 1 && is_not_a_dump(&error) => {
                        let file = file.display();
                        progress.done(&format!(
                            "note: {file} has no nodes, pods or objects of networks"
                        ));
                    }
                    done => done?,
                }
            }
            progress.work("comparing the addresses");
            let dump = collector.finish(flags);
            complete(&dump)?;
            return Ok(dump);
        }
        cluster if cluster.is_given() => {
            collector = from_any_cluster(cluster, flags, keep, progress)?;
        }
        _ => {
            let ranges = block_on(from_server(global, &mut collector, progress));
            let ranges = ranges.map_err(|error| global.locate(error))?;
            state(ranges, flags, progress);
        }
    }
    if args.files.is_empty() && args.html.is_some() {
        block_on(add_services(args, global, &mut collector, progress))?;
    }
    Ok(collector.finish(flags))
}

/// Adds the Services of a live cluster, for the map alone: no rule is about them.
async fn add_services(
    args: &AuditArgs,
    global: &GlobalOptions,
    collector: &mut DumpCollector,
    progress: &Progress,
) -> anyhow::Result<()> {
    let client = match args.cluster.is_given() {
        true => args.cluster.client().await?.0,
        false => global.client()?,
    };
    let all = podplane_client::ListParams::default();
    let listed = client.all::<Service>().list(&all).await;
    let services = if_permitted("services", listed, progress)?;
    for service in services.into_iter().flat_map(|list| list.items) {
        collector.add(&service.to_json()?);
    }
    Ok(())
}

/// Reads the cluster of the flags, of any kind. Flags that were not given are set to what the
/// server says, where it is podplane's own.
pub(crate) fn from_any_cluster(
    cluster: &AnyClusterFlags,
    flags: &mut ControllerFlags,
    keep: DumpScope,
    progress: &Progress,
) -> anyhow::Result<DumpCollector> {
    let (collector, ranges) = block_on(async {
        let mut collector = from_cluster(cluster, keep, progress).await?;
        let ranges = over_rest(cluster, &mut collector, progress).await?;
        anyhow::Ok((collector, ranges))
    })?;
    state(ranges, flags, progress);
    Ok(collector)
}

fn state(ranges: ServerRanges, flags: &mut ControllerFlags, progress: &Progress) {
    if let Some(note) = ranges.add_to(flags) {
        progress.done(&format!("note: {note}"));
    }
}

/// Refuses files without nodes or without pods: half of the rules would pass without checking
/// anything. A live cluster may have none.
fn complete(dump: &Dump) -> anyhow::Result<()> {
    let missing = match dump.counts() {
        (0, 0) => "nodes and no pods",
        (0, _) => "nodes",
        (_, 0) => "pods",
        _ => return Ok(()),
    };
    anyhow::bail!(
        "there are no {missing} in the input: an audit compares both, so pass what `kubectl get nodes,pods -A -o json` prints, or one file with each"
    )
}

fn is_not_a_dump(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(InputError::NoDump))
}

/// Reads a file; `-` is standard input.
pub(crate) fn from_file(
    file: &Path,
    collector: &mut DumpCollector,
    progress: &Progress,
) -> anyhow::Result<()> {
    if file == Path::new("-") {
        progress.bytes("reading standard input", None);
        return collector
            .read(progress.counted(io::stdin().lock()))
            .context("failed to read standard input");
    }
    let name_it = || format!("failed to read {}", file.display());
    let opened = File::open(file).with_context(name_it)?;
    let about = opened.metadata().with_context(name_it)?;
    let total = about.is_file().then_some(about.len());
    progress.bytes(&format!("reading {}", file.display()), total);
    collector
        .read(progress.counted(opened))
        .with_context(name_it)
}

/// The ranges of podplane's own server.
#[derive(Debug, Default)]
struct ServerRanges {
    /// Those of its `--cluster-cidr` and of ClusterCIDR objects.
    pods: BTreeSet<IpNet>,
    services: BTreeSet<IpNet>,
    /// The blocks of nodes.
    blocks: Vec<IpNet>,
}

impl ServerRanges {
    /// Adds what the records of blocks say: ranges of Services, and to the audit's facts the blocks
    /// that drain.
    fn add_records(
        &mut self,
        records: impl Iterator<Item = NodeBlock>,
        collector: &mut DumpCollector,
    ) {
        for record in records {
            let block = record.cidr();
            match record.state() {
                BlockState::Draining | BlockState::Held | BlockState::Quarantined => {
                    let node = record.node().unwrap_or_default().to_owned();
                    collector.drain(DrainingBlock { node, block });
                }
                BlockState::Reserved => {
                    self.services.insert(block);
                }
                BlockState::Assigned | BlockState::Foreign | BlockState::Unowned => {}
            }
        }
    }

    /// Sets flags that were not given. Ranges of pods must be those of the nodes' blocks, and not
    /// of a flag that nobody follows: a cloud, or another controller, may give blocks. Returns a
    /// note if they are not used.
    fn add_to(self, flags: &mut ControllerFlags) -> Option<String> {
        let Self {
            pods,
            services,
            blocks,
        } = self;
        if flags.service_cidr.is_none() {
            flags.service_cidr = flag(&services);
        }
        if flags.cluster_cidr.is_some() || pods.is_empty() {
            return None;
        }
        let is_of = |range: &IpNet| blocks.iter().any(|block| range.contains(block));
        let why = match flag(&pods) {
            None => "there are several of a family",
            Some(_) if !blocks.is_empty() && !pods.iter().any(is_of) => {
                "no node has a block of them"
            }
            stated => {
                flags.cluster_cidr = stated;
                return None;
            }
        };
        let pods = listed(&pods);
        Some(format!(
            "blocks are not compared with the ranges of the server, {pods}: {why}; state one with --cluster-cidr"
        ))
    }
}

/// The value of a flag for ranges; `None` if there is none, or several of a family.
fn flag(ranges: &BTreeSet<IpNet>) -> Option<String> {
    let families: BTreeSet<_> = ranges.iter().map(Family::of).collect();
    (!ranges.is_empty() && families.len() == ranges.len()).then(|| listed(ranges))
}

fn listed(ranges: &BTreeSet<IpNet>) -> String {
    let ranges: Vec<_> = ranges.iter().map(ToString::to_string).collect();
    ranges.join(",")
}

/// Reads podplane's own server, and returns its ranges. It also knows the draining blocks: an
/// address outside of its node's block may be in one of them.
async fn from_server(
    global: &GlobalOptions,
    collector: &mut DumpCollector,
    progress: &Progress,
) -> anyhow::Result<ServerRanges> {
    let client = global.client()?;
    let all = podplane_client::ListParams::default();
    let mut of_nodes = Vec::new();
    for node in client.all::<Node>().list(&all).await?.items {
        let blocks = pod_ips::pod_cidrs(&node).iter();
        of_nodes.extend(blocks.filter_map(|block| parse_cidr(block).ok()));
        collector.add(&node.to_json()?);
    }
    for pod in client.all::<Pod>().list(&all).await?.items {
        collector.add(&pod.to_json()?);
    }
    let listed = client.blocks().list().await;
    let Some(listed) = if_permitted("node blocks", listed, progress)? else {
        return Ok(ServerRanges::default());
    };
    let mut ranges = stated(&client, &listed.cluster_cidrs).await?;
    ranges.blocks = of_nodes;
    ranges.add_records(listed.blocks.iter().filter_map(node_block), collector);
    Ok(ranges)
}

/// The ranges of a server that is podplane's own, as [`from_server`] reads them; none of another
/// one, and none for a user who may not list them.
async fn over_rest(
    flags: &AnyClusterFlags,
    collector: &mut DumpCollector,
    progress: &Progress,
) -> anyhow::Result<ServerRanges> {
    let (client, _) = flags.client().await?;
    let Some(listing) = block_listing(&client, progress).await? else {
        return Ok(ServerRanges::default());
    };
    let mut ranges = stated(&client, &listing.cluster_cidrs).await?;
    let is_of_node =
        |block: &&ListedBlock| matches!(block.state, BlockState::Assigned | BlockState::Foreign);
    let of_nodes = listing.blocks.iter().filter(is_of_node);
    ranges.blocks = of_nodes.map(|block| block.cidr).collect();
    ranges.add_records(listing.records(), collector);
    Ok(ranges)
}

/// The ranges of pods: those of the server's flag, and those of ClusterCIDRs. Who may not list all
/// ranges knows none for certain.
async fn stated(client: &Client, of_flag: &[IpNet]) -> anyhow::Result<ServerRanges> {
    let all = podplane_client::ListParams::default();
    let mut ranges = ServerRanges::default();
    match client.all::<ClusterCIDR>().list(&all).await {
        Ok(sets) => {
            let sets = sets.items.iter().filter_map(|set| set.spec.as_ref());
            let sets = sets.flat_map(|spec| spec.ipv4.iter().chain(&spec.ipv6));
            let sets = sets.filter_map(|range| parse_cidr(range).ok());
            ranges.pods = of_flag.iter().copied().chain(sets).collect();
        }
        Err(error) if error.reason == Reason::Forbidden => {}
        Err(error) => return Err(error.into()),
    }
    Ok(ranges)
}

/// Reads the cluster of the flags, with GET requests only.
pub(crate) async fn from_cluster(
    flags: &AnyClusterFlags,
    keep: DumpScope,
    progress: &Progress,
) -> anyhow::Result<DumpCollector> {
    match read_cluster(flags, keep, progress).await {
        Ok(collector) => Ok(collector),
        Err(error) => Err(flags.name_missing_rules(error, NEEDED).await),
    }
}

async fn read_cluster(
    flags: &AnyClusterFlags,
    keep: DumpScope,
    progress: &Progress,
) -> anyhow::Result<DumpCollector> {
    let (client, server) = flags.kube_client().await?;
    // When the last pages of a large cluster are read, the server may already have compacted the
    // revision of the first.
    match from_pages(&client, &server, keep, progress).await {
        Err(error) if is_expired(&error) => from_pages(&client, &server, keep, progress)
            .await
            .map_err(|error| {
                if is_expired(&error) {
                    error.context("the list expired twice while it was read; audit what `kubectl get nodes,pods -A -o json > dump.json` writes")
                } else {
                    error
                }
            }),
        done => done,
    }
}

fn is_expired(error: &anyhow::Error) -> bool {
    status_of(error) == Some(410)
}

async fn from_pages(
    client: &kube::Client,
    server: &str,
    keep: DumpScope,
    progress: &Progress,
) -> anyhow::Result<DumpCollector> {
    let mut collector = DumpCollector::new(keep);
    for path in ["/api/v1/nodes", "/api/v1/pods"] {
        progress.doing(&format!("reading {path} of {server}"));
        let name_it = || format!("failed to list {path} of {server}");
        all_pages(client, path, &mut collector)
            .await
            .with_context(name_it)?;
    }
    progress.doing(&format!("reading the objects of networks of {server}"));
    for path in OF_NETWORKS {
        let Err(error) = all_pages(client, path, &mut collector).await else {
            continue;
        };
        if is_expired(&error) {
            return Err(error.context(format!("failed to list {path} of {server}")));
        }
        // The cluster uses another network.
        if status_of(&error) == Some(404) || is_unknown(client, path).await {
            continue;
        }
        let unread = unread(path, &error);
        progress.done(&format!("warning: {unread}: the result is incomplete"));
        collector.miss(unread);
    }
    Ok(collector)
}

/// Returns true if the server says that it has no such resource. A user who may not list objects is
/// refused nonexistent resources too.
async fn is_unknown(client: &kube::Client, path: &str) -> bool {
    let (version, resource) = path_parts(path);
    match client.list_api_group_resources(version).await {
        Ok(known) => known.resources.iter().all(|one| one.name != resource),
        Err(kube::Error::Api(status)) => status.code == 404,
        Err(_) => false,
    }
}

/// The group with its version, and the resource, of a path in [`OF_NETWORKS`].
fn path_parts(path: &str) -> (&str, &str) {
    let path = path.strip_prefix("/apis/").unwrap_or(path);
    path.rsplit_once('/').unwrap_or((path, ""))
}

fn unread(path: &str, error: &anyhow::Error) -> UnreadResource {
    let (version, resource) = path_parts(path);
    let group = version.split('/').next().unwrap_or_default();
    let reason = match error.downcast_ref() {
        Some(kube::Error::Api(status)) => format!("{} {}", status.code, status.reason),
        _ => format!("{error:#}"),
    };
    UnreadResource {
        resource: format!("{resource}.{group}"),
        reason,
    }
}

/// The paths of the objects in which networks keep blocks and addresses.
const OF_NETWORKS: [&str; 10] = [
    "/apis/cilium.io/v2/ciliumnodes",
    "/apis/cilium.io/v2alpha1/ciliumpodippools",
    "/apis/cilium.io/v2/ciliumendpoints",
    "/apis/crd.projectcalico.org/v1/ippools",
    "/apis/crd.projectcalico.org/v1/ipamblocks",
    "/apis/crd.projectcalico.org/v1/blockaffinities",
    "/apis/vpcresources.k8s.aws/v1alpha1/cninodes",
    "/apis/acn.azure.com/v1alpha/nodenetworkconfigs",
    "/apis/whereabouts.cni.cncf.io/v1alpha1/ippools",
    "/apis/whereabouts.cni.cncf.io/v1alpha1/overlappingrangeipreservations",
];

fn status_of(error: &anyhow::Error) -> Option<u16> {
    match error.downcast_ref()? {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

async fn all_pages(
    client: &kube::Client,
    path: &str,
    collector: &mut DumpCollector,
) -> anyhow::Result<()> {
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let request = Request::new(path).list(&params)?;
        // Read as text, so that no unknown field is lost.
        let text = client.request_text(request).await?;
        collector.read(text.as_bytes())?;
        let ListDocument { metadata } = serde_json::from_str(&text)?;
        if metadata.next.is_empty() {
            return Ok(());
        }
        params.continue_token = Some(metadata.next);
    }
}

/// The continue token of a page.
#[derive(Deserialize)]
struct ListDocument {
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    next: String,
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        thread,
    };

    use kube::Config;
    use podplane_audit::{ExpectedBlocks, audit};

    use super::*;
    use podplane_progress::PlainLines;

    fn flags_of(pods: &[&str], blocks: &[&str]) -> Option<String> {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let ranges = ServerRanges {
            pods: nets(pods).into_iter().collect(),
            services: nets(&["10.96.0.0/12"]).into_iter().collect(),
            blocks: nets(blocks),
        };
        let mut flags = ControllerFlags::default();
        ranges.add_to(&mut flags);
        assert_eq!(flags.service_cidr.as_deref(), Some("10.96.0.0/12"));
        flags.cluster_cidr
    }

    #[test]
    fn ranges_of_the_server_are_flags_that_were_not_given() {
        let dual = flags_of(&["10.0.0.0/16", "fd00::/48"], &[]);
        assert_eq!(dual.as_deref(), Some("10.0.0.0/16,fd00::/48"));
        let followed = flags_of(&["10.0.0.0/16"], &["10.9.0.0/24", "10.0.1.0/24"]);
        assert_eq!(followed.as_deref(), Some("10.0.0.0/16"));
        assert_eq!(flags_of(&["10.0.0.0/16"], &["10.9.0.0/24"]), None);
        assert_eq!(flags_of(&["10.0.0.0/16", "10.1.0.0/16"], &[]), None);
        assert_eq!(flags_of(&[], &[]), None);
        let mut given = ControllerFlags {
            cluster_cidr: Some("10.0.0.0/8".into()),
            service_cidr: Some(String::new()),
            ..ControllerFlags::default()
        };
        let own = given.clone();
        let ranges = ["10.0.0.0/16".parse().unwrap()];
        let ranges = ServerRanges {
            pods: ranges.into(),
            services: ranges.into(),
            ..ServerRanges::default()
        };
        ranges.add_to(&mut given);
        assert_eq!(given, own);
    }

    /// The answer of a cluster with Cilium and without Calico, to a user that may list only nodes
    /// and pods.
    fn answer(path: &str) -> (u16, String) {
        let status = |code, reason| {
            format!(
                r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","reason":"{reason}","code":{code}}}"#
            )
        };
        match path {
            "/api/v1/nodes" => (200, r#"{"kind":"NodeList","items":[]}"#.into()),
            "/api/v1/pods" => (200, r#"{"kind":"PodList","items":[]}"#.into()),
            "/apis/cilium.io/v2" => (
                200,
                r#"{"kind":"APIResourceList","groupVersion":"cilium.io/v2","resources":[
                    {"name":"ciliumnodes","singularName":"","namespaced":false,"kind":"CiliumNode","verbs":["list"]}]}"#
                    .into(),
            ),
            "/apis/acn.azure.com/v1alpha/nodenetworkconfigs" => {
                (500, status(500, "InternalError"))
            }
            "/apis/acn.azure.com/v1alpha" => (500, status(500, "InternalError")),
            "/apis/vpcresources.k8s.aws/v1alpha1/cninodes" => (404, status(404, "NotFound")),
            _ if path.matches('/').count() > 3 => (403, status(403, "Forbidden")),
            _ => (404, status(404, "NotFound")),
        }
    }

    fn serve(listener: &TcpListener) {
        while let Ok((stream, _)) = listener.accept() {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            lines.find(String::is_empty);
            let path = first.split(['?', ' ']).nth(1).unwrap_or_default();
            let (code, body) = answer(path);
            let head = format!(
                "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _ = (&stream).write_all(format!("{head}{body}").as_bytes());
        }
    }

    #[tokio::test]
    async fn objects_that_are_refused_make_the_audit_incomplete() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || serve(&listener));
        let client = kube::Client::try_from(Config::new(server.parse().unwrap())).unwrap();
        let progress = Progress::with_lines("", PlainLines::Never);
        let collector = from_pages(&client, &server, DumpScope::Fields, &progress)
            .await
            .unwrap();
        let dump = collector.finish(&ControllerFlags::default());
        let report = audit(
            &dump,
            &ExpectedBlocks::new(&ControllerFlags::default(), &dump).unwrap(),
        );
        let unread: Vec<_> = report
            .summary
            .unread
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            unread,
            [
                "cannot read ciliumnodes.cilium.io (403 Forbidden)",
                "cannot read nodenetworkconfigs.acn.azure.com (500 InternalError)",
            ]
        );
        assert_eq!(
            report.summary.checks["orphaned-block"],
            format!("incomplete: {}", unread.join(", "))
        );
    }
}

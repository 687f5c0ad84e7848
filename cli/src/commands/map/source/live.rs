//! The facts of a live cluster.

use ipnet::IpNet;
use podplane_api::{
    Object,
    core::{Node, Pod, Service},
    networking::{ClusterCIDR, ServiceCIDR},
    pod_ips::PodIpResource,
};
use podplane_audit::DumpScope;
use podplane_client::{ApiError, Client};
use podplane_map::SpaceParts;
use podplane_progress::{PlainLines, Progress};
use podplane_summary::Cluster;

use super::{StatedRanges, dump};
use crate::{
    any_cluster::{AnyClusterFlags, block_listing, if_permitted},
    commands::{audit::source::from_cluster, capacity::source::all},
    global::GlobalOptions,
};

/// Reads podplane's API server.
pub(super) async fn of_server(
    global: &GlobalOptions,
    ranges: &StatedRanges,
) -> anyhow::Result<SpaceParts> {
    let client = global.client()?;
    let mut cluster = Cluster::unaudited(PodIpResource::default());
    cluster.set_cluster_cidrs(&ranges.pods);
    let progress = Progress::with_lines("reading nodes and pods", PlainLines::IfSlow);
    all(&client, |node: Node| cluster.apply_node(&node)).await?;
    all(&client, |pod: Pod| cluster.apply_pod(&pod)).await?;
    let stated = add_records(&client, &mut cluster, ApiError::is_not_found, &progress).await?;
    if ranges.pods.is_empty() {
        cluster.set_cluster_cidrs(&stated);
    }
    let mut parts = cluster.space_parts();
    ranges.add_to(&mut parts)?;
    Ok(parts)
}

/// Reads a cluster of any kind: its nodes and pods with what its network has recorded, and the
/// objects of Kubernetes' and podplane's address management that the user may see.
pub(super) async fn of_any_cluster(
    flags: &AnyClusterFlags,
    ranges: &StatedRanges,
) -> anyhow::Result<SpaceParts> {
    let progress = Progress::with_lines("reading", PlainLines::IfSlow);
    let collector = from_cluster(flags, DumpScope::Fields, &progress).await?;
    // It prints notes.
    let mut parts = progress.suspend(|| dump::of_collector(collector, ranges))?;
    let (client, _) = flags.client().await?;
    let mut cluster = Cluster::unaudited(PodIpResource::default());
    // Nodes and pods were read, so a server without an answer has no such kind: over REST the
    // client cannot tell these apart.
    let is_unserved = |error: &ApiError| error.is_not_found() || error.is_unavailable();
    let stated = add_records(&client, &mut cluster, is_unserved, &progress).await?;
    if ranges.pods.is_empty() {
        cluster.set_cluster_cidrs(&stated);
    }
    let records = cluster.space_parts();
    // A record says more about a block than the Node object does.
    parts.blocks.retain(|block| {
        let is_same = |record: &podplane_map::NodeBlock| {
            record.cidr() == block.cidr() && record.node() == block.node()
        };
        !records.blocks.iter().any(is_same)
    });
    let inferred = |network: &podplane_map::Network| network.name().starts_with("inferred");
    parts
        .networks
        .extend(records.networks.into_iter().filter(|one| !inferred(one)));
    parts.blocks.extend(records.blocks);
    parts.claims.extend(records.claims);
    dump::complete(&mut parts);
    Ok(parts)
}

/// Tells that the server does not know a kind.
type IsUnserved = fn(&ApiError) -> bool;

/// Adds ranges, Services and records of blocks, and returns the server's cluster CIDRs. Without the
/// right to read some of them, or where the server does not know them, the map is without them; a
/// note names missing rights.
async fn add_records(
    client: &Client,
    cluster: &mut Cluster,
    is_unserved: IsUnserved,
    progress: &Progress,
) -> anyhow::Result<Vec<IpNet>> {
    let listed = all(client, |object: ClusterCIDR| {
        cluster.apply_cluster_cidr(&object);
    });
    if_readable(ClusterCIDR::PLURAL, listed.await, is_unserved, progress)?;
    let listed = all(client, |object: ServiceCIDR| {
        cluster.apply_service_cidr(&object);
    });
    if_readable(ServiceCIDR::PLURAL, listed.await, is_unserved, progress)?;
    let listed = all(client, |service: Service| cluster.apply_service(&service));
    if_readable(Service::PLURAL, listed.await, is_unserved, progress)?;
    match client.blocks().list().await {
        Err(error) if is_unserved(&error) => {}
        listed => {
            let Some(list) = if_permitted("node blocks", listed, progress)? else {
                return Ok(Vec::new());
            };
            cluster.set_blocks(&list.blocks);
            return Ok(list.cluster_cidrs);
        }
    }
    // podplane's own server has them in its summary.
    let Some(listing) = block_listing(client, progress).await? else {
        return Ok(Vec::new());
    };
    cluster.set_block_listing(&listing);
    Ok(listing.cluster_cidrs)
}

/// `None` if the server does not know the kind, or refuses to list it.
fn if_readable<T>(
    what: &str,
    listed: Result<T, ApiError>,
    is_unserved: IsUnserved,
    progress: &Progress,
) -> Result<Option<T>, ApiError> {
    match listed {
        Err(error) if is_unserved(&error) => Ok(None),
        listed => if_permitted(what, listed, progress),
    }
}

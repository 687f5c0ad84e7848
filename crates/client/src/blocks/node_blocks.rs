//! The records as NodeBlocks, objects of a CustomResourceDefinition.
//!
//! Kubernetes has no commit of a record together with a node, so a block is given in two steps: its
//! NodeBlock is created, then the node is patched. Of equal blocks only one NodeBlock can be
//! created, since its name is the block. Blocks that overlap in another way are kept apart by the
//! leader, and after their creation by a list: whoever finds another one deletes its own.
//!
//! The state of a NodeBlock whose node is gone is not stored; it follows from the list of nodes and
//! from the reports of the node's agent ([`AgentReports`]).

mod object;
mod reports;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use ipnet::IpNet;
use kube::{
    Api as KubeApi,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use podplane_api::{
    Object as _,
    core::Node,
    jiff::{SignedDuration, Timestamp},
};
use podplane_host::clock;
use podplane_proto::{
    error::{ApiError, FieldViolation, Reason},
    ipam::{Assignment, Block, BlockState, BlockUpdate, Hold, block_update::Change},
};
use serde_json::json;

use self::object::{NodeBlock, NodeBlockSpec, NodeBlockState, net, objects, resource};
use self::reports::ReportVerdict;
pub(crate) use self::reports::{AgentReports, report};
use super::{BlockList, NodeBlocks, block_name};
use crate::{
    DeleteParams, answered,
    api::{
        Client, Transport,
        rest::{delete_params, refused},
    },
};

/// The calls that are under way at once.
const CONCURRENCY: usize = 16;
/// The age from which a record is deleted that its node does not have. A younger one may belong to
/// an assignment that is under way.
const STALE_AFTER: Duration = Duration::from_secs(60);

async fn records(client: &Client) -> Result<(Vec<NodeBlock>, String), ApiError> {
    let all = ListParams::default();
    let listed = answered(async { objects(client).list(&all).await.map_err(refused) }).await?;
    let at = listed.metadata.resource_version.unwrap_or_default();
    Ok((listed.items, at))
}

pub(super) async fn list_of(client: &Client, node: &str) -> Result<BlockList, ApiError> {
    let (records, resource_version) = records(client).await?;
    // Listed afterwards: a node that is missing here has been deleted.
    let nodes = KubeApi::<Node>::all(client.kube());
    let nodes = nodes.list_metadata(&ListParams::default()).await;
    let nodes = nodes.map_err(refused)?.items;
    let live: HashSet<&str> = nodes
        .iter()
        .filter_map(|node| node.metadata.uid.as_deref())
        .collect();
    let reports = reports_of(client);
    let mut blocks: Vec<(IpNet, Block)> = records
        .iter()
        .filter_map(|record| {
            let net = net(record)?;
            Some((net, block(record, net, &live, &reports)))
        })
        .collect();
    reports.retain(&blocks.iter().map(|(net, _)| *net).collect());
    blocks.retain(|(_, block)| node.is_empty() || block.node_name == node);
    blocks.sort_by_key(|(net, _)| *net);
    Ok(BlockList {
        blocks: blocks.into_iter().map(|(_, block)| block).collect(),
        resource_version,
        cluster_cidrs: Vec::new(),
    })
}

/// The reports of agents that this process has seen.
fn reports_of(client: &Client) -> AgentReports {
    match client.transport() {
        Transport::Rest(calls) => calls.agent_reports(),
        Transport::Grpc(_) => AgentReports::default(),
    }
}

fn block(record: &NodeBlock, net: IpNet, live: &HashSet<&str>, reports: &AgentReports) -> Block {
    let NodeBlockSpec {
        cidr,
        node_name,
        node_uid,
        state,
        quarantined_until,
    } = record.spec.clone();
    let is_live = live.contains(node_uid.as_str());
    let verdict = match is_live {
        true => ReportVerdict::None,
        false => reports.judge(net, record),
    };
    let quarantined = (BlockState::Quarantined, quarantined_until);
    let (state, until) = match (verdict, state) {
        (ReportVerdict::Held(until), _) => (BlockState::Draining, Some(until)),
        (ReportVerdict::None, NodeBlockState::Quarantined) => quarantined,
        (ReportVerdict::Silent { is_quarantined }, NodeBlockState::Quarantined)
            if is_quarantined =>
        {
            quarantined
        }
        _ if !is_live => (BlockState::Draining, None),
        (_, NodeBlockState::Foreign) => (BlockState::Foreign, None),
        _ => (BlockState::Assigned, None),
    };
    let status = record.status.clone().unwrap_or_default();
    let hold = matches!(verdict, ReportVerdict::Held(_)).then(|| Hold {
        heard: text(status.reported_at),
        ..Hold::default()
    });
    Block {
        cidr,
        state: state.into(),
        node_name,
        node_uid,
        resource_version: record.metadata.resource_version.clone().unwrap_or_default(),
        until: text(until),
        hold,
        ..Block::default()
    }
}

fn text(time: Option<Timestamp>) -> String {
    time.map(|time| time.to_string()).unwrap_or_default()
}

/// An assignment whose records exist.
struct Reserved {
    assignment: Assignment,
    /// The records that this call created.
    created: Vec<NodeBlock>,
    nets: Vec<IpNet>,
}

pub(super) async fn assign(
    client: &Client,
    assignments: Vec<Assignment>,
) -> Result<Vec<Result<String, ApiError>>, ApiError> {
    let reserved = assignments.into_iter().map(|one| reserve(client, one));
    let reserved: Vec<_> = stream::iter(reserved).buffered(CONCURRENCY).collect().await;
    // Without this list nothing is known of overlaps. The records stay for the next attempt.
    let (records, _) = records(client).await?;
    let owners: Vec<(IpNet, &str)> = records
        .iter()
        .filter_map(|record| Some((net(record)?, record.spec.node_uid.as_str())))
        .collect();
    let written = reserved
        .into_iter()
        .map(|reserved| write(client, reserved, &owners));
    Ok(stream::iter(written).buffered(CONCURRENCY).collect().await)
}

/// Creates the records of an assignment, or none.
async fn reserve(client: &Client, assignment: Assignment) -> Result<Reserved, ApiError> {
    let mut created = Vec::new();
    let mut nets = Vec::new();
    for (at, cidr) in assignment.pod_cidrs.iter().enumerate() {
        let field = format!("spec.podCIDRs[{at}]");
        let made = match cidr.parse::<IpNet>() {
            Ok(net) => {
                nets.push(net.trunc());
                create(client, net, &assignment.name, &assignment.uid, &field).await
            }
            Err(_) => Err(refused_block(
                &field,
                format!("Invalid value: {cidr:?}: must be a CIDR"),
            )),
        };
        match made {
            Ok(record) => created.extend(record),
            Err(error) => {
                remove(client, &created).await;
                return Err(error);
            }
        }
    }
    Ok(Reserved {
        assignment,
        created,
        nets,
    })
}

/// Creates the record of a block; `None` if the node has it already, from an earlier attempt.
async fn create(
    client: &Client,
    net: IpNet,
    node_name: &str,
    node_uid: &str,
    field: &str,
) -> Result<Option<NodeBlock>, ApiError> {
    let spec = NodeBlockSpec {
        cidr: net.trunc().to_string(),
        node_name: node_name.to_owned(),
        node_uid: node_uid.to_owned(),
        state: NodeBlockState::Assigned,
        quarantined_until: None,
    };
    let name = block_name(net);
    let record = NodeBlock::new(&name, &resource(), spec);
    let objects = objects(client);
    let params = PostParams::default();
    let created = async { objects.create(&params, &record).await.map_err(refused) };
    match answered(created).await {
        Ok(record) => Ok(Some(record)),
        Err(error) if error.is_already_exists() => {
            let found = async { objects.get(&name).await.map_err(refused) };
            let found = answered(found).await?;
            if found.spec.node_uid == node_uid && found.spec.state == NodeBlockState::Assigned {
                return Ok(None);
            }
            let taken = format!(
                "Invalid value: \"{net}\": node {} has it",
                found.spec.node_name
            );
            Err(refused_block(field, taken))
        }
        Err(error) => Err(error),
    }
}

fn refused_block(field: &str, description: String) -> ApiError {
    let message = format!("{field}: {description}");
    let field = field.to_owned();
    ApiError::new(Reason::Invalid, message).with_fields(vec![FieldViolation { field, description }])
}

/// Writes the blocks into the node, unless one of them overlaps that of another.
async fn write(
    client: &Client,
    reserved: Result<Reserved, ApiError>,
    owners: &[(IpNet, &str)],
) -> Result<String, ApiError> {
    let Reserved {
        assignment,
        created,
        nets,
    } = reserved?;
    let Assignment {
        name,
        uid,
        resource_version,
        pod_cidrs,
    } = assignment;
    for (at, net) in nets.iter().enumerate() {
        let overlaps = |(other, _): &&(IpNet, &str)| other.contains(net) || net.contains(other);
        let others = owners.iter().filter(|(_, owner)| *owner != uid);
        if let Some((other, _)) = others.clone().find(overlaps) {
            remove(client, &created).await;
            let taken = format!("Invalid value: \"{net}\": overlaps {other} of another node");
            return Err(refused_block(&format!("spec.podCIDRs[{at}]"), taken));
        }
    }
    let nodes = client.all::<Node>();
    let written = nodes.assign_pod_cidrs(&name, &uid, &resource_version, &pod_cidrs);
    match answered(written).await {
        Ok(node) => Ok(node.resource_version().to_owned()),
        // The node may have the blocks.
        Err(error) if error.is_unavailable() => Err(error),
        // The next attempt is for the same blocks.
        Err(error) if error.is_conflict() => Err(error),
        Err(error) => {
            remove(client, &created).await;
            Err(error)
        }
    }
}

/// Deletes records that this process created. A record that stays is found by [`adopt`].
async fn remove(client: &Client, created: &[NodeBlock]) {
    for record in created {
        if let Err(error) = answered(delete(client, record)).await {
            let cidr = &record.spec.cidr;
            tracing::debug!(cidr, %error, "failed to delete the NodeBlock of a refused assignment");
        }
    }
}

async fn delete(client: &Client, record: &NodeBlock) -> Result<(), ApiError> {
    let params = DeleteParams {
        uid: record.metadata.uid.clone(),
        resource_version: record.metadata.resource_version.clone(),
        ..DeleteParams::default()
    };
    let name = record.metadata.name.as_deref().unwrap_or_default();
    match objects(client)
        .delete(name, &delete_params(&params))
        .await
        .map_err(refused)
    {
        Err(error) if error.is_not_found() => Ok(()),
        deleted => deleted.map(drop),
    }
}

pub(super) async fn update(
    client: &Client,
    updates: Vec<BlockUpdate>,
) -> Vec<Result<Option<Block>, ApiError>> {
    let updates = updates
        .into_iter()
        .map(|one| answered(update_one(client, one)));
    stream::iter(updates).buffered(CONCURRENCY).collect().await
}

async fn update_one(client: &Client, update: BlockUpdate) -> Result<Option<Block>, ApiError> {
    let BlockUpdate {
        cidr,
        node_uid,
        change,
        quarantine_seconds,
        ..
    } = update;
    let net = cidr.parse::<IpNet>().map_err(|_| {
        ApiError::bad_field("cidr", format!("Invalid value: {cidr:?}: must be a CIDR"))
    })?;
    let name = block_name(net);
    let record = objects(client).get(&name).await.map_err(refused)?;
    if record.spec.node_uid != node_uid {
        // A record's key is the block and the node, as in podplane's store.
        return Err(ApiError::not_found("nodeblocks.podplane.io", &name));
    }
    let spec = match change {
        Some(Change::Release(true)) => {
            refuse_if_in_use(client, &record, net).await?;
            return delete(client, &record).await.map(|()| None);
        }
        Some(Change::State(state)) if state == i32::from(BlockState::Quarantined) => {
            refuse_if_in_use(client, &record, net).await?;
            let delay = SignedDuration::from_secs(quarantine_seconds.into());
            json!({"state": "Quarantined", "quarantinedUntil": clock::timestamp() + delay})
        }
        Some(Change::State(state)) if state == i32::from(BlockState::Foreign) => {
            json!({"state": "Foreign"})
        }
        Some(Change::State(state)) if state == i32::from(BlockState::Assigned) => {
            json!({"state": "Assigned"})
        }
        other => {
            let why = format!("Unsupported value: {other:?}: NodeBlocks have no such change");
            return Err(ApiError::bad_field("change", why));
        }
    };
    let patch = json!({
        "metadata": {"resourceVersion": record.metadata.resource_version},
        "spec": spec,
    });
    let patched = objects(client)
        .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
        .await;
    let patched = patched.map_err(refused)?;
    // The node is there, unless the block is quarantined: this was asked above.
    let is_live = patched.spec.state != NodeBlockState::Quarantined;
    let live = HashSet::from_iter(is_live.then_some(node_uid.as_str()));
    Ok(Some(block(&patched, net, &live, &reports_of(client))))
}

/// Refuses to release a block whose node exists, or whose agent reports addresses of it.
async fn refuse_if_in_use(client: &Client, record: &NodeBlock, net: IpNet) -> Result<(), ApiError> {
    let NodeBlockSpec {
        node_name,
        node_uid,
        ..
    } = &record.spec;
    let in_use = |why| Err(ApiError::new(Reason::InUse, why));
    match client.all::<Node>().get(node_name).await {
        Ok(node) if node.uid() == node_uid => {
            return in_use(format!("the block is in use: node {node_name} exists"));
        }
        Err(error) if !error.is_not_found() => return Err(error),
        Ok(_) | Err(_) => {}
    }
    match reports_of(client).judge(net, record) {
        ReportVerdict::Held(until) => in_use(format!(
            "the block is in use: the agent of node {node_name} reports addresses of it; held until {until}"
        )),
        ReportVerdict::None | ReportVerdict::Silent { .. } => Ok(()),
    }
}

pub(super) async fn adopt(client: &Client, nodes: &[NodeBlocks]) -> Result<(), ApiError> {
    let (records, _) = records(client).await?;
    let mut by_net: BTreeMap<IpNet, &NodeBlock> = BTreeMap::new();
    by_net.extend(
        records
            .iter()
            .filter_map(|record| Some((net(record)?, record))),
    );
    let by_uid: BTreeMap<&str, &NodeBlocks> = nodes
        .iter()
        .map(|node| (node.node_uid.as_str(), node))
        .collect();
    let has = |node: &NodeBlocks, net: &IpNet| {
        let mut held = node
            .pod_cidrs
            .iter()
            .filter_map(|cidr| cidr.parse::<IpNet>().ok());
        held.any(|held| held.trunc() == *net)
    };
    let now = clock::timestamp();
    let is_old = |record: &NodeBlock| {
        let created = record.metadata.creation_timestamp.as_ref();
        created.is_none_or(|created| {
            Duration::try_from(now.duration_since(created.0)).unwrap_or_default() > STALE_AFTER
        })
    };
    let stale = by_net.iter().filter(|(net, record)| {
        let owner = by_uid.get(record.spec.node_uid.as_str());
        // The blocks of a node never change.
        owner.is_some_and(|node| !node.pod_cidrs.is_empty() && !has(node, net)) && is_old(record)
    });
    let stale: Vec<NodeBlock> = stale.map(|(_, record)| (*record).clone()).collect();
    let mut missing = Vec::new();
    for node in nodes {
        let nets = node
            .pod_cidrs
            .iter()
            .filter_map(|cidr| cidr.parse::<IpNet>().ok());
        let unknown = nets.filter(|net| !by_net.contains_key(&net.trunc()));
        missing.extend(unknown.map(|net| (node.clone(), net)));
    }
    let deletions = stale.into_iter().map(|record| async move {
        let NodeBlockSpec {
            cidr, node_name, ..
        } = &record.spec;
        tracing::info!(
            cidr,
            node = node_name,
            "deleted the NodeBlock of a block that its node does not have"
        );
        delete(client, &record).await
    });
    let creations = missing.into_iter().map(|(node, net)| async move {
        match create(
            client,
            net,
            &node.node_name,
            &node.node_uid,
            "spec.podCIDRs",
        )
        .await
        {
            Ok(Some(_)) => {
                tracing::info!(cidr = %net, node = node.node_name, "adopted the block of a node");
                Ok(())
            }
            Ok(None) => Ok(()),
            // Two nodes with one block: the allocator reports the second one.
            Err(error) if error.reason == Reason::Invalid => Ok(()),
            Err(error) => Err(error),
        }
    });
    let deleted: Vec<_> = stream::iter(deletions)
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    let created: Vec<_> = stream::iter(creations)
        .buffer_unordered(CONCURRENCY)
        .collect()
        .await;
    deleted.into_iter().chain(created).collect()
}

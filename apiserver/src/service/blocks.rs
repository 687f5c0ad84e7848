//! The service for the records of node blocks.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::join_all;
use ipnet::IpNet;
use podplane_access::{Attributes, ResourceTarget};
use podplane_api::{Object as _, core::Node, jiff::SignedDuration};
use podplane_ipam::parse_cidr;
use podplane_proto::{
    blocks::MAX_UPDATES,
    error::ApiError,
    fence::Fence,
    ipam::{
        AssignBlocksRequest, AssignBlocksResponse, Assignment, AssignmentResult, Block, BlockState,
        BlockUpdate, BlockUpdateResult, HoldChange, ListBlocksRequest, ListBlocksResponse, Refusal,
        UpdateBlocksRequest, UpdateBlocksResponse, assignment_result,
        block_service_server::BlockService, block_update, block_update_result, hold_change::Action,
    },
    wire::AssignPodCidrsRequest,
};
use podplane_service_runtime::{authentication::RequestContext, identity::Identity};
use podplane_store::Revision;
use tonic::{Request, Response, Status};

use super::{status, write_params};
use crate::{
    admission::{
        BlockHold, BlockRecordId, Claimant, HoldMove, KeyedBlockRecord, NodeBlockAdmission,
        RecordState, RecordTransition,
    },
    audit::RequestRecord,
    authorization::{Authorized, Gate, Gated, MethodRule},
    error,
    registry::{ChangeTerms, Registry, WriteParams},
};

const MAX_ASSIGNMENTS: usize = 1000;

/// Serves the records.
#[derive(Debug)]
pub(crate) struct BlockRecords {
    pub(crate) gate: Gate,
    pub(crate) records: Gated<Records>,
}

/// The records, and the nodes that they are about.
#[derive(Clone, Debug)]
pub(crate) struct Records {
    pub(crate) nodes: Registry<Node>,
    pub(crate) blocks: Arc<NodeBlockAdmission>,
}

/// The API group of blocks.
pub(crate) const GROUP: &str = "ipam.podplane.io";

/// The rights that the methods need.
pub(crate) const BLOCK_RULES: [MethodRule; 3] = [
    MethodRule::ByMessage("ListBlocks"),
    MethodRule::ByMessage("AssignBlocks"),
    MethodRule::ByMessage("UpdateBlocks"),
];

#[tonic::async_trait]
impl BlockService for BlockRecords {
    async fn list_blocks(
        &self,
        request: Request<ListBlocksRequest>,
    ) -> Result<Response<ListBlocksResponse>, Status> {
        let right = list_right(&request.get_ref().node_name);
        let authorized = self.authorize(&request, BTreeSet::new(), right).await?;
        let records = self.records.open(&authorized);
        let listed = records.list(&request.get_ref().node_name).await;
        let (blocks, revision) = listed.map_err(status::of)?;
        Ok(Response::new(ListBlocksResponse {
            blocks,
            resource_version: revision.to_string(),
            cluster_cidrs: records.blocks.cluster_cidrs(),
        }))
    }

    async fn assign_blocks(
        &self,
        request: Request<AssignBlocksRequest>,
    ) -> Result<Response<AssignBlocksResponse>, Status> {
        let names = request.get_ref().assignments.iter();
        let needs: BTreeSet<_> = names.map(|one| assignment_right(&one.name)).collect();
        let authorized = self
            .authorize(&request, needs, assignment_right(""))
            .await?;
        let records = self.records.open(&authorized);
        let (write, AssignBlocksRequest { assignments }) =
            records.begin(request).await.map_err(status::of)?;
        at_most(MAX_ASSIGNMENTS, "assignments", assignments.len()).map_err(status::of)?;
        // Each is its own commit; concurrent commits share a sync of the disk.
        let assign = assignments.into_iter().map(|assignment| {
            let terms = write.terms();
            async move {
                let result = match records.assign(assignment, terms).await {
                    Ok(version) => assignment_result::Result::ResourceVersion(version),
                    Err(error) => assignment_result::Result::Refusal(refusal(error)),
                };
                AssignmentResult {
                    result: Some(result),
                }
            }
        });
        let results = join_all(assign).await;
        Ok(Response::new(AssignBlocksResponse { results }))
    }

    async fn update_blocks(
        &self,
        request: Request<UpdateBlocksRequest>,
    ) -> Result<Response<UpdateBlocksResponse>, Status> {
        let needs: BTreeSet<_> = request.get_ref().updates.iter().map(update_right).collect();
        let none = update_right(&BlockUpdate::default());
        let authorized = self.authorize(&request, needs, none).await?;
        let records = self.records.open(&authorized);
        let (write, UpdateBlocksRequest { updates }) =
            records.begin(request).await.map_err(status::of)?;
        at_most(MAX_UPDATES, "updates", updates.len()).map_err(status::of)?;
        let update = updates.into_iter().map(|update| {
            let fence = write.fence.as_ref();
            async move {
                let result = match records.update(update, fence).await {
                    Ok(block) => block_update_result::Result::Block(block),
                    Err(error) => block_update_result::Result::Refusal(refusal(error)),
                };
                BlockUpdateResult {
                    result: Some(result),
                }
            }
        });
        let results = join_all(update).await;
        Ok(Response::new(UpdateBlocksResponse { results }))
    }
}

/// The right to a write: verb, API group, resource, subresource and the node's name.
type BlockRight = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    String,
);

fn target(right: &BlockRight) -> ResourceTarget<'_> {
    let (_, group, resource, subresource, name) = right;
    ResourceTarget {
        group,
        version: "v1",
        resource,
        subresource,
        name,
        ..ResourceTarget::default()
    }
}

/// The right to list the records of a node, or of all.
fn list_right(node: &str) -> BlockRight {
    ("list", GROUP, "blocks", "", node.to_owned())
}

/// The right to assign blocks to a node.
fn assignment_right(node: &str) -> BlockRight {
    ("update", "", "nodes", "podcidrs", node.to_owned())
}

/// The right to change a record. A node may take and end the holds of its own blocks; to forget the
/// hold of another is for operators.
fn update_right(update: &BlockUpdate) -> BlockRight {
    let (verb, subresource) = match &update.change {
        Some(block_update::Change::Hold(change)) if change.action() == Action::Forget => {
            ("delete", "hold")
        }
        Some(block_update::Change::Hold(_)) => ("update", "hold"),
        Some(block_update::Change::State(_) | block_update::Change::Release(_)) | None => {
            ("update", "")
        }
    };
    (verb, GROUP, "blocks", subresource, update.node_name.clone())
}

impl BlockRecords {
    /// Judges a request that needs all of these rights, or the right `none` if there are none.
    async fn authorize<T>(
        &self,
        request: &Request<T>,
        mut needs: BTreeSet<BlockRight>,
        none: BlockRight,
    ) -> Result<Authorized, Status> {
        let caller = RequestContext::of(request.extensions()).identity;
        let record = RequestRecord::of(request.extensions());
        if needs.len() > 1 {
            // About no node in particular.
            let (verb, ..) = none;
            record.is_about(&Attributes::resource(&caller, verb, target(&none)));
        }
        let last = needs.pop_last().unwrap_or(none);
        for right in &needs {
            self.judge(&caller, right, &record).await?;
        }
        self.judge(&caller, &last, &record).await
    }

    async fn judge(
        &self,
        caller: &Arc<Identity>,
        right: &BlockRight,
        record: &RequestRecord,
    ) -> Result<Authorized, Status> {
        let (verb, ..) = *right;
        let judged = self.gate.authorize(caller, verb, target(right), record);
        judged.await.map_err(status::of)
    }
}

impl Records {
    /// The blocks of a node, or all if the name is empty, by address; and their revision.
    pub(crate) async fn list(&self, node_name: &str) -> Result<(Vec<Block>, Revision), ApiError> {
        let is_asked = |node: &str| node_name.is_empty() || node_name == node;
        self.blocks.catch_up().await?;
        let (records, revision) = self.blocks.records().await?;
        let mut blocks: Vec<_> = records
            .iter()
            .filter(|found| is_asked(&found.node))
            .map(|found| (found.net, self.block(found)))
            .collect();
        if is_asked("") {
            let ranges = self.blocks.reserved().await?;
            blocks.extend(ranges.iter().map(|net| (*net, reserved(net))));
        }
        blocks.sort_by_key(|(net, _)| *net);
        let blocks = blocks.into_iter().map(|(_, block)| block).collect();
        Ok((blocks, revision))
    }

    /// Unwraps a request and checks its fence, if it has one.
    async fn begin<T>(&self, request: Request<T>) -> Result<(WriteParams, T), ApiError> {
        let write = write_params(request.metadata().as_ref(), request.extensions())?;
        self.blocks.catch_up().await?;
        self.blocks.check_fence(write.fence.as_ref()).await?;
        Ok((write, request.into_inner()))
    }

    async fn assign(
        &self,
        assignment: Assignment,
        terms: ChangeTerms<'_>,
    ) -> Result<String, ApiError> {
        let Assignment {
            name,
            uid,
            resource_version,
            pod_cidrs,
        } = assignment;
        let request = AssignPodCidrsRequest {
            name,
            uid,
            resource_version,
            pod_cidrs,
        };
        let assigned = self.nodes.assign_pod_cidrs(&request, terms).await?;
        Ok(assigned.resource_version().to_owned())
    }

    async fn update(&self, update: BlockUpdate, fence: Option<&Fence>) -> Result<Block, ApiError> {
        use block_update::Change;
        let BlockUpdate {
            cidr,
            node_name: node,
            node_uid,
            change,
            quarantine_seconds,
        } = update;
        let net =
            parse_cidr(&cidr).map_err(|error| error::bad_request(format!("cidr: {error}")))?;
        let seconds = |seconds: u32| SignedDuration::from_secs(seconds.into());
        let to = match change {
            Some(Change::State(state)) => match BlockState::try_from(state) {
                Ok(BlockState::Assigned) => RecordTransition::Assigned,
                Ok(BlockState::Foreign) => RecordTransition::Foreign,
                Ok(BlockState::Quarantined) => {
                    RecordTransition::Quarantined(seconds(quarantine_seconds))
                }
                _ => {
                    let why = "state: must be ASSIGNED, FOREIGN or QUARANTINED";
                    return Err(error::bad_request(why));
                }
            },
            Some(Change::Release(true)) => RecordTransition::Release,
            Some(Change::Hold(change)) => RecordTransition::Hold(hold_move(change)?),
            Some(Change::Release(false)) | None => {
                let why = "state, release or hold is required";
                return Err(error::bad_request(why));
            }
        };
        let which = BlockRecordId {
            net: net.trunc(),
            node,
            node_uid,
        };
        let updated = self.blocks.update(&which, to, fence).await?;
        Ok(updated.map(|found| self.block(&found)).unwrap_or_default())
    }
}

impl Records {
    fn block(&self, found: &KeyedBlockRecord) -> Block {
        let record = &found.record;
        let state = match record.state {
            RecordState::Assigned => BlockState::Assigned,
            RecordState::Foreign => BlockState::Foreign,
            RecordState::Draining => BlockState::Draining,
            RecordState::Quarantined => BlockState::Quarantined,
        };
        let release_after = self.blocks.release_after();
        let until = match (record.state, &record.hold) {
            (RecordState::Draining, Some(hold)) => hold.until(release_after),
            _ => record.until,
        };
        Block {
            cidr: found.net.to_string(),
            state: state.into(),
            node_name: found.node.clone(),
            node_uid: record.node_uid.clone(),
            fence: record.fence.clone().unwrap_or_default(),
            resource_version: found.revision.to_string(),
            until: until.map(|until| until.to_string()).unwrap_or_default(),
            pool: None,
            hold: record.hold.as_ref().map(BlockHold::to_wire),
        }
    }
}

fn at_most(max: usize, field: &str, found: usize) -> Result<(), ApiError> {
    match found {
        found if found > max => Err(error::bad_request(format!(
            "{field}: there are {found}, and may be {max}"
        ))),
        _ => Ok(()),
    }
}

/// Converts a requested change of a hold.
fn hold_move(change: HoldChange) -> Result<HoldMove, ApiError> {
    let action = change.action();
    let HoldChange {
        instance,
        addresses,
        ..
    } = change;
    let claimant =
        || Claimant::new(instance).ok_or_else(|| error::bad_request("hold.instance is required"));
    Ok(match action {
        Action::Take => HoldMove::Take(claimant()?, addresses),
        Action::End => HoldMove::End(claimant()?),
        Action::Forget => HoldMove::Forget,
        Action::Unspecified => {
            let why = "hold.action: must be TAKE, END or FORGET";
            return Err(error::bad_request(why));
        }
    })
}

fn reserved(net: &IpNet) -> Block {
    Block {
        cidr: net.to_string(),
        state: BlockState::Reserved.into(),
        ..Block::default()
    }
}

fn refusal(error: ApiError) -> Refusal {
    let ApiError {
        reason,
        message,
        fields,
        continue_token: _,
        retry_after_seconds: _,
        chosen_status: _,
    } = error;
    Refusal {
        reason: reason.as_str().to_owned(),
        message,
        fields: fields
            .into_iter()
            .map(|violation| violation.field)
            .collect(),
    }
}

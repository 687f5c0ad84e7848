//! The fake service of block records.

use podplane_client::{ApiError, Reason};
use podplane_proto::{
    ipam::{
        self, AssignBlocksRequest, AssignBlocksResponse, AssignmentResult, BlockState, BlockUpdate,
        BlockUpdateResult, ListBlocksRequest, ListBlocksResponse, Refusal, UpdateBlocksRequest,
        UpdateBlocksResponse, assignment_result, block_service_server::BlockService,
        block_update::Change, block_update_result,
    },
    wire,
};
use tonic::{Request, Response, Status};

use super::{ControllerState, IpamApiserver};

#[tonic::async_trait]
impl BlockService for IpamApiserver {
    async fn list_blocks(
        &self,
        _: Request<ListBlocksRequest>,
    ) -> Result<Response<ListBlocksResponse>, Status> {
        let blocks = self.read(|state| state.records.values().cloned().collect());
        Ok(Response::new(ListBlocksResponse {
            blocks,
            ..ListBlocksResponse::default()
        }))
    }

    async fn assign_blocks(
        &self,
        request: Request<AssignBlocksRequest>,
    ) -> Result<Response<AssignBlocksResponse>, Status> {
        let assignments = request.into_inner().assignments;
        self.change(|state| state.batches.push(assignments.len()));
        let mut results = Vec::new();
        for one in assignments {
            self.hang(&one.name).await;
            let request = wire::AssignPodCidrsRequest {
                name: one.name,
                uid: one.uid,
                resource_version: one.resource_version,
                pod_cidrs: one.pod_cidrs,
            };
            let result = match self.change(|state| state.assign(&request)) {
                Ok(node) => assignment_result::Result::ResourceVersion(
                    node.metadata.resource_version.unwrap_or_default(),
                ),
                // For a batch, the answer as a whole is lost.
                Err(error) if error.reason == Reason::ServiceUnavailable => {
                    return Err(error.into());
                }
                Err(error) => assignment_result::Result::Refusal(refusal(error)),
            };
            results.push(AssignmentResult {
                result: Some(result),
            });
        }
        Ok(Response::new(AssignBlocksResponse { results }))
    }

    async fn update_blocks(
        &self,
        request: Request<UpdateBlocksRequest>,
    ) -> Result<Response<UpdateBlocksResponse>, Status> {
        let updates = request.into_inner().updates.into_iter();
        let results = updates.map(|update| {
            let result = match self.change(|state| state.update(update)) {
                Ok(block) => block_update_result::Result::Block(block),
                Err(error) => block_update_result::Result::Refusal(refusal(error)),
            };
            BlockUpdateResult {
                result: Some(result),
            }
        });
        Ok(Response::new(UpdateBlocksResponse {
            results: results.collect(),
        }))
    }
}

impl ControllerState {
    fn update(&mut self, update: BlockUpdate) -> Result<ipam::Block, ApiError> {
        let key = (update.cidr.clone(), update.node_name.clone());
        let lives = self
            .nodes
            .get(&update.node_name)
            .is_some_and(|node| node.metadata.uid.as_deref() == Some(update.node_uid.as_str()));
        let Some(record) = self.records.get_mut(&key) else {
            return Ok(ipam::Block::default());
        };
        if record.node_uid != update.node_uid {
            return Err(ApiError::new(Reason::Conflict, "it has another owner"));
        }
        match update.change {
            Some(Change::Release(true)) if lives => {
                Err(ApiError::new(Reason::InUse, "its node lives"))
            }
            Some(Change::Release(true)) => {
                self.records.remove(&key);
                Ok(ipam::Block::default())
            }
            Some(Change::State(state)) => {
                record.state = state;
                if record.state() == BlockState::Quarantined {
                    let delay = std::time::Duration::from_secs(update.quarantine_seconds.into());
                    record.until = (podplane_api::jiff::Timestamp::now() + delay).to_string();
                }
                Ok(record.clone())
            }
            other => Err(ApiError::new(
                Reason::BadRequest,
                format!("{other:?} is not faked"),
            )),
        }
    }
}

impl IpamApiserver {
    /// Never returns if assignments to that node are to hang.
    pub(super) async fn hang(&self, node: &str) {
        if self.read(|state| state.hanging.iter().any(|hanging| hanging == node)) {
            std::future::pending::<()>().await;
        }
    }
}

fn refusal(error: ApiError) -> Refusal {
    let fields = error.fields.iter().map(|field| field.field.clone());
    Refusal {
        reason: error.reason.as_str().to_owned(),
        fields: fields.collect(),
        message: error.message,
    }
}

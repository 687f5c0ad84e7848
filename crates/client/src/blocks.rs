//! The records of node blocks: the owner of each prefix.

use crate::{
    Channel,
    api::{Calls, refused},
};
use podplane_proto::{
    error::{ApiError, FieldViolation, Reason},
    ipam::{
        AssignBlocksRequest, Assignment, AssignmentResult, Block, BlockUpdate, BlockUpdateResult,
        ListBlocksRequest, Refusal, UpdateBlocksRequest, assignment_result,
        block_service_client::BlockServiceClient, block_update_result,
    },
};

/// The records of node blocks, from [`Client::blocks`](crate::Client::blocks). A fenced client puts
/// every write under its fence.
#[derive(Clone, Debug)]
pub struct BlocksClient {
    calls: Calls,
}

/// All records at one revision.
#[derive(Clone, Debug)]
pub struct BlockList {
    /// The records by address, IPv4 first.
    pub blocks: Vec<Block>,
    /// The revision. Opaque.
    pub resource_version: String,
}

impl BlocksClient {
    pub(crate) fn new(calls: Calls) -> Self {
        Self { calls }
    }

    /// Lists every record, service ranges included.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn list(&self) -> Result<BlockList, ApiError> {
        self.list_of("").await
    }

    /// Lists the records of a node; of all, if its name is empty.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub async fn list_of(&self, node: &str) -> Result<BlockList, ApiError> {
        let node_name = node.to_owned();
        let request = self.calls.request(ListBlocksRequest { node_name });
        let listed = self.service().list_blocks(request).await.map_err(refused)?;
        let listed = listed.into_inner();
        Ok(BlockList {
            blocks: listed.blocks,
            resource_version: listed.resource_version,
        })
    }

    /// Assigns blocks to nodes. Returns one result for each assignment, in their order: the node's
    /// revision with its blocks, or the error that
    /// [`assign_pod_cidrs`](crate::Api::assign_pod_cidrs) would have returned.
    ///
    /// # Errors
    ///
    /// `FenceLost` if the fence was lost before, `BadRequest` for more than 1,000 assignments, and
    /// those of the connection; then no assignment was written, unless the reason is
    /// `ServiceUnavailable`.
    pub async fn assign(
        &self,
        assignments: Vec<Assignment>,
    ) -> Result<Vec<Result<String, ApiError>>, ApiError> {
        let asked = assignments.len();
        let request = self.calls.request(AssignBlocksRequest { assignments });
        let mut service = self.service();
        let call = async { service.assign_blocks(request).await.map_err(refused) };
        let results = self.calls.patch(call).await?.into_inner().results;
        let results = results.into_iter().map(|AssignmentResult { result }| {
            Ok(match result.ok_or_else(incomplete)? {
                assignment_result::Result::ResourceVersion(version) => Ok(version),
                assignment_result::Result::Refusal(refusal) => Err(error(refusal)),
            })
        });
        complete(asked, results.collect())
    }

    /// Updates the state of records. Returns one result for each update, in their order: the record
    /// after the update, or `None` if it was removed.
    ///
    /// # Errors
    ///
    /// As [`assign`](Self::assign), with at most 100 updates.
    pub async fn update(
        &self,
        updates: Vec<BlockUpdate>,
    ) -> Result<Vec<Result<Option<Block>, ApiError>>, ApiError> {
        let asked = updates.len();
        let request = self.calls.request(UpdateBlocksRequest { updates });
        let answer = self.service().update_blocks(request).await;
        let results = answer.map_err(refused)?.into_inner().results;
        let results = results.into_iter().map(|BlockUpdateResult { result }| {
            Ok(match result.ok_or_else(incomplete)? {
                block_update_result::Result::Block(block) => {
                    Ok(Some(block).filter(|block| !block.cidr.is_empty()))
                }
                block_update_result::Result::Refusal(refusal) => Err(error(refusal)),
            })
        });
        complete(asked, results.collect())
    }

    fn service(&self) -> BlockServiceClient<Channel> {
        // The list of a full range is longer than tonic's default of 4 MiB for one message.
        BlockServiceClient::new(self.calls.channel()).max_decoding_message_size(usize::MAX)
    }
}

/// Checks that there is a result for each part of a request.
fn complete<T>(asked: usize, results: Result<Vec<T>, ApiError>) -> Result<Vec<T>, ApiError> {
    results.and_then(|results| match results.len() {
        answered if answered == asked => Ok(results),
        _ => Err(incomplete()),
    })
}

fn incomplete() -> ApiError {
    ApiError::new(
        Reason::InternalError,
        "the server did not answer every part of the request",
    )
}

fn error(refusal: Refusal) -> ApiError {
    let Refusal {
        reason,
        message,
        fields,
    } = refusal;
    let violation = |field| FieldViolation {
        field,
        description: String::new(),
    };
    let reason = Reason::parse(&reason).unwrap_or(Reason::InternalError);
    ApiError::new(reason, message).with_fields(fields.into_iter().map(violation).collect())
}

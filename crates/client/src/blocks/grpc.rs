//! The records of podplane's own store.

use podplane_proto::{
    error::{ApiError, FieldViolation, Reason},
    ipam::{
        AssignBlocksRequest, Assignment, AssignmentResult, Block, BlockUpdate, BlockUpdateResult,
        ListBlocksRequest, Refusal, UpdateBlocksRequest, assignment_result,
        block_service_client::BlockServiceClient, block_update_result,
    },
};

use super::BlockList;
use crate::{
    Channel,
    api::grpc::{GrpcCalls, refused},
};

pub(super) async fn list_of(calls: &GrpcCalls, node: &str) -> Result<BlockList, ApiError> {
    let node_name = node.to_owned();
    let request = calls.request(ListBlocksRequest { node_name });
    let listed = service(calls).list_blocks(request).await.map_err(refused)?;
    let listed = listed.into_inner();
    let ranges = listed.cluster_cidrs.iter();
    Ok(BlockList {
        blocks: listed.blocks,
        resource_version: listed.resource_version,
        cluster_cidrs: ranges.filter_map(|range| range.parse().ok()).collect(),
    })
}

pub(super) async fn assign(
    calls: &GrpcCalls,
    assignments: Vec<Assignment>,
) -> Result<Vec<Result<String, ApiError>>, ApiError> {
    let asked = assignments.len();
    let request = calls.request(AssignBlocksRequest { assignments });
    let answer = service(calls).assign_blocks(request).await;
    let results = answer.map_err(refused)?.into_inner().results;
    let results = results.into_iter().map(|AssignmentResult { result }| {
        Ok(match result.ok_or_else(incomplete)? {
            assignment_result::Result::ResourceVersion(version) => Ok(version),
            assignment_result::Result::Refusal(refusal) => Err(error(refusal)),
        })
    });
    complete(asked, results.collect())
}

pub(super) async fn update(
    calls: &GrpcCalls,
    updates: Vec<BlockUpdate>,
) -> Result<Vec<Result<Option<Block>, ApiError>>, ApiError> {
    let asked = updates.len();
    let request = calls.request(UpdateBlocksRequest { updates });
    let answer = service(calls).update_blocks(request).await;
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

fn service(calls: &GrpcCalls) -> BlockServiceClient<Channel> {
    // The list of a full range is longer than tonic's default of 4 MiB for one message.
    BlockServiceClient::new(calls.channel()).max_decoding_message_size(usize::MAX)
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

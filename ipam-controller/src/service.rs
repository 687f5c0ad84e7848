//! `podplane.ipam.v1`: who owns an address or a block, and how full the ranges are.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use podplane_client::{ApiError, Reason};
use podplane_ipam::{Block, Claim, NodeBlocks, Usage, parse_cidr};
use podplane_proto::ipam::{self as wire, ipam_service_server::IpamService};
use tonic::{Request, Response, Status};

use crate::controller::Known;

/// Answers from the controller's memory, which begins with the first list of nodes.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    known: Arc<Known>,
}

impl Service {
    pub(crate) fn new(known: Arc<Known>) -> Self {
        Self { known }
    }

    fn read<T>(&self, question: impl FnOnce(&NodeBlocks) -> T) -> Result<T, Status> {
        let not_yet = || {
            ApiError::new(
                Reason::ServiceUnavailable,
                "the nodes have not been listed yet",
            )
            .into()
        };
        self.known
            .read(|allocator| question(allocator.blocks()))
            .ok_or_else(not_yet)
    }
}

#[tonic::async_trait]
impl IpamService for Service {
    async fn get_owner(
        &self,
        request: Request<wire::GetOwnerRequest>,
    ) -> Result<Response<wire::GetOwnerResponse>, Status> {
        let net = parse(&request.into_inner().address)?;
        let blocks = self.read(|blocks| blocks.overlapping(net))?;
        Ok(Response::new(wire::GetOwnerResponse {
            blocks: blocks.iter().map(block).collect(),
        }))
    }

    async fn list_pools(
        &self,
        _: Request<wire::ListPoolsRequest>,
    ) -> Result<Response<wire::ListPoolsResponse>, Status> {
        let pools =
            self.read(|blocks| blocks.usage().map(|usage| pool(&usage, blocks)).collect())?;
        Ok(Response::new(wire::ListPoolsResponse { pools }))
    }
}

fn parse(address: &str) -> Result<IpNet, ApiError> {
    let refused = || {
        let message = format!(
            "address: Invalid value: {address:?}: must be an IP address or a CIDR, such as 10.244.1.7 or 10.244.1.0/24"
        );
        ApiError::new(Reason::BadRequest, message)
    };
    match address.parse::<IpAddr>() {
        Ok(address) => Ok(IpNet::from(address)),
        Err(_) => parse_cidr(address).map_err(|_| refused()),
    }
}

fn pool(usage: &Usage, blocks: &NodeBlocks) -> wire::Pool {
    wire::Pool {
        cidr: usage.range.cidr().to_string(),
        node_mask_size: usage.range.node_mask().into(),
        capacity: usage.blocks,
        used: usage.used,
        free: usage.free,
        blocks: blocks
            .overlapping(usage.range.cidr())
            .iter()
            .map(block)
            .collect(),
    }
}

fn block(block: &Block) -> wire::Block {
    let state = match &block.claim {
        Claim::Reserved => wire::BlockState::Reserved,
        Claim::Assigned(_) => wire::BlockState::Assigned,
        Claim::Foreign(_) => wire::BlockState::Foreign,
        Claim::Draining(_) => wire::BlockState::Draining,
    };
    let owner = block.claim.owner();
    wire::Block {
        cidr: block.net.to_string(),
        state: state.into(),
        node_name: owner
            .map(|owner| owner.name().to_owned())
            .unwrap_or_default(),
        node_uid: owner
            .map(|owner| owner.uid().to_owned())
            .unwrap_or_default(),
        ..wire::Block::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_blocks_are_understood() {
        for (text, want) in [
            ("10.0.0.7", "10.0.0.7/32"),
            ("fd00::7", "fd00::7/128"),
            ("10.0.0.0/24", "10.0.0.0/24"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), want);
        }
        let error = parse("node-1").unwrap_err();
        assert_eq!(error.reason, Reason::BadRequest);
        assert!(error.message.contains("\"node-1\""), "{error}");
    }
}

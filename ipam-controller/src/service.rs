//! `podplane.ipam.v1`: owners of addresses and blocks, use of ranges, free prefixes, and problems.

mod findings;
mod free;
mod owner;

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use podplane_api::core::Pod;
use podplane_client::{ApiError, Cache, Reason};
use podplane_ipam::{Block, Claim, Owner, Usage, parse_cidr};
use podplane_proto::ipam::{self as wire, ipam_service_server::IpamService};
use tonic::{Request, Response, Status};

use crate::{
    controller::AllocatorHandle,
    plan::{Allocator, ReleasePhase},
};

/// The most entries of one answer.
const LIMIT: usize = 10_000;

/// The service. It answers from the controller's memory, which begins with the first lists of nodes
/// and records.
#[derive(Clone, Debug)]
pub(crate) struct AllocatorService {
    known: Arc<AllocatorHandle>,
    pods: Cache<Pod>,
}

impl AllocatorService {
    pub(crate) fn new(known: Arc<AllocatorHandle>, pods: Cache<Pod>) -> Self {
        Self { known, pods }
    }

    fn read<T>(&self, question: impl FnOnce(&Allocator) -> T) -> Result<T, Status> {
        let not_yet = || {
            ApiError::new(
                Reason::ServiceUnavailable,
                "this controller does not lead, or has not listed the nodes yet",
            )
            .into()
        };
        self.known.read(question).ok_or_else(not_yet)
    }
}

#[tonic::async_trait]
impl IpamService for AllocatorService {
    async fn get_owner(
        &self,
        request: Request<wire::GetOwnerRequest>,
    ) -> Result<Response<wire::GetOwnerResponse>, Status> {
        let net = parse("address", &request.into_inner().address)?;
        let mut response = self.read(|known| owner::of(net, known))?;
        owner::add_pods(&mut response, net, self.pods.list());
        Ok(Response::new(response))
    }

    async fn list_pools(
        &self,
        _: Request<wire::ListPoolsRequest>,
    ) -> Result<Response<wire::ListPoolsResponse>, Status> {
        let pools = self.read(|known| {
            let mut left = LIMIT;
            let pools = known.blocks().usage_by_set();
            pools
                .map(|(set, usage)| {
                    let pool = pool(set, &usage, known, left);
                    left -= pool.blocks.len();
                    pool
                })
                .collect()
        })?;
        Ok(Response::new(wire::ListPoolsResponse { pools }))
    }

    async fn find_blocks(
        &self,
        request: Request<wire::FindBlocksRequest>,
    ) -> Result<Response<wire::FindBlocksResponse>, Status> {
        let request = request.into_inner();
        for (at, state) in request.states.iter().enumerate() {
            if wire::BlockState::try_from(*state).is_err() {
                let unknown = format!("Unsupported value: {state}: unknown block state");
                return Err(ApiError::bad_field(&format!("states[{at}]"), unknown).into());
            }
        }
        let limit = limit(request.limit, LIMIT);
        let of_node = |held: &Block| {
            let name = held.claim.owner().map_or("", Owner::name);
            request.node_name.is_empty() || request.node_name == name
        };
        let of_state = |held: &Block, known: &Allocator| {
            let state = || i32::from(state(held, phase(held, known)));
            request.states.is_empty() || request.states.contains(&state())
        };
        let (blocks, more) = self.read(|known| {
            let held = known.blocks().iter();
            let wanted = held.filter(|held| of_node(held) && of_state(held, known));
            bounded(wanted.map(|held| block(&held, known)), limit)
        })?;
        Ok(Response::new(wire::FindBlocksResponse { blocks, more }))
    }

    async fn list_free(
        &self,
        request: Request<wire::ListFreeRequest>,
    ) -> Result<Response<wire::ListFreeResponse>, Status> {
        let wire::ListFreeRequest { cidr, limit: most } = request.into_inner();
        let only = match cidr.as_str() {
            "" => None,
            cidr => Some(parse("cidr", cidr)?.trunc()),
        };
        let limit = limit(most, 1000);
        let prefixes = self.read(|known| {
            let mut pools = known.blocks().usage_by_set();
            if let Some(only) = only
                && pools.all(|(_, usage)| usage.range.cidr() != only)
            {
                let none = format!(
                    "Invalid value: \"{only}\": must be a range of node blocks, as ListPools lists them"
                );
                return Err(ApiError::bad_field("cidr", none));
            }
            Ok(free::prefixes(known.blocks(), only, limit + 1))
        })??;
        let (prefixes, more) = bounded(prefixes.into_iter(), limit);
        Ok(Response::new(wire::ListFreeResponse { prefixes, more }))
    }

    async fn audit(
        &self,
        _: Request<wire::AuditRequest>,
    ) -> Result<Response<wire::AuditResponse>, Status> {
        let findings = self.read(findings::of)?;
        Ok(Response::new(wire::AuditResponse { findings }))
    }
}

fn limit(asked: u32, default: usize) -> usize {
    match usize::try_from(asked).unwrap_or(LIMIT) {
        0 => default,
        asked => asked.min(LIMIT),
    }
}

/// The first `limit` items, and whether there are more.
fn bounded<T>(mut all: impl Iterator<Item = T>, limit: usize) -> (Vec<T>, bool) {
    let first = all.by_ref().take(limit).collect();
    (first, all.next().is_some())
}

fn parse(field: &str, text: &str) -> Result<IpNet, ApiError> {
    let refused = || {
        let description = format!(
            "Invalid value: {text:?}: must be an IP address or a CIDR, such as 10.244.1.7 or 10.244.1.0/24"
        );
        ApiError::bad_field(field, description)
    };
    match text.parse::<IpAddr>() {
        Ok(address) => Ok(IpNet::from(address)),
        Err(_) => parse_cidr(text).map_err(|_| refused()),
    }
}

/// A range with its use and at most `limit` of its blocks.
fn pool(name: &str, usage: &Usage, known: &Allocator, limit: usize) -> wire::Pool {
    let held = known.blocks().each_overlapping(usage.range.cidr());
    let (blocks, more_blocks) = bounded(held.map(|held| block(&held, known)), limit);
    wire::Pool {
        cidr: usage.range.cidr().to_string(),
        node_mask_size: usage.range.node_mask().into(),
        capacity: usage.blocks,
        used: usage.used,
        free: usage.free,
        blocks,
        name: name.to_owned(),
        more_blocks,
    }
}

fn phase(block: &Block, known: &Allocator) -> Option<ReleasePhase> {
    let owner = block.claim.owner()?;
    known.phase(owner, block.net)
}

fn state(block: &Block, phase: Option<ReleasePhase>) -> wire::BlockState {
    match (&block.claim, phase) {
        (Claim::Reserved, _) => wire::BlockState::Reserved,
        (Claim::Assigned(_), _) => wire::BlockState::Assigned,
        (Claim::Foreign(_), _) => wire::BlockState::Foreign,
        (Claim::Draining(_), Some(ReleasePhase::Quarantined(_))) => wire::BlockState::Quarantined,
        (Claim::Draining(_), _) => wire::BlockState::Draining,
    }
}

fn block(block: &Block, known: &Allocator) -> wire::Block {
    let owner = block.claim.owner();
    let phase = phase(block, known);
    let until = match phase {
        Some(ReleasePhase::Held(Some(until)) | ReleasePhase::Quarantined(until)) => {
            until.to_string()
        }
        _ => String::new(),
    };
    wire::Block {
        cidr: block.net.to_string(),
        state: state(block, phase).into(),
        node_name: owner
            .map(|owner| owner.name().to_owned())
            .unwrap_or_default(),
        node_uid: owner
            .map(|owner| owner.uid().to_owned())
            .unwrap_or_default(),
        until,
        pool: owner::pools(block.net, known).next(),
        ..wire::Block::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_answers_say_so() {
        for (limit, want) in [
            (2, (2, true)),
            (3, (3, false)),
            (4, (3, false)),
            (0, (0, true)),
        ] {
            let (first, more) = bounded(0..3, limit);
            assert_eq!((first.len(), more), want);
        }
    }

    #[test]
    fn parses_addresses_and_blocks() {
        for (text, want) in [
            ("10.0.0.7", "10.0.0.7/32"),
            ("fd00::7", "fd00::7/128"),
            ("10.0.0.0/24", "10.0.0.0/24"),
        ] {
            assert_eq!(parse("address", text).unwrap().to_string(), want);
        }
        let error = parse("address", "node-1").unwrap_err();
        assert_eq!(error.reason, Reason::BadRequest);
        assert!(error.message.contains("\"node-1\""), "{error}");
    }
}

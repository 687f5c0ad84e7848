//! The records of node blocks: the owner of each prefix.
//!
//! podplane's API server has them in its own store, and writes a record together with its node. On
//! Kubernetes they are objects of a CustomResourceDefinition ([`node_blocks`]).

mod grpc;
mod name;
mod node_blocks;

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use podplane_proto::{
    error::ApiError,
    ipam::{Assignment, Block, BlockUpdate},
};

pub use self::name::block_name;
pub(crate) use self::node_blocks::AgentReports;
use crate::api::{Client, Transport};

/// The records of node blocks, from [`Client::blocks`](crate::Client::blocks). A fenced client puts
/// every write under its fence.
#[derive(Clone, Debug)]
pub struct BlocksClient {
    client: Client,
}

/// All records at one revision.
#[derive(Clone, Debug)]
pub struct BlockList {
    /// The records by address, IPv4 first.
    pub blocks: Vec<Block>,
    /// The revision. Opaque.
    pub resource_version: String,
    /// The ranges of podplane's `--cluster-cidr`. Kubernetes' API server does not know its own.
    pub cluster_cidrs: Vec<IpNet>,
}

/// A node and the blocks that it has, for [`BlocksClient::adopt`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeBlocks {
    /// The node's name.
    pub node_name: String,
    /// Its UID.
    pub node_uid: String,
    /// Its `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
}

impl BlocksClient {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Lists every record, in podplane's store service ranges included.
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
        match self.client.transport() {
            Transport::Grpc(calls) => grpc::list_of(calls, node).await,
            Transport::Rest(_) => node_blocks::list_of(&self.client, node).await,
        }
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
        let call = async {
            match self.client.transport() {
                Transport::Grpc(calls) => grpc::assign(calls, assignments).await,
                Transport::Rest(_) => node_blocks::assign(&self.client, assignments).await,
            }
        };
        self.client.patch(call).await
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
        match self.client.transport() {
            Transport::Grpc(calls) => grpc::update(calls, updates).await,
            Transport::Rest(_) => Ok(node_blocks::update(&self.client, updates).await),
        }
    }

    /// Makes the records agree with the nodes, on Kubernetes, where nodes get blocks from others
    /// too: a block without a record gets one, and a record for a block that its node will never
    /// have is deleted. podplane's store needs none of it.
    ///
    /// # Errors
    ///
    /// The first refusal; the other records are written nevertheless.
    pub async fn adopt(&self, nodes: &[NodeBlocks]) -> Result<(), ApiError> {
        match self.client.transport() {
            Transport::Grpc(_) => Ok(()),
            Transport::Rest(_) => node_blocks::adopt(&self.client, nodes).await,
        }
    }

    /// Reports, on Kubernetes, how many addresses of each block are `allocated` on a node. Its UID is
    /// `None` once it is deleted: while there are any, the blocks of a deleted node are held.
    /// `reported` are the blocks for which this process has reported addresses. Returns those that
    /// have addresses now. podplane's kubelet holds blocks in podplane's store.
    ///
    /// # Errors
    ///
    /// The first refusal.
    pub async fn report_allocated(
        &self,
        node_name: &str,
        node_uid: Option<&str>,
        allocated: &[IpAddr],
        reported: &BTreeSet<IpNet>,
    ) -> Result<BTreeSet<IpNet>, ApiError> {
        match self.client.transport() {
            Transport::Grpc(_) => Ok(BTreeSet::new()),
            Transport::Rest(_) => {
                node_blocks::report(&self.client, node_name, node_uid, allocated, reported).await
            }
        }
    }

    /// Returns whether the server writes blocks and records in one commit.
    pub fn are_atomic(&self) -> bool {
        matches!(self.client.transport(), Transport::Grpc(_))
    }
}

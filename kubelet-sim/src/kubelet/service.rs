//! `podplane.node.v1.NodeNetworkService`: what a node's network holds.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use podplane_api::{ObjectKey, core::Node as NodeObject};
use podplane_client::Cache;
use podplane_proto::node::{
    AddressFamily, Allocation, GetNodeNetworkRequest, GetNodeNetworkResponse,
    node_network_service_server::NodeNetworkService,
};
use tonic::{Request, Response, Status};

use super::node::{Books, Node, pod_cidrs};
use crate::cri::sandboxes::chain;

/// The nodes of a kubelet, by name.
pub type Nodes = BTreeMap<String, Arc<Node>>;

/// What [`NodeNetwork`] is told when the nodes' runtimes have answered.
pub fn by_name(nodes: &[Arc<Node>]) -> Nodes {
    let named = |node: &Arc<Node>| (node.name().to_owned(), node.clone());
    nodes.iter().map(named).collect()
}

/// Answers for the nodes of this kubelet.
#[derive(Debug)]
pub struct NodeNetwork {
    nodes: Arc<OnceLock<Nodes>>,
}

impl NodeNetwork {
    /// The service of these nodes, once they are set.
    pub fn new(nodes: Arc<OnceLock<Nodes>>) -> Self {
        Self { nodes }
    }

    fn node(&self, name: &str) -> Result<&Arc<Node>, Status> {
        let nodes = self.nodes.get();
        let nodes = nodes.ok_or_else(|| {
            Status::unavailable(
                "the container runtimes of this kubelet's nodes did not all answer yet",
            )
        })?;
        if name.is_empty() {
            let mut nodes = nodes.values();
            return match (nodes.next(), nodes.next()) {
                (Some(only), None) => Ok(only),
                _ => Err(Status::invalid_argument(
                    "node_name is missing: this kubelet serves several nodes",
                )),
            };
        }
        let found = nodes.get(name);
        found.ok_or_else(|| Status::not_found(format!("this kubelet does not serve node {name:?}")))
    }
}

#[tonic::async_trait]
impl NodeNetworkService for NodeNetwork {
    async fn get_node_network(
        &self,
        request: Request<GetNodeNetworkRequest>,
    ) -> Result<Response<GetNodeNetworkResponse>, Status> {
        let node = self.node(&request.get_ref().node_name)?;
        let books = node.books().await;
        let books = books.map_err(|error| Status::unavailable(chain(&error)))?;
        Ok(Response::new(GetNodeNetworkResponse {
            node_name: node.name().to_owned(),
            pod_cidrs: blocks(&node.nodes, node.name()),
            families: families(&books),
            allocations: allocations(&books),
        }))
    }
}

fn blocks(nodes: &Cache<NodeObject>, name: &str) -> Vec<String> {
    let node = nodes.get(&ObjectKey::new("", name));
    let cidrs = node.and_then(|node| pod_cidrs(&node));
    let cidrs = cidrs.iter().flat_map(|cidrs| cidrs.iter());
    cidrs.map(ToString::to_string).collect()
}

fn families(books: &Books) -> Vec<AddressFamily> {
    let Some(ipam) = &books.ipam else {
        return Vec::new();
    };
    let family = |ip_version: u32, capacity: u128| {
        let of_family = books
            .current()
            .filter(|lease| lease.ip.is_ipv4() == (ip_version == 4));
        let (owned, leaked): (Vec<_>, Vec<_>) =
            of_family.partition(|lease| books.owner(lease).is_some());
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        AddressFamily {
            ip_version,
            capacity: u64::try_from(capacity).unwrap_or(u64::MAX),
            allocated: count(owned.len()),
            leaked: count(leaked.len()),
        }
    };
    let capacities = [(4, ipam.capacity.ipv4), (6, ipam.capacity.ipv6)];
    let present = capacities
        .into_iter()
        .filter_map(|(version, n)| Some((version, n?)));
    present.map(|(version, n)| family(version, n)).collect()
}

fn allocations(books: &Books) -> Vec<Allocation> {
    let mut leases: Vec<_> = books.leases.iter().collect();
    leases.sort_by_key(|lease| lease.ip);
    let allocation = |lease: &podplane_cni::host_local::Lease| {
        let owner = books.owner(lease);
        let (pod, uid) = owner
            .map(|sandbox| (sandbox.pod.clone(), sandbox.uid.clone()))
            .unzip();
        let pod = pod.unwrap_or_else(|| ObjectKey::new("", ""));
        Allocation {
            address: lease.ip.to_string(),
            sandbox_id: lease.container_id.clone(),
            interface_name: lease.ifname.clone().unwrap_or_default(),
            pod_namespace: pod.namespace,
            pod_name: pod.name,
            pod_uid: uid.unwrap_or_default(),
        }
    };
    leases.into_iter().map(allocation).collect()
}

//! `podplane.node.v1.NodeNetworkService`: the state of a node's network.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use podplane_api::{
    Object as _, ObjectKey,
    core::{Node as NodeObject, Pod},
    pod_ips::{holds_address, is_host_network, is_terminal},
};
use podplane_client::Cache;
use podplane_error_chain::one_line;
use podplane_proto::{
    error::ApiError,
    node::{
        AddressFamily, Allocation, AllocationState, GetNodeNetworkRequest, GetNodeNetworkResponse,
        MissingAddress, WaitingPod, node_network_service_server::NodeNetworkService,
    },
};
use tonic::{Request, Response, Status};

use super::{
    ipam_report::ReportState,
    node::{AddressBooks, NetworkState, NodeContext, pod_cidrs},
};

/// The nodes of a kubelet, by name.
pub type Nodes = BTreeMap<String, Arc<NodeContext>>;

/// The nodes by name, for [`KubeletNodeService`] once their runtimes have answered.
pub fn by_name(nodes: &[Arc<NodeContext>]) -> Nodes {
    let named = |node: &Arc<NodeContext>| (node.name().to_owned(), node.clone());
    nodes.iter().map(named).collect()
}

/// The service that answers for the nodes of this kubelet.
#[derive(Debug)]
pub struct KubeletNodeService {
    nodes: Arc<OnceLock<Nodes>>,
}

impl KubeletNodeService {
    /// The service of these nodes, once they are set.
    pub fn new(nodes: Arc<OnceLock<Nodes>>) -> Self {
        Self { nodes }
    }

    fn node(&self, name: &str) -> Result<&Arc<NodeContext>, Status> {
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
                _ => {
                    let missing = "Required value: this kubelet serves several nodes".to_owned();
                    Err(ApiError::bad_field("node_name", missing).into())
                }
            };
        }
        let found = nodes.get(name);
        found.ok_or_else(|| Status::not_found(format!("this kubelet does not serve node {name:?}")))
    }
}

#[tonic::async_trait]
impl NodeNetworkService for KubeletNodeService {
    async fn get_node_network(
        &self,
        request: Request<GetNodeNetworkRequest>,
    ) -> Result<Response<GetNodeNetworkResponse>, Status> {
        let node = self.node(&request.get_ref().node_name)?;
        let books = node.books().await;
        let books = books.map_err(|error| Status::unavailable(one_line(&error)))?;
        let pods = pods_of(node);
        let (network_ready, network_fault) = match &*node.network.borrow() {
            NetworkState::Ready => (true, String::new()),
            NetworkState::Fault(fault) => (false, fault.clone()),
            NetworkState::Unknown => (false, "the runtime was not asked yet".to_owned()),
        };
        Ok(Response::new(GetNodeNetworkResponse {
            node_name: node.name().to_owned(),
            pod_cidrs: blocks(&node.nodes, node.name()),
            families: families(&books),
            allocations: allocations(&books, &pods),
            missing: missing(&books, &pods),
            waiting: waiting_pods(&pods, &network_fault),
            ipam: books.plugin.clone(),
            network_ready,
            network_fault,
            ipam_report_time: report_time(&books.reported),
            ipam_report_fault: books.reported.fault().unwrap_or_default().to_owned(),
        }))
    }
}

/// The pods of the node that may have an address of its network, by namespace and name.
fn pods_of(node: &NodeContext) -> Vec<Arc<Pod>> {
    let mut pods = node.own_pods();
    pods.retain(|pod| !is_host_network(pod));
    pods
}

/// The addresses in a pod's status. A pod that has ended has none any more once its sandbox is
/// gone.
fn addresses(pod: &Pod) -> impl Iterator<Item = &str> {
    let status = pod.status.as_ref().filter(|_| holds_address(pod));
    let ips = status.and_then(|status| status.pod_ips.as_deref());
    ips.unwrap_or_default().iter().map(|ip| ip.ip.as_str())
}

/// The addresses in pods' statuses that the files do not have. Pods that are being deleted may have
/// given their address back already.
fn missing(books: &AddressBooks, pods: &[Arc<Pod>]) -> Vec<MissingAddress> {
    if !books.knows_leases() {
        return Vec::new();
    }
    // If another plugin gives addresses, its report stands for the files.
    let file = match books.has_files() {
        true => "allocation file",
        false => "entry in the IPAM report",
    };
    let lease_of = |address: &str| {
        let address = address.parse::<IpAddr>().ok()?;
        books.leases.iter().find(|lease| lease.ip == address)
    };
    let fault = |pod: &Pod, address: &str| match lease_of(address) {
        None => Some(format!("it has no {file}")),
        Some(lease) => match books.owner(lease) {
            Some(sandbox) if sandbox.uid == pod.uid() => None,
            Some(sandbox) => Some(format!(
                "its {file} is of sandbox {}, of pod {}",
                sandbox.id, sandbox.pod
            )),
            None => Some(format!(
                "its {file} is of {:?}, which is not a sandbox of this node",
                lease.container_id
            )),
        },
    };
    let alive = pods.iter().filter(|pod| !pod.is_deleting());
    let reported = alive.flat_map(|pod| addresses(pod).map(move |address| (pod, address)));
    let missing = reported.filter_map(|(pod, address)| {
        Some(MissingAddress {
            pod_namespace: pod.namespace().to_owned(),
            pod_name: pod.name().to_owned(),
            pod_uid: pod.uid().to_owned(),
            address: address.to_owned(),
            reason: fault(pod, address)?,
        })
    });
    missing.collect()
}

/// The time of the report that the answer comes from; empty if there is none.
fn report_time(reported: &ReportState) -> String {
    match reported {
        ReportState::Good(good) => good.at.to_string(),
        ReportState::NoSource | ReportState::Failed(_) => String::new(),
    }
}

/// The pods that have no address yet, with the reason.
fn waiting_pods(pods: &[Arc<Pod>], network_fault: &str) -> Vec<WaitingPod> {
    let waits = |pod: &&Arc<Pod>| {
        !pod.is_deleting() && !is_terminal(pod) && addresses(pod).next().is_none()
    };
    let waiting = pods.iter().filter(waits).map(|pod| WaitingPod {
        pod_namespace: pod.namespace().to_owned(),
        pod_name: pod.name().to_owned(),
        pod_uid: pod.uid().to_owned(),
        reason: match network_fault {
            "" => "its sandbox is not ready yet; its events say what was tried".to_owned(),
            fault => format!("the node's network is not ready: {fault}"),
        },
    });
    waiting.collect()
}

fn blocks(nodes: &Cache<NodeObject>, name: &str) -> Vec<String> {
    let node = nodes.get(&ObjectKey::new("", name));
    let cidrs = node.and_then(|node| pod_cidrs(&node));
    let cidrs = cidrs.iter().flat_map(|cidrs| cidrs.iter());
    cidrs.map(ToString::to_string).collect()
}

fn families(books: &AddressBooks) -> Vec<AddressFamily> {
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
        let capacity = u64::try_from(capacity).unwrap_or(u64::MAX);
        let (allocated, leaked) = (count(owned.len()), count(leaked.len()));
        AddressFamily {
            ip_version,
            capacity,
            allocated,
            leaked,
            free: capacity.saturating_sub(allocated).saturating_sub(leaked),
        }
    };
    let capacities = [(4, ipam.capacity.ipv4), (6, ipam.capacity.ipv6)];
    let present = capacities
        .into_iter()
        .filter_map(|(version, n)| Some((version, n?)));
    present.map(|(version, n)| family(version, n)).collect()
}

fn allocations(books: &AddressBooks, pods: &[Arc<Pod>]) -> Vec<Allocation> {
    let is_there = |uid: &str| {
        pods.iter()
            .any(|pod| pod.uid() == uid && holds_address(pod))
    };
    let mut leases: Vec<_> = books.leases.iter().collect();
    leases.sort_by_key(|lease| lease.ip);
    let allocation = |lease: &podplane_host_local::Lease| {
        let owner = books.owner(lease);
        let state = match owner {
            Some(sandbox) if is_there(&sandbox.uid) => AllocationState::InUse,
            Some(_) => AllocationState::Orphaned,
            None => AllocationState::Leaked,
        };
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
            state: state.into(),
            outside_ranges: !books.ipam.as_ref().is_some_and(|ipam| ipam.gives(lease.ip)),
        }
    };
    leases.into_iter().map(allocation).collect()
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        core::{PodIP, PodSpec, PodStatus},
        meta::ObjectMeta,
    };
    use podplane_cni::NetworkConfigList;
    use podplane_host_local::Lease;

    use super::*;
    use crate::{ipam::NetworkAddresses, kubelet::plan::Sandbox};

    fn pod(name: &str, ip: Option<&str>) -> Arc<Pod> {
        let status = PodStatus {
            phase: Some("Running".into()),
            pod_ips: ip.map(|ip| vec![PodIP { ip: ip.into() }]),
            ..PodStatus::default()
        };
        Arc::new(Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("default".into()),
                uid: Some(format!("uid-{name}")),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some("n".into()),
                ..PodSpec::default()
            }),
            status: Some(status),
        })
    }

    fn sandbox(id: &str, pod: &str) -> Sandbox {
        Sandbox {
            id: id.into(),
            pod: ObjectKey::new("default", pod),
            uid: format!("uid-{pod}"),
            attempt: 0,
            ready: true,
        }
    }

    fn books(leases: &[(&str, &str)], sandboxes: Vec<Sandbox>) -> AddressBooks {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"{"cniVersion": "1.0.0", "name": "x", "plugins": [{"type": "bridge",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.0.1.0/29"}]]}}]}"#;
        std::fs::write(dir.path().join("x.conflist"), text).unwrap();
        let list = NetworkConfigList::load_first(dir.path()).unwrap();
        let lease = |(ip, id): &(&str, &str)| Lease {
            ip: ip.parse().unwrap(),
            container_id: (*id).into(),
            ifname: Some("eth0".into()),
        };
        AddressBooks {
            ipam: NetworkAddresses::of(&list).unwrap(),
            plugin: "host-local".into(),
            uses_pod_cidr: true,
            leases: leases.iter().map(lease).collect(),
            sandboxes,
            ..AddressBooks::default()
        }
    }

    #[test]
    fn joins_allocations_with_sandboxes_and_pods() {
        let leases = [
            ("10.0.1.2", "a"),
            ("10.0.1.3", "b"),
            ("10.0.1.4", "gone"),
            ("10.0.0.5", "c"),
        ];
        let sandboxes = vec![
            sandbox("a", "there"),
            sandbox("b", "deleted"),
            sandbox("c", "old"),
        ];
        let books = books(&leases, sandboxes);
        let pods = [pod("there", Some("10.0.1.2")), pod("old", Some("10.0.0.5"))];
        let actual = allocations(&books, &pods);
        let actual: Vec<_> = actual
            .iter()
            .map(|found| (found.address.as_str(), found.state(), found.outside_ranges))
            .collect();
        let want = [
            ("10.0.0.5", AllocationState::InUse, true),
            ("10.0.1.2", AllocationState::InUse, false),
            ("10.0.1.3", AllocationState::Orphaned, false),
            ("10.0.1.4", AllocationState::Leaked, false),
        ];
        assert_eq!(actual, want);
        let families = families(&books);
        let AddressFamily {
            capacity,
            allocated,
            leaked,
            free,
            ..
        } = families[0];
        assert_eq!((capacity, allocated, leaked, free), (5, 2, 1, 2));
    }

    #[test]
    fn the_address_of_a_sandbox_that_is_removed_meanwhile_is_not_leaked() {
        let leases = [("10.0.1.2", "a"), ("10.0.1.3", "b"), ("10.0.1.4", "gone")];
        let mut first = books(&leases, vec![sandbox("a", "one")]);
        first.held = BTreeMap::from([("uid-one".to_owned(), 1)]);
        // The address of b is given again, to a sandbox that is not listed yet.
        let later = books(&[("10.0.1.3", "c"), ("10.0.1.4", "gone")], Vec::new());
        first.confirm_leaked(&later.leases);
        let left: Vec<_> = first.leases.iter().map(|it| &*it.container_id).collect();
        assert_eq!(left, ["a", "gone"]);
        let usage = first.usage().unwrap();
        assert_eq!((usage.allocated, usage.leaked, usage.orphaned), (1, 1, 1));
    }

    #[test]
    fn reports_pod_addresses_without_a_lease() {
        let leases = [("10.0.1.2", "a"), ("10.0.1.3", "b"), ("10.0.1.4", "gone")];
        let books = books(&leases, vec![sandbox("a", "one"), sandbox("b", "two")]);
        let pods = [
            pod("one", Some("10.0.1.2")),
            pod("three", Some("10.0.1.3")),
            pod("four", Some("10.0.1.4")),
            pod("five", Some("10.0.1.5")),
            pod("six", None),
        ];
        let actual = missing(&books, &pods);
        let actual: Vec<_> = actual
            .iter()
            .map(|found| (found.pod_name.as_str(), found.reason.as_str()))
            .collect();
        let want = [
            (
                "three",
                "its allocation file is of sandbox b, of pod default/two",
            ),
            (
                "four",
                "its allocation file is of \"gone\", which is not a sandbox of this node",
            ),
            ("five", "it has no allocation file"),
        ];
        assert_eq!(actual, want);
        let waiting = waiting_pods(&pods, "");
        assert_eq!(waiting.len(), 1);
        assert_eq!(waiting[0].pod_name, "six");
    }
}

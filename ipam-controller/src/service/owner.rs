//! The owner of an address or a block.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Pod, pod_ips};
use podplane_ipam::{Block, Claim, Owner};
use podplane_proto::ipam::{self as wire, BlockState, GetOwnerResponse, Ownership, PoolRef};

use super::{block, bounded};
use crate::plan::Allocator;

/// The most blocks, and the most pods, of an answer.
const OWNERS: usize = 1000;

/// The answer from the controller's own state, without pods.
pub(super) fn of(net: IpNet, known: &Allocator) -> GetOwnerResponse {
    let held = || known.blocks().each_overlapping(net);
    let (blocks, more) = bounded(held().map(|held| block(&held, known)), OWNERS);
    let mut pools = pools(net, known).peekable();
    // A node is the preferred answer, whatever else overlaps the block.
    let first = held().min_by_key(|held| match held.claim {
        Claim::Assigned(_) => 0,
        Claim::Foreign(_) => 1,
        Claim::Draining(_) => 2,
        Claim::Reserved => 3,
    });
    let ownership = match first.as_ref().map(|held| &held.claim) {
        Some(Claim::Assigned(_) | Claim::Foreign(_)) => Ownership::Node,
        Some(Claim::Draining(_)) => Ownership::FormerNode,
        Some(Claim::Reserved) => Ownership::ServiceRange,
        None if pools.peek().is_some() => Ownership::Free,
        None => Ownership::Outside,
    };
    let address = text_of(net);
    let message = sentence(
        &address,
        ownership,
        first.as_ref(),
        blocks.first(),
        held().count(),
    );
    GetOwnerResponse {
        blocks,
        more,
        address,
        ownership: ownership.into(),
        pools: pools.collect(),
        message,
        ..GetOwnerResponse::default()
    }
}

fn sentence(
    address: &str,
    ownership: Ownership,
    first: Option<&Block>,
    shown: Option<&wire::Block>,
    holders: usize,
) -> String {
    let owner = first.and_then(|held| held.claim.owner());
    let name = owner.map_or("an unknown node", Owner::name);
    let net = first.map(|held| held.net.to_string()).unwrap_or_default();
    let message = match ownership {
        Ownership::Node if matches!(first.map(|held| &held.claim), Some(Claim::Foreign(_))) => {
            format!(
                "{address} is of {net}, a block of node {name} that does not fit the configuration or overlaps another"
            )
        }
        Ownership::Node => format!("{address} is of {net}, the block of node {name}"),
        Ownership::FormerNode => {
            let state = match shown.map(wire::Block::state) {
                Some(BlockState::Quarantined) => "kept back for a while",
                _ => "not free until nothing has addresses of it",
            };
            format!("{address} is of {net}, which was the block of node {name}, and is {state}")
        }
        Ownership::ServiceRange => format!("{address} is of {net}, the range of services"),
        Ownership::Free => format!("{address} is in a range of node blocks, and free"),
        _ => format!("{address} is in no range that node blocks come from"),
    };
    match holders {
        0 | 1 => message,
        _ => format!("{message}; {holders} blocks overlap here"),
    }
}

/// The prefix, or for a single address the address without a prefix length.
fn text_of(net: IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() {
        return net.addr().to_string();
    }
    net.trunc().to_string()
}

/// The ranges that share an address with `net`.
pub(super) fn pools(net: IpNet, known: &Allocator) -> impl Iterator<Item = PoolRef> {
    let sets = known.blocks().sets();
    let ranges = sets.flat_map(|(set, _)| set.ranges.iter().map(move |range| (set, range.cidr())));
    let touched =
        ranges.filter(move |(_, range)| range.contains(&net.trunc()) || net.contains(range));
    touched.map(|(set, range)| PoolRef {
        cidr: range.to_string(),
        name: set.name.clone(),
    })
}

/// Adds the pods that report an address of `net`. Finished pods have given theirs back; pods on the
/// host's network have the node's.
pub(super) fn add_pods(response: &mut GetOwnerResponse, net: IpNet, pods: Vec<Arc<Pod>>) {
    let mut holders: Vec<(IpAddr, Arc<Pod>)> = Vec::new();
    for pod in pods {
        if !pod_ips::holds_address(&pod) {
            continue;
        }
        let status = pod.status.as_ref();
        let ips = status.and_then(|status| status.pod_ips.as_deref());
        let ips = ips.unwrap_or_default().iter();
        let ips = ips.filter_map(|ip| ip.ip.parse::<IpAddr>().ok());
        let touched = ips.filter(|ip| net.contains(ip));
        holders.extend(touched.map(|ip| (ip, pod.clone())));
    }
    holders.sort_by(|(a, one), (b, other)| (a, one.key()).cmp(&(b, other.key())));
    let is_address = net.prefix_len() == net.max_prefix_len();
    let pods = match &holders[..] {
        [] if is_address => "; no pod has it".to_owned(),
        [(_, pod)] if is_address => {
            format!("; pod {} on {} has it", pod.key(), node_name(pod))
        }
        [] => "; no pod has any of it".to_owned(),
        many => format!("; pods have {} addresses of it", many.len()),
    };
    response.message += &pods;
    let shown = holders.into_iter().map(|(ip, pod)| wire::PodAddress {
        address: ip.to_string(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        node_name: node_name(&pod).to_owned(),
    });
    (response.pods, response.more_pods) = bounded(shown, OWNERS);
}

fn node_name(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.node_name.as_deref())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, time::Duration};

    use podplane_api::{core::PodSpec, core::PodStatus, meta::ObjectMeta};
    use podplane_ipam::RangeFlags;

    use super::*;
    use crate::plan::NodeView;

    fn allocator() -> Allocator {
        let flags = RangeFlags {
            cluster_cidr: "10.0.0.0/16".to_owned(),
            service_cluster_ip_range: "10.0.255.0/24".to_owned(),
            ..RangeFlags::default()
        };
        let mut allocator = Allocator::new(&flags.validate().unwrap(), Duration::ZERO);
        let view = NodeView {
            uid: "u".to_owned(),
            pod_cidrs: vec!["10.0.1.0/24".to_owned()],
            ..NodeView::default()
        };
        allocator.observe([("n".to_owned(), Some(view))].into(), BTreeMap::new());
        allocator
    }

    fn ask(address: &str) -> GetOwnerResponse {
        let net = super::super::parse("address", address).unwrap();
        let mut answer = of(net, &allocator());
        let pod = Pod {
            metadata: ObjectMeta {
                name: Some("web".into()),
                namespace: Some("default".into()),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some("n".into()),
                ..PodSpec::default()
            }),
            status: Some(PodStatus {
                pod_ips: Some(vec![podplane_api::core::PodIP {
                    ip: "10.0.1.7".into(),
                }]),
                ..PodStatus::default()
            }),
        };
        add_pods(&mut answer, net, vec![Arc::new(pod)]);
        answer
    }

    #[test]
    fn names_the_owner_of_an_address() {
        for (address, ownership, message) in [
            (
                "10.0.1.7",
                Ownership::Node,
                "10.0.1.7 is of 10.0.1.0/24, the block of node n; pod default/web on n has it",
            ),
            (
                "10.0.1.8",
                Ownership::Node,
                "10.0.1.8 is of 10.0.1.0/24, the block of node n; no pod has it",
            ),
            (
                "10.0.0.0/16",
                Ownership::Node,
                "10.0.0.0/16 is of 10.0.1.0/24, the block of node n; 2 blocks overlap here; pods have 1 addresses of it",
            ),
            (
                "10.0.2.0/24",
                Ownership::Free,
                "10.0.2.0/24 is in a range of node blocks, and free; no pod has any of it",
            ),
            (
                "10.0.255.1",
                Ownership::ServiceRange,
                "10.0.255.1 is of 10.0.255.0/24, the range of services; no pod has it",
            ),
            (
                "192.0.2.1",
                Ownership::Outside,
                "192.0.2.1 is in no range that node blocks come from; no pod has it",
            ),
        ] {
            let answer = ask(address);
            assert_eq!(
                (answer.ownership(), answer.message.as_str()),
                (ownership, message)
            );
            let pool = answer.pools.first().map(|pool| pool.cidr.as_str());
            let in_range = (ownership != Ownership::Outside).then_some("10.0.0.0/16");
            assert_eq!(pool, in_range, "{address}");
        }
    }
}

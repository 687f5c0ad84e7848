//! host-gw: on each node a route to every other node's blocks, through that node.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use podplane_api::{Object as _, core::Node as NodeObject, pod_ips::POD_RANGES};
use podplane_client::Cache;
use podplane_cni::netlink::{Netlink, NetlinkError, Request, Route};
use tokio::{task, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::node::pod_cidrs;
use crate::{NodeName, cri::sandboxes::chain};

/// Marks our routes (`rtm_protocol`), so that nobody else's are touched. Nobody registered it.
const PROTOCOL: u8 = 80;
/// How often routes are compared with the kernel's though no node changed.
const RESYNC: Duration = Duration::from_secs(60);
/// A burst of changed nodes is one look.
const GAP: Duration = Duration::from_millis(50);

/// Destinations and next hops.
pub type Wanted = BTreeMap<IpNet, IpAddr>;

/// The routes that `own` needs. Of two nodes with one block, the first by name is routed to.
pub fn wanted(nodes: &[Arc<NodeObject>], own: &NodeName) -> Wanted {
    let mut wanted = Wanted::new();
    let own_nets = nodes
        .iter()
        .find(|node| node.name() == own.as_str())
        .map(|node| pod_nets(node))
        .unwrap_or_default();
    for node in nodes.iter().filter(|node| node.name() != own.as_str()) {
        let gateways = internal_ips(node);
        for net in pod_nets(node) {
            let gateway = gateways
                .iter()
                .find(|ip| ip.is_ipv4() == net.addr().is_ipv4());
            if let Some(gateway) = gateway.filter(|_| !own_nets.contains(&net)) {
                wanted.entry(net).or_insert(*gateway);
            }
        }
    }
    wanted
}

/// Where the pods of a node are: in its blocks, unless its kubelet says that they are elsewhere.
fn pod_nets(node: &NodeObject) -> Vec<IpNet> {
    let annotations = node.metadata.annotations.as_ref();
    match annotations.and_then(|annotations| annotations.get(POD_RANGES)) {
        Some(ranges) => ranges
            .split(',')
            .filter_map(|range| range.parse().ok())
            .collect(),
        None => pod_cidrs(node)
            .iter()
            .flat_map(|cidrs| cidrs.iter().copied())
            .collect(),
    }
}

fn internal_ips(node: &NodeObject) -> Vec<IpAddr> {
    let addresses = node
        .status
        .as_ref()
        .and_then(|status| status.addresses.as_ref());
    let internal = addresses
        .into_iter()
        .flatten()
        .filter(|address| address.type_ == "InternalIP");
    internal
        .filter_map(|address| address.address.parse().ok())
        .collect()
}

/// Keeps the routes in the namespace `netns` as the nodes want them, until `stop`.
///
/// # Errors
///
/// [`NetlinkError`] if the namespace cannot be entered.
pub async fn run(
    netns: PathBuf,
    own: NodeName,
    nodes: Cache<NodeObject>,
    stop: CancellationToken,
) -> Result<(), RoutesError> {
    let mut netlink = task::spawn_blocking(move || Netlink::open_in(&netns)).await??;
    let mut changes = nodes.subscribe();
    let mut ticks = tokio::time::interval(RESYNC);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    nodes.synced().await;
    let mut applied = None;
    loop {
        // A change is taken only when it is returned; losing a wait loses nothing.
        let is_resync = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = changes.next() => false,
            _ = ticks.tick() => true,
        };
        tokio::time::sleep(GAP).await;
        while changes.try_next().is_some() {}
        let wanted = wanted(&nodes.list(), &own);
        if !is_resync && applied.as_ref() == Some(&wanted) {
            continue;
        }
        let apply = move || {
            let outcome = apply(&mut netlink, &wanted);
            (netlink, wanted, outcome)
        };
        let outcome;
        (netlink, applied, outcome) = {
            let (netlink, wanted, outcome) = task::spawn_blocking(apply).await?;
            (netlink, Some(wanted), outcome)
        };
        if let Err(error) = outcome {
            // For example a next hop that is not reachable yet.
            tracing::warn!(node = %own, error = %chain(&error), "routes not as they should be; trying again");
            applied = None;
            ticks.reset_after(Duration::from_secs(1));
        }
    }
}

/// Why routes are not kept any more.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// The node's namespace cannot be entered.
    #[error("open the node's routing table")]
    Netlink(#[from] NetlinkError),
    /// The thread that talks to the kernel died.
    #[error("change the node's routing table")]
    Panicked(#[from] task::JoinError),
}

/// Removes our routes that are not wanted, then adds those that are missing. Others' routes stay.
///
/// # Errors
///
/// [`NetlinkError`] of the first change that failed; the others were made.
pub fn apply(netlink: &mut Netlink, wanted: &Wanted) -> Result<(), NetlinkError> {
    let present = netlink.routes()?;
    let ours = present
        .iter()
        .filter(|route| route.protocol == PROTOCOL && route.table == Route::MAIN);
    let is_wanted = |route: &Route| wanted.get(&route.destination).copied() == route.gateway;
    let (kept, stale): (Vec<&Route>, Vec<&Route>) = ours.partition(|route| is_wanted(route));
    let missing = wanted
        .iter()
        .filter(|(net, _)| !kept.iter().any(|route| route.destination == **net));
    let deletions = stale.into_iter().map(Request::delete_route);
    let additions = missing.map(|(net, gateway)| {
        Request::replace_route(&Route {
            protocol: PROTOCOL,
            ..Route::via(*net, *gateway)
        })
    });
    let requests: Vec<_> = deletions.chain(additions).collect();
    netlink.execute(requests)
}

#[cfg(test)]
mod tests {
    use podplane_api::{
        core::{NodeAddress, NodeSpec, NodeStatus},
        meta::ObjectMeta,
    };

    use super::*;

    fn node(name: &str, ips: &[&str], cidrs: &[&str]) -> Arc<NodeObject> {
        let address = |ip: &&str| NodeAddress {
            type_: "InternalIP".into(),
            address: (*ip).into(),
        };
        Arc::new(NodeObject {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..ObjectMeta::default()
            },
            spec: Some(NodeSpec {
                pod_cidrs: Some(cidrs.iter().map(|cidr| (*cidr).into()).collect()),
                ..NodeSpec::default()
            }),
            status: Some(NodeStatus {
                addresses: Some(ips.iter().map(address).collect()),
                ..NodeStatus::default()
            }),
        })
    }

    #[test]
    fn every_other_nodes_block_is_reached_through_that_node() {
        let nodes = [
            node("a", &["172.16.0.1"], &["10.0.0.0/24"]),
            node("b", &["172.16.0.2"], &["10.0.1.0/24", "fd00:1::/64"]),
            node("c", &["172.16.0.3"], &["10.0.1.0/24"]),
            node("d", &[], &["10.0.3.0/24"]),
            node("e", &["172.16.0.5"], &[]),
            node("f", &["172.16.0.6"], &["10.0.0.0/24"]),
        ];
        let a = "a".parse().unwrap();
        let want = Wanted::from([(
            "10.0.1.0/24".parse().unwrap(),
            "172.16.0.2".parse().unwrap(),
        )]);
        assert_eq!(wanted(&nodes, &a), want);

        let mut elsewhere = Arc::unwrap_or_clone(nodes[1].clone());
        let ranges = (POD_RANGES.to_owned(), "192.168.0.64/26".to_owned());
        elsewhere.metadata.annotations = Some([ranges].into());
        let want = Wanted::from([(
            "192.168.0.64/26".parse().unwrap(),
            "172.16.0.2".parse().unwrap(),
        )]);
        assert_eq!(wanted(&[nodes[0].clone(), Arc::new(elsewhere)], &a), want);
    }
}

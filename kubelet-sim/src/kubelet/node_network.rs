//! The network between nodes, which takes a packet for a pod of another node there.
//!
//! Each node has a backend, in flannel's sense. host-gw keeps a route to every other node's blocks,
//! through that node, which must be on the same link. vxlan keeps a device whose tunnels end at the
//! other nodes. Nodes publish their ends in [`annotations`] of their Node objects; [`plan`] decides
//! from these, and `kernel` applies the plan to the node's namespace.

pub mod annotations;
mod kernel;
pub mod plan;
#[cfg(test)]
mod tests;

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use ipnet::IpNet;
use podplane_api::core::Node as NodeObject;
use podplane_client::Cache;
use podplane_error_chain::one_line;
use podplane_host::{
    clock::{self, Instant},
    task,
};
use podplane_netlink::{Netlink, NetlinkError};
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, task::JoinError, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

pub use podplane_api::node::NetworkBackend;

pub use self::kernel::ApplyError;
use self::{
    annotations::{Peer, PerFamily, Vtep, VtepMac},
    kernel::Device,
    plan::{NodeNetworkPlan, UnreachedBlock, UnreachedReason},
};
use crate::{NodeName, PodCidrs};

/// The interval at which the namespace is compared with the plan though no node changed.
const RESYNC: Duration = Duration::from_secs(60);
/// The time in which changes of nodes are collected, to be applied together.
const GAP: Duration = Duration::from_millis(50);
/// The pause after a change that failed.
const RETRY: Duration = Duration::from_secs(1);

/// The settings of a node's network.
#[derive(Clone, Debug, clap::Args)]
pub struct NodeNetworkConfig {
    /// Connect the pods of different nodes in kernel mode by host-gw (routes; the nodes share a
    /// link) or vxlan (tunnels)
    ///
    /// A node reaches only the pods of nodes that have the same backend.
    #[arg(
        long,
        value_enum,
        value_name = "BACKEND",
        env = "PODPLANE_NODE_NETWORK_BACKEND",
        default_value = "host-gw"
    )]
    pub node_network_backend: NetworkBackend,

    /// Use this VXLAN network identifier, with --node-network-backend vxlan; the same on all nodes
    #[arg(long, value_name = "VNI", env = "PODPLANE_VXLAN_VNI", default_value = "1", value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub vxlan_vni: u32,

    /// Use this UDP port for tunnels, with --node-network-backend vxlan; the same on all nodes
    #[arg(long, value_name = "PORT", env = "PODPLANE_VXLAN_PORT", default_value = "8472", value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,
}

/// The network of one node.
#[derive(Debug)]
pub struct NodeFabric {
    netns: PathBuf,
    /// The node as the others know it; its blocks are on its object.
    own: Peer,
    backend: NetworkBackend,
    port: u16,
    /// The reason why the node reaches no other; `None` if it can.
    fault: watch::Sender<Option<String>>,
}

/// The reason why a node's network is not kept any more.
#[derive(Debug, thiserror::Error)]
pub enum NodeNetworkError {
    /// The node's namespace cannot be entered.
    #[error("failed to open the node's network namespace")]
    Netlink(#[from] NetlinkError),
    /// The thread that talks to the kernel died.
    #[error("failed to change the node's network")]
    Panicked(#[from] JoinError),
}

impl NodeFabric {
    /// The network of node `name`, which is in the namespace `netns` and has these addresses there.
    pub fn new(
        netns: PathBuf,
        name: &NodeName,
        ips: &[IpAddr],
        config: &NodeNetworkConfig,
    ) -> Self {
        let NodeNetworkConfig {
            node_network_backend: backend,
            vxlan_vni: vni,
            vxlan_port: port,
        } = *config;
        let first = |is_ipv4: bool| ips.iter().find(|ip| ip.is_ipv4() == is_ipv4).copied();
        let addresses = PerFamily {
            v4: first(true),
            v6: first(false),
        };
        let vtep = |address: Option<IpAddr>| {
            let address = address.filter(|_| backend == NetworkBackend::Vxlan)?;
            let mac = vtep_mac(name.as_str(), address);
            Some(Vtep { vni, mac })
        };
        let own = Peer {
            name: name.as_str().to_owned(),
            backend: Some(backend.name().to_owned()),
            vteps: PerFamily {
                v4: vtep(addresses.v4),
                v6: vtep(addresses.v6),
            },
            addresses,
            nets: Vec::new(),
        };
        Self {
            netns,
            own,
            backend,
            port,
            fault: watch::Sender::new(None),
        }
    }

    /// The annotations that publish it.
    pub(super) fn annotations(&self) -> impl Iterator<Item = (&'static str, Option<String>)> {
        self.own.annotations().into_iter()
    }

    /// The reason why the node reaches no other; `None` if it can.
    pub(super) fn fault(&self) -> Option<String> {
        self.fault.borrow().clone()
    }

    /// The MTU that the interfaces of pods must have so that their packets fit the network; absent
    /// where the node's own addresses are on no interface of its namespace. It blocks.
    ///
    /// # Errors
    ///
    /// [`NetlinkError`].
    pub(super) fn pod_mtu(&self, cidrs: &PodCidrs) -> Result<Option<u32>, NetlinkError> {
        let mut netlink = Netlink::open_in(&self.netns)?;
        let mut smallest = None;
        for net in cidrs.iter() {
            let Some(address) = *self.own.addresses.of(net.addr()) else {
                continue;
            };
            let Some(index) = netlink.link_with(address)? else {
                continue;
            };
            let Some(link) = netlink.link_by_index(index)? else {
                continue;
            };
            let mtu = match self.backend {
                NetworkBackend::HostGw => link.mtu,
                NetworkBackend::Vxlan => link.mtu.saturating_sub(kernel::overhead(address)),
            };
            smallest = Some(smallest.map_or(mtu, |smallest: u32| smallest.min(mtu)));
        }
        Ok(smallest)
    }

    /// With vxlan, a device for each address family that the node has an address of.
    fn devices(&self, own: &Peer) -> Vec<Device> {
        let PerFamily { v4, v6 } = own.addresses;
        let device = |local: IpAddr| {
            let mut nets = own.nets.iter();
            let net = nets.find(|net| net.addr().is_ipv4() == local.is_ipv4());
            Some(Device {
                vtep: (*own.vteps.of(local))?,
                port: self.port,
                local,
                address: net.map(|net| IpNet::from(net.network())),
            })
        };
        [v4, v6].into_iter().flatten().filter_map(device).collect()
    }

    /// The devices and the plan that follow from what nodes publish.
    fn plan(&self, nodes: &[Arc<NodeObject>]) -> (Vec<Device>, NodeNetworkPlan) {
        let mut peers: Vec<_> = nodes.iter().map(|node| Peer::of(node)).collect();
        let at = peers.iter().position(|peer| peer.name == self.own.name);
        let mut own = self.own.clone();
        if let Some(at) = at {
            own.nets = peers.swap_remove(at).nets;
        }
        (self.devices(&own), plan::plan(&own, self.backend, &peers))
    }

    /// Keeps the node's namespace in accord with what the nodes publish, until `stop`. Calls
    /// `on_fault` when the fault that keeps the node from reaching any other has changed.
    ///
    /// # Errors
    ///
    /// [`NodeNetworkError`] if the namespace cannot be entered.
    pub async fn run(
        self: Arc<Self>,
        nodes: Cache<NodeObject>,
        on_fault: impl Fn(),
        stop: CancellationToken,
    ) -> Result<(), NodeNetworkError> {
        let netns = self.netns.clone();
        let mut netlink = task::spawn_blocking(move || Netlink::open_in(&netns)).await??;
        let mut changes = nodes.subscribe();
        let mut ticks = clock::interval(RESYNC);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        nodes.synced().await;
        let mut applied: Option<(Vec<Device>, NodeNetworkPlan)> = None;
        let mut logged = Vec::new();
        loop {
            // A change is taken only when it is returned; losing a wait loses nothing.
            let is_resync = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                _ = changes.next() => false,
                _ = ticks.tick() => true,
            };
            clock::sleep(GAP).await;
            while changes.try_next().is_some() {}
            let wanted = self.plan(&nodes.list());
            if !is_resync && applied.as_ref() == Some(&wanted) {
                continue;
            }
            log_new(&self.own.name, &logged, &wanted.1.unreached);
            logged.clone_from(&wanted.1.unreached);
            let apply = move || {
                let outcome = kernel::apply(&mut netlink, &wanted.0, &wanted.1);
                (netlink, wanted, outcome)
            };
            let (wanted, outcome);
            (netlink, wanted, outcome) = task::spawn_blocking(apply).await?;
            applied = outcome.is_ok().then_some(wanted);
            if let Err(error) = &outcome {
                // For example a next hop that is not reachable yet.
                let error = one_line(error);
                tracing::warn!(node = %self.own.name, error = %error, retry_in = ?RETRY, "failed to apply the node network");
                ticks.reset_at((Instant::now() + RETRY).into());
            }
            if self.note(outcome) {
                on_fault();
            }
        }
    }

    /// Keeps the outcome; returns true if the fault changed.
    fn note(&self, outcome: Result<(), ApplyError>) -> bool {
        let fault = outcome.err().filter(ApplyError::is_fatal);
        let fault = fault.map(|error| format!("node network not ready: {}", one_line(&error)));
        self.fault.send_if_modified(|old| {
            let is_new = *old != fault;
            *old = fault;
            is_new
        })
    }
}

/// Logs the blocks that are newly not reached.
fn log_new(node: &str, before: &[UnreachedBlock], now: &[UnreachedBlock]) {
    for unreached in now.iter().filter(|each| !before.contains(each)) {
        let other = unreached.node.as_str();
        match unreached.reason {
            // The node may publish it in a moment; a node whose pods have addresses alone never
            // does.
            UnreachedReason::Unpublished | UnreachedReason::NoAddress => {
                tracing::debug!(node, other, "{unreached}")
            }
            _ => tracing::warn!(node, other, "{unreached}"),
        }
    }
}

/// The hardware address of a node's device. It depends on the node's name and the address family
/// only, so the others know a node that comes back. Locally administered.
fn vtep_mac(node: &str, address: IpAddr) -> VtepMac {
    let family: &[u8] = match address {
        IpAddr::V4(_) => b"vtep/4/",
        IpAddr::V6(_) => b"vtep/6/",
    };
    let digest = Sha256::new().chain_update(family).chain_update(node);
    let [first, b, c, d, e, f, ..] = <[u8; 32]>::from(digest.finalize());
    VtepMac([first & 0xfe | 0x02, b, c, d, e, f])
}

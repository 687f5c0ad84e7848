//! Applies the node network to the kernel: makes the node's namespace have the devices, neighbours,
//! forwarding entries and routes that it needs, and nothing else of ours. What others have there
//! stays.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_api::node::NO_VXLAN;
use podplane_netlink::{Link, Netlink, NetlinkError, Request, Route, Vxlan, VxlanTunnel};

use super::{
    annotations::{Vtep, VtepMac},
    plan::{BlockHop, NodeNetworkPlan},
};

/// Marks our routes (`rtm_protocol`), so that routes of others are not touched. The number is not
/// registered.
pub(super) const PROTOCOL: u8 = 80;
/// Marks our devices (`IFLA_GROUP`), likewise.
pub(super) const GROUP: u32 = 80;
const KIND: &str = "vxlan";

/// The bytes that a tunnel puts before a frame: VXLAN, UDP, IP, and the frame's own header.
pub(super) fn overhead(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => 20 + 8 + 8 + 14,
        IpAddr::V6(_) => 40 + 8 + 8 + 14,
    }
}

/// A device for tunnels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) vtep: Vtep,
    pub(super) port: u16,
    /// The node's own address, where the tunnels begin.
    pub(super) local: IpAddr,
    /// The address of the device, if the node has a block: what the node itself sends to pods
    /// comes from it, and answers find the way back.
    pub(super) address: Option<IpNet>,
}

impl Device {
    /// Its name, as in flannel.
    fn name(&self) -> String {
        let family = match self.local {
            IpAddr::V4(_) => "flannel",
            IpAddr::V6(_) => "flannel-v6",
        };
        format!("{family}.{}", self.vtep.vni)
    }
}

/// The reason why a node's network is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The kernel has no VXLAN.
    #[error("{NO_VXLAN}")]
    NoVxlan(#[source] NetlinkError),
    /// No interface has the address that tunnels are to begin at.
    #[error("no interface of the node has its address {0}, where tunnels begin: check --node-ip")]
    NoUnderlay(IpAddr),
    /// Somebody else has a device of that name.
    #[error(
        "interface {name} is there already and is not podplane's (of kind vxlan and group {GROUP}): \
         remove it with `ip link del {name}`, or stop what made it"
    )]
    Foreign {
        /// The name.
        name: String,
    },
    /// The device cannot be made.
    #[error("failed to make interface {name}")]
    Device {
        /// Its name.
        name: String,
        /// The kernel's answer.
        source: NetlinkError,
    },
    /// Anything else, such as a route through a node that is not reachable yet.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
}

impl ApplyError {
    /// The error of a request to make a VXLAN device.
    pub fn of_device(name: &str, source: NetlinkError) -> Self {
        match source.is_unsupported() {
            true => Self::NoVxlan(source),
            false => Self::Device {
                name: name.to_owned(),
                source,
            },
        }
    }

    /// Returns true if the node cannot reach any other because of it.
    pub(super) fn is_fatal(&self) -> bool {
        !matches!(self, Self::Netlink(_))
    }
}

/// Makes the namespace of `netlink` have these devices and what the plan needs. Every part is
/// tried.
///
/// # Errors
///
/// The first [`ApplyError`].
pub(super) fn apply(
    netlink: &mut Netlink,
    devices: &[Device],
    plan: &NodeNetworkPlan,
) -> Result<(), ApplyError> {
    let links = netlink.links()?;
    let names: Vec<_> = devices.iter().map(Device::name).collect();
    // Routes through a device go with it.
    let stale = links
        .iter()
        .filter(|link| is_ours(link) && !names.contains(&link.name));
    let stale: Vec<_> = stale.map(|link| Request::delete_link(link.index)).collect();
    let mut outcome = netlink.execute(stale).map_err(ApplyError::from);
    let mut present = Vec::new();
    for device in devices {
        let found = links.iter().find(|link| link.name == device.name());
        match ensure(netlink, device, found) {
            Ok(index) => present.push((device, index)),
            Err(error) => outcome = outcome.and(Err(error)),
        }
    }
    for (device, index) in &present {
        let entries = entries(netlink, *index, device, plan);
        outcome = outcome.and(entries.map_err(ApplyError::from));
    }
    let index_of = |net: &IpNet| {
        let is_v4 = net.addr().is_ipv4();
        let mut present = present.iter();
        let found = present.find(|(device, _)| device.local.is_ipv4() == is_v4);
        found.map(|(_, index)| *index)
    };
    let wanted = plan.hops.iter().filter_map(|(net, hop)| {
        let route = match hop {
            BlockHop::Node(address) => Route::via(*net, *address),
            // Without the device there is no way to the block.
            BlockHop::Tunnel { .. } => Route {
                index: Some(index_of(net)?),
                onlink: true,
                ..Route::via(*net, net.network())
            },
        };
        Some(Route {
            protocol: PROTOCOL,
            ..route
        })
    });
    let wanted: Vec<_> = wanted.collect();
    outcome.and(routes(netlink, &wanted).map_err(ApplyError::from))
}

fn is_ours(link: &Link) -> bool {
    link.kind == KIND && link.group == GROUP
}

/// Makes a device as it must be: creates or updates it, or replaces it if its settings differ;
/// returns its index.
fn ensure(netlink: &mut Netlink, device: &Device, found: Option<&Link>) -> Result<u32, ApplyError> {
    let name = device.name();
    let failed = |source| ApplyError::Device {
        name: device.name(),
        source,
    };
    let underlay = netlink.link_with(device.local)?;
    let underlay = underlay.ok_or(ApplyError::NoUnderlay(device.local))?;
    let underlay = netlink.link_by_index(underlay)?;
    let underlay = underlay.ok_or(ApplyError::NoUnderlay(device.local))?;
    let VtepMac(mac) = device.vtep.mac;
    let vxlan = Vxlan {
        name: &name,
        mtu: underlay.mtu.saturating_sub(overhead(device.local)),
        mac,
        group: GROUP,
        tunnel: VxlanTunnel {
            vni: device.vtep.vni,
            port: device.port,
            local: Some(device.local),
            link: Some(underlay.index),
            // Frames go only to addresses that the nodes publish.
            learning: false,
        },
    };
    let is_same = |link: &Link| link.vxlan == Some(vxlan.tunnel) && link.mac == mac;
    match found {
        Some(link) if !is_ours(link) => return Err(ApplyError::Foreign { name }),
        Some(link) if is_same(link) => {
            if link.mtu != vxlan.mtu {
                let request = Request::mtu(link.index, vxlan.mtu);
                netlink.execute([request]).map_err(failed)?;
            }
        }
        other => {
            let old = other.map(|link| Request::delete_link(link.index));
            netlink.execute(old).map_err(failed)?;
            let made = netlink.execute([Request::create_vxlan(&vxlan)]);
            made.map_err(|error| ApplyError::of_device(&name, error))?;
            tracing::info!(
                interface = name,
                vni = vxlan.tunnel.vni,
                port = vxlan.tunnel.port,
                local = %device.local,
                mtu = vxlan.mtu,
                "made vxlan interface"
            );
        }
    }
    let vanished = || io::Error::from(io::ErrorKind::NotFound);
    let link = netlink.link(&name)?.ok_or_else(|| {
        failed(NetlinkError::Refused {
            attempt: format!("find link {name}"),
            source: vanished(),
        })
    })?;
    let addresses = netlink.addresses(link.index)?;
    let of_us = addresses.iter().filter(|address| address.is_global);
    let stale = of_us.filter(|address| Some(address.net) != device.address);
    let stale = stale.map(|address| Request::delete_address(link.index, address.net));
    let missing = device
        .address
        .filter(|net| !addresses.iter().any(|address| address.net == *net));
    let missing = missing.map(|net| Request::add_address_unasked(link.index, net));
    let up = (!link.is_up).then(|| Request::up(link.index));
    let requests: Vec<_> = stale.chain(missing).chain(up).collect();
    netlink.execute(requests).map_err(failed)?;
    Ok(link.index)
}

/// Sets the neighbours and the forwarding entries of a device to those of the plan's tunnels. The
/// device is ours, and so are all its entries.
fn entries(
    netlink: &mut Netlink,
    index: u32,
    device: &Device,
    plan: &NodeNetworkPlan,
) -> Result<(), NetlinkError> {
    let mut neighbours: BTreeMap<IpAddr, [u8; 6]> = BTreeMap::new();
    // One remote for each hardware address; if several nodes publish the same one, the first.
    let mut remotes: BTreeMap<[u8; 6], IpAddr> = BTreeMap::new();
    for (net, hop) in &plan.hops {
        let BlockHop::Tunnel { remote, mac } = hop else {
            continue;
        };
        if net.addr().is_ipv4() == device.local.is_ipv4() {
            neighbours.insert(net.network(), mac.0);
            remotes.entry(mac.0).or_insert(*remote);
        }
    }
    let forwarding: BTreeSet<_> = remotes.into_iter().collect();
    let old_neighbours = netlink.permanent_neighbours(index)?;
    let old_forwarding = netlink.forwarding(index)?;
    let gone = old_neighbours
        .keys()
        .filter(|address| !neighbours.contains_key(address))
        .map(|address| Request::delete_neighbour(index, *address));
    let closed = old_forwarding
        .difference(&forwarding)
        .map(|(mac, remote)| Request::delete_forwarding(index, *mac, *remote));
    let opened = forwarding
        .difference(&old_forwarding)
        .map(|(mac, remote)| Request::set_forwarding(index, *mac, *remote));
    let come = neighbours
        .iter()
        .filter(|(address, mac)| old_neighbours.get(address) != Some(mac))
        .map(|(address, mac)| Request::set_neighbour(index, *address, *mac));
    let requests: Vec<_> = gone.chain(closed).chain(opened).chain(come).collect();
    netlink.execute(requests)
}

/// Removes our routes that are not wanted, then adds those that are missing. Others' routes stay.
fn routes(netlink: &mut Netlink, wanted: &[Route]) -> Result<(), NetlinkError> {
    let present = netlink.routes()?;
    let ours = present
        .iter()
        .filter(|route| route.protocol == PROTOCOL && route.table == Route::MAIN);
    let is_same = |present: &Route, wanted: &Route| {
        present.destination == wanted.destination
            && present.gateway == wanted.gateway
            && (wanted.index.is_none() || present.index == wanted.index)
    };
    let (kept, stale): (Vec<&Route>, Vec<&Route>) =
        ours.partition(|route| wanted.iter().any(|wanted| is_same(route, wanted)));
    let missing = wanted
        .iter()
        .filter(|wanted| !kept.iter().any(|route| is_same(route, wanted)));
    let deletions = stale.into_iter().map(Request::delete_route);
    let additions = missing.map(Request::replace_route);
    let requests: Vec<_> = deletions.chain(additions).collect();
    netlink.execute(requests)
}

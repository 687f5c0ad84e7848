//! The network between nodes: a bridge in its own namespace, and for each node a namespace with an
//! uplink to it.
//!
//! Nothing here changes the machine's own interfaces, routes or settings: every request is sent
//! from inside a namespace that is named on the supervisor's private tmpfs. Routes to pods are the
//! kubelets' work.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_api::node::NO_VXLAN;
use podplane_ipam::cluster::RangeConfig;
use podplane_netlink::{Bridge, Netlink, Request, Veth, Vxlan, VxlanTunnel, netns, sysctl};

use crate::data_dir::Member;

const BRIDGE: &str = "fabric0";
const UPLINK: &str = "eth0";

/// The candidate ranges of the nodes' own addresses: the first free one is used.
const IPV4: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(Ipv4Addr::new(100, 64, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(172, 31, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(192, 168, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(10, 63, 0, 0), 16),
];
const IPV6: [Ipv6Net; 2] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd70, 0x6f64, 0x706c, 0, 0, 0, 0, 0), 64),
    Ipv6Net::new_assert(
        Ipv6Addr::new(0xfd00, 0x6f64, 0x706c, 0xffff, 0, 0, 0, 0),
        64,
    ),
];

/// The ranges of the nodes' own addresses, one for each address family of the cluster, in its
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNetwork(Vec<IpNet>);

impl NodeNetwork {
    /// Chooses ranges that overlap neither the pods' nor the services'.
    pub fn beside(config: &RangeConfig) -> anyhow::Result<Self> {
        let taken = || {
            config
                .ranges
                .iter()
                .map(|range| range.cidr())
                .chain(config.service_ranges.iter().copied())
        };
        let is_free =
            |net: &IpNet| taken().all(|other| !net.contains(&other) && !other.contains(net));
        let choose = |is_ipv6: bool| {
            let mut candidates: Box<dyn Iterator<Item = IpNet>> = if is_ipv6 {
                Box::new(IPV6.into_iter().map(IpNet::V6))
            } else {
                Box::new(IPV4.into_iter().map(IpNet::V4))
            };
            candidates.find(is_free)
        };
        let families = config
            .ranges
            .iter()
            .map(|range| range.cidr().addr().is_ipv6());
        let chosen: Option<Vec<_>> = families.map(choose).collect();
        chosen.map(Self).context(
            "no range is left for the nodes' own addresses: --cluster-cidr and --service-cluster-ip-range take all those that podplane knows",
        )
    }

    /// Returns true if the ranges of `config` do not overlap these.
    pub fn is_beside(&self, config: &RangeConfig) -> bool {
        let ranges = config.ranges.iter().map(|range| range.cidr());
        let mut others = ranges.chain(config.service_ranges.iter().copied());
        others.all(|other| {
            self.0
                .iter()
                .all(|own| !own.contains(&other) && !other.contains(own))
        })
    }

    /// The addresses of a node, with the length of their prefix.
    pub fn addresses(&self, node: &Member) -> Vec<IpNet> {
        let address = |net: &IpNet| {
            let host = node.place.saturating_add(1);
            let address: IpAddr = match net {
                IpNet::V4(net) => Ipv4Addr::from_bits(net.network().to_bits() | host).into(),
                IpNet::V6(net) => {
                    Ipv6Addr::from_bits(net.network().to_bits() | u128::from(host)).into()
                }
            };
            IpNet::new_assert(address, net.prefix_len())
        };
        self.0.iter().map(address).collect()
    }

    fn has_ipv6(&self) -> bool {
        self.0.iter().any(|net| matches!(net, IpNet::V6(_)))
    }
}

/// The path at which a node's namespace is bound, on the tmpfs `run`.
pub fn node_netns(run: &Path, name: &str) -> PathBuf {
    run.join("nodes").join(name)
}

/// A need of nodes besides bridges and veth pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelNeeds {
    Nothing,
    Vxlan,
}

/// The namespaces of a cluster's network, by name on its tmpfs.
#[derive(Clone, Debug)]
pub struct Fabric {
    run: PathBuf,
    network: NodeNetwork,
}

impl Fabric {
    /// Checks that this process may create a fabric, by creating parts of it in a temporary
    /// namespace.
    pub fn probe(run: &Path, needs: KernelNeeds) -> anyhow::Result<()> {
        let path = run.join("probe");
        netns::create(&path)?;
        let probed = netns::in_netns(&path, || -> anyhow::Result<()> {
            sysctl::write("net/ipv4/ip_forward", "1")?;
            let mut netlink = Netlink::open()?;
            if needs == KernelNeeds::Vxlan {
                probe_vxlan(&mut netlink)?;
            }
            netlink.execute([Request::create_bridge(&bridge("probe0"))])?;
            let bridge = netlink.link("probe0")?.context("the bridge is not there")?;
            let pair = Veth {
                name: "probe1",
                peer_name: "probe2",
                controller: Some(bridge.index),
                up: true,
                ..Veth::default()
            };
            Ok(netlink.execute([Request::create_veth(&pair)])?)
        });
        netns::remove(&path)?;
        probed?
    }

    /// Creates the namespace and the bridge to which nodes are attached.
    pub fn create(run: &Path, network: NodeNetwork) -> anyhow::Result<Self> {
        let fabric = Self {
            run: run.into(),
            network,
        };
        // A bridge forwards frames of a protocol that it does not speak itself.
        netns::create_with(&fabric.path(), disable_ipv6)?;
        let mut netlink = Netlink::open_in(&fabric.path())?;
        netlink.execute([Request::create_bridge(&bridge(BRIDGE))])?;
        let index = fabric.bridge(&mut netlink)?;
        netlink.execute([Request::up(index)])?;
        Ok(fabric)
    }

    /// The path at which a node's namespace is bound.
    pub fn node(&self, name: &str) -> PathBuf {
        node_netns(&self.run, name)
    }

    /// A node's own addresses.
    pub fn addresses(&self, node: &Member) -> Vec<IpAddr> {
        self.network
            .addresses(node)
            .iter()
            .map(IpNet::addr)
            .collect()
    }

    /// Creates a node's namespace: its uplink, its addresses, and forwarding between its
    /// interfaces.
    pub fn add_node(&self, node: &Member) -> anyhow::Result<()> {
        let path = self.node(&node.name);
        let attach = || -> anyhow::Result<()> {
            let has_ipv6 = self.network.has_ipv6();
            netns::create_with(&path, || settings(has_ipv6))?;
            let inside = netns::open(&path)?;
            let mut fabric = Netlink::open_in(&self.path())?;
            let port = port(node);
            let pair = Veth {
                name: &port,
                peer_name: UPLINK,
                peer_mac: Some(mac(node)),
                peer_netns: Some(inside.as_fd()),
                controller: Some(self.bridge(&mut fabric)?),
                up: true,
                ..Veth::default()
            };
            // The kernel may take a while to remove the port of a namespace that ended, or do so
            // right now, and a port's name follows from the node's place.
            if let Some(lingering) = fabric.link(&port)? {
                match fabric.execute([Request::delete_link(lingering.index)]) {
                    Err(error) if error.is_not_found() => {}
                    done => done?,
                }
            }
            fabric.execute([Request::create_veth(&pair)])?;
            let mut netlink = Netlink::open_in(&path)?;
            let index = |netlink: &mut Netlink, name: &str| -> anyhow::Result<u32> {
                let link = netlink.link(name)?;
                Ok(link
                    .with_context(|| format!("there is no link {name}"))?
                    .index)
            };
            let (loopback, uplink) = (index(&mut netlink, "lo")?, index(&mut netlink, UPLINK)?);
            let addresses = self.network.addresses(node);
            let addresses = addresses
                .into_iter()
                .map(|address| Request::add_address(uplink, address));
            let up = [Request::up(loopback), Request::up(uplink)];
            Ok(netlink.execute(up.into_iter().chain(addresses))?)
        };
        attach().with_context(|| format!("failed to make the network of node {}", node.name))
    }

    /// Cuts or restores a node's uplink at the bridge's end. The node's own addresses and routes
    /// stay.
    pub fn connect(&self, node: &Member, connected: bool) -> anyhow::Result<()> {
        let mut netlink = Netlink::open_in(&self.path())?;
        let port = port(node);
        let link = netlink.link(&port)?;
        let index = link
            .with_context(|| format!("the uplink {port} of node {} is gone", node.name))?
            .index;
        let request = if connected {
            Request::up(index)
        } else {
            Request::down(index)
        };
        Ok(netlink.execute([request])?)
    }

    /// Removes the namespaces of a node and its pods, as if its machine were switched off.
    pub fn switch_off(&self, name: &str) -> anyhow::Result<()> {
        let is_pods = |path: &PathBuf| {
            let rest = path
                .file_name()
                .and_then(|file| file.to_str()?.strip_prefix(name)?.strip_prefix('.'));
            // The name of another node may begin with this one and a dot.
            rest.is_some_and(|id| !id.contains('.'))
        };
        netns::list(&self.run.join("netns"))?
            .into_iter()
            .filter(is_pods)
            .try_for_each(|path| netns::remove(&path))?;
        self.remove_node(name)
    }

    /// Removes a node's namespace, and with it its uplink.
    pub fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        Ok(netns::remove(&self.node(name))?)
    }

    /// Removes all named namespaces, those of pods included.
    pub fn remove(&self) -> anyhow::Result<()> {
        for dir in [
            self.run.join("netns"),
            self.run.join("nodes"),
            self.run.clone(),
        ] {
            netns::list(&dir)?
                .iter()
                .try_for_each(|path| netns::remove(path))?;
        }
        Ok(())
    }

    fn path(&self) -> PathBuf {
        self.run.join("fabric")
    }

    fn bridge(&self, netlink: &mut Netlink) -> anyhow::Result<u32> {
        Ok(netlink
            .link(BRIDGE)?
            .context("the fabric's bridge is gone")?
            .index)
    }
}

fn probe_vxlan(netlink: &mut Netlink) -> anyhow::Result<()> {
    let probe = Vxlan {
        name: "probe3",
        mtu: 1450,
        mac: [0x02, b'p', b'p', 0, 0, 0],
        group: 0,
        tunnel: VxlanTunnel {
            vni: 1,
            port: 8472,
            ..VxlanTunnel::default()
        },
    };
    let made = netlink.execute([Request::create_vxlan(&probe)]);
    made.map_err(|error| match error.is_unsupported() {
        true => anyhow::Error::new(error).context(NO_VXLAN),
        false => {
            anyhow::Error::new(error).context(format!("failed to make interface {}", probe.name))
        }
    })
}

/// The name of the bridge's end of a node's uplink.
fn port(node: &Member) -> String {
    format!("node{}", node.place)
}

/// The hardware address of a node's uplink. It stays the same when the node is switched off and on:
/// the other nodes remember it.
fn mac(node: &Member) -> [u8; 6] {
    let [_, a, b, c] = node.place.to_be_bytes();
    // A locally administered address.
    [0x02, b'p', b'p', a, b, c]
}

fn bridge(name: &str) -> Bridge<'_> {
    Bridge {
        name,
        ..Bridge::default()
    }
}

/// Writes the settings that must be there before the first interface comes up.
fn settings(has_ipv6: bool) -> io::Result<()> {
    let write = |key: &str, value: &str| sysctl::write(key, value).map_err(io::Error::other);
    write("net/ipv4/ip_forward", "1")?;
    // No router advertises itself on the fabric or on a bridge; plugins would set this for each
    // interface that they make. A kernel may lack IPv6.
    _ = write("net/ipv6/conf/default/accept_ra", "0");
    if has_ipv6 {
        // Nobody else is on the fabric, and a second of duplicate address detection is long.
        write("net/ipv6/conf/default/accept_dad", "0")?;
        write("net/ipv6/conf/all/forwarding", "1")
    } else {
        disable_ipv6()
    }
}

/// Disables IPv6, which avoids router solicitations and duplicate address detection on every
/// interface. A kernel without IPv6 needs no change.
fn disable_ipv6() -> io::Result<()> {
    for scope in ["all", "default"] {
        let key = format!("net/ipv6/conf/{scope}/disable_ipv6");
        match sysctl::write(&key, "1") {
            Err(podplane_netlink::sysctl::SysctlError::Access { source, .. })
                if source.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(io::Error::other)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use podplane_ipam::cluster::RangeFlags;

    use super::*;

    fn beside(cluster: &str, service: &str) -> anyhow::Result<NodeNetwork> {
        let flags = RangeFlags {
            cluster_cidr: cluster.into(),
            service_cluster_ip_range: service.into(),
            ..RangeFlags::default()
        };
        NodeNetwork::beside(&flags.validate().unwrap())
    }

    fn addresses(network: &NodeNetwork, place: u32) -> Vec<String> {
        let member = Member {
            name: "n".into(),
            place,
            ledger: false,
            node_network_backend: None,
        };
        network
            .addresses(&member)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn nodes_have_an_address_of_each_cluster_family() {
        let network = beside("10.244.0.0/16", "10.96.0.0/16").unwrap();
        assert_eq!(addresses(&network, 0), ["100.64.0.1/16"]);
        assert_eq!(addresses(&network, 299), ["100.64.1.44/16"]);
        let network = beside("fd00:10::/56,10.244.0.0/16", "").unwrap();
        assert_eq!(
            addresses(&network, 1),
            ["fd70:6f64:706c::2/64", "100.64.0.2/16"]
        );
    }

    #[test]
    fn node_range_overlaps_no_other_range() {
        let network = beside("100.64.0.0/10", "172.31.255.0/24").unwrap();
        assert_eq!(addresses(&network, 0), ["192.168.0.1/16"]);
        assert!(beside("0.0.0.0/0", "").is_err());
    }
}

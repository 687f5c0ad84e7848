//! The network between nodes: a bridge in a namespace of its own, and for each node a namespace with an uplink to it.
//!
//! Nothing here touches the machine's own interfaces, routes or settings: every request is sent from inside a namespace that is
//! named on the supervisor's private tmpfs. Routes to pods are the kubelets' work.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_cni::{
    netlink::{Bridge, Netlink, Request, Veth},
    netns, sysctl,
};
use podplane_ipam::cluster::RangeConfig;

use super::data_dir::Member;

const BRIDGE: &str = "fabric0";
const UPLINK: &str = "eth0";

/// Where nodes' own addresses come from: the first of these that nobody else uses.
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

/// The ranges that nodes' own addresses come from, one for each address family of the cluster, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeNetwork(Vec<IpNet>);

impl NodeNetwork {
    /// Ranges that overlap neither the pods' nor the services'.
    pub(crate) fn beside(config: &RangeConfig) -> anyhow::Result<Self> {
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

    /// Whether the ranges of `config` leave these alone.
    pub(crate) fn is_beside(&self, config: &RangeConfig) -> bool {
        let ranges = config.ranges.iter().map(|range| range.cidr());
        let mut others = ranges.chain(config.service_ranges.iter().copied());
        others.all(|other| {
            self.0
                .iter()
                .all(|own| !own.contains(&other) && !other.contains(own))
        })
    }

    /// The addresses of a node, with the length of their prefix.
    pub(crate) fn addresses(&self, node: &Member) -> Vec<IpNet> {
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

/// Where a node's namespace is named, on the tmpfs `run`.
pub(crate) fn node_netns(run: &Path, name: &str) -> PathBuf {
    run.join("nodes").join(name)
}

/// The namespaces of a cluster's network, by name on its tmpfs.
#[derive(Clone, Debug)]
pub(crate) struct Fabric {
    run: PathBuf,
    network: NodeNetwork,
}

impl Fabric {
    /// Finds out whether this process may do what a fabric takes, by doing it in a namespace that ends at once.
    pub(crate) fn probe(run: &Path) -> anyhow::Result<()> {
        let path = run.join("probe");
        netns::create(&path)?;
        let probed = netns::in_netns(&path, || -> anyhow::Result<()> {
            sysctl::write("net/ipv4/ip_forward", "1")?;
            let mut netlink = Netlink::open()?;
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

    /// Makes the namespace and the bridge that nodes are attached to.
    pub(crate) fn create(run: &Path, network: NodeNetwork) -> anyhow::Result<Self> {
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

    /// Where a node's namespace is named.
    pub(crate) fn node(&self, name: &str) -> PathBuf {
        node_netns(&self.run, name)
    }

    /// A node's own addresses.
    pub(crate) fn addresses(&self, node: &Member) -> Vec<IpAddr> {
        self.network
            .addresses(node)
            .iter()
            .map(IpNet::addr)
            .collect()
    }

    /// Makes a node's namespace: its uplink, its addresses, and forwarding between its interfaces.
    pub(crate) fn add_node(&self, node: &Member) -> anyhow::Result<()> {
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
            // The kernel takes its time with the port of a namespace that ended, and a port's name is that of a place.
            if let Some(lingering) = fabric.link(&port)? {
                fabric.execute([Request::delete_link(lingering.index)])?;
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
        attach().with_context(|| format!("make the network of node {}", node.name))
    }

    /// Cuts a node's uplink, at the bridge's end of it, or mends it. What the node itself has, addresses and routes, stays.
    pub(crate) fn connect(&self, node: &Member, connected: bool) -> anyhow::Result<()> {
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

    /// Ends the namespaces of a node, its pods' included, as when its machine is switched off.
    pub(crate) fn switch_off(&self, name: &str) -> anyhow::Result<()> {
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

    /// Ends a node's namespace, and with it its uplink.
    pub(crate) fn remove_node(&self, name: &str) -> anyhow::Result<()> {
        Ok(netns::remove(&self.node(name))?)
    }

    /// Ends all namespaces that have a name here, those of pods included.
    pub(crate) fn remove(&self) -> anyhow::Result<()> {
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

/// The bridge's end of a node's uplink.
fn port(node: &Member) -> String {
    format!("node{}", node.place)
}

/// The hardware address of a node's uplink, which it keeps when it is switched off and on: the others remember it.
fn mac(node: &Member) -> [u8; 6] {
    let [_, a, b, c] = node.place.to_be_bytes();
    // Locally administered.
    [0x02, b'p', b'p', a, b, c]
}

fn bridge(name: &str) -> Bridge<'_> {
    Bridge {
        name,
        ..Bridge::default()
    }
}

/// What must be set before the first interface comes up.
fn settings(has_ipv6: bool) -> io::Result<()> {
    let write = |key: &str, value: &str| sysctl::write(key, value).map_err(io::Error::other);
    write("net/ipv4/ip_forward", "1")?;
    if has_ipv6 {
        // Nobody else is on the fabric, and a second of duplicate address detection is long.
        write("net/ipv6/conf/default/accept_dad", "0")?;
        write("net/ipv6/conf/all/forwarding", "1")
    } else {
        disable_ipv6()
    }
}

/// Saves router solicitations and detection of duplicates on every interface. A kernel without IPv6 has it disabled already.
fn disable_ipv6() -> io::Result<()> {
    for scope in ["all", "default"] {
        let key = format!("net/ipv6/conf/{scope}/disable_ipv6");
        match sysctl::write(&key, "1") {
            Err(podplane_cni::sysctl::SysctlError::Access { source, .. })
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
        };
        network
            .addresses(&member)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn nodes_have_addresses_of_the_clusters_families() {
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
    fn their_range_is_nobody_elses() {
        let network = beside("100.64.0.0/10", "172.31.255.0/24").unwrap();
        assert_eq!(addresses(&network, 0), ["192.168.0.1/16"]);
        assert!(beside("0.0.0.0/0", "").is_err());
    }
}

//! Tests against the kernel: two nodes with an uplink between them, each in a namespace of its own.

use std::{
    net::{SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    thread,
};

use podplane_api::{core::NodeSpec, meta::ObjectMeta};
use podplane_netlink::{Bridge, Link, Request, Route, Veth, netns, sysctl};
use podplane_test_requirements::root;

use super::*;

/// Two namespaces, `a` and `b`, with 172.16.0.1 and 172.16.0.2, fd70::1 and fd70::2. Their bridges
/// have the addresses 10.0.1.1 and 10.0.2.1, fd00:1::1 and fd00:2::1, which stand for pods.
struct TwoNodes {
    dir: tempfile::TempDir,
}

const NAMES: [&str; 2] = ["a", "b"];

impl TwoNodes {
    fn new() -> Self {
        let world = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for name in NAMES {
            let settings = || {
                // Otherwise an address is not used before duplicates of it were looked for.
                let write = |key: &str, value: &str| sysctl::write(key, value);
                write("net/ipv6/conf/default/accept_dad", "0").map_err(std::io::Error::other)?;
                write("net/ipv6/conf/all/forwarding", "1").map_err(std::io::Error::other)
            };
            netns::create_with(&world.netns(name), settings).unwrap();
        }
        let peer = netns::open(&world.netns("b")).unwrap();
        let pair = Veth {
            name: "eth0",
            peer_name: "eth0",
            peer_netns: Some(peer.as_fd()),
            ..Veth::default()
        };
        world
            .netlink("a")
            .execute([Request::create_veth(&pair)])
            .unwrap();
        for (number, name) in (1..).zip(NAMES) {
            let mut netlink = world.netlink(name);
            let bridge = Bridge {
                name: "cni0",
                ..Bridge::default()
            };
            netlink.execute([Request::create_bridge(&bridge)]).unwrap();
            for (link, addresses) in [
                ("lo", [None, None]),
                (
                    "eth0",
                    [
                        Some(format!("172.16.0.{number}/24")),
                        Some(format!("fd70::{number}/64")),
                    ],
                ),
                (
                    "cni0",
                    [
                        Some(format!("10.0.{number}.1/24")),
                        Some(format!("fd00:{number}::1/64")),
                    ],
                ),
            ] {
                let index = netlink.link(link).unwrap().unwrap().index;
                let addresses = addresses.into_iter().flatten();
                let addresses =
                    addresses.map(|net| Request::add_address_unasked(index, net.parse().unwrap()));
                let up = [Request::up(index)];
                netlink.execute(up.into_iter().chain(addresses)).unwrap();
            }
        }
        world
    }

    fn netns(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn netlink(&self, name: &str) -> Netlink {
        Netlink::open_in(&self.netns(name)).unwrap()
    }

    fn link(&self, node: &str, name: &str) -> Option<Link> {
        self.netlink(node).link(name).unwrap()
    }

    fn network(&self, name: &str, config: &NodeNetworkConfig) -> NodeFabric {
        let number = 1 + NAMES.iter().position(|known| *known == name).unwrap();
        let ips = [format!("172.16.0.{number}"), format!("fd70::{number}")];
        let ips = ips.map(|ip| ip.parse().unwrap());
        NodeFabric::new(self.netns(name), &name.parse().unwrap(), &ips, config)
    }

    /// Applies the network of a node to its namespace, with these nodes.
    fn apply(&self, network: &NodeFabric, nodes: &[Arc<NodeObject>]) -> Result<(), ApplyError> {
        let (devices, plan) = network.plan(nodes);
        let mut netlink = Netlink::open_in(&network.netns).unwrap();
        kernel::apply(&mut netlink, &devices, &plan)
    }

    /// Sends a packet from an address of `a` to one of `b`; returns true if it is answered.
    fn is_answered(&self, from: &str, to: &str) -> bool {
        // The kernel looks for a neighbour that did not answer again, after a second.
        let wait = Some(Duration::from_secs(3));
        let to: SocketAddr = to.parse().unwrap();
        let server = netns::in_netns(&self.netns("b"), || UdpSocket::bind(to).unwrap()).unwrap();
        let client = netns::in_netns(&self.netns("a"), || UdpSocket::bind(from).unwrap()).unwrap();
        server.set_read_timeout(wait).unwrap();
        client.set_read_timeout(wait).unwrap();
        let answer = thread::spawn(move || {
            let mut buffer = [0; 16];
            if let Ok((length, from)) = server.recv_from(&mut buffer) {
                _ = server.send_to(&buffer[..length], from);
            }
        });
        let sent = client.send_to(b"who", to).is_ok();
        let is_answered = sent && client.recv(&mut [0; 16]).is_ok_and(|length| length == 3);
        answer.join().unwrap();
        is_answered
    }
}

impl Drop for TwoNodes {
    fn drop(&mut self) {
        for name in NAMES {
            _ = netns::remove(&self.netns(name));
        }
    }
}

fn config(backend: NetworkBackend) -> NodeNetworkConfig {
    NodeNetworkConfig {
        node_network_backend: backend,
        vxlan_vni: 1,
        vxlan_port: 8472,
    }
}

/// The object of a node, as its kubelet publishes it.
fn object(network: &NodeFabric, cidrs: [&str; 2]) -> Arc<NodeObject> {
    let annotations = network.annotations();
    let annotations = annotations.filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Arc::new(NodeObject {
        metadata: ObjectMeta {
            name: Some(network.own.name.clone()),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            pod_cidrs: Some(cidrs.map(str::to_owned).into()),
            ..NodeSpec::default()
        }),
        status: None,
    })
}

const A: [&str; 2] = ["10.0.1.0/24", "fd00:1::/64"];
const B: [&str; 2] = ["10.0.2.0/24", "fd00:2::/64"];

/// Our routes.
fn routes(netlink: &mut Netlink) -> Vec<String> {
    let routes = netlink.routes().unwrap();
    let ours = routes
        .iter()
        .filter(|route| route.protocol == kernel::PROTOCOL);
    let mut texts: Vec<_> = ours
        .map(|route| format!("{} via {}", route.destination, route.gateway.unwrap()))
        .collect();
    texts.sort();
    texts
}

#[test]
fn vxlan_nodes_reach_each_other_until_one_is_removed() {
    if !root() {
        return;
    }
    let world = TwoNodes::new();
    let [a, b] = NAMES.map(|name| world.network(name, &config(NetworkBackend::Vxlan)));
    let nodes = [object(&a, A), object(&b, B)];
    world.apply(&a, &nodes).unwrap();
    world.apply(&b, &nodes).unwrap();

    let mac = |network: &NodeFabric| network.own.vteps.v4.unwrap().mac.0;
    let mac_v6 = |network: &NodeFabric| network.own.vteps.v6.unwrap().mac.0;
    let device = world.link("a", "flannel.1").unwrap();
    let device_v6 = world.link("a", "flannel-v6.1").unwrap();
    assert_eq!((device.mtu, device_v6.mtu), (1450, 1430));
    assert_eq!((device.group, device_v6.group), (80, 80));
    assert_eq!(device.mac, mac(&a));
    let mut inside = world.netlink("a");
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(
        inside.permanent_neighbours(device.index).unwrap(),
        [(ip("10.0.2.0"), mac(&b))].into()
    );
    assert_eq!(
        inside.forwarding(device.index).unwrap(),
        [(mac(&b), ip("172.16.0.2"))].into()
    );
    assert_eq!(
        inside.permanent_neighbours(device_v6.index).unwrap(),
        [(ip("fd00:2::"), mac_v6(&b))].into()
    );
    assert_eq!(
        inside.forwarding(device_v6.index).unwrap(),
        [(mac_v6(&b), ip("fd70::2"))].into()
    );
    assert_eq!(
        routes(&mut inside),
        ["10.0.2.0/24 via 10.0.2.0", "fd00:2::/64 via fd00:2::"]
    );
    let addresses = inside.addresses(device.index).unwrap();
    assert!(
        addresses
            .iter()
            .any(|each| each.net.to_string() == "10.0.1.0/32")
    );
    assert!(world.is_answered("10.0.1.1:0", "10.0.2.1:7000"));
    assert!(world.is_answered("[fd00:1::1]:0", "[fd00:2::1]:7000"));
    // A packet of the node itself has the address of the device.
    assert!(world.is_answered("0.0.0.0:0", "10.0.2.1:7001"));

    // As after a restart of the kubelet: nothing is made again.
    world.apply(&a, &nodes).unwrap();
    assert_eq!(world.link("a", "flannel.1"), Some(device.clone()));
    assert!(world.is_answered("10.0.1.1:0", "10.0.2.1:7000"));

    world.apply(&a, &nodes[..1]).unwrap();
    assert_eq!(world.link("a", "flannel.1"), Some(device.clone()));
    assert!(
        inside
            .permanent_neighbours(device.index)
            .unwrap()
            .is_empty()
    );
    assert!(inside.forwarding(device.index).unwrap().is_empty());
    assert!(routes(&mut inside).is_empty());
    assert!(!world.is_answered("10.0.1.1:0", "10.0.2.1:7000"));
}

#[test]
fn removes_outdated_routes_of_a_changed_node() {
    if !root() {
        return;
    }
    let world = TwoNodes::new();
    let [a, b] = NAMES.map(|name| world.network(name, &config(NetworkBackend::Vxlan)));
    let nodes = [object(&a, A), object(&b, B)];
    world.apply(&b, &nodes).unwrap();
    world.apply(&a, &nodes).unwrap();
    let mut inside = world.netlink("a");

    // The device is replaced if its settings differ: changed by somebody else, or by our flags.
    let first = world.link("a", "flannel.1").unwrap();
    inside
        .execute([Request::mac(first.index, &[2, 0, 0, 0, 0, 9])])
        .unwrap();
    world.apply(&a, &nodes).unwrap();
    let second = world.link("a", "flannel.1").unwrap();
    assert_ne!(second.index, first.index);
    assert_eq!(second.mac, first.mac);
    assert!(world.is_answered("10.0.1.1:0", "10.0.2.1:7000"));
    let other_port = NodeNetworkConfig {
        vxlan_port: 4789,
        ..config(NetworkBackend::Vxlan)
    };
    world
        .apply(&world.network("a", &other_port), &nodes)
        .unwrap();
    let third = world.link("a", "flannel.1").unwrap();
    assert_eq!(third.vxlan.unwrap().port, 4789);
    let other_vni = NodeNetworkConfig {
        vxlan_vni: 2,
        ..config(NetworkBackend::Vxlan)
    };
    world
        .apply(&world.network("a", &other_vni), &nodes)
        .unwrap();
    assert_eq!(world.link("a", "flannel.1"), None);
    assert_eq!(world.link("a", "flannel-v6.1"), None);
    assert!(world.link("a", "flannel.2").is_some());
    assert!(
        routes(&mut inside).is_empty(),
        "the other is not in its network"
    );

    // host-gw does not reach a vxlan node, and leaves no device; nor the other way round.
    let host_gw = NAMES.map(|name| world.network(name, &config(NetworkBackend::HostGw)));
    world.apply(&host_gw[0], &nodes).unwrap();
    assert_eq!(world.link("a", "flannel.2"), None);
    assert!(routes(&mut inside).is_empty());
    let nodes = [object(&host_gw[0], A), object(&host_gw[1], B)];
    for network in &host_gw {
        world.apply(network, &nodes).unwrap();
    }
    assert_eq!(
        routes(&mut inside),
        ["10.0.2.0/24 via 172.16.0.2", "fd00:2::/64 via fd70::2"]
    );
    assert!(world.is_answered("10.0.1.1:0", "10.0.2.1:7000"));
    assert!(world.is_answered("[fd00:1::1]:0", "[fd00:2::1]:7000"));
    let nodes = [object(&a, A), object(&host_gw[1], B)];
    world.apply(&a, &nodes).unwrap();
    assert!(routes(&mut inside).is_empty());
    assert!(!world.is_answered("10.0.1.1:0", "10.0.2.1:7000"));
}

#[test]
fn keeps_foreign_links_routes_and_neighbours() {
    if !root() {
        return;
    }
    let world = TwoNodes::new();
    let [a, b] = NAMES.map(|name| world.network(name, &config(NetworkBackend::Vxlan)));
    let nodes = [object(&a, A), object(&b, B)];
    let mut inside = world.netlink("a");
    let uplink = world.link("a", "eth0").unwrap().index;
    let foreign = podplane_netlink::Vxlan {
        name: "flannel.1",
        mtu: 1400,
        mac: [2, 0, 0, 0, 0, 9],
        group: 0,
        tunnel: podplane_netlink::VxlanTunnel {
            vni: 7,
            port: 4790,
            ..Default::default()
        },
    };
    let theirs = Route::via(
        "10.9.0.0/24".parse().unwrap(),
        "172.16.0.2".parse().unwrap(),
    );
    let mac = [2, 0, 0, 0, 0, 7];
    let neighbour = "172.16.0.99".parse().unwrap();
    inside
        .execute([
            Request::create_vxlan(&foreign),
            Request::add_route(&theirs),
            Request::set_neighbour(uplink, neighbour, mac),
        ])
        .unwrap();
    let before = world.link("a", "flannel.1");
    let error = world.apply(&a, &nodes).unwrap_err();
    assert!(error.is_fatal());
    assert!(
        error
            .to_string()
            .starts_with("interface flannel.1 is there already and is not podplane's"),
        "{error}"
    );
    assert_eq!(world.link("a", "flannel.1"), before);
    // The other family has its network nevertheless, until the node is one of host-gw.
    assert_eq!(routes(&mut inside), ["fd00:2::/64 via fd00:2::"]);
    world
        .apply(&world.network("a", &config(NetworkBackend::HostGw)), &nodes)
        .unwrap();
    assert_eq!(world.link("a", "flannel-v6.1"), None);
    assert_eq!(world.link("a", "flannel.1"), before);
    let found = inside.routes().unwrap();
    assert!(
        found
            .iter()
            .any(|route| route.destination == theirs.destination)
    );
    assert_eq!(
        inside.permanent_neighbours(uplink).unwrap(),
        [(neighbour, mac)].into()
    );
}

#[test]
fn pod_mtu_leaves_room_for_the_tunnel_header() {
    if !root() {
        return;
    }
    let world = TwoNodes::new();
    let mtu = |backend, cidrs: &str| {
        let network = world.network("a", &config(backend));
        network.pod_mtu(&cidrs.parse().unwrap()).unwrap()
    };
    assert_eq!(mtu(NetworkBackend::Vxlan, A[0]), Some(1450));
    assert_eq!(mtu(NetworkBackend::Vxlan, A[1]), Some(1430));
    assert_eq!(mtu(NetworkBackend::Vxlan, &A.join(",")), Some(1430));
    assert_eq!(mtu(NetworkBackend::HostGw, A[0]), Some(1500));
    let ips = ["192.0.2.1".parse().unwrap()];
    let name = "a".parse().unwrap();
    let elsewhere = NodeFabric::new(
        world.netns("a"),
        &name,
        &ips,
        &config(NetworkBackend::Vxlan),
    );
    assert_eq!(elsewhere.pod_mtu(&A[0].parse().unwrap()).unwrap(), None);
    let error = world.apply(&elsewhere, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no interface of the node has its address 192.0.2.1, where tunnels begin: check --node-ip"
    );
}

#[test]
fn a_kernel_without_vxlan_is_named() {
    // The kernel's answer for a kind of link whose module is missing.
    let refused = |errno: rustix::io::Errno| NetlinkError::Refused {
        attempt: "create vxlan device flannel.1".to_owned(),
        source: errno.into(),
    };
    let error = ApplyError::of_device("flannel.1", refused(rustix::io::Errno::OPNOTSUPP));
    assert!(error.is_fatal());
    assert!(
        error
            .to_string()
            .starts_with("the kernel has no vxlan devices: load its module (`modprobe vxlan`"),
        "{error}"
    );
    let error = ApplyError::of_device("flannel.1", refused(rustix::io::Errno::PERM));
    assert_eq!(error.to_string(), "failed to make interface flannel.1");
}

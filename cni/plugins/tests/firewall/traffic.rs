//! Traffic through a chain `FORWARD` that drops by default, and traffic that an ingress policy
//! stops.

use std::{
    fs, io,
    net::{IpAddr, UdpSocket},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::Duration,
};

use podplane_cni::{CniResult, Runtime};
use podplane_netlink::{Netlink, Request, Route, Veth, netns};
use podplane_test_network::{
    NetnsFixture, attachment, exchange, list, our_plugins, receive, require, wait_for,
};
use serde_json::{Value, json};

use crate::{ours, run_in, succeed};

const HOST: [&str; 2] = ["192.0.2.1", "fd00:99::1"];
const OUTSIDE: [&str; 2] = ["192.0.2.2", "fd00:99::2"];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node that forwards nothing by default, and a machine beside it.
struct FirewallSite {
    world: NetnsFixture,
    runtime: Runtime,
    outside: PathBuf,
}

struct Pod {
    netns: PathBuf,
    result: CniResult,
}

impl Pod {
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.result.ips.iter().map(|ip| ip.address.addr())
    }
}

impl FirewallSite {
    fn new() -> Self {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[&our_plugins()]);
        let outside = world.netns("outside");
        let node = runtime.node_netns.as_deref().unwrap();
        let file = netns::open(&outside).unwrap();
        let mut netlink = Netlink::open_in(node).unwrap();
        let veth = Veth {
            name: "uplink",
            peer_name: "eth0",
            peer_netns: Some(file.as_fd()),
            up: true,
            ..Veth::default()
        };
        netlink.execute([Request::create_veth(&veth)]).unwrap();
        let set_up = |netlink: &mut Netlink, link: &str, addresses: [&str; 2]| {
            let index = netlink.link(link).unwrap().unwrap().index;
            let lengths = [24, 64];
            let nets = addresses.iter().zip(lengths);
            let nets = nets.map(|(address, length)| format!("{address}/{length}").parse().unwrap());
            let addresses = nets.map(|net| Request::add_address_unasked(index, net));
            netlink
                .execute([Request::up(index)].into_iter().chain(addresses))
                .unwrap();
        };
        set_up(&mut netlink, "uplink", HOST);
        let mut beside = Netlink::open_in(&outside).unwrap();
        set_up(&mut beside, "eth0", OUTSIDE);
        for net in ["10.244.0.0/16", "fd00::/32"] {
            let via = ip(HOST[usize::from(net.contains(':'))]);
            let route = Route::via(net.parse().unwrap(), via);
            beside.execute([Request::add_route(&route)]).unwrap();
        }
        for program in ["iptables", "ip6tables"] {
            run_in(node, program, &["-P", "FORWARD", "DROP"]);
        }
        // Otherwise frames between two ports of a bridge bypass the rules.
        for family in ["iptables", "ip6tables"] {
            let key = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
            netns::in_netns(node, || fs::write(&key, "1"))
                .unwrap()
                .unwrap();
        }
        Self {
            world,
            runtime,
            outside,
        }
    }

    fn node(&self) -> &Path {
        self.runtime.node_netns.as_deref().unwrap()
    }

    /// A pod on the bridge of that number, with these plugins chained behind `bridge`.
    fn pod(&self, name: &str, bridge: u8, chained: &[Value]) -> Pod {
        let ipam = json!({
            "type": "host-local", "dataDir": self.world.path("networks"),
            "ranges": [[{"subnet": format!("10.244.{bridge}.0/24")}], [{"subnet": format!("fd00:0:{bridge}::/64")}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        });
        let first = json!({"type": "bridge", "bridge": format!("cni{bridge}"), "isGateway": true, "ipam": ipam});
        let mut plugins = vec![first];
        plugins.extend_from_slice(chained);
        let name_of_network = format!("net{bridge}");
        let network =
            list(&json!({"cniVersion": "1.0.0", "name": name_of_network, "plugins": plugins}));
        let netns = self.world.netns(name);
        let attachment = attachment(name, &netns);
        let result = self.runtime.add(&network, &attachment).unwrap();
        self.runtime.check(&network, &attachment).unwrap();
        // Until then, the kernel forwards nothing by IPv6.
        let mut netlink = Netlink::open_in(self.node()).unwrap();
        wait_for("addresses stay tentative", || {
            let links = netlink.links().unwrap();
            links.into_iter().all(|link| {
                let addresses = netlink.addresses(link.index).unwrap();
                !addresses.iter().any(|address| address.is_tentative)
            })
        });
        Pod { netns, result }
    }
}

/// Returns true if a datagram arrives. For one that is dropped, this waits for the time-out.
fn arrives(from: &Path, to: &Path, address: IpAddr) -> bool {
    let bind = |netns: &Path, ip: IpAddr| {
        netns::in_netns(netns, || UdpSocket::bind((ip, 0)))
            .unwrap()
            .unwrap()
    };
    let any: IpAddr = if address.is_ipv4() {
        [0; 4].into()
    } else {
        [0_u16; 8].into()
    };
    let (server, client) = (bind(to, address), bind(from, any));
    server
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    client
        .send_to(b"ask", server.local_addr().unwrap())
        .unwrap();
    match receive(&server, &mut [0; 16]) {
        Ok(_) => true,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }
}

fn firewall(policy: &str) -> Value {
    json!({"type": "firewall", "backend": "iptables", "ingressPolicy": policy})
}

#[test]
fn traffic_of_a_pod_passes_a_dropping_chain_until_its_deletion() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let site = FirewallSite::new();
    let pod = site.pod("a", 1, &[]);
    let mut config = firewall("open");
    for (key, value) in [("name", "net1"), ("cniVersion", "1.0.0")] {
        config[key] = value.into();
    }
    config["prevResult"] = serde_json::from_str(&pod.result.to_json()).unwrap();
    let passes = || OUTSIDE.map(|outside| arrives(&pod.netns, &site.outside, ip(outside)));
    assert_eq!(passes(), [false, false]);
    for _ in 0..2 {
        succeed(site.node(), &ours(), "ADD", &config);
        // Request and answer pass. Requests from the machine outside must be accepted by portmap or
        // the operator.
        for outside in OUTSIDE {
            exchange(&pod.netns, &site.outside, ip(outside));
        }
        for address in pod.addresses() {
            assert!(!arrives(&site.outside, &pod.netns, address), "{address}");
        }
        // The operator's rules come first.
        run_in(
            site.node(),
            "iptables",
            &["-A", "CNI-ADMIN", "-d", OUTSIDE[0], "-j", "DROP"],
        );
        assert_eq!(passes(), [false, true]);
        run_in(site.node(), "iptables", &["-F", "CNI-ADMIN"]);
        succeed(site.node(), &ours(), "DEL", &config);
        assert_eq!(passes(), [false, false]);
    }
}

/// Two pods on one bridge and one on another: returns whether the first reaches the second, and the
/// third.
fn reached(policy: &str) -> [bool; 2] {
    let site = FirewallSite::new();
    let chained = [firewall(policy)];
    let a = site.pod("a", 1, &chained);
    let b = site.pod("b", 1, &chained);
    let c = site.pod("c", 2, &chained);
    for outside in OUTSIDE {
        exchange(&a.netns, &site.outside, ip(outside));
        exchange(&c.netns, &site.outside, ip(outside));
    }
    let reaches = |to: &Pod| {
        let reached: Vec<_> = to
            .addresses()
            .map(|ip| arrives(&a.netns, &to.netns, ip))
            .collect();
        assert_eq!(reached[0], reached[1], "{policy}: IPv4 and IPv6");
        reached[0]
    };
    [reaches(&b), reaches(&c)]
}

#[test]
fn an_open_network_is_reached_from_everywhere() {
    if require(&["root", "iptables"]) {
        assert_eq!(reached("open"), [true, true]);
    }
}

#[test]
fn a_same_bridge_network_is_reached_only_on_its_bridge() {
    if require(&["root", "iptables"]) {
        assert_eq!(reached("same-bridge"), [true, false]);
    }
}

#[test]
fn pods_of_an_isolated_network_do_not_reach_each_other() {
    if require(&["root", "iptables"]) {
        assert_eq!(reached("isolated"), [false, false]);
    }
}

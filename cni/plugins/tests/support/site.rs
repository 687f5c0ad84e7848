//! A node for tests of `portmap`, with a machine beside it, and servers in its pods.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use podplane_cni::{Attachment, CniResult, NetworkConfigList, Runtime};
use podplane_netlink::{Netlink, Request, Route, Veth, netns};
use serde_json::{Value, json};

use podplane_test_network::{NetnsFixture, attachment, list, our_plugins, output_of};

pub(crate) const HOST: &str = "192.0.2.1";
pub(crate) const HOST_TOO: &str = "192.0.2.3";
pub(crate) const HOST_V6: &str = "fd00:99::1";
pub(crate) const CLIENT: &str = "192.0.2.2";

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node with two addresses of each family, and a machine beside it.
pub(crate) struct Site {
    pub(crate) world: NetnsFixture,
    pub(crate) runtime: Runtime,
    pub(crate) outside: PathBuf,
}

impl Site {
    pub(crate) fn new() -> Self {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[&our_plugins()]);
        let outside = world.netns("outside");
        let file = netns::open(&outside).unwrap();
        let mut node = Netlink::open_in(runtime.node_netns.as_deref().unwrap()).unwrap();
        let veth = Veth {
            name: "uplink",
            peer_name: "eth0",
            peer_netns: Some(file.as_fd()),
            up: true,
            ..Veth::default()
        };
        node.execute([Request::create_veth(&veth)]).unwrap();
        let set_up = |netlink: &mut Netlink, link: &str, addresses: &[&str]| {
            let lo = netlink.link("lo").unwrap().unwrap().index;
            let index = netlink.link(link).unwrap().unwrap().index;
            let mut requests = vec![Request::up(lo), Request::up(index)];
            let nets = addresses.iter().map(|address| address.parse().unwrap());
            requests.extend(nets.map(|net| Request::add_address_unasked(index, net)));
            netlink.execute(requests).unwrap();
        };
        let addresses = ["192.0.2.1/24", "192.0.2.3/24", "fd00:99::1/64"];
        set_up(&mut node, "uplink", &addresses);
        let mut beside = Netlink::open_in(&outside).unwrap();
        set_up(&mut beside, "eth0", &["192.0.2.2/24", "fd00:99::2/64"]);
        let to_pods = Route::via("10.244.1.0/24".parse().unwrap(), ip(HOST));
        beside.execute([Request::add_route(&to_pods)]).unwrap();
        Self {
            world,
            runtime,
            outside,
        }
    }

    pub(crate) fn node(&self) -> &Path {
        self.runtime.node_netns.as_deref().unwrap()
    }

    pub(crate) fn network(&self, plugin: &str, portmap: &Value) -> NetworkConfigList {
        let ipam = json!({
            "type": "host-local", "dataDir": self.world.path("networks"),
            "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:1::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        });
        let mut second = json!({"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}});
        for (key, value) in portmap.as_object().unwrap() {
            second[key] = value.clone();
        }
        // A packet of a container to itself through the host leaves by the bridge port it came in
        // by.
        let first = json!({"type": plugin, "isGateway": true, "hairpinMode": true, "ipam": ipam});
        list(&json!({"cniVersion": "1.1.0", "name": "net", "plugins": [first, second]}))
    }

    pub(crate) fn pod(&self, name: &str, mappings: &Value) -> Attachment {
        let mut pod = attachment(name, &self.world.netns(name));
        pod.capability_args
            .insert("portMappings".to_owned(), mappings.clone());
        pod
    }

    /// Adds a pod, and waits until duplicate detection on the node's links is over: until then the
    /// kernel forwards nothing by IPv6.
    pub(crate) fn add(&self, network: &NetworkConfigList, pod: &Attachment) -> CniResult {
        let result = self.runtime.add(network, pod).unwrap();
        let mut node = Netlink::open_in(self.node()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut is_settled = || {
            let links = node.links().unwrap();
            links.into_iter().all(|link| {
                let addresses = node.addresses(link.index).unwrap();
                !addresses.iter().any(|address| address.is_tentative)
            })
        };
        while !is_settled() {
            assert!(Instant::now() < deadline, "addresses stay tentative");
            std::thread::sleep(Duration::from_millis(20));
        }
        result
    }

    pub(crate) fn ruleset(&self) -> String {
        nft(self.node(), &["list", "ruleset"], "")
    }
}

pub(crate) fn nft(netns: &Path, args: &[&str], stdin: &str) -> String {
    let run = || output_of(Command::new("nft").args(args), stdin);
    let output = netns::in_netns(netns, run).unwrap().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn address(result: &CniResult, n: usize) -> IpAddr {
    result.ips[n].address.addr()
}

pub(crate) fn path(pod: &Attachment) -> &Path {
    pod.netns.as_deref().unwrap()
}

/// A server in a pod.
pub(crate) struct PodServer {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl PodServer {
    pub(crate) fn new(netns: &Path, tcp: u16, udp: u16) -> Self {
        let bind = || -> io::Result<Self> {
            Ok(Self {
                tcp: TcpListener::bind(("::", tcp))?,
                udp: UdpSocket::bind(("::", udp))?,
            })
        };
        let server = netns::in_netns(netns, bind).unwrap().unwrap();
        server
            .udp
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        server
    }

    /// Connects from a namespace, and returns the client's address as the server sees it.
    pub(crate) fn tcp(&self, from: &Path, to: &str, port: u16) -> io::Result<IpAddr> {
        let to = SocketAddr::new(ip(to), port);
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(2));
        let mut client = netns::in_netns(from, connect).unwrap()?;
        client.set_read_timeout(Some(Duration::from_secs(5)))?;
        let (mut accepted, peer) = self.tcp.accept()?;
        accepted.write_all(b"answer")?;
        drop(accepted);
        let mut answer = String::new();
        client.read_to_string(&mut answer)?;
        assert_eq!(answer, "answer");
        Ok(peer.ip().to_canonical())
    }

    pub(crate) fn udp(&self, from: &Path, to: &str, port: u16) -> io::Result<IpAddr> {
        self.udp_by(&client(from, to, port))
    }

    /// Sends by an existing client, which may have sent something before.
    pub(crate) fn udp_by(&self, client: &UdpSocket) -> io::Result<IpAddr> {
        client.send(b"ask")?;
        let mut buffer = [0; 16];
        let (n, peer) = self.udp.recv_from(&mut buffer)?;
        self.udp.send_to(&buffer[..n], peer)?;
        let n = client.recv(&mut buffer)?;
        assert_eq!(&buffer[..n], b"ask");
        Ok(peer.ip().to_canonical())
    }
}

pub(crate) fn client(from: &Path, to: &str, port: u16) -> UdpSocket {
    let to = SocketAddr::new(ip(to), port);
    let any = if to.is_ipv4() { "0.0.0.0" } else { "::" };
    let socket = netns::in_netns(from, || UdpSocket::bind((any, 0)));
    let socket = socket.unwrap().unwrap();
    socket.connect(to).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    socket
}

pub(crate) fn mappings() -> Value {
    json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 8443, "containerPort": 80, "protocol": "tcp", "hostIP": HOST},
        {"hostPort": 8444, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"},
        {"hostPort": 8446, "containerPort": 80, "protocol": "tcp", "hostIP": "::"},
        {"hostPort": 7777, "containerPort": 7777, "protocol": "sctp"},
    ])
}

//! The program portmap, in namespaces of the test's own, with `nft` as the witness.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use podplane_cni::{
    Attachment, CniResult, NetworkConfigList, Runtime,
    netlink::{Netlink, Request, Route, Veth},
    netns,
};
use serde_json::{Value, json};
use support::{DEBIAN, World, attachment, call, list, our_plugins, require, run_in};

const HOST: &str = "192.0.2.1";
const HOST_TOO: &str = "192.0.2.3";
const HOST_V6: &str = "fd00:99::1";
const CLIENT: &str = "192.0.2.2";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A node with two addresses of each family, and a machine beside it.
struct Site {
    world: World,
    runtime: Runtime,
    outside: PathBuf,
}

impl Site {
    fn new() -> Self {
        let world = World::new();
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

    fn node(&self) -> &Path {
        self.runtime.node_netns.as_deref().unwrap()
    }

    fn network(&self, plugin: &str, portmap: &Value) -> NetworkConfigList {
        let ipam = json!({
            "type": "host-local", "dataDir": self.world.path("networks"),
            "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:1::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        });
        let mut second = json!({"type": "portmap", "backend": "nftables", "capabilities": {"portMappings": true}});
        for (key, value) in portmap.as_object().unwrap() {
            second[key] = value.clone();
        }
        // What a container sends to itself through the host comes back by the port of the bridge that it came by.
        let first = json!({"type": plugin, "isGateway": true, "hairpinMode": true, "ipam": ipam});
        list(&json!({"cniVersion": "1.1.0", "name": "net", "plugins": [first, second]}))
    }

    fn pod(&self, name: &str, mappings: &Value) -> Attachment {
        let mut pod = attachment(name, &self.world.netns(name));
        pod.capability_args
            .insert("portMappings".to_owned(), mappings.clone());
        pod
    }

    /// Adds, and waits until the kernel has found that nobody else has the addresses of the node's links:
    /// before, it forwards nothing by IPv6.
    fn add(&self, network: &NetworkConfigList, pod: &Attachment) -> CniResult {
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

    fn ruleset(&self) -> String {
        nft(self.node(), &["list", "ruleset"], "")
    }
}

fn nft(netns: &Path, args: &[&str], stdin: &str) -> String {
    let run = || {
        let mut child = Command::new("nft")
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        child.stdin.take().unwrap().write_all(stdin.as_bytes())?;
        child.wait_with_output()
    };
    let output = netns::in_netns(netns, run).unwrap().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

fn address(result: &CniResult, n: usize) -> IpAddr {
    result.ips[n].address.addr()
}

fn path(pod: &Attachment) -> &Path {
    pod.netns.as_deref().unwrap()
}

/// A server in a pod.
struct Server {
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Server {
    fn new(netns: &Path, tcp: u16, udp: u16) -> Self {
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

    /// Connects from a namespace, and returns who the server thinks it was.
    fn tcp(&self, from: &Path, to: &str, port: u16) -> io::Result<IpAddr> {
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

    fn udp(&self, from: &Path, to: &str, port: u16) -> io::Result<IpAddr> {
        self.udp_by(&client(from, to, port))
    }

    /// The same by a client that may have sent something before.
    fn udp_by(&self, client: &UdpSocket) -> io::Result<IpAddr> {
        client.send(b"ask")?;
        let mut buffer = [0; 16];
        let (n, peer) = self.udp.recv_from(&mut buffer)?;
        self.udp.send_to(&buffer[..n], peer)?;
        let n = client.recv(&mut buffer)?;
        assert_eq!(&buffer[..n], b"ask");
        Ok(peer.ip().to_canonical())
    }
}

fn client(from: &Path, to: &str, port: u16) -> UdpSocket {
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

fn mappings() -> Value {
    json!([
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
        {"hostPort": 5353, "containerPort": 53, "protocol": "udp"},
        {"hostPort": 8443, "containerPort": 80, "protocol": "tcp", "hostIP": HOST},
        {"hostPort": 8444, "containerPort": 80, "protocol": "tcp", "hostIP": "0.0.0.0"},
        {"hostPort": 8446, "containerPort": 80, "protocol": "tcp", "hostIP": "::"},
        {"hostPort": 7777, "containerPort": 7777, "protocol": "sctp"},
    ])
}

/// From a machine beside the node, from the node by each of its addresses, from another pod, from itself.
/// Returns the rules that are left in the end.
fn is_reached_from_everywhere(plugin: &str, portmap: &Value) -> String {
    let site = Site::new();
    let network = site.network(plugin, portmap);
    let (a, b) = (site.pod("a", &mappings()), site.pod("b", &json!([])));
    let result = site.add(&network, &a);
    assert_eq!(result.interfaces.last().unwrap().name, "eth0", "passed on");
    site.add(&network, &b);
    site.runtime.check(&network, &a).unwrap();
    site.runtime.check(&network, &b).unwrap();
    let server = Server::new(path(&a), 80, 53);
    let outside = &*site.outside;

    assert_eq!(server.tcp(outside, HOST, 8080).unwrap(), ip(CLIENT));
    assert_eq!(server.tcp(outside, HOST_TOO, 8080).unwrap(), ip(CLIENT));
    assert_eq!(server.udp(outside, HOST, 5353).unwrap(), ip(CLIENT));
    assert_eq!(
        server.tcp(outside, HOST_V6, 8080).unwrap(),
        ip("fd00:99::2")
    );
    assert_eq!(
        server.udp(outside, HOST_V6, 5353).unwrap(),
        ip("fd00:99::2")
    );

    let seen = server.tcp(site.node(), "127.0.0.1", 8080).unwrap();
    assert!(!seen.is_loopback(), "{seen}");
    let seen = server.udp(site.node(), "127.0.0.1", 5353).unwrap();
    assert!(!seen.is_loopback(), "{seen}");
    for to in [HOST, HOST_TOO, HOST_V6] {
        server.tcp(site.node(), to, 8080).unwrap();
        // Itself, and another one.
        assert_ne!(server.tcp(path(&a), to, 8080).unwrap(), ip(to));
        server.udp(path(&a), to, 5353).unwrap();
        server.tcp(path(&b), to, 8080).unwrap();
    }

    server.tcp(outside, HOST, 8443).unwrap();
    for not_mapped in [HOST_TOO, HOST_V6] {
        server.tcp(outside, not_mapped, 8443).unwrap_err();
    }
    server.tcp(outside, HOST_TOO, 8444).unwrap();
    server.tcp(outside, HOST_V6, 8444).unwrap_err();
    server.tcp(outside, HOST_V6, 8446).unwrap();
    server.tcp(outside, HOST, 8446).unwrap_err();

    site.runtime.del(&network, &a).unwrap();
    let left = site.ruleset();
    server.tcp(outside, HOST, 8080).unwrap_err();
    site.runtime.del(&network, &b).unwrap();
    site.runtime.del(&network, &a).unwrap();
    left
}

#[test]
fn a_pod_on_a_bridge_is_reached_from_everywhere() {
    if require(&["root", "nftables"]) {
        assert_eq!(is_reached_from_everywhere("bridge", &json!({})), "");
    }
}

#[test]
fn a_pod_of_ptp_is_reached_from_everywhere() {
    if require(&["root", "nftables"]) {
        assert_eq!(is_reached_from_everywhere("ptp", &json!({})), "");
    }
}

#[test]
fn a_pod_is_reached_by_iptables_too() {
    if require(&["root", "nftables", "iptables"]) {
        let left = is_reached_from_everywhere("bridge", &json!({"backend": "iptables"}));
        assert!(left.contains("chain CNI-HOSTPORT-DNAT"), "{left}");
        assert!(!left.contains("CNI-DN-"), "{left}");
    }
}

#[test]
fn the_rules_are_laid_out_as_the_references() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({"markMasqBit": 5}));
    let pod = site.pod("a", &mappings());
    site.add(&network, &pod);
    let family = |name: &str, pod: &str, one: &[&str], any: &[&str], localhost: &str| {
        let to = |rule: &&str| format!("{rule} comment \"a\"").replace("POD", pod);
        let rules: Vec<_> = one.iter().chain(any).map(to).collect();
        let ip = name;
        let masquerade =
            format!("{ip} saddr {pod} {ip} daddr {pod} masquerade comment \"a\"{localhost}");
        format!(
            r#"table {name} cni_hostport {{
comment "CNI portmap plugin"
chain hostports {{
{}
}}
chain hostip_hostports {{
}}
chain hostports_all {{
jump hostip_hostports
jump hostports
}}
chain prerouting {{
type nat hook prerouting priority dstnat; policy accept;
fib daddr type local jump hostports_all
}}
chain output {{
type nat hook output priority dstnat; policy accept;
fib daddr type local jump hostports_all
}}
chain masquerading {{
type nat hook postrouting priority srcnat; policy accept;
{masquerade}
}}
}}
"#,
            rules.join("\n")
        )
    };
    let v4 = family(
        "ip",
        "10.244.1.2",
        &["ip daddr 192.0.2.1 tcp dport 8443 dnat to POD:80"],
        &[
            "tcp dport 8080 dnat to POD:80",
            "udp dport 5353 dnat to POD:53",
            "tcp dport 8444 dnat to POD:80",
            "sctp dport 7777 dnat to POD:7777",
        ],
        "\nip saddr 127.0.0.1 ip daddr 10.244.1.2 masquerade comment \"a\"",
    );
    let v6 = family(
        "ip6",
        "fd00:1::2",
        &[],
        &[
            "tcp dport 8080 dnat to [POD]:80",
            "udp dport 5353 dnat to [POD]:53",
            "tcp dport 8446 dnat to [POD]:80",
            "sctp dport 7777 dnat to [POD]:7777",
        ],
        "",
    );
    let shown = site.ruleset();
    let lines = shown.lines().map(str::trim).filter(|line| !line.is_empty());
    let shown: String = lines.map(|line| format!("{line}\n")).collect();
    // `nft` writes the priority of `output` as a number in some versions.
    let shown = shown.replace("hook output priority -100", "hook output priority dstnat");
    assert_eq!(shown, v4 + &v6);

    // A second ADD of the plugin alone makes nothing twice.
    let before = site.ruleset();
    let mut again = pod;
    again.container_id = "a".to_owned();
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "type": "portmap", "markMasqBit": 5, "backend": "nftables",
        "runtimeConfig": {"portMappings": mappings()},
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.244.1.2/24"}, {"address": "fd00:1::2/64"}]},
    });
    let ours = our_plugins().join("portmap");
    let (code, stdout) =
        netns::in_netns(site.node(), || call(&ours, "ADD", "a", "", &config)).unwrap();
    assert_eq!(code, 0, "{stdout}");
    assert_eq!(site.ruleset(), before);
    site.runtime.del(&network, &again).unwrap();
    assert_eq!(site.ruleset(), "");
}

/// What versions of the reference's nftables backend make of a mapping, by the container's id alone.
const BY_THE_REFERENCE: &str = r#"
add table ip cni_hostport { comment "CNI portmap plugin"; }
add chain ip cni_hostport hostports
add chain ip cni_hostport hostip_hostports
add chain ip cni_hostport prerouting { type nat hook prerouting priority -100; }
add chain ip cni_hostport masquerading { type nat hook postrouting priority 100; }
add rule ip cni_hostport prerouting jump hostip_hostports
add rule ip cni_hostport prerouting jump hostports
add rule ip cni_hostport hostip_hostports ip daddr 192.0.2.1 tcp dport 1 dnat to 10.244.1.9:1 comment "theirs"
add rule ip cni_hostport hostports tcp dport 2 dnat to 10.244.1.9:2 comment "theirs"
add rule ip cni_hostport hostports tcp dport 2 dnat to 10.244.1.8:2 comment "other"
add rule ip cni_hostport masquerading ip saddr 10.244.1.9 ip daddr 10.244.1.9 masquerade comment "theirs"
"#;

#[test]
fn rules_of_the_reference_are_taken_away_and_those_of_others_stay() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    nft(site.node(), &["-f", "-"], BY_THE_REFERENCE);
    let network = site.network("bridge", &json!({}));
    let (a, b) = (
        site.pod("a", &mappings()),
        site.pod(
            "b",
            &json!([
                {"hostPort": 9090, "containerPort": 80, "protocol": "tcp"},
                {"hostPort": 2, "containerPort": 80, "protocol": "tcp"},
            ]),
        ),
    );
    site.add(&network, &a);
    site.add(&network, &b);
    // Of one port the last ADD counts, also before rules of others.
    let server = Server::new(path(&b), 80, 53);
    server.tcp(&site.outside, HOST, 2).unwrap();
    server.tcp(&site.outside, HOST, 9090).unwrap();
    let theirs = site.pod("theirs", &json!([]));
    site.runtime.del(&network, &theirs).unwrap();
    let shown = site.ruleset();
    assert!(!shown.contains("theirs"), "{shown}");
    assert!(shown.contains("\"other\"") && shown.contains("\"a\"") && shown.contains("\"b\""));

    // GC keeps the valid ones, and those of which it cannot know.
    let valid = [podplane_cni::ValidAttachment {
        container_id: "b".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    std::fs::remove_dir_all(site.world.path("cache")).unwrap();
    site.runtime.gc(&network, Some(&valid)).unwrap();
    let shown = site.ruleset();
    assert!(!shown.contains("\"a\""), "{shown}");
    assert!(
        shown.contains("\"other\"") && shown.contains("\"b\""),
        "{shown}"
    );
    server.tcp(&site.outside, HOST, 9090).unwrap();
    site.runtime.gc(&network, Some(&[])).unwrap();
    let shown = site.ruleset();
    assert!(
        !shown.contains("\"b\"") && shown.contains("\"other\""),
        "{shown}"
    );
    let other = site.pod("other", &json!([]));
    site.runtime.del(&network, &other).unwrap();
    assert_eq!(site.ruleset(), "");
}

/// Somebody who goes from one side's plugins to the other's, or back, keeps no rule of the time before, and a pod that comes after
/// gets the port.
#[test]
fn what_one_side_made_the_other_takes_away_and_the_next_pod_has_the_port() {
    if !require(&["root", "nftables", "iptables", "cni-plugins"]) {
        return;
    }
    let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for (adds, deletes) in [(&ours, &debians), (&debians, &ours)] {
        let site = Site::new();
        let first = Runtime {
            bin_dirs: vec![adds.clone()],
            ..site.runtime.clone()
        };
        let second = Runtime {
            bin_dirs: vec![deletes.clone()],
            ..site.runtime.clone()
        };
        let mut network = site.network("bridge", &json!({"backend": null}));
        network.cni_version = "1.0.0".to_owned();
        network.plugins[0].insert("ipMasq".to_owned(), true.into());
        let (a, b) = (site.pod("a", &mapping(8080)), site.pod("b", &mapping(9090)));
        first.add(&network, &a).unwrap();
        first.add(&network, &b).unwrap();
        let of = |id: &str| {
            let saved = ["iptables", "ip6tables"];
            let saved = saved.map(|program| run_in(site.node(), program, &["-t", "nat", "-S"]));
            let lines = saved.iter().flat_map(|saved| saved.lines());
            let id = format!("id: \\\"{id}\\\"");
            lines.filter(|line| line.contains(&id)).count()
        };
        assert!(of("a") > 0 && of("b") > 0, "{}", site.ruleset());
        assert!(!site.ruleset().contains("table ip cni_hostport"));
        second.del(&network, &a).unwrap();
        assert_eq!(of("a"), 0, "{}", site.ruleset());
        assert!(!site.ruleset().contains("8080"), "{}", site.ruleset());
        assert!(of("b") > 0);
        // The port is free, and another one is as it was.
        let next = site.pod("next", &mapping(8080));
        second.add(&network, &next).unwrap();
        let server = Server::new(path(&next), 80, 53);
        server.tcp(&site.outside, HOST, 8080).unwrap();
        let server = Server::new(path(&b), 80, 53);
        server.tcp(&site.outside, HOST, 9090).unwrap();
        second.del(&network, &b).unwrap();
        first.del(&network, &next).unwrap();
        let left = site.ruleset();
        for chain in ["CNI-DN-", "masquerade comment", "dnat"] {
            assert!(!left.contains(chain), "{left}");
        }
        assert_eq!(of("b") + of("next"), 0, "{left}");
    }
}

#[test]
fn without_iptables_it_is_nftables() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let site = Site::new();
    let a = site.world.netns("a");
    let config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap",
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.2/24"}]},
    });
    let add = |search: &str| {
        let mut command = Command::new(our_plugins().join("portmap"));
        let command = command
            .env_clear()
            .envs([
                ("PATH", search),
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", "a"),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/x"),
            ])
            .env("CNI_NETNS", &a);
        let run = || {
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            let mut stdin = child.stdin.take().unwrap();
            stdin.write_all(config.to_string().as_bytes())?;
            drop(stdin);
            child.wait_with_output()
        };
        let output = netns::in_netns(site.node(), run).unwrap().unwrap();
        assert!(output.status.success(), "{output:?}");
        site.ruleset()
    };
    let shown = add("/does/not/exist");
    assert!(shown.contains("cni_hostport"), "{shown}");
    assert!(!shown.contains("CNI-DN-"), "{shown}");
    nft(site.node(), &["flush", "ruleset"], "");
    let shown = add("/usr/sbin:/usr/bin:/sbin:/bin");
    assert!(shown.contains("CNI-DN-"), "{shown}");
    assert!(!shown.contains("cni_hostport"), "{shown}");
}

#[test]
fn gc_takes_chains_of_iptables_without_a_valid_attachment() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let site = Site::new();
    let mut network = site.network("bridge", &json!({"backend": "iptables"}));
    network.plugins[0].insert("ipMasq".to_owned(), true.into());
    network.plugins[0].insert("ipMasqBackend".to_owned(), "iptables".into());
    let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    for (id, port) in [("a", 8080), ("b", 9090)] {
        site.runtime
            .add(&network, &site.pod(id, &mapping(port)))
            .unwrap();
    }
    let chains = || {
        let saved = ["iptables", "ip6tables"];
        let saved = saved.map(|program| run_in(site.node(), program, &["-t", "nat", "-S"]));
        let lines = saved.iter().flat_map(|saved| saved.lines());
        let made = lines.filter(|line| line.starts_with("-N CNI-"));
        made.filter(|line| !line.contains("CNI-HOSTPORT")).count()
    };
    // For each pod and family one of portmap, and one of bridge.
    assert_eq!(chains(), 8);
    std::fs::remove_dir_all(site.world.path("cache")).unwrap();
    let mut other = network.clone();
    other.name = "ne".to_owned();
    site.runtime.gc(&other, Some(&[])).unwrap();
    assert_eq!(chains(), 8, "those of another network stay");
    let valid = [podplane_cni::ValidAttachment {
        container_id: "b".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    site.runtime.gc(&network, Some(&valid)).unwrap();
    assert_eq!(chains(), 4);
    site.runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(chains(), 0);
}

#[test]
fn what_debians_made_with_iptables_is_taken_away() {
    if !require(&["root", "nftables", "cni-plugins"]) {
        return;
    }
    let site = Site::new();
    let bin = site.world.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for (plugin, dir) in [
        ("bridge", our_plugins()),
        ("host-local", our_plugins()),
        ("portmap", DEBIAN.into()),
    ] {
        std::os::unix::fs::symlink(dir.join(plugin), bin.join(plugin)).unwrap();
    }
    let debians = Runtime {
        bin_dirs: vec![bin],
        ..site.runtime.clone()
    };
    let mut network = site.network("bridge", &json!({}));
    network.cni_version = "1.0.0".to_owned();
    let mapping = |port: u16| json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]);
    let (a, b) = (site.pod("a", &mapping(8080)), site.pod("b", &mapping(9090)));
    debians.add(&network, &a).unwrap();
    debians.add(&network, &b).unwrap();
    let chains = |shown: &str| shown.matches("chain CNI-DN-").count();
    let made = chains(&site.ruleset());
    assert!(made >= 2, "{}", site.ruleset());
    site.runtime.del(&network, &a).unwrap();
    let shown = site.ruleset();
    assert_eq!(chains(&shown), made / 2, "{shown}");
    assert!(!shown.contains("8080") && shown.contains("9090"), "{shown}");
    site.runtime.del(&network, &b).unwrap();
    assert_eq!(chains(&site.ruleset()), 0);
}

#[test]
fn hundreds_of_mappings_are_made_and_taken_away() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let many: Vec<_> = (0..1000)
        .map(|n| json!({"hostPort": 10_000 + n, "containerPort": 80, "protocol": "tcp"}))
        .collect();
    let pod = site.pod("a", &many.into());
    site.runtime.add(&network, &pod).unwrap();
    site.runtime.check(&network, &pod).unwrap();
    assert_eq!(site.ruleset().matches("dnat to").count(), 2000);
    // As after the loss of the cache.
    std::fs::remove_dir_all(site.world.path("cache")).unwrap();
    site.runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(site.ruleset(), "");
}

#[test]
fn a_gc_of_another_network_and_a_del_of_another_interface_leave_the_rules() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let pod = site.pod("a", &mappings());
    site.add(&network, &pod);
    let before = site.ruleset();
    let ours = our_plugins().join("portmap");
    let config =
        |name: &str| json!({"cniVersion": "1.1.0", "name": name, "cni.dev/valid-attachments": []});
    for (command, name) in [("GC", "ne"), ("GC", "net2"), ("DEL", "other")] {
        let answer = netns::in_netns(site.node(), || call(&ours, command, "a", "", &config(name)));
        assert_eq!(answer.unwrap(), (0, String::new()));
        assert_eq!(site.ruleset(), before, "{command} {name}");
    }
    // Neither mappings nor a previous result: the id is enough.
    let answer = netns::in_netns(site.node(), || call(&ours, "DEL", "a", "", &config("net")));
    assert_eq!(answer.unwrap(), (0, String::new()));
    assert_eq!(site.ruleset(), "");
}

#[test]
fn only_packets_to_the_host_are_caught_and_masq_all_hides_everybody() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let (a, b) = (site.pod("a", &mappings()), site.pod("b", &json!([])));
    let network = site.network("bridge", &json!({"masqAll": true}));
    site.add(&network, &a);
    let result = site.add(&network, &b);
    site.runtime.check(&network, &a).unwrap();
    let server = Server::new(path(&a), 80, 53);
    assert_eq!(
        server.tcp(&site.outside, HOST, 8080).unwrap(),
        ip("10.244.1.1")
    );
    server.tcp(path(&a), HOST, 8080).unwrap();
    server.tcp(site.node(), "127.0.0.1", 8080).unwrap();
    // The other pod has the mapped port itself, and is reached at it through the node.
    let other = Server::new(path(&b), 8080, 5353);
    let to = address(&result, 0).to_string();
    assert_eq!(other.tcp(&site.outside, &to, 8080).unwrap(), ip(CLIENT));
    other.udp(&site.outside, &to, 5353).unwrap();
}

#[test]
fn a_flow_of_udp_goes_to_the_pod_of_now() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let (a, b) = (site.pod("a", &mappings()), site.pod("b", &mappings()));
    site.add(&network, &a);
    let clients = [HOST, HOST_V6].map(|to| client(&site.outside, to, 5353));
    let first = Server::new(path(&a), 80, 53);
    for client in &clients {
        first.udp_by(client).unwrap();
    }
    // By a DEL the way is free, and by an ADD the flow is led to the new pod although the old one is there.
    site.add(&network, &b);
    let second = Server::new(path(&b), 80, 53);
    for client in &clients {
        second.udp_by(client).unwrap();
    }
    site.runtime.del(&network, &b).unwrap();
    for client in &clients {
        first.udp_by(client).unwrap();
    }
    site.runtime.del(&network, &a).unwrap();
    // Nobody is there any more; and the node says so itself.
    clients[0].send(b"ask").unwrap();
    let error = clients[0].recv(&mut [0; 16]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
}

#[test]
fn conditions_are_nfts_and_bad_ones_leave_nothing() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let conditions = json!({"conditionsV4": ["ip", "saddr", "!=", CLIENT], "snat": false});
    let network = site.network("bridge", &conditions);
    let pod = site.pod("a", &mappings());
    site.add(&network, &pod);
    let server = Server::new(path(&pod), 80, 53);
    server.tcp(&site.outside, HOST, 8080).unwrap_err();
    server.tcp(site.node(), HOST, 8080).unwrap();
    server.tcp(&site.outside, HOST_V6, 8080).unwrap();
    let shown = site.ruleset();
    assert!(!shown.contains("masquerade"), "without snat: {shown}");
    site.runtime.check(&network, &pod).unwrap();
    site.runtime.del(&network, &pod).unwrap();
    assert_eq!(site.ruleset(), "");

    let network = site.network(
        "bridge",
        &json!({"conditionsV4": ["ip", "saddr", "nonsense!"]}),
    );
    let error = site.runtime.add(&network, &pod).unwrap_err().message();
    assert!(error.contains("nft refuses the conditions"), "{error}");
    assert_eq!(site.ruleset(), "");
}

#[test]
fn check_misses_what_is_gone() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let site = Site::new();
    let network = site.network("bridge", &json!({}));
    let pod = site.pod("a", &mappings());
    for chain in ["hostports", "masquerading", "prerouting", "output"] {
        site.add(&network, &pod);
        site.runtime.check(&network, &pod).unwrap();
        nft(
            site.node(),
            &["flush", "chain", "ip6", "cni_hostport", chain],
            "",
        );
        let error = site.runtime.check(&network, &pod).unwrap_err().message();
        assert_eq!(
            error,
            format!(
                "plugin type=\"portmap\" failed (check): missing hostport rules in \"{chain}\" chain"
            )
        );
        site.runtime.del(&network, &pod).unwrap();
        assert_eq!(site.ruleset(), "", "{chain}");
    }
}

#[test]
fn pods_that_come_and_go_at_once_keep_their_rules_and_leave_nothing() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    assert_eq!(rules_after_a_crowd("nftables"), "");
    let left = rules_after_a_crowd("iptables");
    assert!(!left.contains("CNI-DN-"), "{left}");
    let entrances = left.matches("jump CNI-HOSTPORT-DNAT").count();
    assert_eq!(entrances, 2, "one of PREROUTING, one of OUTPUT: {left}");
}

/// What is left when many pods have come and gone at once.
fn rules_after_a_crowd(backend: &str) -> String {
    let site = Site::new();
    let ours = our_plugins().join("portmap");
    let config = |n: usize| {
        json!({
            "cniVersion": "1.1.0", "name": "net", "backend": backend,
            "runtimeConfig": {"portMappings": [{"hostPort": 1000 + n, "containerPort": 80, "protocol": "tcp"}]},
            "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": format!("10.244.1.{}/24", n + 2)}]},
        })
    };
    let run = |command: &str, n: usize| {
        let id = format!("pod{n}");
        let answer = netns::in_netns(site.node(), || call(&ours, command, &id, "", &config(n)));
        let (code, stdout) = answer.unwrap();
        assert_eq!(code, 0, "{command} {stdout}");
    };
    std::thread::scope(|scope| {
        for worker in 0..6 {
            let run = &run;
            scope.spawn(move || {
                for round in 0..15 {
                    let n = worker * 20 + round;
                    run("ADD", n);
                    run("CHECK", n);
                    if round % 5 != 0 {
                        run("DEL", n);
                        run("DEL", n);
                    }
                }
            });
        }
    });
    for n in (0..6).flat_map(|worker| [0, 5, 10].map(|round| worker * 20 + round)) {
        run("CHECK", n);
        run("DEL", n);
    }
    site.ruleset()
}

#[test]
fn what_needs_no_rules_is_answered_as_debians_answers_it() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let previous = json!({"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.2/24"}], "dns": {}});
    let mapping = |host: i32, container: i32| json!({"portMappings": [{"hostPort": host, "containerPort": container, "protocol": "tcp"}]});
    let cases = [
        json!({}),
        json!({"prevResult": previous}),
        json!({"prevResult": previous, "runtimeConfig": {"portMappings": []}}),
        json!({"runtimeConfig": mapping(80, 80)}),
        json!({"prevResult": previous, "runtimeConfig": mapping(0, 80)}),
        json!({"prevResult": previous, "runtimeConfig": mapping(80, -1)}),
        json!({"prevResult": previous, "markMasqBit": 32}),
        json!({"prevResult": previous, "markMasqBit": 1, "externalSetMarkChain": "X"}),
        json!({"prevResult": {"ips": [{"version": "4", "address": "10.0.0.2"}]}}),
    ];
    for (mut config, command) in cases
        .into_iter()
        .flat_map(|case| [(case.clone(), "ADD"), (case, "CHECK")])
    {
        config["cniVersion"] = "0.4.0".into();
        config["name"] = "net".into();
        let answer = |dir: &Path| {
            let (code, stdout) = call(&dir.join("portmap"), command, "a", "", &config);
            let value: Value = serde_json::from_str(&stdout).unwrap_or_default();
            (code, value)
        };
        assert_eq!(
            answer(&our_plugins()),
            answer(Path::new(DEBIAN)),
            "{command} {config}"
        );
    }
}

/// The table `nat` as the programs show it; what leads to the containers' chains sorted, as the reference of
/// today and Debian's differ in its order.
fn saved(netns: &Path) -> Vec<String> {
    let of_family = |program| {
        let shown = run_in(netns, program, &["-t", "nat", "-S"]);
        let mut lines: Vec<_> = shown.lines().map(str::to_owned).collect();
        lines.sort_by_key(|line| {
            let chain = line.split(' ').nth(1).unwrap_or_default().to_owned();
            let is_entrance = chain == "CNI-HOSTPORT-DNAT";
            (chain, is_entrance.then(|| line.clone()))
        });
        lines
    };
    ["iptables", "ip6tables"]
        .into_iter()
        .flat_map(of_family)
        .collect()
}

fn portmap_alone(more: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "portmap", "backend": "iptables",
        "runtimeConfig": {"portMappings": mappings()},
        "prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.2/24"}, {"address": "fd00:1::2/64"}]},
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn rules_of_iptables_are_those_of_debians_and_either_takes_away_the_others() {
    if !require(&["root", "iptables", "cni-plugins"]) {
        return;
    }
    let world = World::new();
    let (ours, debians) = (
        our_plugins().join("portmap"),
        Path::new(DEBIAN).join("portmap"),
    );
    let many: Vec<_> = (0..40)
        .map(|n| json!({"hostPort": 1000 + n, "containerPort": 80, "protocol": "tcp"}))
        .collect();
    let cases = [
        json!({}),
        json!({"markMasqBit": 5}),
        json!({"markMasqBit": 31}),
        json!({"snat": false}),
        json!({"externalSetMarkChain": "KUBE-MARK-MASQ"}),
        json!({"backend": null, "externalSetMarkChain": "KUBE-MARK-MASQ"}),
        json!({"backend": null, "conditionsV4": ["!", "-s", CLIENT], "conditionsV6": ["-m", "comment", "--comment", "a \\ \"b\""]}),
        json!({"runtimeConfig": {"portMappings": many}}),
        json!({"prevResult": {"cniVersion": "1.0.0", "ips": [{"address": "10.244.1.2/24"}]}}),
    ];
    for (n, case) in cases.iter().enumerate() {
        let config = portmap_alone(case);
        let made = |plugin: &Path, by: &str| {
            let netns = world.netns(&format!("{by}{n}"));
            for program in ["iptables", "ip6tables"] {
                run_in(&netns, program, &["-t", "nat", "-N", "KUBE-MARK-MASQ"]);
            }
            let run = |command: &str, plugin: &Path, id: &str| {
                netns::in_netns(&netns, || call(plugin, command, id, "", &config)).unwrap()
            };
            let (code, stdout) = run("ADD", plugin, "other");
            assert_eq!(code, 0, "{case} {stdout}");
            let before = saved(&netns);
            let (code, stdout) = run("ADD", plugin, "a");
            assert_eq!(code, 0, "{case} {stdout}");
            let after = saved(&netns);
            assert_ne!(after, before);
            // Debian's looks for the rules of IPv4 among those of IPv6, too, and never passes.
            let (code, stdout) = run("CHECK", &ours, "a");
            assert_eq!(code, 0, "{case} {stdout}");
            // Again, by us: nothing is made twice.
            assert_eq!(run("ADD", &ours, "a").0, 0);
            assert_eq!(saved(&netns), after, "{case}");
            let other = if plugin == ours { &debians } else { &ours };
            assert_eq!(run("DEL", other, "a"), (0, String::new()), "{case}");
            assert_eq!(saved(&netns), before, "{case}");
            let (code, stdout) = run("CHECK", &ours, "a");
            assert!(
                code != 0 && stdout.contains("could not check ipv4 dnat: chain CNI-DN-"),
                "{stdout}"
            );
            after
        };
        assert_eq!(made(&ours, "ours"), made(&debians, "debians"), "{case}");
    }
}

#[test]
fn what_iptables_refuses_leaves_nothing_and_check_misses_rules() {
    if !require(&["root", "iptables"]) {
        return;
    }
    let world = World::new();
    let netns = world.netns("node");
    let ours = our_plugins().join("portmap");
    let run = |command: &str, more: &Value| {
        let config = portmap_alone(more);
        netns::in_netns(&netns, || call(&ours, command, "a", "", &config)).unwrap()
    };
    let (code, stdout) = run("ADD", &json!({"conditionsV6": ["-s", "nonsense!"]}));
    assert!(
        code != 0 && stdout.contains("unable to setup DNAT"),
        "{stdout}"
    );
    let left = saved(&netns);
    assert!(
        !left.iter().any(|line| line.contains("CNI-DN-")),
        "{left:?}"
    );
    // Debian's does not know masqAll yet.
    let all = json!({"masqAll": true});
    assert_eq!(run("ADD", &all).0, 0);
    assert_eq!(run("CHECK", &all).0, 0);
    let marks = |line: &&String| line.ends_with("-j CNI-HOSTPORT-SETMARK");
    let is_of_one = |line: &String| line.contains(" -s ");
    let made = saved(&netns);
    assert_eq!(made.iter().filter(marks).count(), 9, "{made:?}");
    assert!(!made.iter().filter(marks).any(is_of_one), "{made:?}");
    assert_eq!(run("ADD", &json!({})).0, 0);
    assert_eq!(run("CHECK", &json!({})).0, 0);
    run_in(
        &netns,
        "ip6tables",
        &["-t", "nat", "-F", "CNI-HOSTPORT-DNAT"],
    );
    let (code, stdout) = run("CHECK", &json!({}));
    assert!(
        code != 0 && stdout.contains("could not check ipv6 dnat"),
        "{stdout}"
    );
    assert_eq!(run("DEL", &json!({})).0, 0);
    let left = saved(&netns);
    assert!(
        !left.iter().any(|line| line.contains("CNI-DN-")),
        "{left:?}"
    );
}

#[test]
fn chains_of_legacy_iptables_are_taken_away() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let world = World::new();
    let ours = our_plugins().join("portmap");
    let config = portmap_alone(&json!({}));
    let (made, legacy) = (world.netns("made"), world.netns("legacy"));
    for id in ["a", "b"] {
        let answer = netns::in_netns(&made, || call(&ours, "ADD", id, "", &config));
        assert_eq!(answer.unwrap().0, 0);
    }
    let chains = || {
        let shown = ["iptables-legacy", "ip6tables-legacy"]
            .map(|program| run_in(&legacy, program, &["-t", "nat", "-S"]));
        shown.map(|shown| shown.matches("-N CNI-DN-").count())
    };
    // The same rules, made by the legacy programs.
    for (program, restore) in [
        ("iptables-save", "iptables-legacy-restore"),
        ("ip6tables-save", "ip6tables-legacy-restore"),
    ] {
        let rules = world.path(program);
        std::fs::write(&rules, run_in(&made, program, &["-t", "nat"])).unwrap();
        run_in(&legacy, restore, &[rules.to_str().unwrap()]);
    }
    assert_eq!(chains(), [2, 2]);
    for (id, left) in [("a", [1, 1]), ("b", [0, 0])] {
        let answer = netns::in_netns(&legacy, || call(&ours, "DEL", id, "", &config));
        assert_eq!(answer.unwrap(), (0, String::new()));
        assert_eq!(chains(), left);
    }
}

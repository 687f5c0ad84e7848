//! The reference's dhcp plugin and its daemon, driven by our runtime, against dnsmasq as a DHCP
//! server.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    net::IpAddr,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use podplane_netlink::{Netlink, netns};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, exchange, list, our_plugins, require,
};
use serde_json::json;

/// A process that ends with the test.
struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    fn start(netns: &Path, log: PathBuf, command: &mut Command) -> Self {
        let file = fs::File::create(&log).unwrap();
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file);
        let child = netns::in_netns(netns, || command.spawn()).unwrap().unwrap();
        Self { child, log }
    }

    fn wait_until(&mut self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so() {
            let ended = self.child.try_wait().unwrap();
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "{what}: {ended:?}\n{log}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn ip(netns: &Path, command: &str) {
    let run = || Command::new("ip").args(command.split(' ')).output();
    let output = netns::in_netns(netns, run).unwrap().unwrap();
    assert!(output.status.success(), "ip {command}: {output:?}");
}

/// A DHCP server in a namespace of its own, on a bridge of the node.
struct Lan {
    server: PathBuf,
    leases: PathBuf,
    socket: PathBuf,
    dnsmasq: Daemon,
    client: Daemon,
}

impl Lan {
    fn new(world: &NetnsFixture, node: &Path) -> Self {
        let server = world.netns("server");
        let leases = world.path("leases");
        let socket = world.path("dhcp.sock");
        ip(node, "link add cni0 type bridge");
        ip(node, "link set cni0 up");
        ip(node, "link add uplink type veth peer name server");
        ip(node, "link set uplink master cni0 up");
        // `ip` accepts a process as a name for its namespace.
        let mut holder = Daemon::start(
            &server,
            world.path("holder.log"),
            Command::new("sleep").arg("60"),
        );
        ip(
            node,
            &format!("link set server netns {}", holder.child.id()),
        );
        holder.child.kill().unwrap();
        ip(&server, "address add 10.88.0.1/24 dev server");
        ip(&server, "link set server up");
        let mut command = Command::new("/usr/sbin/dnsmasq");
        command
            .args([
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--log-facility=-",
            ])
            .args([
                "--port=0",
                "--no-ping",
                "--dhcp-authoritative",
                "--user=root",
                "--pid-file=",
            ])
            .args(["--interface=server", "--bind-interfaces"])
            .arg("--dhcp-range=10.88.0.10,10.88.0.12,255.255.255.0,2m")
            .arg(format!("--dhcp-leasefile={}", leases.display()));
        let mut dnsmasq = Daemon::start(&server, world.path("dnsmasq.log"), &mut command);
        let log = dnsmasq.log.clone();
        dnsmasq.wait_until("dnsmasq listens", || {
            fs::read_to_string(&log).unwrap().contains("DHCP, IP range")
        });
        let mut command = Command::new(Path::new(DEBIAN).join("dhcp"));
        command.args(["daemon", "-socketpath"]).arg(&socket);
        let mut client = Daemon::start(node, world.path("dhcp.log"), &mut command);
        client.wait_until("the dhcp daemon listens", || {
            UnixStream::connect(&socket).is_ok()
        });
        Self {
            server,
            leases,
            socket,
            dnsmasq,
            client,
        }
    }

    /// The hardware and IP addresses of the server's leases.
    fn leases(&self) -> Vec<(String, String)> {
        let text = fs::read_to_string(&self.leases).unwrap_or_default();
        let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields
            .map(|fields| (fields[1].to_owned(), fields[2].to_owned()))
            .collect()
    }

    fn logs(&self) -> String {
        let read = |daemon: &Daemon| fs::read_to_string(&daemon.log).unwrap();
        format!("{}\n{}", read(&self.client), read(&self.dnsmasq))
    }
}

/// Runs ADD, CHECK and DEL with the main plugins of `main`, and the reference's dhcp.
fn leases_an_address(main: &Path) -> (NetnsFixture, Lan) {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[main, Path::new(DEBIAN)]);
    let node = runtime.node_netns.clone().unwrap();
    let lan = Lan::new(&world, &node);
    let network = list(&json!({"cniVersion": "1.0.0", "name": "lan", "plugins": [{
        "type": "bridge", "bridge": "cni0",
        "ipam": {"type": "dhcp", "daemonSocketPath": lan.socket}
    }]}));
    let pods = ["a", "b"].map(|id| attachment(id, &world.netns(id)));
    for pod in &pods {
        let added = runtime.add(&network, pod);
        let result = added.unwrap_or_else(|error| panic!("{}\n{}", error.message(), lan.logs()));
        let address: IpAddr = result.ips[0].address.addr();
        let path = pod.netns.as_deref().unwrap();
        let mac = result
            .interfaces
            .iter()
            .find(|i| i.name == "eth0")
            .unwrap()
            .mac
            .clone();
        assert!(
            lan.leases().contains(&(mac, address.to_string())),
            "{:?} {result:?}",
            lan.leases()
        );
        exchange(&lan.server, path, address);
        runtime
            .check(&network, pod)
            .unwrap_or_else(|error| panic!("{}\n{}", error.message(), lan.logs()));
    }
    assert_eq!(lan.leases().len(), 2);
    for pod in &pods {
        runtime.del(&network, pod).unwrap();
        let path = pod.netns.as_deref().unwrap();
        assert!(
            Netlink::open_in(path)
                .unwrap()
                .link("eth0")
                .unwrap()
                .is_none()
        );
    }
    for id in ["a", "b"] {
        let log = fs::read_to_string(&lan.client.log).unwrap();
        assert!(
            log.contains(&format!("{id}/lan/eth0: releasing lease")),
            "{log}"
        );
    }
    // Only the bridge and the server's cable are left on the node.
    let links = Netlink::open_in(&node).unwrap().links().unwrap();
    let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["lo", "cni0", "uplink"]);
    // A second DEL does not concern the daemon, and succeeds.
    runtime.del(&network, &pods[0]).unwrap();
    (world, lan)
}

// The reference's bridge deletes the interface before the daemon releases the lease, which then
// cannot tell the server.
#[test]
fn the_reference_bridge_leases_an_address() {
    if require(&["root", "cni-plugins", "dnsmasq"]) {
        let (_world, _lan) = leases_an_address(Path::new(DEBIAN));
    }
}

#[test]
fn our_bridge_leases_an_address_and_gives_it_back() {
    if !require(&["root", "cni-plugins", "dnsmasq"]) {
        return;
    }
    let (_world, lan) = leases_an_address(&our_plugins());
    let deadline = Instant::now() + Duration::from_secs(5);
    while !lan.leases().is_empty() {
        assert!(
            Instant::now() < deadline,
            "{:?}\n{}",
            lan.leases(),
            lan.logs()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

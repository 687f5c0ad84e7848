//! The program `ptp` beside Debian's, in namespaces of the test's own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    net::IpAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podplane_cni::{CniResult, Runtime};
use podplane_netlink::{Netlink, Request, Route, Veth, netns, sysctl};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, exchange, list, our_plugins, require,
};
use serde_json::{Value, json};

fn config(version: &str, ptp: &Value, ipam: &Value) -> Value {
    let mut plugin = json!({"type": "ptp", "ipam": ipam});
    for (key, value) in ptp.as_object().unwrap() {
        plugin[key] = value.clone();
    }
    json!({"cniVersion": version, "name": "net", "plugins": [plugin]})
}

fn host_local(world: &NetnsFixture, more: Value) -> Value {
    let mut ipam = more;
    ipam["type"] = "host-local".into();
    ipam["dataDir"] = world.path("networks").to_str().unwrap().into();
    ipam
}

fn dual() -> Value {
    json!({
        "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.9.0.0/16", "gw": "10.244.1.9"}],
    })
}

fn node(runtime: &Runtime) -> &Path {
    runtime.node_netns.as_deref().unwrap()
}

fn leases(world: &NetnsFixture) -> usize {
    podplane_host_local::usage(&world.path("networks/net"))
        .unwrap()
        .len()
}

/// The names of the node's links, without `lo`.
fn links(runtime: &Runtime) -> Vec<String> {
    let links = Netlink::open_in(node(runtime)).unwrap().links().unwrap();
    let names = links.into_iter().map(|link| link.name);
    names.filter(|name| name != "lo").collect()
}

/// The routes of a namespace, with a fixed name for the link, and its addresses. Routes of
/// link-local and multicast addresses are left out.
fn state(netns: &Path, result: &CniResult) -> (Vec<String>, Vec<String>) {
    let ip = |args: &str| -> Vec<Value> {
        let mut command = Command::new("ip");
        command.arg("-j").args(args.split(' '));
        let output = netns::in_netns(netns, || command.output())
            .unwrap()
            .unwrap();
        assert!(output.status.success(), "ip {args}");
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let mut routes: Vec<_> = ["-4", "-6"]
        .iter()
        .flat_map(|family| ip(&format!("{family} route show table all")))
        .map(|mut route| {
            if route["dev"] == result.interfaces[0].name.as_str() {
                route["dev"] = "the host's end".into();
            }
            route.to_string()
        })
        // An address that is still tentative has no route of its own yet.
        .filter(|text| {
            !text.contains("fe80:") && !text.contains("ff00:") && !text.contains("\"local\"")
        })
        .collect();
    routes.sort();
    let mut addresses = Vec::new();
    for link in ip("address show") {
        for address in link["addr_info"].as_array().unwrap() {
            if address["scope"] == "global" {
                addresses.push(format!("{} {}", address["local"], address["prefixlen"]));
            }
        }
    }
    addresses.sort();
    (routes, addresses)
}

fn ip(result: &CniResult, n: usize) -> IpAddr {
    result.ips[n].address.addr()
}

/// Checks that two pods reach each other, the gateway and the host, and leave nothing. Returns the
/// routes and addresses that the kernel had.
fn two_pods(bin_dir: &Path, mtu: u32) -> [(Vec<String>, Vec<String>); 2] {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[bin_dir]);
    let network = config("1.0.0", &json!({"mtu": mtu}), &host_local(&world, dual()));
    let network = list(&network);
    // Otherwise duplicate detection of the address of the host's end takes seconds.
    sysctl::write_in(node(&runtime), &[("net/ipv6/conf/default/accept_dad", "0")]).unwrap();
    let (a, b) = (world.netns("a"), world.netns("b"));
    let (pod_a, pod_b) = (attachment("a", &a), attachment("b", &b));
    let result_a = runtime.add(&network, &pod_a).unwrap();
    let states = [state(node(&runtime), &result_a), state(&a, &result_a)];
    let result_b = runtime.add(&network, &pod_b).unwrap();
    assert_eq!(result_a.interfaces.len(), 2);
    assert_eq!(result_a.interfaces[1].name, "eth0");
    assert_eq!(Path::new(&result_a.interfaces[1].sandbox), a);
    assert_eq!(links(&runtime).len(), 2);
    for n in 0..2 {
        assert_eq!(result_a.ips[n].interface, Some(1));
        exchange(&a, &b, ip(&result_b, n));
        exchange(&b, &a, ip(&result_a, n));
        exchange(node(&runtime), &a, ip(&result_a, n));
        exchange(&a, node(&runtime), result_a.ips[n].gateway.unwrap());
    }
    // Its own address, and the gateway's: the gateway is the only neighbour.
    let mut inside = Netlink::open_in(&a).unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap();
    assert_eq!(eth0.mtu, mtu);
    let on_link = inside.routes().unwrap();
    let subnet = "10.244.1.0/24".parse().unwrap();
    assert!(
        on_link
            .iter()
            .any(|route| route.destination == subnet && route.gateway == result_a.ips[0].gateway)
    );
    runtime.check(&network, &pod_a).unwrap();
    runtime.del(&network, &pod_a).unwrap();
    runtime.del(&network, &pod_a).unwrap();
    netns::remove(&b).unwrap();
    runtime.del(&network, &pod_b).unwrap();
    assert_eq!(leases(&world), 0);
    assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
    states
}

#[test]
fn pods_reach_each_other_with_the_kernel_state_of_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let ours = two_pods(&our_plugins(), 1400);
    let debians = two_pods(Path::new(DEBIAN), 1400);
    assert_eq!(ours, debians);
    assert_eq!(ours[0].1.len(), 2, "the gateways' addresses: {:?}", ours[0]);
}

/// The error of an ADD that fails, and the numbers of leases and links that are left.
fn refused(
    bin_dir: &Path,
    ptp: &Value,
    ipam: impl Fn(&NetnsFixture) -> Value,
) -> (String, usize, usize) {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[bin_dir]);
    let network = list(&config("1.0.0", ptp, &ipam(&world)));
    let a = world.netns("a");
    let error = runtime.add(&network, &attachment("a", &a)).unwrap_err();
    assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
    let error = error.cni_error().unwrap().msg.clone();
    (error, leases(&world), links(&runtime).len())
}

#[test]
fn an_add_that_fails_leaves_nothing() {
    if !require(&["root"]) {
        return;
    }
    let ours = our_plugins();
    // A route through a gateway that no address reaches.
    let (message, leases, links) = refused(&ours, &json!({}), |world| {
        let routes = json!([{"dst": "10.9.0.0/16", "gw": "172.30.0.1"}]);
        host_local(world, json!({"subnet": "10.244.1.0/24", "routes": routes}))
    });
    assert!(
        message.contains("failed to add route 10.9.0.0/16 via 172.30.0.1"),
        "{message}"
    );
    assert_eq!((leases, links), (0, 0));
    let (message, _, links) = refused(
        &ours,
        &json!({}),
        |_| json!({"type": "static", "addresses": [{"address": "10.244.1.2/24"}]}),
    );
    assert_eq!(
        message,
        "address 10.244.1.2/24 has no gateway of its family from the IPAM plugin, and ptp needs one"
    );
    assert_eq!(links, 0);
    let (message, _, links) = refused(&ours, &json!({}), |_| json!({"type": "static"}));
    assert_eq!(
        (&*message, links),
        ("IPAM plugin returned missing IP config", 0)
    );
    let (message, _, links) = refused(
        &ours,
        &json!({"ipMasq": true, "ipMasqBackend": "x"}),
        |_| json!({"type": "static"}),
    );
    assert_eq!((&*message, links), ("unknown ipmasq backend \"x\"", 0));
    // Without an IPAM plugin it fails as the reference does.
    let none = |_: &NetnsFixture| json!({});
    let (message, ..) = refused(&ours, &json!({}), none);
    assert_eq!(message, "no plugin name provided");
    if require(&["cni-plugins"]) {
        assert_eq!(refused(Path::new(DEBIAN), &json!({}), none).0, message);
    }
}

#[test]
fn supports_shared_gateways_and_addresses_without_a_subnet() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let ipam = json!({
        "type": "static",
        "addresses": [
            {"address": "10.244.1.2/24", "gateway": "10.244.1.1"},
            {"address": "10.244.1.3/24", "gateway": "10.244.1.1"},
            {"address": "10.244.7.2/32", "gateway": "169.254.1.1"},
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.250.0.0/16", "gw": "169.254.1.1"}],
    });
    let network = list(&config(
        "1.1.0",
        &json!({"dns": {"nameservers": ["10.0.0.53"]}}),
        &ipam,
    ));
    let a = world.netns("a");
    let pod = attachment("a", &a);
    let result = runtime.add(&network, &pod).unwrap();
    assert_eq!(result.dns.nameservers, ["10.0.0.53"]);
    for n in 0..3 {
        exchange(node(&runtime), &a, ip(&result, n));
        exchange(&a, node(&runtime), result.ips[n].gateway.unwrap());
    }
    runtime.check(&network, &pod).unwrap();
    runtime.del(&network, &pod).unwrap();
    assert_eq!(links(&runtime), Vec::<String>::new());
}

/// A machine beside the node without a route to the pods, reached by `192.0.2.2` and `fd00:99::2`.
fn machine_beside(world: &NetnsFixture, runtime: &Runtime) -> PathBuf {
    let outside = world.netns("outside");
    let file = netns::open(&outside).unwrap();
    let mut in_node = Netlink::open_in(node(runtime)).unwrap();
    let veth = Veth {
        name: "uplink",
        peer_name: "eth0",
        peer_netns: Some(file.as_fd()),
        up: true,
        ..Veth::default()
    };
    in_node.execute([Request::create_veth(&veth)]).unwrap();
    let mut beside = Netlink::open_in(&outside).unwrap();
    let ends = [(&mut in_node, "uplink", 1), (&mut beside, "eth0", 2)];
    for (netlink, link, n) in ends {
        let index = netlink.link(link).unwrap().unwrap().index;
        let addresses = [format!("192.0.2.{n}/24"), format!("fd00:99::{n}/64")];
        let addresses = addresses.map(|address| address.parse().unwrap());
        let add = addresses.map(|address| Request::add_address_unasked(index, address));
        netlink.execute(add).unwrap();
        netlink.execute([Request::up(index)]).unwrap();
    }
    outside
}

fn ruleset(runtime: &Runtime) -> String {
    let list = || Command::new("nft").args(["list", "ruleset"]).output();
    let output = netns::in_netns(node(runtime), list).unwrap().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_masqueraded_pod_reaches_hosts_without_a_route_back() {
    if !require(&["root", "nftables", "cni-plugins"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let outside = machine_beside(&world, &runtime);
    let masq = |on: bool| {
        list(&config(
            "1.1.0",
            &json!({"ipMasq": on, "ipMasqBackend": "nftables"}),
            &host_local(&world, dual()),
        ))
    };
    let (a, b) = (world.netns("a"), world.netns("b"));
    let (pod_a, pod_b) = (attachment("pod-a", &a), attachment("pod-b", &b));
    runtime.add(&masq(true), &pod_a).unwrap();
    for to in ["192.0.2.2", "fd00:99::2"] {
        exchange(&a, &outside, to.parse().unwrap());
    }
    runtime.add(&masq(true), &pod_b).unwrap();
    let rules = ruleset(&runtime);
    assert!(
        rules.contains("pod-a") && rules.contains("pod-b"),
        "{rules}"
    );
    // The rules go even if the namespace is gone; the reference leaves them in this case.
    netns::remove(&a).unwrap();
    runtime.del(&masq(true), &pod_a).unwrap();
    let rules = ruleset(&runtime);
    assert!(
        !rules.contains("pod-a") && rules.contains("pod-b"),
        "{rules}"
    );
    std::fs::remove_dir_all(world.path("cache")).unwrap();
    runtime.gc(&masq(true), Some(&[])).unwrap();
    let rules = ruleset(&runtime);
    assert!(!rules.contains("pod-b"), "{rules}");
    assert_eq!(leases(&world), 0);
    runtime.del(&masq(true), &pod_b).unwrap();

    // Rules that Debian's has made with iptables go too.
    let debians = Runtime {
        bin_dirs: vec![DEBIAN.into()],
        ..runtime.clone()
    };
    let network = json!({"ipMasq": true});
    let network = list(&config("1.0.0", &network, &host_local(&world, dual())));
    debians.add(&network, &pod_b).unwrap();
    let rules = ruleset(&runtime);
    assert!(rules.contains("jump CNI-"), "{rules}");
    runtime.del(&network, &pod_b).unwrap();
    let rules = ruleset(&runtime);
    assert!(!rules.contains("CNI-"), "{rules}");
    assert_eq!(
        (leases(&world), links(&runtime)),
        (0, vec!["uplink".to_owned()])
    );
}

#[test]
fn check_reports_faults_and_a_repeated_add_changes_nothing() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(&config("1.1.0", &json!({}), &host_local(&world, dual())));
    let a = world.netns("a");
    let pod = attachment("a", &a);
    runtime.status(&network).unwrap();
    let result = runtime.add(&network, &pod).unwrap();
    let message = runtime.add(&network, &pod).unwrap_err().message();
    assert!(message.contains("already exists"), "{message}");
    exchange(node(&runtime), &a, ip(&result, 0));
    runtime.check(&network, &pod).unwrap();

    let mut inside = Netlink::open_in(&a).unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap();
    let route = Route::via(
        "10.9.0.0/16".parse().unwrap(),
        "10.244.1.9".parse().unwrap(),
    );
    let route = Route {
        protocol: podplane_netlink::protocol::BOOT,
        ..route
    };
    inside.execute([Request::delete_route(&route)]).unwrap();
    let message = runtime.check(&network, &pod).unwrap_err().message();
    assert!(message.contains("10.9.0.0/16"), "{message}");
    inside
        .execute([Request::delete_address(eth0.index, result.ips[0].address)])
        .unwrap();
    let message = runtime.check(&network, &pod).unwrap_err().message();
    assert!(message.contains("10.244.1.2/24"), "{message}");
    inside
        .execute([Request::mac(eth0.index, &[2, 0, 0, 0, 0, 7])])
        .unwrap();
    let message = runtime.check(&network, &pod).unwrap_err().message();
    assert!(message.contains("02:00:00:00:00:07"), "{message}");

    // A lease without a record, as after the loss of the cache.
    std::fs::remove_dir_all(world.path("cache")).unwrap();
    runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(leases(&world), 0);
    runtime.del(&network, &pod).unwrap();
    assert_eq!(links(&runtime), Vec::<String>::new());
}

#[test]
fn del_cleans_up_after_a_killed_chain() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let mut network = config(
        "1.0.0",
        &json!({"ipMasq": true}),
        &host_local(&world, dual()),
    );
    let portmap = json!({"type": "portmap", "capabilities": {"portMappings": true}});
    network["plugins"].as_array_mut().unwrap().push(portmap);
    let network = list(&network);
    let a = world.netns("a");
    let mut pod = attachment("pod-a", &a);
    let mappings = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    pod.capability_args
        .insert("portMappings".to_owned(), mappings);
    let mut killed = 0;
    for round in 0..40 {
        // The runtime kills the plugin and its children, wherever they are by then.
        let hasty = Runtime {
            timeout: Duration::from_micros(400 * round),
            ..runtime.clone()
        };
        killed += u32::from(hasty.add(&network, &pod).is_err());
        runtime.del(&network, &pod).unwrap();
        let rules = ruleset(&runtime);
        let chains = rules.lines().filter(|line| line.contains("chain CNI-"));
        let own = chains
            .filter(|line| !line.contains("CNI-HOSTPORT-"))
            .count();
        assert_eq!(own, 0, "round {round}: {rules}");
        assert!(!rules.contains("pod-a"), "round {round}: {rules}");
        assert_eq!(
            (leases(&world), links(&runtime).len()),
            (0, 0),
            "round {round}"
        );
        assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
    }
    assert!(killed > 0);
}

#[test]
fn ours_and_debians_delete_each_others_attachments() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for (first, second) in [(&ours, &debians), (&debians, &ours)] {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[first]);
        let other = Runtime {
            bin_dirs: vec![second.clone()],
            ..runtime.clone()
        };
        let network = list(&config("1.0.0", &json!({}), &host_local(&world, dual())));
        let a = world.netns("a");
        let pod = attachment("a", &a);
        runtime.add(&network, &pod).unwrap();
        other.check(&network, &pod).unwrap();
        other.del(&network, &pod).unwrap();
        assert_eq!((leases(&world), links(&runtime).len()), (0, 0));
    }
}

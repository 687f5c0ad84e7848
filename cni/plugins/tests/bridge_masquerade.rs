//! Masquerading by `bridge`: packets carry the host's address, and rules are removed by either
//! program.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use podplane_cni::{NetworkConfigList, Runtime, ValidAttachment};
use podplane_netlink::{Netlink, Request, Route, Veth, netns};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, list, our_plugins, receive, require, run_in, wait_for,
};
use serde_json::{Value, json};
use support::network::{config, dual, leases, links, node, v4};

/// A host beyond the node. It has a route to the pods, so that a packet that is not masqueraded
/// would arrive too.
fn outside(world: &NetnsFixture, node: &Path) -> PathBuf {
    let outside = world.netns("outside");
    let file = netns::open(&outside).unwrap();
    let mut on_node = Netlink::open_in(node).unwrap();
    let veth = Veth {
        name: "uplink",
        peer_name: "eth0",
        peer_netns: Some(file.as_fd()),
        up: true,
        ..Veth::default()
    };
    on_node.execute([Request::create_veth(&veth)]).unwrap();
    let mut beyond = Netlink::open_in(&outside).unwrap();
    for (netlink, name, n) in [(&mut on_node, "uplink", 1), (&mut beyond, "eth0", 2)] {
        let index = netlink.link(name).unwrap().unwrap().index;
        let net = |text: String| text.parse::<IpNet>().unwrap();
        let requests = [
            Request::up(index),
            Request::add_address(index, net(format!("198.51.100.{n}/24"))),
            Request::add_address_unasked(index, net(format!("fd99::{n}/64"))),
        ];
        netlink.execute(requests).unwrap();
    }
    for (to, via) in [
        ("10.244.1.0/24", "198.51.100.1"),
        ("fd00:1::/64", "fd99::1"),
    ] {
        let route = Route::via(to.parse().unwrap(), via.parse().unwrap());
        beyond.execute([Request::add_route(&route)]).unwrap();
    }
    outside
}

/// The sender that the receiver sees of a datagram from one namespace to an address in another.
fn sender_seen(from: &Path, to: &Path, address: &str) -> IpAddr {
    let address: IpAddr = address.parse().unwrap();
    let bind = |netns: &Path, ip: IpAddr| {
        let bound = netns::in_netns(netns, || UdpSocket::bind((ip, 0)));
        bound.unwrap().unwrap()
    };
    let any: IpAddr = if address.is_ipv4() {
        [0, 0, 0, 0].into()
    } else {
        [0_u16; 8].into()
    };
    let (server, client) = (bind(to, address), bind(from, any));
    // A datagram is lost if its neighbour cannot be asked yet: the kernel still probes whether the
    // asking link's own IPv6 address is a duplicate.
    let wait = Some(Duration::from_millis(250));
    server.set_read_timeout(wait).unwrap();
    let mut answers = (0..40).filter_map(|_| {
        client
            .send_to(b"ask", server.local_addr().unwrap())
            .unwrap();
        receive(&server, &mut [0; 8]).ok()
    });
    let seen = answers.next().expect("no datagram arrived within 10 s");
    seen.1.ip()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn masquerading(world: &NetnsFixture, backend: Option<&str>, ipam: &Value) -> NetworkConfigList {
    let bridge = json!({"ipMasq": true, "ipMasqBackend": backend});
    list(&config(world, "1.0.0", &bridge, ipam))
}

/// The rules of pods, as text.
fn rules(netns: &Path) -> Vec<String> {
    let mut rules = Vec::new();
    for line in run_in(netns, "nft", &["list", "ruleset"]).lines() {
        if line.contains("masquerade comment") {
            rules.push(line.trim().to_owned());
        }
    }
    for program in [
        "iptables",
        "ip6tables",
        "iptables-legacy",
        "ip6tables-legacy",
    ] {
        let saved = run_in(netns, program, &["-t", "nat", "-S"]);
        rules.extend(
            saved
                .lines()
                .filter(|line| line.contains("CNI-"))
                .map(str::to_owned),
        );
    }
    rules
}

fn packets_carry_the_hosts_address(bin_dir: &Path, backend: Option<&str>) {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[bin_dir]);
    let outside = outside(&world, node(&runtime));
    let (a, b, c) = (world.netns("a"), world.netns("b"), world.netns("c"));
    let plain = list(&config(&world, "1.0.0", &json!({}), &dual()));
    runtime.add(&plain, &attachment("a", &a)).unwrap();
    assert_eq!(sender_seen(&a, &outside, "198.51.100.2"), ip("10.244.1.2"));
    assert_eq!(sender_seen(&a, &outside, "fd99::2"), ip("fd00:1::2"));
    let network = masquerading(&world, backend, &dual());
    runtime.add(&network, &attachment("b", &b)).unwrap();
    runtime.add(&network, &attachment("c", &c)).unwrap();
    for pod in [&b, &c] {
        assert_eq!(
            sender_seen(pod, &outside, "198.51.100.2"),
            ip("198.51.100.1")
        );
        assert_eq!(sender_seen(pod, &outside, "fd99::2"), ip("fd99::1"));
    }
    assert_eq!(
        sender_seen(&b, &c, "10.244.1.4"),
        ip("10.244.1.3"),
        "within the network"
    );
    assert_eq!(
        sender_seen(&b, &c, "fd00:1::4"),
        ip("fd00:1::3"),
        "within the network"
    );
    runtime.del(&network, &attachment("b", &b)).unwrap();
    assert!(!rules(node(&runtime)).is_empty());
    assert_eq!(
        sender_seen(&c, &outside, "198.51.100.2"),
        ip("198.51.100.1")
    );
    // The reference keeps the rules if the namespace has gone before.
    netns::remove(&c).unwrap();
    runtime.del(&network, &attachment("c", &c)).unwrap();
    runtime.del(&plain, &attachment("a", &a)).unwrap();
    assert_eq!(rules(node(&runtime)), Vec::<String>::new());
    assert_eq!(leases(&world), 0);
    // The kernel deletes the pair of the removed namespace in its own time.
    wait_for("only uplink and cni0 are left", || {
        links(&runtime) == ["uplink", "cni0"]
    });
}

#[test]
fn packets_carry_the_hosts_address_by_nftables() {
    if require(&["root", "nftables", "iptables"]) {
        packets_carry_the_hosts_address(&our_plugins(), Some("nftables"));
    }
}

#[test]
fn packets_carry_the_hosts_address_by_iptables() {
    if require(&["root", "nftables", "iptables"]) {
        packets_carry_the_hosts_address(&our_plugins(), None);
        packets_carry_the_hosts_address(&our_plugins(), Some("iptables"));
    }
}

/// The commands that the present version of the reference passes to `nft`.
const REFERENCE: &str = r#"
add table inet cni_plugins_masquerade { comment "Masquerading for plugins from github.com/containernetworking/plugins" ; }
add chain inet cni_plugins_masquerade masq_checks { comment "Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet" ; }
add chain inet cni_plugins_masquerade postrouting { type nat hook postrouting priority 100 ; }
add rule inet cni_plugins_masquerade postrouting ip daddr == 224.0.0.0/4  return
add rule inet cni_plugins_masquerade postrouting ip6 daddr == ff00::/8  return
add rule inet cni_plugins_masquerade postrouting goto masq_checks
add rule inet cni_plugins_masquerade masq_checks ip saddr == 10.244.1.2 ip daddr != 10.244.1.0/24 masquerade comment "COMMENT"
add rule inet cni_plugins_masquerade masq_checks ip6 saddr == fd00:1::2 ip6 daddr != fd00:1::/64 masquerade comment "COMMENT"
"#;

/// The digits of `printf net | sha512sum`, and of `eth0:a`.
const COMMENT: &str = "a4861f4ae9f7d238-a193fd394fc69048, net: net, if: eth0, id: a";

#[test]
fn the_rules_are_those_of_the_reference() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = masquerading(&world, Some("nftables"), &dual());
    let a = world.netns("a");
    runtime.add(&network, &attachment("a", &a)).unwrap();
    let list = ["list", "table", "inet", "cni_plugins_masquerade"];
    let ours = run_in(node(&runtime), "nft", &list);
    let theirs = world.netns("theirs");
    let commands = world.path("commands");
    fs::write(&commands, REFERENCE.replace("COMMENT", COMMENT)).unwrap();
    run_in(&theirs, "nft", &["-f", commands.to_str().unwrap()]);
    assert_eq!(ours, run_in(&theirs, "nft", &list));

    // We delete the reference's rules: they are made again there, and go with the pod here.
    run_in(node(&runtime), "nft", &["flush", "ruleset"]);
    run_in(node(&runtime), "nft", &["-f", commands.to_str().unwrap()]);
    assert_eq!(rules_by_nftables(node(&runtime)), 2);
    runtime.del(&network, &attachment("a", &a)).unwrap();
    assert_eq!(rules_by_nftables(node(&runtime)), 0);
}

fn rules_by_nftables(netns: &Path) -> usize {
    let shown = run_in(netns, "nft", &["list", "ruleset"]);
    shown.matches("masquerade comment").count()
}

#[test]
fn ours_and_debians_remove_each_others_masquerade_rules() {
    if !require(&["root", "cni-plugins", "nftables", "iptables"]) {
        return;
    }
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for (adds, deletes) in [(&debians, &ours), (&ours, &debians)] {
        let world = NetnsFixture::new();
        let mut runtime = world.runtime(&[adds]);
        let network = masquerading(&world, None, &dual());
        let pods = ["a", "b"].map(|name| (name, world.netns(name)));
        for (name, netns) in &pods {
            runtime.add(&network, &attachment(name, netns)).unwrap();
        }
        assert_ne!(rules(node(&runtime)), Vec::<String>::new());
        runtime.bin_dirs = vec![deletes.clone()];
        for (name, netns) in &pods {
            runtime.del(&network, &attachment(name, netns)).unwrap();
        }
        assert_eq!(rules(node(&runtime)), Vec::<String>::new());
        assert_eq!(
            (leases(&world), links(&runtime)),
            (0, vec!["cni0".to_owned()])
        );
    }
}

#[test]
fn removes_chains_of_legacy_iptables() {
    if !require(&["root", "nftables", "iptables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = masquerading(&world, Some("iptables"), &v4());
    let a = world.netns("a");
    runtime.add(&network, &attachment("a", &a)).unwrap();
    // The same rules, made by the legacy program.
    let made = run_in(node(&runtime), "iptables", &["-t", "nat", "-S"]);
    let made: Vec<_> = made.lines().filter(|line| line.contains("CNI-")).collect();
    let commands = format!("*nat\n{}\nCOMMIT\n", made.join("\n"));
    run_in(node(&runtime), "nft", &["flush", "ruleset"]);
    fs::write(world.path("rules"), commands).unwrap();
    run_in(
        node(&runtime),
        "iptables-legacy-restore",
        &[world.path("rules").to_str().unwrap()],
    );
    assert_eq!(rules(node(&runtime)).len(), made.len());
    runtime.del(&network, &attachment("a", &a)).unwrap();
    assert_eq!(rules(node(&runtime)), Vec::<String>::new());
}

#[test]
fn gc_keeps_the_rules_of_valid_attachments_and_of_other_networks() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let with = |name: &str, subnet: &str| {
        let ipam = json!({"ranges": [[{"subnet": subnet}]]});
        let mut config = config(
            &world,
            "1.1.0",
            &json!({"ipMasq": true, "ipMasqBackend": "nftables", "bridge": name}),
            &ipam,
        );
        config["name"] = name.into();
        list(&config)
    };
    let (net, other) = (with("net", "10.244.1.0/24"), with("other", "10.244.2.0/24"));
    for name in ["a", "b"] {
        runtime
            .add(&net, &attachment(name, &world.netns(name)))
            .unwrap();
    }
    runtime
        .add(&other, &attachment("c", &world.netns("c")))
        .unwrap();
    // Without its records the runtime does not delete attachments by itself.
    let forgetful = Runtime {
        cache_dir: world.path("empty"),
        spare: None,
        ..runtime.clone()
    };
    let remaining = || rules_by_nftables(node(&runtime));
    forgetful.gc(&net, None).unwrap();
    assert_eq!(
        (remaining(), leases(&world)),
        (3, 2),
        "nothing is said of what is valid"
    );
    let valid = [ValidAttachment {
        container_id: "a".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    forgetful.gc(&net, Some(&valid)).unwrap();
    assert_eq!((remaining(), leases(&world)), (2, 1));
    forgetful.gc(&net, Some(&[])).unwrap();
    assert_eq!((remaining(), leases(&world)), (1, 0));
}

#[test]
fn a_pod_added_again_has_only_one_rule() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = masquerading(&world, Some("nftables"), &v4());
    for n in 0..3 {
        // As after a crash of the machine that kept the rules: there was no DEL in between.
        let netns = world.netns(&format!("a{n}"));
        fs::remove_dir_all(world.path("networks")).unwrap_or_default();
        runtime.add(&network, &attachment("a", &netns)).unwrap();
    }
    assert_eq!(rules_by_nftables(node(&runtime)), 1);
}

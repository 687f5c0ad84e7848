//! The ports of `bridge`: checks of hardware addresses, isolation, hairpin mode, VLANs; and a
//! comparison with Debian's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "what this kernel has must be seen")]

mod support;

use std::{
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use podplane_cni::{CniResult, Runtime, ValidAttachment};
use podplane_netlink::{Netlink, Request, netns, sysctl};
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, exchange, list, our_plugins, receive, require, run_in,
    wait_for,
};
use serde_json::{Value, json};
use support::network::{config, dual, ip, leases, links, node, v4};

/// Returns true if a datagram from one namespace arrives at an address in another.
fn arrives(from: &Path, to: &Path, address: IpAddr) -> bool {
    let bind = |netns: &Path, ip: &str| {
        let bound = netns::in_netns(netns, || UdpSocket::bind((ip, 0)));
        bound.unwrap().unwrap()
    };
    let (server, client) = (bind(to, &address.to_string()), bind(from, "0.0.0.0"));
    server
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    // A datagram that cannot be sent, since nobody answers for the address, does not arrive either.
    _ = client.send_to(b"ask", server.local_addr().unwrap());
    receive(&server, &mut [0; 8]).is_ok()
}

fn set_mac(netns: &Path, mac: &[u8]) {
    let mut inside = Netlink::open_in(netns).unwrap();
    let eth0 = inside.link("eth0").unwrap().unwrap().index;
    inside.execute([Request::mac(eth0, mac)]).unwrap();
}

fn chains(runtime: &Runtime) -> usize {
    let shown = run_in(node(runtime), "nft", &["list", "ruleset"]);
    shown.matches("chain cni-br-iface-").count()
}

#[test]
fn frames_with_another_sender_are_dropped() {
    if !require(&["root", "nftables"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let checked = list(&config(
        &world,
        "1.1.0",
        &json!({"macspoofchk": true}),
        &v4(),
    ));
    let (a, b) = (world.netns("a"), world.netns("b"));
    let result = runtime.add(&checked, &attachment("a", &a)).unwrap();
    let to = ip(&runtime.add(&checked, &attachment("b", &b)).unwrap(), 0);
    exchange(&a, &b, to);
    assert_eq!(chains(&runtime), 4);
    set_mac(&a, &[2, 0, 0, 0, 0, 0x66]);
    assert!(!arrives(&a, &b, to), "a frame that lies about its sender");
    let own = podplane_netlink::parse_mac(&result.interfaces[2].mac).unwrap();
    set_mac(&a, &own);
    exchange(&a, &b, to);

    // GC of the network deletes the rules of attachments that are not valid, and no others.
    let forgetful = Runtime {
        cache_dir: world.path("empty"),
        spare: None,
        ..runtime.clone()
    };
    let valid = [ValidAttachment {
        container_id: "b".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    forgetful.gc(&checked, Some(&valid)).unwrap();
    assert_eq!(chains(&runtime), 2);
    netns::remove(&b).unwrap();
    runtime.del(&checked, &attachment("b", &b)).unwrap();
    runtime.del(&checked, &attachment("a", &a)).unwrap();
    assert_eq!(chains(&runtime), 0);
    let left = run_in(node(&runtime), "nft", &["list", "ruleset"]);
    assert!(!left.contains("macspoofchk"), "{left}");
}

#[test]
fn ours_and_debians_remove_each_others_sender_check() {
    if !require(&["root", "cni-plugins", "nftables"]) {
        return;
    }
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    let shown = [(&debians, &ours), (&ours, &debians)].map(|(adds, deletes)| {
        let world = NetnsFixture::new();
        let mut runtime = world.runtime(&[adds]);
        let checked = list(&config(
            &world,
            "1.0.0",
            &json!({"macspoofchk": true}),
            &v4(),
        ));
        let a = world.netns("a");
        let result = runtime.add(&checked, &attachment("a", &a)).unwrap();
        let shown = run_in(node(&runtime), "nft", &["list", "ruleset"]);
        // Our chains name their network in a comment.
        let shown = shown.replace("\t\tcomment \"net: net\"\n", "");
        let shown = shown.replace(&result.interfaces[1].name, "PORT");
        runtime.bin_dirs = vec![deletes.clone()];
        runtime.del(&checked, &attachment("a", &a)).unwrap();
        assert_eq!(chains(&runtime), 0);
        shown.replace(&result.interfaces[2].mac, "MAC")
    });
    assert_eq!(shown[0], shown[1]);
}

#[test]
fn isolated_ports_reach_only_the_gateway() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let network = list(&config(
        &world,
        "1.0.0",
        &json!({"portIsolation": true}),
        &v4(),
    ));
    let (a, b) = (world.netns("a"), world.netns("b"));
    let result = runtime.add(&network, &attachment("a", &a)).unwrap();
    let to = ip(&runtime.add(&network, &attachment("b", &b)).unwrap(), 0);
    exchange(&a, node(&runtime), result.ips[0].gateway.unwrap());
    assert!(!arrives(&a, &b, to));
}

#[test]
fn a_pod_without_an_ipam_plugin_is_pure_layer_2() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let mut network = config(&world, "1.0.0", &json!({"isGateway": false}), &json!({}));
    network["plugins"][0]["ipam"] = json!({});
    let a = world.netns("a");
    let result = runtime.add(&list(&network), &attachment("a", &a)).unwrap();
    assert_eq!(result.ips, []);
    let link = |netns: &Path| {
        Netlink::open_in(netns)
            .unwrap()
            .link("eth0")
            .unwrap()
            .unwrap()
    };
    assert!(link(&a).is_up);
    network["plugins"][0]["disableContainerInterface"] = true.into();
    let b = world.netns("b");
    runtime.add(&list(&network), &attachment("b", &b)).unwrap();
    assert!(!link(&b).is_up);
    network["plugins"][0]["ipam"] = json!({"type": "host-local"});
    let refused = runtime.add(&list(&network), &attachment("c", &world.netns("c")));
    let refused = refused.unwrap_err();
    assert_eq!(
        refused.cni_error().unwrap().msg,
        "cannot use IPAM when DisableContainerInterface flag is set"
    );
}

/// Results before 0.3.0 can carry addresses only. The bridge of a failed ADD stays, as with
/// Debian's plugin.
#[test]
fn older_versions_refuse_a_bridge_without_addresses_and_keep_it() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let refused = |bin_dir: &Path, version: &str| {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[bin_dir]);
        let mut network = config(&world, version, &json!({"isGateway": false}), &json!({}));
        network["plugins"][0]["ipam"] = json!({});
        let added = runtime.add(&list(&network), &attachment("a", &world.netns("a")));
        let bridge = links(&runtime).contains(&"cni0".to_owned());
        (added.unwrap_err().message(), bridge)
    };
    for version in ["0.1.0", "0.2.0"] {
        let ours = refused(&our_plugins(), version);
        assert_eq!(ours, refused(Path::new(DEBIAN), version));
        assert!(ours.0.contains("no valid IP addresses"), "{ours:?}");
        assert!(ours.1, "the bridge is missing");
    }
}

/// An empty list replaces IPAM's resolvers by none. Debian's bridge 1.1.1 drops IPAM's in any case.
#[test]
fn an_empty_list_of_resolvers_replaces_those_of_ipam() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let resolv_conf = world.path("resolv.conf");
    std::fs::write(&resolv_conf, "nameserver 192.0.2.53\n").unwrap();
    let ipam = json!({"ranges": [[{"subnet": "10.244.1.0/24"}]], "resolvConf": resolv_conf});
    let dns = |kind: &str, dns: &Value| {
        let world = NetnsFixture::new();
        let runtime = world.runtime(&[&our_plugins()]);
        let mut network = config(&world, "1.0.0", &json!({"type": kind}), &ipam);
        if !dns.is_null() {
            network["plugins"][0]["dns"] = dns.clone();
        }
        let added = runtime.add(&list(&network), &attachment("a", &world.netns("a")));
        added.unwrap().dns.nameservers
    };
    for kind in ["bridge", "ptp"] {
        for (section, want) in [
            (Value::Null, vec!["192.0.2.53"]),
            (json!({}), vec!["192.0.2.53"]),
            (json!({"nameservers": null}), vec!["192.0.2.53"]),
            (json!({"nameservers": []}), vec![]),
            (json!({"search": []}), vec![]),
            (json!({"domain": "a.example"}), vec![]),
            (json!({"nameservers": ["192.0.2.1"]}), vec!["192.0.2.1"]),
        ] {
            assert_eq!(dns(kind, &section), want, "{kind}: {section}");
        }
    }
}

/// Returns true if the kernel has VLAN filtering for bridges.
fn has_vlan_filtering(world: &NetnsFixture) -> bool {
    let netns = world.netns("probe");
    let add = [
        "link",
        "add",
        "probe",
        "type",
        "bridge",
        "vlan_filtering",
        "1",
    ];
    let added = netns::in_netns(&netns, || Command::new("ip").args(add).output());
    let has = added.unwrap().unwrap().status.success();
    println!(
        "VLAN filtering of bridges: {}",
        if has { "seen" } else { "not in this kernel" }
    );
    has
}

/// The VLANs of a port of the node, as `bridge` shows them: ids and flags.
fn vlans(runtime: &Runtime, port: &str) -> Vec<(u64, Vec<String>)> {
    let shown = run_in(
        node(runtime),
        "bridge",
        &["-j", "vlan", "show", "dev", port],
    );
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let vlans = shown[0]["vlans"].as_array().unwrap().iter();
    let flags = |vlan: &Value| serde_json::from_value(vlan["flags"].clone()).unwrap_or_default();
    vlans
        .map(|vlan| (vlan["vlan"].as_u64().unwrap(), flags(vlan)))
        .collect()
}

#[test]
fn vlans_need_a_kernel_with_vlan_filtering() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let has = has_vlan_filtering(&world);
    let add = |name: &str, bridge: Value| {
        let network = list(&config(&world, "1.0.0", &bridge, &v4()));
        runtime.add(&network, &attachment(name, &world.netns(name)))
    };
    let access = json!({"vlan": 5, "preserveDefaultVlan": false});
    let trunk = json!({"isGateway": false, "vlanTrunk": [{"minID": 7, "maxID": 8}, {"id": 3}]});
    if !has {
        for (name, bridge) in [("a", access), ("b", trunk)] {
            let error = add(name, bridge).unwrap_err();
            assert_eq!(
                error.cni_error().unwrap().msg,
                "failed to create bridge \"cni0\": vlan and vlanTrunk cannot be served: this kernel has no VLAN filtering for bridges (CONFIG_BRIDGE_VLAN_FILTERING)"
            );
        }
        assert_eq!((leases(&world), links(&runtime)), (0, Vec::<String>::new()));
        // An existing bridge.
        run_in(
            node(&runtime),
            "ip",
            &["link", "add", "cni0", "type", "bridge"],
        );
        let error = add("c", json!({"vlan": 5})).unwrap_err();
        let msg = &error.cni_error().unwrap().msg;
        assert!(
            msg.starts_with("failed to setup vlan tag on interface"),
            "{msg}"
        );
        assert!(msg.contains("CONFIG_BRIDGE_VLAN_FILTERING"), "{msg}");
        assert_eq!(
            (leases(&world), links(&runtime)),
            (0, vec!["cni0".to_owned()])
        );
        return;
    }
    let names = |vlans: &[&str]| vlans.iter().map(ToString::to_string).collect::<Vec<_>>();
    let result = add("a", access.clone()).unwrap();
    assert_eq!(result.interfaces[3].name, "cni0.5");
    let expected = [(5, names(&["PVID", "Egress Untagged"]))];
    assert_eq!(vlans(&runtime, &result.interfaces[1].name), expected);
    exchange(
        &world.path("netns/a"),
        node(&runtime),
        result.ips[0].gateway.unwrap(),
    );
    let second = add("b", access).unwrap();
    exchange(
        &world.path("netns/a"),
        &world.path("netns/b"),
        ip(&second, 0),
    );
    let apart = add("c", json!({"isGateway": false, "vlan": 6})).unwrap();
    assert!(!arrives(
        &world.path("netns/a"),
        &world.path("netns/c"),
        ip(&apart, 0)
    ));
    let trunk = add("d", trunk).unwrap();
    let found = vlans(&runtime, &trunk.interfaces[1].name);
    assert_eq!(
        found.iter().map(|vlan| vlan.0).collect::<Vec<_>>(),
        [1, 3, 7, 8]
    );
}

#[test]
fn invalid_vlans_are_refused_with_the_texts_of_the_reference() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[&our_plugins()]);
    let a = world.netns("a");
    for (bridge, words) in [
        (
            json!({"vlan": 4095}),
            "invalid VLAN ID 4095 (must be between 0 and 4094)",
        ),
        (
            json!({"vlan": -1}),
            "invalid VLAN ID -1 (must be between 0 and 4094)",
        ),
        (
            json!({"vlanTrunk": [{"minID": 0, "maxID": 5}]}),
            "incorrect trunk minID parameter",
        ),
        (
            json!({"vlanTrunk": [{"minID": 1, "maxID": 4095}]}),
            "incorrect trunk maxID parameter",
        ),
        (
            json!({"vlanTrunk": [{"minID": 6, "maxID": 5}]}),
            "minID is greater than maxID in trunk parameter",
        ),
        (
            json!({"vlanTrunk": [{"maxID": 5}]}),
            "minID and maxID should be configured simultaneously, minID is missing",
        ),
        (
            json!({"vlanTrunk": [{"minID": 5}]}),
            "minID and maxID should be configured simultaneously, maxID is missing",
        ),
        (
            json!({"vlanTrunk": [{"id": 0}]}),
            "incorrect trunk id parameter",
        ),
        (
            json!({"vlan": 5, "vlanTrunk": [{"id": 6}]}),
            "cannot set vlan and vlanTrunk at the same time",
        ),
    ] {
        let network = list(&config(&world, "1.0.0", &bridge, &v4()));
        let refused = runtime.add(&network, &attachment("a", &a)).unwrap_err();
        assert_eq!(refused.cni_error().unwrap().msg, words, "{bridge}");
    }
    assert_eq!(links(&runtime), Vec::<String>::new());
}

/// The output of `ip`, without values that differ each time.
fn seen(netns: &Path, args: &[&str]) -> Value {
    const DIFFERENT: [&str; 16] = [
        "address",
        "bridge_id",
        "designated_bridge",
        "designated_root",
        "id",
        "ifindex",
        "ifname",
        "label",
        "link",
        "link_index",
        "link_netnsid",
        "master",
        "preferred_life_time",
        "root_id",
        "stats64",
        "valid_life_time",
    ];
    // We make one queue for each end, the reference one for each CPU. Debian's version sets the
    // queue's length to 0, later ones to the kernel's default. We set the gateway's IPv6 address
    // without duplicate detection.
    const OURS: [&str; 4] = ["num_tx_queues", "num_rx_queues", "txqlen", "nodad"];
    fn strip(value: &mut Value) {
        match value {
            Value::Object(object) => {
                object.retain(|key, _| {
                    let key = key.as_str();
                    !DIFFERENT.contains(&key) && !OURS.contains(&key) && !key.ends_with("_timer")
                });
                object.values_mut().for_each(strip);
            }
            Value::Array(items) => {
                // The address that the kernel derives from the hardware address.
                items.retain(|item| item["scope"] != "link" || item["family"] != "inet6");
                items.iter_mut().for_each(strip);
            }
            _ => {}
        }
    }
    let args = [&["-j", "-d"], args].concat();
    let mut seen = serde_json::from_str(&run_in(netns, "ip", &args)).unwrap();
    strip(&mut seen);
    seen
}

fn wait_for_addresses(netns: &Path) {
    // Debian's leaves duplicate detection of the bridge's IPv6 address enabled.
    let tentative = ["-6", "-o", "addr", "show", "scope", "global", "tentative"];
    wait_for("addresses stay tentative", || {
        run_in(netns, "ip", &tentative).is_empty()
    });
}

fn kernel_state(bin_dir: &Path, bridge: &Value, ipam: &Value) -> (Value, CniResult) {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[bin_dir]);
    let a = world.netns("a");
    let network = list(&config(&world, "1.0.0", bridge, ipam));
    let mut result = runtime.add(&network, &attachment("a", &a)).unwrap();
    let port = result.interfaces[1].name.clone();
    wait_for_addresses(node(&runtime));
    wait_for_addresses(&a);
    let setting = |netns: &Path, key: &str| sysctl::read_in(netns, key).unwrap();
    let state = json!({
        "eth0": seen(&a, &["addr", "show", "eth0"]),
        "bridge": seen(node(&runtime), &["addr", "show", "cni0"]),
        "port": seen(node(&runtime), &["addr", "show", &port]),
        "routes": [seen(&a, &["route"]), seen(&a, &["-6", "route", "show", "dev", "eth0"])],
        "node's routes": seen(node(&runtime), &["route"]),
        "settings": [
            setting(&a, "net/ipv4/conf/eth0/arp_notify"),
            setting(node(&runtime), "net/ipv4/ip_forward"),
            setting(node(&runtime), "net/ipv6/conf/all/forwarding"),
            setting(node(&runtime), "net/ipv6/conf/cni0/accept_ra"),
            setting(node(&runtime), &format!("net/ipv6/conf/{port}/accept_ra")),
        ],
    });
    for interface in &mut result.interfaces {
        (interface.mac, interface.sandbox) = (String::new(), String::new());
    }
    result.interfaces[1].name = "PORT".to_owned();
    (state, result)
}

#[test]
fn ours_and_debians_leave_the_same_kernel_state() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let v6 = json!({"ranges": [[{"subnet": "fd00:1::/64"}]]});
    let hairpin = json!({"hairpinMode": true, "mtu": 1400});
    for (bridge, ipam) in [
        (json!({}), v4()),
        (json!({}), dual()),
        (json!({"isDefaultGateway": true, "promiscMode": true}), v6),
        (json!({"isGateway": false}), v4()),
        (hairpin, dual()),
    ] {
        let (ours, our_result) = kernel_state(&our_plugins(), &bridge, &ipam);
        let (theirs, their_result) = kernel_state(Path::new(DEBIAN), &bridge, &ipam);
        assert_eq!(our_result, their_result, "{bridge} {ipam}");
        for (key, ours) in ours.as_object().unwrap() {
            assert_eq!(*ours, theirs[key], "{key} of {bridge} {ipam}");
        }
    }
}

#[test]
fn ours_and_debians_delete_each_others_attachments() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for (adds, deletes) in [(&debians, &ours), (&ours, &debians)] {
        let world = NetnsFixture::new();
        let mut runtime = world.runtime(&[adds]);
        let network = list(&config(
            &world,
            "1.0.0",
            &json!({"hairpinMode": true}),
            &dual(),
        ));
        let a = world.netns("a");
        runtime.add(&network, &attachment("a", &a)).unwrap();
        runtime.bin_dirs = vec![deletes.clone()];
        runtime.check(&network, &attachment("a", &a)).unwrap();
        runtime.del(&network, &attachment("a", &a)).unwrap();
        assert_eq!(
            (leases(&world), links(&runtime)),
            (0, vec!["cni0".to_owned()])
        );
        // Once more, into the same namespace.
        runtime.add(&network, &attachment("a", &a)).unwrap();
        runtime.del(&network, &attachment("a", &a)).unwrap();
        assert_eq!(Netlink::open_in(&a).unwrap().link("eth0").unwrap(), None);
    }
}

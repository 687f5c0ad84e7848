//! Namespaces, sysctls and the netlink client, tested against the kernel.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::fd::AsFd;

use ipnet::IpNet;
use podplane_netlink::{Bridge, Netlink, NetlinkError, Request, Route, Veth, netns, sysctl};
use podplane_test_network::{NetnsFixture, exchange, require};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn a_namespace_has_a_name_until_it_is_removed() {
    if !require(&["root"]) {
        return;
    }
    let before = netns::current().unwrap();
    let world = NetnsFixture::new();
    let (a, b) = (world.netns("a"), world.netns("b"));
    let dir = a.parent().unwrap();
    std::fs::write(dir.join("file"), "").unwrap();
    assert_eq!(netns::list(dir).unwrap(), [a.clone(), b.clone()]);
    assert!(netns::create(&a).is_err(), "a name is not given twice");
    let inside = netns::in_netns(&a, || {
        netns::is_same(netns::current().unwrap(), netns::open(&a).unwrap()).unwrap()
    });
    assert!(inside.unwrap());
    assert!(
        netns::is_same(&before, netns::current().unwrap()).unwrap(),
        "the caller has not moved"
    );
    assert!(!netns::is_same(netns::open(&a).unwrap(), netns::open(&b).unwrap()).unwrap());
    netns::remove(&a).unwrap();
    netns::remove(&a).unwrap();
    assert_eq!(netns::list(dir).unwrap(), [b]);
    assert!(netns::open(&a).unwrap_err().is_not_found());
    let failed = netns::create_with(&a, || Err(std::io::ErrorKind::Other.into()));
    assert!(failed.is_err() && !a.exists());
}

#[test]
fn sysctls_are_per_namespace() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let (a, b) = (world.netns("a"), world.netns("b"));
    let key = "net/ipv4/ip_forward";
    let host = sysctl::read(key).unwrap();
    sysctl::write_in(
        &a,
        &[(key, "1"), ("net/ipv6/conf/default/disable_ipv6", "1")],
    )
    .unwrap();
    sysctl::write_in(&b, &[(key, "0")]).unwrap();
    assert_eq!(sysctl::read_in(&a, key).unwrap(), "1");
    assert_eq!(sysctl::read_in(&b, key).unwrap(), "0");
    assert_eq!(
        sysctl::read_in(&b, "net/ipv6/conf/default/disable_ipv6").unwrap(),
        "0"
    );
    assert_eq!(sysctl::read(key).unwrap(), host);
    let error = sysctl::write_in(&a, &[("net/ipv4/conf/nope/arp_notify", "1")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "failed to write sysctl net/ipv4/conf/nope/arp_notify"
    );
}

#[test]
fn link_settings_agree_with_proc_sys() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let a = world.netns("a");
    let mut netlink = Netlink::open_in(&a).unwrap();
    let before = netlink.link("lo").unwrap().unwrap();
    sysctl::write_in(
        &a,
        &[
            ("net/ipv6/conf/lo/accept_ra", "2"),
            ("net/ipv6/conf/lo/accept_dad", "0"),
            ("net/ipv4/conf/lo/arp_announce", "2"),
        ],
    )
    .unwrap();
    netlink
        .execute([Request::arp_notify(before.index)])
        .unwrap();
    let settings = netlink.link("lo").unwrap().unwrap().ipv6.unwrap();
    assert_eq!((settings.accept_ra, settings.accept_dad), (2, 0));
    let read = |key: &str| sysctl::read_in(&a, &format!("net/ipv4/conf/lo/{key}")).unwrap();
    assert_eq!(read("arp_notify"), "1");
    assert_eq!(read("arp_announce"), "2", "others are left as they are");
}

#[test]
fn two_nodes_on_a_fabric_reach_each_others_pods_by_routes() {
    if !require(&["root"]) {
        return;
    }
    const PROTOCOL: u8 = 77;
    let world = NetnsFixture::new();
    let fabric = world.netns("fabric");
    let mut in_fabric = Netlink::open_in(&fabric).unwrap();
    let bridge = Bridge {
        name: "fab0",
        mtu: Some(1400),
        mac: Some([2, 0, 0, 0, 0, 9]),
        vlan_filtering: false,
    };
    in_fabric
        .execute([Request::create_bridge(&bridge)])
        .unwrap();
    let again = in_fabric
        .execute([Request::create_bridge(&bridge)])
        .unwrap_err();
    assert!(again.is_exists());
    assert_eq!(again.to_string(), "failed to create bridge fab0");
    let bridge = in_fabric.link("fab0").unwrap().unwrap();
    assert_eq!(
        (bridge.kind.as_str(), bridge.mtu, bridge.mac_text().as_str()),
        ("bridge", 1400, "02:00:00:00:00:09")
    );
    in_fabric.execute([Request::up(bridge.index)]).unwrap();

    let nodes: Vec<_> = (1..=2_u8)
        .map(|n| {
            let path = world.netns(&format!("node{n}"));
            let file = netns::open(&path).unwrap();
            let name = format!("node{n}");
            let veth = Veth {
                name: &name,
                peer_name: "eth0",
                peer_netns: Some(file.as_fd()),
                mtu: Some(1400),
                controller: Some(bridge.index),
                up: true,
                ..Veth::default()
            };
            in_fabric.execute([Request::create_veth(&veth)]).unwrap();
            let port = in_fabric.link(&name).unwrap().unwrap();
            assert_eq!((port.controller, port.is_up), (Some(bridge.index), true));
            let mut node = Netlink::open_in(&path).unwrap();
            let (lo, eth0) = (
                node.link("lo").unwrap().unwrap(),
                node.link("eth0").unwrap().unwrap(),
            );
            assert_eq!(port.peer, Some(eth0.index));
            // One send for all requests.
            let requests = [
                Request::up(lo.index),
                Request::add_address(lo.index, net(&format!("10.244.{n}.1/32"))),
                Request::add_address(eth0.index, net(&format!("172.18.0.{n}/16"))),
                Request::up(eth0.index),
            ];
            node.execute(requests).unwrap();
            (path, node, eth0.index)
        })
        .collect();
    let [(path1, mut node1, eth1), (path2, mut node2, _)]: [_; 2] = nodes.try_into().unwrap();

    let route = Route {
        protocol: PROTOCOL,
        ..Route::via(net("10.244.2.0/24"), "172.18.0.2".parse().unwrap())
    };
    node1.execute([Request::add_route(&route)]).unwrap();
    assert!(
        node1
            .execute([Request::add_route(&route)])
            .unwrap_err()
            .is_exists()
    );
    node1.execute([Request::replace_route(&route)]).unwrap();
    let back = Route {
        protocol: PROTOCOL,
        ..Route::via(net("10.244.1.0/24"), "172.18.0.1".parse().unwrap())
    };
    node2.execute([Request::add_route(&back)]).unwrap();
    let own = |node: &mut Netlink| -> Vec<Route> {
        let routes = node.routes().unwrap();
        routes
            .into_iter()
            .filter(|route| route.protocol == PROTOCOL)
            .collect()
    };
    let found = own(&mut node1);
    assert_eq!(
        found,
        [Route {
            index: Some(eth1),
            scope: Some(0),
            ..route
        }]
    );
    exchange(&path1, &path2, "10.244.2.1".parse().unwrap());

    node1.execute([Request::delete_route(&found[0])]).unwrap();
    assert!(
        node1
            .execute([Request::delete_route(&found[0])])
            .unwrap_err()
            .is_not_found()
    );
    assert_eq!(own(&mut node1), []);
    let address = net("172.18.0.1/16");
    assert!(
        node1
            .addresses(eth1)
            .unwrap()
            .iter()
            .any(|found| found.net == address && found.is_global)
    );
    node1
        .execute([Request::delete_address(eth1, address)])
        .unwrap();
    assert!(
        !node1
            .addresses(eth1)
            .unwrap()
            .iter()
            .any(|found| found.net == address)
    );
    node1.execute([Request::delete_link(eth1)]).unwrap();
    assert_eq!(node1.link_by_index(eth1).unwrap(), None);
    assert_eq!(in_fabric.link("node1").unwrap(), None);
    assert_eq!(
        in_fabric
            .links()
            .unwrap()
            .iter()
            .filter(|link| link.kind == "veth")
            .count(),
        1
    );
}

#[test]
fn a_batch_continues_after_a_failure_and_returns_the_first() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let mut netlink = Netlink::open_in(&world.netns("a")).unwrap();
    let bridge = |name| {
        Request::create_bridge(&Bridge {
            name,
            ..Bridge::default()
        })
    };
    let error = netlink
        .execute([bridge("a"), Request::up(4711), bridge("a"), bridge("b")])
        .unwrap_err();
    assert_eq!(error.to_string(), "failed to set link 4711 up");
    assert!(error.is_not_found() && matches!(error, NetlinkError::Refused { .. }));
    assert!(netlink.link("b").unwrap().is_some());
    netlink.execute([]).unwrap();
    let b = netlink.link("b").unwrap().unwrap();
    netlink
        .execute([
            Request::mtu(b.index, 1300),
            Request::mac(b.index, &[2, 0, 0, 0, 0, 1]),
            Request::rename(b.index, "c"),
        ])
        .unwrap();
    let c = netlink.link("c").unwrap().unwrap();
    assert_eq!(
        (c.index, c.mtu, c.mac_text().as_str()),
        (b.index, 1300, "02:00:00:00:00:01")
    );
}

#[test]
fn hundreds_of_routes_are_listed() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let mut netlink = Netlink::open_in(&world.netns("a")).unwrap();
    let lo = netlink.link("lo").unwrap().unwrap().index;
    netlink.execute([Request::up(lo)]).unwrap();
    let routes = (0..500_u16).map(|n| {
        let [high, low] = n.to_be_bytes();
        Route {
            protocol: 77,
            ..Route::on_link(net(&format!("10.{high}.{low}.0/24")), lo)
        }
    });
    let requests: Vec<_> = routes.map(|route| Request::add_route(&route)).collect();
    netlink.execute(requests).unwrap();
    let found = netlink.routes().unwrap();
    assert_eq!(
        found.iter().filter(|route| route.protocol == 77).count(),
        500
    );
}

//! Address spaces for tests.

use std::net::{IpAddr, Ipv4Addr};

use podplane_map::{
    AddressClaim, AddressSpace, BlockState, Holder, Network, NetworkRole, NodeBlock, NodeLink,
    NodeRoute, NodeTopology, PodAttachment, PodInterface, SpaceParts,
};

pub(crate) fn network(role: NetworkRole, cidr: &str) -> Network {
    Network::parse(role, cidr, "").unwrap()
}

pub(crate) fn block(cidr: &str, state: BlockState, node: &str) -> NodeBlock {
    NodeBlock::parse(cidr, state, Some(node).filter(|node| !node.is_empty())).unwrap()
}

pub(crate) fn pod(ip: &str, name: &str, node: &str) -> AddressClaim {
    let holder = Holder::Pod {
        name: name.into(),
        node: Some(node.into()),
    };
    AddressClaim::new(ip.parse().unwrap(), holder).unwrap()
}

pub(crate) fn service(ip: &str, name: &str) -> AddressClaim {
    let holder = Holder::Service { name: name.into() };
    AddressClaim::new(ip.parse().unwrap(), holder).unwrap()
}

/// A small cluster after a faulty repair: two nodes have the same block, pods share addresses, a
/// former block is still in use, and an allocation was leaked.
pub(crate) fn duplicates() -> SpaceParts {
    let orphan = Holder::Orphan {
        name: "0f2c9d1e".into(),
        node: Some("node-c".into()),
    };
    let machine = |name: &str| Holder::Node { name: name.into() };
    let mut claims = vec![
        pod("10.244.1.5", "default/web-0", "node-a"),
        pod("10.244.1.5", "default/web-1", "node-b"),
        pod("10.244.1.6", "default/web-2", "node-a"),
        pod("10.244.1.7", "default/web-3", "node-b"),
        pod("10.244.1.7", "kube-system/dns", "node-a"),
        pod("10.244.3.2", "default/api-0", "node-c"),
        pod("10.244.3.9", "default/lost", "node-a"),
        pod("10.244.4.4", "default/old", "node-d"),
        pod("172.20.0.9", "default/stray", "node-c"),
        AddressClaim::new("10.244.3.77".parse().unwrap(), orphan).unwrap(),
        service("10.96.0.1", "default/kubernetes"),
        service("10.96.0.10", "kube-system/dns"),
    ];
    for (ip, name) in [
        ("192.168.10.11", "node-a"),
        ("192.168.10.12", "node-b"),
        ("192.168.10.13", "node-c"),
    ] {
        claims.push(AddressClaim::new(ip.parse().unwrap(), machine(name)).unwrap());
    }
    SpaceParts {
        networks: vec![
            network(NetworkRole::Pods, "10.244.0.0/20"),
            network(NetworkRole::Services, "10.96.0.0/16"),
            network(NetworkRole::Nodes, "192.168.10.0/24"),
        ],
        blocks: vec![
            block("10.244.1.0/24", BlockState::Assigned, "node-a"),
            block("10.244.1.0/24", BlockState::Foreign, "node-b"),
            block("10.244.3.0/24", BlockState::Assigned, "node-c"),
            block("10.244.4.0/24", BlockState::Held, "node-d")
                .with_details("held by instance 5ab1c0de since 2026-11-01T10:00:00Z"),
            block("10.244.6.0/23", BlockState::Quarantined, "node-e"),
        ],
        claims,
        unlocated_orphans: vec![("node-b".into(), 2)],
        ..SpaceParts::default()
    }
}

/// An IPv6 cluster of three nodes, one with many pods.
pub(crate) fn ipv6() -> SpaceParts {
    let nodes = [
        "fd00:10:244:1::/64",
        "fd00:10:244:7::/64",
        "fd00:10:244:ff00::/64",
    ];
    let blocks = nodes.iter().zip(["node-a", "node-b", "node-c"]);
    let blocks = blocks.map(|(cidr, node)| block(cidr, BlockState::Assigned, node));
    let pods = (2..40u16).map(|n| {
        let ip = format!("fd00:10:244:7::{n:x}");
        pod(&ip, &format!("default/web-{n}"), "node-b")
    });
    SpaceParts {
        networks: vec![
            network(NetworkRole::Pods, "fd00:10:244::/48"),
            network(NetworkRole::Services, "fd00:10:96::/112"),
        ],
        blocks: blocks.collect(),
        claims: pods
            .chain([
                pod("fd00:10:244:1::2", "default/one", "node-a"),
                pod("fd00:10:244:9::2", "default/lost", "node-a"),
                service("fd00:10:96::1", "default/kubernetes"),
            ])
            .collect(),
        ..SpaceParts::default()
    }
}

/// 5,000 nodes with a /24 each in a /8, and 30 pods on each.
pub(crate) fn large() -> SpaceParts {
    let mut parts = SpaceParts {
        networks: vec![
            network(NetworkRole::Pods, "10.0.0.0/8"),
            network(NetworkRole::Services, "172.16.0.0/12"),
            network(NetworkRole::Nodes, "192.168.0.0/16"),
        ],
        ..SpaceParts::default()
    };
    for node in 0..5000u32 {
        let name = format!("node-{node:04}");
        // A block in three is in use.
        let first = 0x0a00_0000 + ((node * 3) << 8);
        let cidr = format!("{}/24", Ipv4Addr::from_bits(first));
        parts.blocks.push(block(&cidr, BlockState::Assigned, &name));
        for pod in 0..30 {
            let holder = Holder::Pod {
                name: format!("namespace-{}/pod-{node}-{pod}", pod % 7).into(),
                node: Some(name.as_str().into()),
            };
            let ip = IpAddr::V4(Ipv4Addr::from_bits(first + 2 + pod));
            parts.claims.push(AddressClaim::new(ip, holder).unwrap());
        }
    }
    parts
}

pub(crate) fn space(parts: SpaceParts) -> AddressSpace {
    AddressSpace::new(parts)
}

/// A node with a bridge and two pods, a pod with a link of its own, and one whose link is missing.
pub(crate) fn topology() -> NodeTopology {
    let net = |text: &str| text.parse().unwrap();
    let link = |name: &str, kind: &str, master: Option<&str>, addresses: &[&str]| NodeLink {
        name: name.into(),
        kind: kind.into(),
        is_up: true,
        master: master.map(Into::into),
        peer: None,
        addresses: addresses.iter().map(|text| net(text)).collect(),
    };
    let pod = |name: &str, link: Option<&str>, address: &str| PodAttachment {
        pod: format!("default/{name}"),
        sandbox: format!("sandbox-{name}"),
        interfaces: vec![PodInterface {
            name: "eth0".into(),
            link: link.map(Into::into),
            addresses: vec![net(address)],
        }],
    };
    let route = |destination: &str, via: Option<&str>, dev: &str| NodeRoute {
        destination: net(destination),
        via: via.map(|ip| ip.parse().unwrap()),
        dev: Some(dev.into()),
    };
    let to_pod = |pod: &str, link: NodeLink| NodeLink {
        peer: Some(format!("default/{pod}")),
        ..link
    };
    NodeTopology {
        node: "node-1".into(),
        namespace: "/run/podplane/netns/node-1".into(),
        links: vec![
            link("lo", "", None, &["127.0.0.1/8", "::1/128"]),
            link("eth0", "veth", None, &["172.18.0.3/24"]),
            link("cni0", "bridge", None, &["10.244.1.1/24"]),
            to_pod("web-0", link("veth1a2b3c4d", "veth", Some("cni0"), &[])),
            NodeLink {
                is_up: false,
                ..to_pod("web-1", link("veth5e6f7a8b", "veth", Some("cni0"), &[]))
            },
            to_pod("alone", link("vethptp", "veth", None, &["10.244.1.1/32"])),
        ],
        pods: vec![
            pod("web-0", Some("veth1a2b3c4d"), "10.244.1.2/24"),
            pod("web-1", Some("veth5e6f7a8b"), "10.244.1.3/24"),
            pod("alone", Some("vethptp"), "10.244.1.9/24"),
            pod("lost<script>", None, "10.244.1.77/24"),
        ],
        routes: vec![
            route("0.0.0.0/0", Some("172.18.0.1"), "eth0"),
            route("10.244.1.0/24", None, "cni0"),
            route("10.244.2.0/24", Some("172.18.0.4"), "eth0"),
        ],
    }
    .sorted()
}

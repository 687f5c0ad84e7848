//! A pod with several networks, attached at once by the real plugins.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use podplane_cni::{Attachment, NetworkConfigList};
use podplane_netlink::Netlink;
use podplane_test_network::{
    DEBIAN, NetnsFixture, attachment, exchange, list, our_plugins, require, tree,
};
use serde_json::json;

/// Three networks: two on bridges of their own, and one that shares the first one's bridge.
fn networks(
    world: &NetnsFixture,
    pod: &Path,
    third_subnet: &str,
) -> Vec<(NetworkConfigList, Attachment)> {
    let of = |(name, bridge, subnet, ifname): (&str, &str, &str, &str)| {
        let network = list(&json!({"cniVersion": "1.0.0", "name": name, "plugins": [
            {"type": "bridge", "bridge": bridge, "ipam": {"type": "host-local", "dataDir": world.path("networks"), "subnet": subnet}}]}));
        let mut attachment = attachment("pod", pod);
        attachment.ifname = ifname.to_owned();
        (network, attachment)
    };
    [
        ("blue", "br0", "10.1.0.0/24", "eth0"),
        ("red", "br1", "10.2.0.0/24", "net1"),
        ("green", "br0", third_subnet, "net2"),
    ]
    .map(of)
    .into()
}

fn links(netns: &Path) -> Vec<String> {
    let links = Netlink::open_in(netns).unwrap().links().unwrap();
    links
        .into_iter()
        .map(|link| link.name)
        .filter(|name| name != "lo")
        .collect()
}

fn leases(world: &NetnsFixture) -> usize {
    let of = |network| tree(&world.path("networks").join(network));
    let files = ["blue", "red", "green"].into_iter().flat_map(of);
    files.filter(|(name, _)| name.starts_with("10.")).count()
}

fn at_once(plugins: &Path) {
    let world = NetnsFixture::new();
    let runtime = world.runtime(&[plugins]);
    let node = runtime.node_netns.clone().unwrap();
    let (pod, peer) = (world.netns("pod"), world.netns("peer"));
    let attached = networks(&world, &pod, "10.3.0.0/24");
    let results = runtime
        .add_all(&attached)
        .unwrap_or_else(|error| panic!("{}", error.message()));
    let mut inside = links(&pod);
    inside.sort();
    assert_eq!(inside, ["eth0", "net1", "net2"]);
    assert_eq!((leases(&world), runtime.cached().unwrap().len()), (3, 3));
    // The pod is reached over each network.
    for ((network, _), result) in attached.iter().zip(&results) {
        let mut other = attachment("peer", &peer);
        other.ifname = network.name.clone();
        runtime.add(network, &other).unwrap();
        exchange(&peer, &pod, result.ips[0].address.addr());
        runtime.del(network, &other).unwrap();
    }
    runtime.del_all(&attached).unwrap();
    assert_eq!(
        (
            links(&pod).len(),
            leases(&world),
            runtime.cached().unwrap().len()
        ),
        (0, 0, 0)
    );

    // The third range has no address to give: everything is undone, except the bridges.
    let full = networks(&world, &pod, "10.3.0.0/31");
    let error = runtime.add_all(&full).unwrap_err().message();
    assert!(error.contains("too small to allocate from"), "{error}");
    assert_eq!(
        (
            links(&pod).len(),
            leases(&world),
            runtime.cached().unwrap().len()
        ),
        (0, 0, 0)
    );
    let mut left = links(&node);
    left.sort();
    assert_eq!(left, ["br0", "br1"]);
}

#[test]
fn our_plugins_attach_three_networks_at_once() {
    if require(&["root"]) {
        at_once(&our_plugins());
    }
}

#[test]
fn the_references_plugins_attach_three_networks_at_once() {
    if require(&["root", "cni-plugins"]) {
        at_once(Path::new(DEBIAN));
    }
}

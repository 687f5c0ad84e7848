//! Networks of `bridge` and `host-local`.

use std::path::Path;

use podplane_cni::{CniResult, Runtime};
use podplane_netlink::Netlink;
use serde_json::{Value, json};

use podplane_test_network::NetnsFixture;

/// The configuration of a list of one bridge, with these keys on top of the usual ones.
pub(crate) fn config(world: &NetnsFixture, version: &str, bridge: &Value, ipam: &Value) -> Value {
    let mut plugin = json!({"type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": {"type": "host-local"}});
    plugin["ipam"]["dataDir"] = world.path("networks").to_str().unwrap().into();
    for (key, value) in bridge.as_object().unwrap() {
        plugin[key] = value.clone();
    }
    for (key, value) in ipam.as_object().unwrap() {
        plugin["ipam"][key] = value.clone();
    }
    json!({"cniVersion": version, "name": "net", "plugins": [plugin]})
}

pub(crate) fn v4() -> Value {
    json!({"ranges": [[{"subnet": "10.244.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]})
}

pub(crate) fn dual() -> Value {
    json!({
        "ranges": [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    })
}

pub(crate) fn node(runtime: &Runtime) -> &Path {
    runtime.node_netns.as_deref().unwrap()
}

/// The number of leases of the network.
pub(crate) fn leases(world: &NetnsFixture) -> usize {
    podplane_host_local::usage(&world.path("networks/net"))
        .unwrap()
        .len()
}

/// The names of the node's links, without `lo`.
pub(crate) fn links(runtime: &Runtime) -> Vec<String> {
    let links = Netlink::open_in(node(runtime)).unwrap().links().unwrap();
    links
        .into_iter()
        .map(|link| link.name)
        .filter(|name| name != "lo")
        .collect()
}

/// The n-th address of a result.
pub(crate) fn ip(result: &CniResult, n: usize) -> std::net::IpAddr {
    result.ips[n].address.addr()
}

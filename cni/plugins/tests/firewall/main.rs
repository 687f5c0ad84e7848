//! The program `firewall` in namespaces of the test's own: the traffic that passes, and a
//! comparison of rules and answers with Debian's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod exchange;
mod firewalld;
mod traffic;

use std::path::{Path, PathBuf};

use podplane_netlink::netns;
use podplane_test_network::{DEBIAN, call, our_plugins, run_in};
use serde_json::{Value, json};

fn ours() -> PathBuf {
    our_plugins().join("firewall")
}

fn debians() -> PathBuf {
    Path::new(DEBIAN).join("firewall")
}

/// A configuration with these keys, and a previous result with addresses of both families.
fn config(more: &Value) -> Value {
    let mut config = json!({
        "cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables",
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/x"}],
            "ips": [{"address": "10.244.1.2/24", "interface": 1}, {"address": "fd00:1::2/64", "interface": 1}],
        },
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// A configuration for the n-th pod, on a bridge.
fn config_of_pod(n: usize, bridge: &str, more: &Value) -> Value {
    let mut config = config(more);
    let addresses = [format!("10.244.1.{n}/24"), format!("fd00:1::{n:x}/64")];
    config["prevResult"]["ips"] = addresses
        .map(|address| json!({"address": address}))
        .to_vec()
        .into();
    config["prevResult"]["interfaces"][0]["name"] = bridge.into();
    config
}

fn run(netns: &Path, plugin: &Path, command: &str, config: &Value) -> (i32, String) {
    netns::in_netns(netns, || call(plugin, command, "a", "", config)).unwrap()
}

/// Runs a plugin, which must succeed.
fn succeed(netns: &Path, plugin: &Path, command: &str, config: &Value) {
    let (code, stdout) = run(netns, plugin, command, config);
    assert_eq!(code, 0, "{command} {config}: {stdout}");
}

/// The tables `filter` of both families, as iptables shows them.
fn rules(netns: &Path) -> Vec<String> {
    let shown =
        ["iptables", "ip6tables"].map(|program| run_in(netns, program, &["-t", "filter", "-S"]));
    let lines = shown.iter().flat_map(|shown| shown.lines());
    lines.map(str::to_owned).collect()
}

/// The rules of containers.
fn own_rules(netns: &Path) -> Vec<String> {
    let mut rules = rules(netns);
    rules.retain(|rule| rule.starts_with("-A CNI-FORWARD") && rule.ends_with("-j ACCEPT"));
    rules
}

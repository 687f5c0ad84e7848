//! The program `loopback` beside Debian's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use podplane_netlink::{Netlink, Request};
use podplane_test_network::{DEBIAN, NetnsFixture, call_in, our_plugins, require};
use serde_json::{Value, json};

/// The answer to a command for a namespace whose `lo` has these additional addresses.
fn answer(dir: &Path, command: &str, addresses: &[&str], config: &Value) -> (i32, Value) {
    let world = NetnsFixture::new();
    let netns = world.netns("a");
    let mut netlink = Netlink::open_in(&netns).unwrap();
    let lo = netlink.link("lo").unwrap().unwrap().index;
    let nets = addresses.iter().map(|address| address.parse().unwrap());
    let requests = nets.map(|net| Request::add_address_unasked(lo, net));
    netlink.execute(requests).unwrap();
    let (code, stdout) = call_in(&dir.join("loopback"), command, &netns, config);
    let stdout = stdout.replace(netns.to_str().unwrap(), "/the/netns");
    let mut value: Value = serde_json::from_str(&stdout).unwrap_or_default();
    if value["cniVersion"] == "1.0.0" && value["dns"] == json!({}) {
        value.as_object_mut().unwrap().remove("dns");
    }
    // It prints its own result in the format of 1.0.0 whatever the version.
    for ip in value["ips"].as_array_mut().into_iter().flatten() {
        ip.as_object_mut().unwrap().remove("version");
    }
    if command == "ADD" {
        let lo = netlink.link("lo").unwrap().unwrap();
        assert!(lo.is_up || code != 0);
    }
    (code, value)
}

#[test]
fn every_configuration_is_answered_like_debians() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let previous = |version: &str| {
        json!({
            "cniVersion": version,
            "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/x"}],
            "ips": [{"version": "4", "interface": 0, "address": "10.0.0.2/24", "gateway": "10.0.0.1"}],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dns": {"nameservers": ["10.0.0.53"]},
        })
    };
    let (ours, debians) = (our_plugins(), PathBuf::from(DEBIAN));
    for version in ["0.3.1", "0.4.0", "1.0.0"] {
        let alone = json!({"cniVersion": version, "name": "lo", "type": "loopback"});
        let mut chained = alone.clone();
        chained["prevResult"] = previous(version);
        let mut broken = alone.clone();
        broken["prevResult"] = json!({"ips": [{"version": "4", "address": "10.0.0.2"}]});
        for command in ["ADD", "DEL", "CHECK"] {
            for (config, addresses) in [
                (&alone, &[][..]),
                (&alone, &["127.0.0.7/8", "127.1.0.1/16"]),
                (&alone, &["10.0.0.1/32"]),
                (&chained, &[]),
                (&chained, &["fd00::1/128"]),
                (&broken, &[]),
            ] {
                assert_eq!(
                    answer(&ours, command, addresses, config),
                    answer(&debians, command, addresses, config),
                    "{command} {addresses:?} {config}"
                );
            }
        }
    }
}

#[test]
fn del_succeeds_without_the_namespace() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let left = world.path("left");
    std::fs::write(&left, "").unwrap();
    let config = json!({"cniVersion": "1.1.0", "name": "lo", "type": "loopback"});
    let ours = our_plugins().join("loopback");
    for netns in [left, world.path("gone")] {
        assert_eq!(call_in(&ours, "DEL", &netns, &config), (0, String::new()));
    }
}

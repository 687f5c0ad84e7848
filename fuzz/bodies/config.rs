//! Fuzzes configurations of networks and plugins: whatever they contain, they are parsed or
//! rejected.
//!
//! The input is `CNI_ARGS`, the byte 0x1e, and the configuration.

use podplane_cni::{
    NetworkConfigList, Version,
    skel::{Call, Plugin},
    trace::StepPrinter,
    types::validate,
};
use podplane_cni_plugins::{
    bandwidth::Bandwidth, bridge::BridgePlugin, firewall::Firewall, loopback::Loopback,
    portmap::Portmap, ptp::Ptp, static_ipam::StaticIpam, tuning::Tuning,
};

pub(crate) fn run(data: &[u8]) {
    let at = data.iter().position(|byte| *byte == 0x1e);
    let (args, text) = match at {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (&b""[..], data),
    };
    let args = String::from_utf8_lossy(args).into_owned();
    host_local_config(text, &args);
    lists(text);
    plugins(text, args);
}

fn host_local_config(text: &[u8], args: &str) {
    let Ok(config) = podplane_host_local::Config::parse(text, args) else {
        return;
    };
    assert!(
        !config.sets.is_empty(),
        "accepted a configuration without ranges"
    );
    for (index, set) in config.sets.iter().enumerate() {
        for range in set.ranges() {
            assert!(
                range.start() <= range.end(),
                "{range:?} ends before it starts"
            );
            assert!(
                range.subnet().contains(&range.start()),
                "{range:?} leaves its subnet"
            );
            assert!(
                range.subnet().contains(&range.end()),
                "{range:?} leaves its subnet"
            );
        }
        for other in &config.sets[..index] {
            let shared = |range: &podplane_host_local::Range| {
                let ends = other
                    .ranges()
                    .iter()
                    .any(|o| o.contains(range.start()) || o.contains(range.end()));
                ends || other.ranges().iter().any(|o| range.contains(o.start()))
            };
            assert!(
                !set.ranges().iter().any(shared),
                "{set} and {other} overlap"
            );
        }
    }
    let _ = podplane_host_local::capacity(&config).pods();
    if validate::network_name(&config.name).is_err() {
        return; // No plugin gets so far with it.
    }
    // A name is one directory, below the directory of all networks.
    let dir = config.dir();
    assert_eq!(
        dir.file_name().and_then(|name| name.to_str()),
        Some(config.name.as_str())
    );
}

fn lists(text: &[u8]) {
    for list in [
        NetworkConfigList::from_list(text),
        NetworkConfigList::from_plugin(text),
    ] {
        let Ok(list) = list else { continue };
        assert!(!list.plugins.is_empty(), "accepted a list without plugins");
        for plugin in &list.plugins {
            // In any letter case of the key.
            let mut keys = plugin
                .iter()
                .filter(|(key, _)| key.eq_ignore_ascii_case("type"));
            assert!(
                keys.any(|(_, name)| name.as_str().is_some_and(|name| !name.is_empty())),
                "accepted a plugin without a type"
            );
        }
        for version in Version::ALL {
            let _ = list.is_at_least(version);
        }
        // A later DEL must be able to parse the cached bytes of a list.
        let again = NetworkConfigList::from_list(&list.bytes);
        assert_eq!(
            again.ok().as_ref(),
            Some(&list),
            "the cached bytes of a list are another list"
        );
        let _ = podplane_host_local::Config::of_network(&list);
    }
}

/// Runs plugins. CHECK and STATUS change nothing, there is no other plugin to call, and the
/// namespace does not exist: so this parses the configuration, with `prevResult`, and little else.
/// The static plugin changes nothing in any command.
fn plugins(text: &[u8], args: String) {
    for version in [Version::V0_4_0, Version::V1_1_0] {
        let call = Call {
            container_id: "c".to_owned(),
            netns: "/does/not/exist".to_owned(),
            ifname: "eth0".to_owned(),
            args: args.clone(),
            path: Vec::new(),
            stdin: text.to_owned(),
            version,
            tell: StepPrinter::default(),
        };
        let plugins: [&dyn Plugin; 8] = [
            &BridgePlugin,
            &Firewall,
            &Ptp,
            &StaticIpam,
            &Loopback,
            &Portmap,
            &Tuning,
            &Bandwidth,
        ];
        for plugin in plugins {
            let _ = plugin.check(&call);
            let _ = plugin.status(&call);
        }
        if let Ok(result) = StaticIpam.add(&call) {
            let _ = result.with_version(version).to_json();
        }
    }
}

//! The program `static` beside Debian's.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use podplane_test_network::{DEBIAN, call, our_plugins, require};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

/// One of few values, so that collisions happen, and sometimes an invalid one.
fn cidr() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        12 => select(vec![
            "10.0.0.1/24", "10.0.0.2/24", "10.0.0.0/8", "192.168.7.7/32", "0.0.0.0/0",
            "fd00::1/64", "fd00::2/64", "fd00:0:0:1::/48", "::/0", "::ffff:10.0.0.1/120",
        ]),
        1 => select(vec!["10.0.0.1", "", "fd00::1", "10.0.0.1/33", "10.0.0/24", "x/8", "10.0.0.1/24 ", "fe80::1%eth0/64"]),
    ]
}

fn ip() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        12 => select(vec!["10.0.0.254", "10.0.0.1", "192.168.7.1", "fd00::fe", "::1", "::ffff:10.0.0.3", ""]),
        1 => select(vec!["x", "10.0.0", "010.0.0.1", "10.0.0.1/24"]),
    ]
}

fn route() -> impl Strategy<Value = Value> {
    (cidr(), proptest::option::of(ip())).prop_map(|(dst, gw)| {
        let mut route = json!({"dst": dst});
        if let Some(gw) = gw {
            route["gw"] = gw.into();
        }
        route
    })
}

fn address() -> impl Strategy<Value = Value> {
    (cidr(), proptest::option::of(ip()), 0..8_u8).prop_map(|(cidr, gateway, odd)| {
        let mut address = json!({"address": cidr});
        if let Some(gateway) = gateway {
            address["gateway"] = gateway.into();
        }
        match odd {
            0 => address["version"] = "4".into(),
            1 => address["unknown"] = 7.into(),
            _ => {}
        }
        address
    })
}

fn dns() -> impl Strategy<Value = Value> {
    select(vec![
        json!({}),
        json!({"nameservers": ["10.0.0.53"], "domain": "a<b", "search": ["x", "y"]}),
        json!({"options": ["ndots:5"], "Search": []}),
    ])
}

fn cni_args() -> impl Strategy<Value = String> {
    let one = prop_oneof![
        3 => vec(cidr(), 1..3).prop_map(|list| format!("IP={}", list.join(", "))),
        3 => vec(ip(), 1..3).prop_map(|list| format!("GATEWAY={}", list.join(","))),
        1 => select(vec!["IgnoreUnknown=1", "IgnoreUnknown=maybe", "X=y", "ip=10.0.0.1/8", "IP", "A=B=C", "IP="])
            .prop_map(str::to_owned),
    ];
    prop_oneof![
        Just(String::new()),
        vec(one, 1..4).prop_map(|pairs| pairs.join(";"))
    ]
}

#[derive(Debug, Clone)]
struct StaticCase {
    config: Value,
    args: String,
}

fn case() -> impl Strategy<Value = StaticCase> {
    let versions = vec![
        json!(""),
        json!("0.1.0"),
        json!("0.2.0"),
        json!("0.3.0"),
        json!("0.3.1"),
        json!("0.4.0"),
        json!("1.0.0"),
        json!("1.0.0"),
        json!("1.0.0"),
        json!("7.0.0"),
        Value::Null,
    ];
    let ipam = (vec(address(), 0..4), vec(route(), 0..3), dns()).prop_map(|(addresses, routes, dns)| {
        json!({"type": "static", "addresses": addresses, "routes": routes, "dns": dns})
    });
    let ipam = prop_oneof![
        20 => ipam,
        1 => select(vec![Value::Null, json!({}), json!(7), json!({"addresses": {}}), json!({"addresses": [null]})]),
    ];
    let list = || prop_oneof![3 => Just(vec![]), 1 => vec(cidr(), 1..3)];
    (select(versions), ipam, list(), list(), cni_args()).prop_map(
        |(version, ipam, by_args, by_runtime, args)| {
            let mut config =
                json!({"cniVersion": version, "name": "net", "type": "bridge", "ipam": ipam});
            if !by_args.is_empty() {
                config["args"] = json!({"cni": {"ips": by_args}});
            }
            if !by_runtime.is_empty() {
                config["runtimeConfig"] = json!({"ips": by_runtime});
            }
            StaticCase { config, args }
        },
    )
}

/// The part of an answer that can be compared.
///
/// 1.1.1 prints an empty `dns` also from 1.0.0 on, which later versions do not. Errors about values
/// of the wrong type name types of the program.
fn comparable(answer: (i32, String)) -> (i32, Value) {
    let (code, stdout) = answer;
    let mut value = serde_json::from_str(&stdout).unwrap_or(Value::Null);
    if value["cniVersion"] == "1.0.0" && value["dns"] == json!({}) {
        value.as_object_mut().unwrap().remove("dns");
    }
    if let Some(details) = value["details"].as_str() {
        value["details"] = details.replace(" \"1.1.0\"]", "]").into(); // It knows 1.0.0 at most.
    }
    let is_of_wrong_type =
        |text: &str| text.contains("cannot unmarshal") || text.contains("invalid type");
    if value["msg"].as_str().is_some_and(is_of_wrong_type) {
        value["msg"] = "a value of the wrong type".into();
    }
    (code, value)
}

fn both(command: &str, args: &str, config: &Value) -> [(i32, Value); 2] {
    let programs = [
        our_plugins().join("static"),
        Path::new(DEBIAN).join("static"),
    ];
    programs.map(|program| comparable(call(&program, command, "a", args, config)))
}

#[test]
fn random_configurations_are_answered_like_debians() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let config = ProptestConfig {
        cases: 800,
        failure_persistence: None,
        rng_seed: proptest::test_runner::RngSeed::Fixed(3),
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let successes = std::cell::Cell::new(0);
    runner
        .run(&case(), |StaticCase { config, args }| {
            let [ours, debians] = both("ADD", &args, &config);
            prop_assert_eq!(&ours, &debians);
            if ours.0 != 0 {
                return Ok(());
            }
            successes.set(successes.get() + 1);
            // CHECK finds what was given, unless a gateway was changed.
            let mut checked = config.clone();
            checked["prevResult"] = ours.1.clone();
            let [ours, debians] = both("CHECK", &args, &checked);
            prop_assert_eq!(ours, debians);
            for ip in checked["prevResult"]["ips"]
                .as_array_mut()
                .into_iter()
                .flatten()
            {
                ip["gateway"] = "203.0.113.1".into();
            }
            let [ours, debians] = both("CHECK", &args, &checked);
            prop_assert_eq!(ours, debians);
            let [ours, debians] = both("DEL", &args, &config);
            prop_assert_eq!(ours, debians);
            Ok(())
        })
        .unwrap();
    let successes = successes.get();
    assert!(
        successes > 200,
        "only {successes} configurations were accepted"
    );
}

/// The reference's types have a field `Address` besides the one that is `address` in JSON, so Go
/// programs print both.
#[test]
fn reads_configurations_printed_by_go() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let text = ("address", json!("10.0.0.1/24"));
    let parsed = ("Address", json!({"IP": "", "Mask": null}));
    for fields in [[&text, &parsed], [&parsed, &text]] {
        let fields = fields.map(|(key, value)| (key.to_string(), value.clone()));
        let address = Value::Object(fields.into_iter().collect());
        let config =
            json!({"cniVersion": "1.0.0", "name": "net", "ipam": {"addresses": [address]}});
        let [ours, debians] = both("ADD", "", &config);
        assert_eq!(ours, debians, "{config}");
        assert_eq!(ours.1["ips"][0]["address"], "10.0.0.1/24", "{config}");
    }
}

#[test]
fn check_fails_if_the_previous_result_lacks_an_address() {
    let ours = our_plugins().join("static");
    let config = json!({
        "cniVersion": "1.1.0", "name": "net", "ipam": {"addresses": [{"address": "10.0.0.1/24"}]},
        "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]},
    });
    let (code, value) = comparable(call(&ours, "CHECK", "a", "", &config));
    assert_eq!(
        (code, value["msg"].as_str().unwrap()),
        (1, "static: Failed to match addr 10.0.0.1 on interface eth0")
    );
}

#[test]
fn routes_of_1_1_keep_their_properties_and_status_refuses_a_broken_configuration() {
    let ours = our_plugins().join("static");
    let route = json!({"dst": "10.9.0.0/16", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 100, "scope": 253});
    let config = json!({
        "cniVersion": "1.1.0", "name": "net",
        "ipam": {"addresses": [{"address": "10.0.0.1/24", "gateway": "10.0.0.254"}], "routes": [route]},
    });
    let (code, value) = comparable(call(&ours, "ADD", "a", "", &config));
    assert_eq!((code, &value["routes"][0]), (0, &route));
    for command in ["STATUS", "GC", "DEL"] {
        assert_eq!(
            call(&ours, command, "a", "", &config),
            (0, String::new()),
            "{command}"
        );
    }
    let broken = json!({"cniVersion": "1.1.0", "name": "net", "ipam": {"addresses": [{"address": "10.0.0.1"}]}});
    let (code, value) = comparable(call(&ours, "STATUS", "a", "", &broken));
    assert_eq!((code, &value["code"]), (1, &json!(999)));
}

use super::*;

fn sample(version: Version) -> CniResult {
    CniResult {
        version,
        ips: vec![
            IpConfig {
                interface: None,
                address: "10.1.2.3/24".parse().unwrap(),
                gateway: Some("10.1.2.1".parse().unwrap()),
            },
            IpConfig {
                interface: None,
                address: "fd00::2/64".parse().unwrap(),
                gateway: Some("fd00::1".parse().unwrap()),
            },
        ],
        routes: vec![Route {
            dst: Some("10.0.0.5/8".parse().unwrap()),
            mtu: 1400,
            table: Some(0),
            ..Route::default()
        }],
        ..CniResult::default()
    }
}

#[test]
fn from_1_0_keys_are_sorted_and_empty_dns_is_left_out() {
    let mut result = sample(Version::V1_0_0);
    result.ips.truncate(1);
    let text = "{\n    \"cniVersion\": \"1.0.0\",\n    \"ips\": [\n        {\n            \"address\": \"10.1.2.3/24\",\n            \"gateway\": \"10.1.2.1\"\n        }\n    ],\n    \"routes\": [\n        {\n            \"dst\": \"10.0.0.5/8\",\n            \"mtu\": 1400,\n            \"table\": 0\n        }\n    ]\n}";
    assert_eq!(result.to_json(), text);
}

#[test]
fn from_0_3_keys_are_in_the_order_of_the_struct() {
    let mut result = sample(Version::V0_4_0);
    result.ips.truncate(1);
    result.routes.clear();
    let text = "{\n    \"cniVersion\": \"0.4.0\",\n    \"ips\": [\n        {\n            \"version\": \"4\",\n            \"address\": \"10.1.2.3/24\",\n            \"gateway\": \"10.1.2.1\"\n        }\n    ],\n    \"dns\": {}\n}";
    assert_eq!(result.to_json(), text);
}

#[test]
fn route_properties_are_as_wide_as_those_of_the_reference() {
    let text = r#"{"dst":"10.0.0.0/8","mtu":-1,"advmss":4294967296,"priority":-1,"table":4294967297,"scope":1500}"#;
    let route: Route = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&route).unwrap(), text);
}

#[test]
fn results_before_0_3_have_one_address_per_family() {
    let text = sample(Version::V0_2_0).to_json();
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        value,
        serde_json::json!({
            "cniVersion": "0.2.0",
            "ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "10.0.0.5/8"}]},
            "ip6": {"ip": "fd00::2/64", "gateway": "fd00::1"},
            "dns": {},
        })
    );
    assert!(text.find("\"ip4\"") < text.find("\"ip6\""));
}

#[test]
fn results_of_every_version_round_trip() {
    for version in Version::ALL {
        let mut expected = sample(version);
        expected.dns.nameservers.push("10.96.0.10".to_owned());
        if version < Version::V0_3_0 {
            expected.routes[0] = Route {
                dst: expected.routes[0].dst,
                ..Route::default()
            };
        }
        let read = CniResult::parse(expected.to_json().as_bytes(), "").unwrap();
        assert_eq!(read, expected, "{version}");
    }
}

#[test]
fn a_result_without_version_has_that_of_the_configuration() {
    assert_eq!(
        CniResult::parse(b"null", "0.4.0").unwrap().version,
        Version::V0_4_0
    );
    let error = CniResult::parse(br#"{"cniVersion": "7.0.0"}"#, "1.0.0").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unsupported CNI result version \"7.0.0\""
    );
    let error = CniResult::parse(b"hello", "1.0.0").unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("failed to unmarshal raw result: "),
        "{error}"
    );
}

#[test]
fn a_route_without_destination_prints_as_the_reference_prints_it() {
    let result = CniResult {
        version: Version::V1_1_0,
        routes: vec![Route::default()],
        ..CniResult::default()
    };
    assert!(result.to_json().contains(r#""dst": "\u003cnil\u003e""#));
}

use serde_json::{Value, json};

use super::*;

fn ipam(ipam: Value) -> Result<Config, String> {
    parse(json!({"name": "n", "cniVersion": "1.0.0", "ipam": ipam}))
}

fn parse(document: Value) -> Result<Config, String> {
    with_args(document, "")
}

fn with_args(document: Value, args: &str) -> Result<Config, String> {
    Config::parse(document.to_string().as_bytes(), args).map_err(|error| {
        assert_eq!(error.code, 999);
        error.msg
    })
}

#[test]
fn faults_have_the_texts_of_the_reference() {
    let range = |range: Value| ipam(json!({"ranges": [[range]]})).unwrap_err();
    assert_eq!(
        range(json!({})),
        "invalid range set 0: IP <nil> not v4 nor v6"
    );
    assert_eq!(
        range(json!({"subnet": "10.0.0.0/31"})),
        "invalid range set 0: Network 10.0.0.0/31 too small to allocate from"
    );
    assert_eq!(
        range(json!({"subnet": "10.0.0.5/24"})),
        "invalid range set 0: Network has host bits set. For a subnet mask of length 24 the network address is 10.0.0.0"
    );
    assert_eq!(
        range(json!({"subnet": "::ffff:10.0.0.0/120"})),
        "invalid range set 0: IPNet IP and Mask version mismatch"
    );
    assert_eq!(
        range(json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"})),
        "invalid range set 0: RangeStart 10.0.1.1 not in network 10.0.0.0/24"
    );
    assert_eq!(
        range(json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"})),
        "invalid range set 0: RangeStart 10.0.0.9 not in network 10.0.0.0/24"
    );
    assert_eq!(
        range(json!({"subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.0"})),
        "invalid range set 0: RangeEnd 10.0.0.0 not in network 10.0.0.0/24"
    );
    let subnet = "ipam.ranges[0][0].subnet: invalid CIDR address: ";
    assert!(range(json!({"subnet": "x"})).starts_with(&format!("{subnet}x at line 1")));
    assert!(range(json!({"subnet": null})).starts_with(subnet));
    assert!(
        range(json!({"subnet": "10.0.0.0/24", "gateway": "x"}))
            .starts_with("ipam.ranges[0][0].gateway: invalid IP address: x")
    );
    assert_eq!(ipam(json!({})).unwrap_err(), "no IP ranges specified");
    assert_eq!(
        ipam(json!({"ranges": [[]]})).unwrap_err(),
        "invalid range set 0: empty range set"
    );
    assert_eq!(
        parse(json!({"name": "n"})).unwrap_err(),
        "IPAM config missing 'ipam' key"
    );
    let start = ipam(json!({"rangeStart": "x"})).unwrap_err();
    assert!(start.starts_with("ipam.rangeStart: invalid IP address: x"));
}

#[test]
fn a_start_at_the_broadcast_address_needs_an_end() {
    let start = json!({"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.255"});
    let error = ipam(start).unwrap_err();
    assert_eq!(
        error,
        "invalid range set 0: RangeStart 10.5.0.255 not in network 10.5.0.0/24"
    );
    let both =
        json!({"subnet": "10.5.0.0/24", "rangeStart": "10.5.0.255", "rangeEnd": "10.5.0.255"});
    assert_eq!(
        ipam(both).unwrap().sets[0].to_string(),
        "10.5.0.255-10.5.0.255"
    );
}

#[test]
fn refuses_mixed_or_overlapping_range_sets() {
    let a = json!({"subnet": "10.0.0.0/24"});
    let v6 = json!({"subnet": "fd00::/64"});
    assert_eq!(
        ipam(json!({"ranges": [[a, v6]]})).unwrap_err(),
        "invalid range set 0: mixed address families"
    );
    assert_eq!(
        ipam(json!({"ranges": [[a, a]]})).unwrap_err(),
        "invalid range set 0: subnets 10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.0.254 overlap"
    );
    assert_eq!(
        ipam(json!({"ranges": [[a], [v6], [a]]})).unwrap_err(),
        "range set 0 overlaps with 2"
    );
    let two = json!({"ranges": [[a], [{"subnet": "10.0.1.0/24"}]]});
    let old = |version: &str| {
        parse(json!({"name": "n", "cniVersion": version, "ipam": two})).unwrap_err()
    };
    assert_eq!(
        old("0.2.0"),
        "CNI version 0.2.0 does not support more than 1 address per family"
    );
    assert_eq!(
        old(""),
        "CNI version  does not support more than 1 address per family"
    );
}

#[test]
fn range_sets_have_the_order_of_the_reference() {
    let document = json!({
        "name": "n",
        "ipam": {"Subnet": "10.1.0.0/24", "ranges": [[{"subnet": "fd00::/64"}]]},
        "RuntimeConfig": {"ipRanges": [[{"subnet": "10.2.0.0/24"}]]},
        "cniVersion": "1.0.0",
    });
    let sets: Vec<_> = parse(document)
        .unwrap()
        .sets
        .iter()
        .map(RangeSet::to_string)
        .collect();
    assert_eq!(
        sets,
        [
            "10.2.0.1-10.2.0.254",
            "10.1.0.1-10.1.0.254",
            "fd00::1-fd00::ffff:ffff:ffff:ffff"
        ]
    );
}

#[test]
fn collects_requested_addresses_from_all_three_sources() {
    let document = json!({
        "name": "n", "ipam": {"subnet": "10.1.0.0/24"},
        "args": {"cni": {"ips": ["10.1.0.6/24", "10.1.0.5"]}},
        "runtimeConfig": {"ips": ["::ffff:10.1.0.7"]},
    });
    let config = with_args(
        document.clone(),
        "IgnoreUnknown=TRUE;K8S_POD_NAME=x;IP=10.1.0.5",
    )
    .unwrap();
    let texts: Vec<_> = config.requested.iter().map(IpAddr::to_string).collect();
    assert_eq!(texts, ["10.1.0.5", "10.1.0.6", "10.1.0.7"]);
    for (args, expected) in [
        ("A=b=c", r#"ARGS: invalid pair "A=b=c""#),
        ("IP=10.1.0.5;", r#"ARGS: invalid pair """#),
        (
            "IP=bad",
            r#"ARGS: error parsing value of pair "IP=bad": invalid IP address bad"#,
        ),
        (
            "IgnoreUnknown=z",
            r#"ARGS: error parsing value of pair "IgnoreUnknown=z": boolean unmarshal error: invalid input z"#,
        ),
        (
            "K8S_POD_NAME=x;FOO=bar",
            r#"ARGS: unknown args ["K8S_POD_NAME=x" "FOO=bar"]"#,
        ),
    ] {
        assert_eq!(with_args(document.clone(), args).unwrap_err(), expected);
    }
    let empty =
        json!({"name": "n", "ipam": {"subnet": "10.1.0.0/24"}, "args": {"cni": {"ips": [""]}}});
    assert_eq!(
        parse(empty).unwrap_err(),
        "cannot understand ip: IP <nil> not v4 nor v6"
    );
}

#[test]
fn capacity_counts_the_assignable_addresses() {
    let pods = |value: Value| capacity(&ipam(value).unwrap());
    for (subnet, expected) in [("10.0.0.0/30", 1), ("10.0.0.0/29", 5), ("10.0.0.0/24", 253)] {
        let found = pods(json!({"subnet": subnet}));
        assert_eq!(
            found,
            Capacity {
                ipv4: Some(expected),
                ipv6: None
            }
        );
    }
    let dual = json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/126"}]]});
    assert_eq!(
        pods(dual.clone()),
        Capacity {
            ipv4: Some(253),
            ipv6: Some(2)
        }
    );
    assert_eq!(pods(dual).pods(), 2);
    let elsewhere =
        json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.10", "rangeEnd": "10.0.0.19"});
    assert_eq!(pods(elsewhere).pods(), 10);
    assert!(pods(json!({"subnet": "::/0"})).pods() > u128::MAX - 4);
}

//! Capability arguments of CNI plugins (`runtimeConfig`), made of a sandbox's CRI configuration.
//!
//! The set of arguments is containerd's, their names are those of CNI's conventions. The CNI
//! runtime passes each to the plugins whose configuration declares it under `capabilities`, and to
//! no other.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use podplane_api::{Quantity, quantity};
use podplane_proto::cri;
use serde_json::{Map, Value, json};
use tonic::Status;

use super::record::Dns;

/// Ports of the host that lead to ports of the pod.
const PORT_MAPPINGS: &str = "portMappings";
const BANDWIDTH: &str = "bandwidth";
const DNS: &str = "dns";
const IP_RANGES: &str = "ipRanges";
const CGROUP_PATH: &str = "cgroupPath";
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Annotations that limit a pod's traffic, with the names of the rate and of the burst.
const LIMITS: [(&str, &str, &str); 2] = [
    (
        "kubernetes.io/ingress-bandwidth",
        "ingressRate",
        "ingressBurst",
    ),
    (
        "kubernetes.io/egress-bandwidth",
        "egressRate",
        "egressBurst",
    ),
];
/// The lowest rate that Kubernetes accepts, in bits per second.
const MIN_RATE: i64 = 1_000;
const MAX_RATE: i64 = 1_000_000_000_000_000;
/// The burst in containerd's requests: no limit but the plugin's own.
const BURST: u32 = u32::MAX;

/// The parts of a sandbox's configuration that capability arguments are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapabilitySource<'a> {
    pub(super) ports: &'a [cri::PortMapping],
    pub(super) annotations: &'a BTreeMap<String, String>,
    pub(super) dns: Option<&'a Dns>,
    pub(super) cgroup_parent: &'a str,
}

/// The capability arguments of a sandbox. Those without a value are left out.
///
/// # Errors
///
/// `InvalidArgument` for an invalid port, address or rate.
pub(super) fn of(source: CapabilitySource<'_>) -> Result<Map<String, Value>, Status> {
    let CapabilitySource {
        ports,
        annotations,
        dns,
        cgroup_parent,
    } = source;
    let mappings = port_mappings(ports)?;
    let bandwidth = bandwidth(annotations)?;
    let mut arguments = Map::new();
    if !mappings.is_empty() {
        arguments.insert(PORT_MAPPINGS.to_owned(), mappings.into());
    }
    if !bandwidth.is_empty() {
        arguments.insert(BANDWIDTH.to_owned(), bandwidth.into());
    }
    if let Some(dns) = dns {
        arguments.insert(DNS.to_owned(), json!(dns));
    }
    if !annotations.is_empty() {
        arguments.insert(POD_ANNOTATIONS.to_owned(), json!(annotations));
    }
    if !cgroup_parent.is_empty() {
        arguments.insert(CGROUP_PATH.to_owned(), cgroup_parent.into());
    }
    Ok(arguments)
}

/// Adds the node's blocks as ranges, a set for each address family.
pub(super) fn add_ranges(arguments: &mut Map<String, Value>, blocks: &[IpNet]) {
    if !blocks.is_empty() {
        let sets: Vec<_> = blocks.iter().map(|net| json!([{"subnet": net}])).collect();
        arguments.insert(IP_RANGES.to_owned(), sets.into());
    }
}

/// Mappings as plugins read them. Those without a port of the host are left out, repeated ones are
/// merged.
fn port_mappings(ports: &[cri::PortMapping]) -> Result<Vec<Value>, Status> {
    let mut seen = BTreeSet::new();
    let mut mappings = Vec::new();
    for (index, mapping) in ports.iter().enumerate() {
        let cri::PortMapping {
            protocol: _,
            container_port,
            host_port,
            host_ip,
        } = mapping;
        if *host_port == 0 {
            continue;
        }
        let field = |name: &str| format!("config.port_mappings[{index}].{name}");
        let protocol = cri::Protocol::try_from(mapping.protocol).map_err(|_| {
            let field = field("protocol");
            Status::invalid_argument(format!("{field}: unknown value {}", mapping.protocol))
        })?;
        let protocol = protocol.as_str_name().to_lowercase();
        let host_port = port(&field("host_port"), *host_port)?;
        let container_port = port(&field("container_port"), *container_port)?;
        if !host_ip.is_empty() && host_ip.parse::<IpAddr>().is_err() {
            let field = field("host_ip");
            return Err(Status::invalid_argument(format!(
                "{field}: invalid address {host_ip:?}"
            )));
        }
        if !seen.insert((host_port, container_port, protocol.clone(), host_ip.clone())) {
            continue;
        }
        let mut value = json!({
            "hostPort": host_port,
            "containerPort": container_port,
            "protocol": protocol,
        });
        if !host_ip.is_empty() {
            value["hostIP"] = json!(host_ip);
        }
        mappings.push(value);
    }
    Ok(mappings)
}

fn port(field: &str, number: i32) -> Result<u16, Status> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| {
        Status::invalid_argument(format!(
            "{field}: invalid port {number}: must be from 1 to 65535"
        ))
    })
}

/// Rates in bits per second, from the annotations of the pod.
fn bandwidth(annotations: &BTreeMap<String, String>) -> Result<Map<String, Value>, Status> {
    let mut limits = Map::new();
    for (annotation, rate, burst) in LIMITS {
        let Some(text) = annotations.get(annotation) else {
            continue;
        };
        let invalid = |why: String| {
            Status::invalid_argument(format!("config.annotations[{annotation:?}]: {why}"))
        };
        let bits =
            quantity::units(&Quantity(text.clone())).map_err(|error| invalid(error.to_string()))?;
        if !(MIN_RATE..=MAX_RATE).contains(&bits) {
            return Err(invalid(format!(
                "unreasonable rate {text:?}: must be from 1k to 1P bits per second"
            )));
        }
        limits.insert(rate.to_owned(), bits.into());
        limits.insert(burst.to_owned(), BURST.into());
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn source<'a>(
        ports: &'a [cri::PortMapping],
        annotations: &'a BTreeMap<String, String>,
    ) -> CapabilitySource<'a> {
        CapabilitySource {
            ports,
            annotations,
            dns: None,
            cgroup_parent: "",
        }
    }

    fn mapping(host_port: i32, protocol: cri::Protocol) -> cri::PortMapping {
        cri::PortMapping {
            protocol: protocol.into(),
            container_port: 80,
            host_port,
            host_ip: String::new(),
        }
    }

    fn annotated(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        let pairs = pairs.iter();
        pairs.map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    #[test]
    fn maps_only_ports_with_a_host_port() {
        let mut one_address = mapping(8443, cri::Protocol::Sctp);
        one_address.host_ip = "10.0.0.1".into();
        let ports = [
            mapping(8080, cri::Protocol::Tcp),
            mapping(0, cri::Protocol::Tcp),
            mapping(53, cri::Protocol::Udp),
            mapping(8080, cri::Protocol::Tcp),
            one_address,
        ];
        let arguments = of(source(&ports, &BTreeMap::new())).unwrap();
        let want = json!({"portMappings": [
            {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
            {"hostPort": 53, "containerPort": 80, "protocol": "udp"},
            {"hostPort": 8443, "containerPort": 80, "protocol": "sctp", "hostIP": "10.0.0.1"},
        ]});
        assert_eq!(Value::Object(arguments), want);
    }

    #[test]
    fn refuses_invalid_ports_and_addresses() {
        let refused = |mapping| {
            let error = of(source(&[mapping], &BTreeMap::new())).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            error.message().to_owned()
        };
        for number in [-1, 65536] {
            let text = refused(mapping(number, cri::Protocol::Tcp));
            assert!(text.contains(&format!("host_port: invalid port {number}")));
        }
        let mut bad = mapping(80, cri::Protocol::Tcp);
        bad.container_port = 0;
        assert!(refused(bad.clone()).contains("container_port"));
        bad.container_port = 80;
        bad.host_ip = "localhost".into();
        assert!(refused(bad.clone()).contains("localhost"));
        bad.host_ip = String::new();
        bad.protocol = 17;
        assert!(refused(bad).contains("protocol: unknown value 17"));
    }

    #[test]
    fn reads_bandwidth_from_annotations() {
        let annotations = annotated(&[
            ("kubernetes.io/ingress-bandwidth", "10M"),
            ("kubernetes.io/egress-bandwidth", "512k"),
        ]);
        let arguments = of(source(&[], &annotations)).unwrap();
        assert_eq!(
            arguments["bandwidth"],
            json!({"ingressRate": 10_000_000, "ingressBurst": u32::MAX,
                "egressRate": 512_000, "egressBurst": u32::MAX})
        );
        assert_eq!(
            arguments["io.kubernetes.cri.pod-annotations"],
            json!(annotations)
        );
        let one = annotated(&[("kubernetes.io/egress-bandwidth", "1k")]);
        let arguments = of(source(&[], &one)).unwrap();
        assert!(arguments["bandwidth"].get("ingressRate").is_none());
        for bad in ["999", "2P", "fast", "-1M", ""] {
            let annotations = annotated(&[("kubernetes.io/ingress-bandwidth", bad)]);
            let error = of(source(&[], &annotations)).unwrap_err();
            assert!(error.message().contains("ingress-bandwidth"), "{error}");
        }
    }

    #[test]
    fn omits_capabilities_without_a_value() {
        let none = BTreeMap::new();
        assert_eq!(of(source(&[], &none)).unwrap(), Map::new());
        let dns = Dns {
            servers: vec!["10.96.0.10".into()],
            ..Dns::default()
        };
        let mut arguments = of(CapabilitySource {
            dns: Some(&dns),
            cgroup_parent: "/kubepods/besteffort/pod1",
            ..source(&[], &none)
        })
        .unwrap();
        add_ranges(
            &mut arguments,
            &["10.1.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()],
        );
        let want = json!({
            "cgroupPath": "/kubepods/besteffort/pod1",
            "dns": {"servers": ["10.96.0.10"], "searches": [], "options": []},
            "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
        });
        assert_eq!(Value::Object(arguments), want);
    }
}

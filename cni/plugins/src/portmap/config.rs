//! The configuration of `portmap`.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_cni::{
    skel::{Call, previous_result},
    types::{CniError, CniResult, json, parse_ip},
};
use podplane_netlink::nft::expr::Transport;
use serde::Deserialize;

use crate::masquerade::MasqueradeBackend;

// Keys are folded before decoding, so the names here are lower case.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PortmapConf {
    backend: Option<String>,
    snat: Option<bool>,
    conditionsv4: Vec<String>,
    conditionsv6: Vec<String>,
    masqall: bool,
    markmasqbit: Option<i64>,
    externalsetmarkchain: Option<String>,
    runtimeconfig: RuntimeConfig,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    portmappings: Vec<ConfiguredMapping>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfiguredMapping {
    hostport: i64,
    containerport: i64,
    protocol: String,
    hostip: String,
}

/// A port of the host that leads to a port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) transport: Transport,
    pub(super) host_port: u16,
    pub(super) container_port: u16,
    /// The host's address; `None` for all its addresses.
    pub(super) host_ip: Option<IpAddr>,
    /// The family, if the configured host address was the unspecified one of a family; `None` for
    /// both.
    only_v4: Option<bool>,
}

impl Mapping {
    /// Returns true if the mapping leads to a container's address of that family.
    pub(super) fn is_for(&self, v4: bool) -> bool {
        self.only_v4.is_none_or(|only_v4| only_v4 == v4)
    }
}

/// The parsed configuration.
#[derive(Debug, Clone)]
pub(super) struct PortmapConfig {
    /// The backend that is configured by name, or needed by an option that only it has.
    backend: Option<MasqueradeBackend>,
    /// The result of the plugins earlier in the chain.
    pub(super) previous: Option<CniResult>,
    pub(super) mappings: Vec<Mapping>,
    /// The container's addresses, at most one of each family.
    pub(super) addresses: Vec<IpNet>,
    /// Masquerade connections from the host itself, and from the container to itself.
    pub(super) snat: bool,
    /// Masquerade all other connections, too.
    pub(super) masquerade_all: bool,
    /// Additional conditions for packets, in the language of the backend's program: for IPv4 and
    /// IPv6.
    conditions: [Vec<String>; 2],
    /// The bit of the mark that tells iptables what to masquerade; nftables needs none.
    pub(super) mark_bit: Option<u32>,
    /// An existing iptables chain of another program, which sets such a mark.
    pub(super) external_mark_chain: Option<String>,
}

impl PortmapConfig {
    /// Parses the configuration, with the reference's error texts in the reference's order.
    pub(super) fn parse(call: &Call) -> Result<Self, CniError> {
        let document: PortmapConf = json::read_folded(&call.stdin).map_err(|error| {
            CniError::internal(format!("failed to parse network configuration: {error}"))
        })?;
        let previous = previous_result(call).map_err(|error| CniError {
            msg: format!("could not parse prevResult: {}", error.msg),
            ..error
        })?;
        let addresses = previous.as_ref().map(|previous| addresses(call, previous));
        Self::from_document(document, previous, addresses.unwrap_or_default())
            .map_err(CniError::internal)
    }

    fn from_document(
        document: PortmapConf,
        previous: Option<CniResult>,
        addresses: Vec<IpNet>,
    ) -> Result<Self, String> {
        let PortmapConf {
            backend,
            snat,
            conditionsv4,
            conditionsv6,
            masqall,
            markmasqbit,
            externalsetmarkchain,
            runtimeconfig,
        } = document;
        if markmasqbit.is_some() && externalsetmarkchain.is_some() {
            return Err("Cannot specify externalSetMarkChain and markMasqBit".to_owned());
        }
        let mark_bit = markmasqbit.map(|bit| match u32::try_from(bit) {
            Ok(bit) if bit <= 31 => Ok(bit),
            _ => Err("MasqMarkBit must be between 0 and 31".to_owned()),
        });
        let mark_bit = mark_bit.transpose()?;
        let external = externalsetmarkchain.as_ref();
        let options = [
            (
                external.map(|_| MasqueradeBackend::Iptables),
                "externalSetMarkChain",
            ),
            (backend_of(&conditionsv4), "conditionsV4"),
            (backend_of(&conditionsv6), "conditionsV6"),
        ];
        let backend = choose_backend(backend.as_deref(), &options)?;
        if backend == Some(MasqueradeBackend::Iptables) {
            let words = external
                .into_iter()
                .chain(&conditionsv4)
                .chain(&conditionsv6);
            words.map(String::as_str).try_for_each(check_word)?;
        }
        let mappings = runtimeconfig.portmappings.iter().map(mapping);
        Ok(Self {
            backend,
            previous,
            mappings: mappings.collect::<Result<_, _>>()?,
            addresses,
            snat: snat.unwrap_or(true),
            masquerade_all: masqall,
            conditions: [conditionsv4, conditionsv6],
            mark_bit,
            external_mark_chain: externalsetmarkchain,
        })
    }

    /// The backend that makes the rules.
    pub(super) fn backend(&self) -> MasqueradeBackend {
        self.backend.unwrap_or_else(MasqueradeBackend::preferred)
    }

    pub(super) fn conditions(&self, v4: bool) -> &[String] {
        let [of_v4, of_v6] = &self.conditions;
        if v4 { of_v4 } else { of_v6 }
    }

    /// The mappings that lead to a container's address of that family.
    pub(super) fn mappings(&self, v4: bool) -> impl DoubleEndedIterator<Item = &Mapping> {
        self.mappings
            .iter()
            .filter(move |mapping| mapping.is_for(v4))
    }

    /// The host's ports that are mapped by UDP for that family.
    pub(super) fn udp_ports(&self, v4: bool) -> Vec<u16> {
        let udp = self
            .mappings(v4)
            .filter(|mapping| mapping.transport == Transport::Udp);
        udp.map(|mapping| mapping.host_port).collect()
    }
}

/// The backend whose language the conditions are in: a match of `iptables` begins with a hyphen or
/// an exclamation mark, and none of `nft` does.
fn backend_of(conditions: &[String]) -> Option<MasqueradeBackend> {
    let first = conditions.first()?.chars().next()?;
    Some(match first {
        '-' | '!' => MasqueradeBackend::Iptables,
        _ => MasqueradeBackend::Nftables,
    })
}

/// The backend that is named; otherwise the one that the options need, if they need one.
fn choose_backend(
    name: Option<&str>,
    options: &[(Option<MasqueradeBackend>, &str)],
) -> Result<Option<MasqueradeBackend>, String> {
    let needed = options.iter().find_map(|(backend, _)| *backend);
    let backend = match name {
        None => needed,
        Some("nftables") => Some(MasqueradeBackend::Nftables),
        Some("iptables") => Some(MasqueradeBackend::Iptables),
        Some(other) => return Err(format!("unrecognized backend {}", json::go_quote(other))),
    };
    let Some(backend) = backend else {
        return Ok(None);
    };
    let foreign: Vec<_> = options
        .iter()
        .filter(|(needed, _)| needed.is_some_and(|needed| needed != backend))
        .map(|(_, option)| *option)
        .collect();
    if foreign.is_empty() {
        return Ok(Some(backend));
    }
    let (asked, other) = match backend {
        MasqueradeBackend::Nftables => ("nftables", "iptables"),
        MasqueradeBackend::Iptables => ("iptables", "nftables"),
    };
    Err(format!(
        "{asked} backend was requested but configuration contains {other}-specific options [{}]",
        foreign.join(" ")
    ))
}

/// Refuses control characters: a newline would begin a command of its own in the input of
/// `iptables-restore`.
fn check_word(word: &str) -> Result<(), String> {
    if word.contains(char::is_control) {
        let word = json::go_quote(word);
        return Err(format!(
            "invalid externalSetMarkChain or condition {word}: leave control characters out"
        ));
    }
    Ok(())
}

fn mapping(entry: &ConfiguredMapping) -> Result<Mapping, String> {
    let port = |port: i64, whose: &str| match u16::try_from(port) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(format!("Invalid {whose} port number: {port}")),
    };
    let container_port = port(entry.containerport, "container")?;
    let host_port = port(entry.hostport, "host")?;
    let transport = match entry.protocol.to_lowercase().as_str() {
        "tcp" => Transport::Tcp,
        "udp" => Transport::Udp,
        "sctp" => Transport::Sctp,
        _ => {
            let protocol = json::go_quote(&entry.protocol);
            return Err(format!(
                "invalid protocol {protocol} of host port {host_port}: it is none of tcp, udp, sctp"
            ));
        }
    };
    let host_ip = if entry.hostip.is_empty() {
        None
    } else {
        let ip = parse_ip(&entry.hostip);
        Some(ip.map_err(|error| format!("invalid hostIP of host port {host_port}: {error}"))?)
    };
    Ok(Mapping {
        transport,
        host_port,
        container_port,
        host_ip: host_ip.filter(|ip| !ip.is_unspecified()),
        only_v4: host_ip.map(|ip| ip.is_ipv4()),
    })
}

/// The first address of each family, leaving out addresses known to be on other interfaces.
fn addresses(call: &Call, previous: &CniResult) -> Vec<IpNet> {
    let is_elsewhere = |index: u32| {
        let interface = usize::try_from(index).ok();
        let interface = interface.and_then(|index| previous.interfaces.get(index));
        interface.is_some_and(|i| i.name != call.ifname || i.sandbox.is_empty())
    };
    let mut found: Vec<IpNet> = Vec::new();
    for ip in &previous.ips {
        let address = ip.address;
        let is_v4 = |net: &IpNet| net.addr().is_ipv4();
        let has_one = found.iter().any(|other| is_v4(other) == is_v4(&address));
        if !has_one && !ip.interface.is_some_and(is_elsewhere) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use podplane_cni::{trace::StepPrinter, types::Version};
    use serde_json::{Value, json};

    fn parse(more: Value) -> Result<PortmapConfig, String> {
        let mut config = more;
        config["name"] = "net".into();
        let call = Call {
            container_id: "a".to_owned(),
            netns: "/x".to_owned(),
            ifname: "eth0".to_owned(),
            args: String::new(),
            path: Vec::new(),
            stdin: config.to_string().into_bytes(),
            version: Version::V1_0_0,
            tell: StepPrinter::default(),
        };
        PortmapConfig::parse(&call).map_err(|error| error.msg)
    }

    fn mapped(entry: Value) -> Result<PortmapConfig, String> {
        parse(json!({"runtimeConfig": {"portMappings": [entry]}}))
    }

    #[test]
    fn faults_match_the_reference_or_name_the_value() {
        let fault = |config: Value| parse(config).unwrap_err();
        assert_eq!(
            fault(json!({"markMasqBit": 3, "externalSetMarkChain": "X"})),
            "Cannot specify externalSetMarkChain and markMasqBit"
        );
        assert_eq!(
            fault(json!({"markMasqBit": 32})),
            "MasqMarkBit must be between 0 and 31"
        );
        assert_eq!(fault(json!({"backend": "x"})), "unrecognized backend \"x\"");
        let mut of_iptables = json!({"externalSetMarkChain": "KUBE-MARK-MASQ", "conditionsV4": ["!", "-d", "10.0.0.0/8"]});
        let implied = parse(of_iptables.clone()).unwrap();
        assert_eq!(implied.backend, Some(MasqueradeBackend::Iptables));
        let of_nft = json!({"backend": "iptables", "conditionsV6": ["tcp", "dport", "1"]});
        assert_eq!(
            fault(of_nft),
            "iptables backend was requested but configuration contains nftables-specific options [conditionsV6]"
        );
        assert_eq!(
            fault(json!({"conditionsV4": ["-d\n-F"]})),
            "invalid externalSetMarkChain or condition \"-d\\n-F\": leave control characters out"
        );
        of_iptables["backend"] = "nftables".into();
        assert_eq!(
            fault(of_iptables),
            "nftables backend was requested but configuration contains iptables-specific options [externalSetMarkChain conditionsV4]"
        );
        let fault = |entry: Value| mapped(entry).unwrap_err();
        let entry = json!({"hostPort": 80, "containerPort": 0, "protocol": "tcp"});
        assert_eq!(fault(entry), "Invalid container port number: 0");
        let entry = json!({"hostPort": 65536, "containerPort": 1, "protocol": "tcp"});
        assert_eq!(fault(entry), "Invalid host port number: 65536");
        let entry = json!({"hostPort": 80, "containerPort": 1, "protocol": "dccp"});
        assert_eq!(
            fault(entry),
            "invalid protocol \"dccp\" of host port 80: it is none of tcp, udp, sctp"
        );
        let entry = json!({"hostPort": 80, "containerPort": 1, "protocol": "tcp", "hostIP": "x"});
        assert_eq!(
            fault(entry),
            "invalid hostIP of host port 80: invalid IP address: x"
        );
    }

    #[test]
    fn an_unspecified_host_address_selects_its_family() {
        let families = |host_ip: &str| {
            let entry =
                json!({"hostPort": 80, "containerPort": 1, "protocol": "UDP", "hostIP": host_ip});
            let config = mapped(entry).unwrap();
            let mapping = config.mappings[0];
            (
                mapping.host_ip.is_some(),
                [true, false].map(|v4| mapping.is_for(v4)),
            )
        };
        assert_eq!(families(""), (false, [true, true]));
        assert_eq!(families("0.0.0.0"), (false, [true, false]));
        assert_eq!(families("::"), (false, [false, true]));
        assert_eq!(families("127.0.0.1"), (true, [true, false]));
        assert_eq!(families("fd00::1"), (true, [false, true]));
    }

    #[test]
    fn takes_only_addresses_of_the_containers_interface() {
        let config = parse(json!({"prevResult": {
            "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/x"}, {"name": "eth1", "sandbox": "/x"}],
            "ips": [
                {"address": "10.0.0.1/24", "interface": 0},
                {"address": "10.0.1.1/24", "interface": 2},
                {"address": "10.0.2.1/24", "interface": 1},
                {"address": "10.0.3.1/24", "interface": 1},
                {"address": "fd00::1/64"},
            ],
        }}));
        let addresses = config.unwrap().addresses;
        assert_eq!(
            addresses,
            [
                "10.0.2.1/24".parse::<IpNet>().unwrap(),
                "fd00::1/64".parse().unwrap()
            ]
        );
    }
}

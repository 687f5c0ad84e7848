//! The node's part of the ranges that the cloud has assigned to its instance.
//!
//! Pure. The rules and texts are those of cloud-provider-gcp's cloudCIDRAllocator.

use std::{collections::BTreeMap, fmt};

use ipnet::IpNet;
use podplane_ipam::net::Family;
use podplane_proto::cloud::{Instance, NetworkInterface};

/// The name of an instance's primary interface.
const PRIMARY: &str = "nic0";
/// Each network other than the pods' has its addresses as a resource of this name with the suffix
/// `.IP`.
pub(crate) const NETWORK_RESOURCE: &str = "networking.gke.io.networks/";

/// The families of the cluster, the primary one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackType {
    Ipv4,
    Ipv4Ipv6,
    Ipv6Ipv4,
    Ipv6,
}

impl StackType {
    /// The families of a cluster with these service ranges.
    pub(crate) fn of(services: &[IpNet]) -> Self {
        let families: Vec<Family> = services.iter().map(Family::of).collect();
        match families[..] {
            [Family::V4, Family::V6] => Self::Ipv4Ipv6,
            [Family::V6, Family::V4] => Self::Ipv6Ipv4,
            [Family::V6] => Self::Ipv6,
            // Also without service ranges.
            _ => Self::Ipv4,
        }
    }
}

impl fmt::Display for StackType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv4Ipv6 => "IPv4_IPv6",
            Self::Ipv6Ipv4 => "IPv6_IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

/// The ranges for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ranges {
    /// Its blocks, one for each family of the cluster.
    pub(crate) pod_cidrs: Vec<String>,
    /// The numbers of addresses of other networks, by resource name.
    pub(crate) capacity: BTreeMap<String, u64>,
}

/// The reasons why a node gets no ranges.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRanges {
    #[error("failed to allocate cidr: Node {0} has no ranges from which CIDRs can be allocated")]
    None(String),
    #[error(
        "failed to allocate cidr: Node {node} has no ranges from which CIDRs can be allocated for the cluster stack family {stack}"
    )]
    OfStack { node: String, stack: StackType },
    #[error("failed to parse strings [{text}] as CIDRs: {reason}")]
    Invalid { text: String, reason: String },
}

/// The ranges for `node` from its instance. No interface has more than one range of each family, so
/// there are never more than two blocks.
pub(crate) fn ranges(
    node: &str,
    instance: &Instance,
    stack: StackType,
) -> Result<Ranges, NoRanges> {
    let interfaces = &instance.network_interfaces;
    let primary = interfaces.iter().find(|nic| nic.name == PRIMARY);
    let Some(primary) = primary.or(interfaces.first()) else {
        return Err(NoRanges::None(node.to_owned()));
    };
    let v4 = alias(primary);
    let v6 = Some(primary.ipv6_cidr_range.as_str()).filter(|range| !range.is_empty());
    if interfaces.len() == 1 && v4.is_none() && v6.is_none() {
        return Err(NoRanges::None(node.to_owned()));
    }
    let wanted = match stack {
        StackType::Ipv4 => vec![v4],
        StackType::Ipv4Ipv6 => vec![v4, v6],
        StackType::Ipv6Ipv4 => vec![v6, v4],
        StackType::Ipv6 => vec![v6],
    };
    let found: Option<Vec<&str>> = wanted.into_iter().collect();
    let found = found.ok_or_else(|| NoRanges::OfStack {
        node: node.to_owned(),
        stack,
    })?;
    Ok(Ranges {
        pod_cidrs: found.into_iter().map(canonical).collect::<Result<_, _>>()?,
        capacity: capacity(primary, interfaces)?,
    })
}

/// The interface's first IPv4 alias range.
fn alias(nic: &NetworkInterface) -> Option<&str> {
    let first = nic.alias_ip_ranges.first()?;
    Some(first.ip_cidr_range.as_str())
}

fn parse(text: &str) -> Result<IpNet, NoRanges> {
    podplane_ipam::parse_cidr(text).map_err(|invalid| NoRanges::Invalid {
        text: text.to_owned(),
        reason: invalid.to_string(),
    })
}

/// The range as a node's block must be written: without host bits.
fn canonical(text: &str) -> Result<String, NoRanges> {
    Ok(parse(text)?.trunc().to_string())
}

/// Counts half of the addresses of each other network, since the address of an ended pod may still
/// be in use when the next one starts.
fn capacity(
    primary: &NetworkInterface,
    interfaces: &[NetworkInterface],
) -> Result<BTreeMap<String, u64>, NoRanges> {
    let mut capacity = BTreeMap::new();
    for nic in interfaces {
        let Some(range) = alias(nic) else { continue };
        let name = format!("{NETWORK_RESOURCE}{}.IP", nic.network);
        if nic.network == primary.network || capacity.contains_key(&name) {
            continue;
        }
        let net = parse(range)?;
        let bits = net.max_prefix_len() - net.prefix_len();
        let half = 1_u64.checked_shl(u32::from(bits.saturating_sub(1)));
        capacity.insert(name, half.unwrap_or(u64::MAX));
    }
    Ok(capacity)
}

#[cfg(test)]
mod tests {
    use podplane_proto::cloud::AliasIpRange;

    use super::*;

    fn nic(name: &str, network: &str, aliases: &[&str], v6: &str) -> NetworkInterface {
        let alias = |range: &&str| AliasIpRange {
            ip_cidr_range: (*range).to_owned(),
            subnetwork_range_name: String::new(),
        };
        NetworkInterface {
            name: name.to_owned(),
            network: network.to_owned(),
            alias_ip_ranges: aliases.iter().map(alias).collect(),
            ipv6_cidr_range: v6.to_owned(),
        }
    }

    fn assigned(stack: StackType, nics: &[NetworkInterface]) -> Result<Ranges, String> {
        let instance = Instance {
            provider_id: "gce://demo/a/n".to_owned(),
            network_interfaces: nics.to_vec(),
        };
        ranges("n", &instance, stack).map_err(|error| error.to_string())
    }

    #[test]
    fn derives_the_families_from_service_ranges() {
        use StackType::{Ipv4, Ipv4Ipv6, Ipv6, Ipv6Ipv4};
        let cases: [(&[&str], _, _); 5] = [
            (&[], Ipv4, "IPv4"),
            (&["10.96.0.0/16"], Ipv4, "IPv4"),
            (&["10.96.0.0/16", "fd00::/112"], Ipv4Ipv6, "IPv4_IPv6"),
            (&["fd00::/112", "10.96.0.0/16"], Ipv6Ipv4, "IPv6_IPv4"),
            (&["fd00::/112"], Ipv6, "IPv6"),
        ];
        for (services, want, text) in cases {
            let services: Vec<IpNet> = services.iter().map(|net| net.parse().unwrap()).collect();
            assert_eq!(StackType::of(&services), want, "{services:?}");
            assert_eq!(want.to_string(), text);
        }
    }

    #[test]
    fn assigns_the_first_range_of_each_family() {
        use StackType::{Ipv4, Ipv4Ipv6, Ipv6, Ipv6Ipv4};
        const V4: &str = "192.168.1.0/24";
        const V6: &str = "2001:db9::/112";
        let none =
            "failed to allocate cidr: Node n has no ranges from which CIDRs can be allocated";
        let of = |stack: &str| format!("{none} for the cluster stack family {stack}");
        let dual = || vec![nic("nic0", "default", &[V4, "10.0.0.0/24"], V6)];
        let v4 = || vec![nic("nic0", "default", &[V4], "")];
        let v6 = || vec![nic("nic0", "default", &[], V6)];
        let cases = [
            (Ipv4, vec![], Err(none.to_owned())),
            (
                Ipv4,
                vec![nic("nic0", "default", &[], "")],
                Err(none.to_owned()),
            ),
            (Ipv4, v4(), Ok(vec![V4])),
            (Ipv4, dual(), Ok(vec![V4])),
            (Ipv4, v6(), Err(of("IPv4"))),
            (Ipv4Ipv6, dual(), Ok(vec![V4, V6])),
            (Ipv4Ipv6, v4(), Err(of("IPv4_IPv6"))),
            (Ipv6Ipv4, dual(), Ok(vec![V6, V4])),
            (Ipv6Ipv4, v6(), Err(of("IPv6_IPv4"))),
            (Ipv6, v6(), Ok(vec![V6])),
            (Ipv6, v4(), Err(of("IPv6"))),
            // The primary interface counts wherever it stands, and else the first.
            (
                Ipv4,
                [nic("nic1", "red", &["10.9.0.0/24"], "")]
                    .into_iter()
                    .chain(v4())
                    .collect(),
                Ok(vec![V4]),
            ),
            (
                Ipv4,
                vec![
                    nic("a", "x", &[V4], ""),
                    nic("b", "y", &["10.9.0.0/24"], ""),
                ],
                Ok(vec![V4]),
            ),
            // Of two interfaces, the primary one has no range.
            (
                Ipv4,
                vec![
                    nic("nic0", "default", &[], ""),
                    nic("nic1", "red", &[V4], ""),
                ],
                Err(of("IPv4")),
            ),
            (
                Ipv4,
                vec![nic("nic0", "default", &["192.168.1.7/24"], "")],
                Ok(vec![V4]),
            ),
            (
                Ipv4,
                vec![nic("nic0", "default", &["rubbish"], "")],
                Err(
                    "failed to parse strings [rubbish] as CIDRs: invalid CIDR address: rubbish"
                        .to_owned(),
                ),
            ),
        ];
        for (index, (stack, nics, want)) in cases.into_iter().enumerate() {
            let got = assigned(stack, &nics).map(|ranges| ranges.pod_cidrs);
            let want = want.map(|cidrs| cidrs.into_iter().map(str::to_owned).collect());
            assert_eq!(got, want, "case {index}");
        }
    }

    #[test]
    fn counts_half_the_addresses_of_other_networks() {
        let nics = [
            nic("nic0", "default", &["10.0.0.0/24"], ""),
            nic("nic1", "red", &["10.1.0.0/25", "10.1.1.0/24"], ""),
            nic("nic2", "blue", &["10.2.0.7/32"], ""),
            nic("nic3", "host", &[], ""),
            nic("nic4", "red", &["10.3.0.0/24"], ""),
            nic("nic5", "default", &["10.4.0.0/24"], ""),
        ];
        let capacity = assigned(StackType::Ipv4, &nics).unwrap().capacity;
        let want = [
            ("networking.gke.io.networks/blue.IP".to_owned(), 1),
            ("networking.gke.io.networks/red.IP".to_owned(), 64),
        ];
        assert_eq!(capacity, BTreeMap::from(want));
    }
}

//! A part of an address space, as users name it.

use std::{net::IpAddr, str::FromStr};

use ipnet::IpNet;
use podplane_ipam::parse_cidr;

use crate::{
    parts::{Network, NetworkRole},
    space::AddressSpace,
};

/// A part of the address space, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapTarget {
    /// An address, in the form of its family.
    Address(IpAddr),
    /// A prefix without host bits.
    Prefix(IpNet),
    /// The first network of a purpose.
    Role(NetworkRole),
    /// The network with this name.
    Name(String),
}

impl MapTarget {
    /// The words for the purposes of networks.
    pub const ROLES: [(&str, NetworkRole); 3] = [
        ("pods", NetworkRole::Pods),
        ("services", NetworkRole::Services),
        ("nodes", NetworkRole::Nodes),
    ];
}

impl FromStr for MapTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::Address(ip.to_canonical()));
        }
        if let Some((_, role)) = Self::ROLES.iter().find(|(word, _)| *word == text) {
            return Ok(Self::Role(*role));
        }
        if !text.contains('/') {
            return Ok(Self::Name(text.to_owned()));
        }
        let net = parse_cidr(text)
            .map_err(|_| "not a prefix such as 10.244.1.0/24 or fd00:1::/64".to_owned())?;
        match net.trunc() {
            canonical if canonical == net => Ok(Self::Prefix(net)),
            canonical => Err(format!("it has host bits; did you mean {canonical}?")),
        }
    }
}

/// A prefix, and the network that it is a part of.
#[derive(Clone, Copy, Debug)]
pub struct ShownPart<'a> {
    /// The narrowest network around the prefix, or the first one in it.
    pub network: &'a Network,
    /// The prefix.
    pub prefix: IpNet,
}

impl<'a> ShownPart<'a> {
    /// Finds the part that the user names; by default, the first network of pods, or the first
    /// network if there is none.
    ///
    /// # Errors
    ///
    /// A text that names the part and the networks of the cluster.
    pub fn new(space: &'a AddressSpace, target: Option<&MapTarget>) -> Result<Self, String> {
        let networks = space.networks();
        let first = networks.first().ok_or(
            "the cluster has no known network: no node has a block, and no object names a range; pass --cluster-cidr",
        )?;
        let whole = |network: &'a Network| Self {
            network,
            prefix: network.cidr(),
        };
        let missing = |what: String| format!("{what}; the cluster has {}", list(networks));
        match target {
            None => Ok(whole(first)),
            Some(MapTarget::Role(role)) => {
                let found = networks.iter().find(|network| network.role() == *role);
                let found = found.ok_or_else(|| missing(format!("there is no {role}")))?;
                Ok(whole(found))
            }
            Some(MapTarget::Name(name)) => {
                let found = networks.iter().find(|network| network.name() == name);
                let found = found.ok_or_else(|| {
                    missing(format!(
                        "invalid network or prefix `{name}`: not an address, a prefix such as 10.244.1.0/24, or the name of a network"
                    ))
                })?;
                Ok(whole(found))
            }
            Some(MapTarget::Address(ip)) => Self::around(space, IpNet::from(*ip)),
            Some(MapTarget::Prefix(prefix)) => Self::around(space, *prefix),
        }
    }

    /// A prefix in the narrowest network around it; of a prefix around networks, the first of them
    /// as a whole.
    fn around(space: &'a AddressSpace, prefix: IpNet) -> Result<Self, String> {
        let networks = space.networks();
        let around = networks
            .iter()
            .filter(|network| network.cidr().contains(&prefix));
        let narrowest = around.max_by_key(|network| network.cidr().prefix_len());
        let mut within = networks
            .iter()
            .filter(|network| prefix.contains(&network.cidr()));
        if let (None, Some(network)) = (narrowest, within.next()) {
            return Ok(Self {
                network,
                prefix: network.cidr(),
            });
        }
        let network = narrowest.ok_or_else(|| {
            format!(
                "invalid prefix `{prefix}`: it is in no network of the cluster, which has {}",
                list(networks)
            )
        })?;
        Ok(Self { network, prefix })
    }
}

/// `cluster CIDR 10.244.0.0/16, service range 10.96.0.0/16`.
fn list(networks: &[Network]) -> String {
    let texts = networks.iter().map(|network| {
        let (role, cidr) = (network.role(), network.cidr());
        format!("{role} {cidr}")
    });
    texts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::SpaceParts;

    fn space(networks: &[(NetworkRole, &str, &str)]) -> AddressSpace {
        let networks = networks
            .iter()
            .map(|(role, cidr, name)| Network::parse(*role, cidr, name).unwrap());
        AddressSpace::new(SpaceParts {
            networks: networks.collect(),
            ..SpaceParts::default()
        })
    }

    fn shown(space: &AddressSpace, text: &str) -> Result<String, String> {
        let target: MapTarget = text.parse()?;
        let ShownPart { network, prefix } = ShownPart::new(space, Some(&target))?;
        Ok(format!("{prefix} of {}", network.cidr()))
    }

    #[test]
    fn finds_the_narrowest_network_around_a_part() {
        let space = space(&[
            (NetworkRole::Pods, "10.0.0.0/8", "wide"),
            (NetworkRole::Pods, "10.244.0.0/16", "narrow"),
            (NetworkRole::Services, "10.96.0.0/16", ""),
            (NetworkRole::Pods, "fd00::/48", ""),
        ]);
        for (text, want) in [
            ("10.244.1.0/24", "10.244.1.0/24 of 10.244.0.0/16"),
            ("10.1.0.0/16", "10.1.0.0/16 of 10.0.0.0/8"),
            ("::ffff:10.244.1.7", "10.244.1.7/32 of 10.244.0.0/16"),
            ("fd00::1", "fd00::1/128 of fd00::/48"),
            ("services", "10.96.0.0/16 of 10.96.0.0/16"),
            ("pods", "10.0.0.0/8 of 10.0.0.0/8"),
            ("narrow", "10.244.0.0/16 of 10.244.0.0/16"),
            ("fd00::/16", "fd00::/48 of fd00::/48"),
            ("0.0.0.0/0", "10.0.0.0/8 of 10.0.0.0/8"),
        ] {
            assert_eq!(shown(&space, text).as_deref(), Ok(want), "{text}");
        }
        for (text, want) in [
            ("10.244.1.7/24", "did you mean 10.244.1.0/24?"),
            ("10.244.1.0/33", "not a prefix"),
            (
                "192.0.2.0/24",
                "it is in no network of the cluster, which has cluster CIDR 10.0.0.0/8",
            ),
            ("10.244.1", "invalid network or prefix `10.244.1`"),
            (
                "nodes",
                "there is no node network; the cluster has cluster CIDR 10.0.0.0/8",
            ),
        ] {
            let error = shown(&space, text).unwrap_err();
            assert!(error.contains(want), "{text}: {error}");
        }
    }

    #[test]
    fn a_cluster_without_networks_is_an_error() {
        let space = space(&[]);
        let error = ShownPart::new(&space, None).unwrap_err();
        assert!(error.contains("--cluster-cidr"), "{error}");
    }
}

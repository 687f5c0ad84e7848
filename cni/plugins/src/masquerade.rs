//! Masquerading: packets that leave a pod's network carry the host's address.
//!
//! The rules are the reference's (`pkg/ip/ipmasq_*_linux.go`), by the backend that it would choose,
//! so that each program removes the other's rules. With iptables they are in chains of their own
//! ([`iptables`]). With nftables they are made by netlink: the chain `masq_checks` of the table
//! `inet cni_plugins_masquerade` has one rule for each address, found again by its comment.

pub(crate) mod iptables;

use ipnet::IpNet;
use podplane_cni::{
    runtime::ValidAttachment,
    skel::text,
    types::{CniError, json},
};
use podplane_netlink::{
    NetlinkError,
    nft::{BaseChain, Batch, Chain, Family, Hook, MAX_COMMENT, Nft, NftRule, Table, expr},
};
use sha2::{Digest as _, Sha512};

const TABLE: Table<'_> = Table {
    family: Family::Inet,
    name: "cni_plugins_masquerade",
};
const CHECKS: Chain<'_> = TABLE.chain("masq_checks");
const POSTROUTING: Chain<'_> = TABLE.chain("postrouting");

/// The means by which rules are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MasqueradeBackend {
    /// Netlink, without another program.
    Nftables,
    /// The program `iptables`.
    Iptables,
}

impl MasqueradeBackend {
    /// Parses `ipMasqBackend`. `None` means `auto`, for which see [`Self::preferred`].
    ///
    /// # Errors
    /// The reference's text.
    pub(crate) fn parse(name: Option<&str>) -> Result<Option<Self>, CniError> {
        match name {
            None | Some("auto") => Ok(None),
            Some("nftables") => Ok(Some(Self::Nftables)),
            Some("iptables") => Ok(Some(Self::Iptables)),
            Some(other) => {
                let other = json::go_quote(other);
                Err(CniError::internal(format!(
                    "unknown ipmasq backend {other}"
                )))
            }
        }
    }

    /// The reference's default: iptables, unless it cannot be used here. Older versions of the
    /// reference know no other backend, and newer ones remove rules by this one only.
    pub(crate) fn preferred() -> Self {
        match iptables::probe() {
            Ok(()) => Self::Iptables,
            Err(_) => Self::Nftables,
        }
    }
}

/// The attachment that rules belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MasqueradeOwner<'a> {
    /// The network's name.
    pub(crate) network: &'a str,
    /// The interface in the container.
    pub(crate) ifname: &'a str,
    /// The container's id.
    pub(crate) container_id: &'a str,
}

impl MasqueradeOwner<'_> {
    /// The beginning of the comments of this attachment's rules.
    fn prefix(self) -> String {
        let Self {
            network,
            ifname,
            container_id,
        } = self;
        let instance = hash(&format!("{ifname}:{container_id}"), 16);
        format!("{}-{instance}", hash(network, 16))
    }

    /// The comment, cut to the length that `nft` accepts.
    fn comment(self) -> String {
        let plain = |text: &str| text.replace('"', "");
        let mut comment = format!(
            "{}, net: {}, if: {}, id: {}",
            self.prefix(),
            plain(self.network),
            plain(self.ifname),
            plain(self.container_id)
        );
        comment.truncate(comment.floor_char_boundary(MAX_COMMENT));
        comment
    }
}

/// The first hexadecimal digits of the text's SHA-512.
pub(crate) fn hash(text: &str, digits: usize) -> String {
    let bytes = Sha512::digest(text);
    let mut hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.truncate(digits);
    hex
}

fn failed(error: &NetlinkError) -> CniError {
    CniError::internal(text(error))
}

/// Masquerades traffic that these addresses send out of their networks.
///
/// With nftables the owner's earlier rules are replaced; with iptables, rules that exist already
/// stay.
///
/// # Errors
/// The kernel's, or `iptables`'.
pub(crate) fn add(
    backend: Option<MasqueradeBackend>,
    addresses: &[IpNet],
    owner: MasqueradeOwner<'_>,
) -> Result<(), CniError> {
    match backend.unwrap_or_else(MasqueradeBackend::preferred) {
        MasqueradeBackend::Nftables => add_rules(addresses, owner).map_err(|error| failed(&error)),
        MasqueradeBackend::Iptables => iptables::add(addresses, owner),
    }
}

fn add_rules(addresses: &[IpNet], owner: MasqueradeOwner<'_>) -> Result<(), NetlinkError> {
    let mut nft = Nft::open()?;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let mut batch = Batch::default();
        // The entrance is made again if it is not as expected.
        let entrance = nft.rules(POSTROUTING)?;
        let is_there = entrance.len() == 3
            && entrance.last().and_then(|rule| rule.target.as_deref()) == Some(CHECKS.name);
        if !is_there || attempts > 1 {
            add_entrance(&mut batch);
        }
        for rule in owned(&mut nft, &owner.prefix())? {
            batch.delete_rule(CHECKS, rule.handle);
        }
        let comment = owner.comment();
        for address in addresses {
            let mut rule = expr::leaves_network(address.addr(), address.trunc());
            rule.push(expr::masquerade());
            batch.add_rule(CHECKS, rule, Some(&comment));
        }
        match nft.apply(batch) {
            // Something has been deleted since it was listed.
            Err(error) if error.is_not_found() && attempts < 5 => {}
            other => return other,
        }
    }
}

/// Adds the table, its chains, and the rules that lead into them.
fn add_entrance(batch: &mut Batch) {
    const SRCNAT: i32 = 100;
    batch.add_table(
        TABLE,
        Some("Masquerading for plugins from github.com/containernetworking/plugins"),
    );
    batch.add_chain(
        CHECKS,
        None,
        Some("Masquerade traffic from certain IPs to any (non-multicast) IP outside their subnet"),
    );
    let base = BaseChain {
        kind: "nat",
        hook: Hook::Postrouting,
        priority: SRCNAT,
        policy: false,
    };
    batch.add_chain(POSTROUTING, Some(base), None);
    batch.flush_chain(POSTROUTING);
    for multicast in [IpNet::V4(MULTICAST_V4), IpNet::V6(MULTICAST_V6)] {
        let mut rule = expr::in_network(expr::Side::Destination, multicast);
        rule.push(expr::return_());
        batch.add_rule(POSTROUTING, rule, None);
    }
    batch.add_rule(POSTROUTING, vec![expr::goto(CHECKS.name)], None);
}

const MULTICAST_V4: ipnet::Ipv4Net =
    ipnet::Ipv4Net::new_assert(std::net::Ipv4Addr::new(224, 0, 0, 0), 4);
const MULTICAST_V6: ipnet::Ipv6Net =
    ipnet::Ipv6Net::new_assert(std::net::Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);

/// The rules whose comments begin with `prefix`.
fn owned(nft: &mut Nft, prefix: &str) -> Result<Vec<NftRule>, NetlinkError> {
    let mut rules = nft.rules(CHECKS)?;
    rules.retain(|rule| rule.comment.starts_with(prefix));
    Ok(rules)
}

/// Removes the rules of an attachment, made by either backend and either program. Missing rules
/// count as success.
///
/// # Errors
/// The kernel's, or `iptables`'.
pub(crate) fn remove(owner: MasqueradeOwner<'_>) -> Result<(), CniError> {
    let prefix = owner.prefix();
    let by_netlink = Nft::open().and_then(|mut nft| {
        remove_rules(&mut nft, |rule| rule.comment.starts_with(&prefix))?;
        iptables::remove_by_netlink(&mut nft, owner)
    });
    let by_netlink = match by_netlink {
        Err(error) if error.is_unknown_family() => Ok(()), // No nftables, no rules.
        other => other.map_err(|error| failed(&error)),
    };
    by_netlink.and(iptables::remove_legacy(owner))
}

/// Removes the network's rules of attachments that are not among the valid ones.
///
/// # Errors
/// The kernel's, or `iptables`'.
pub(crate) fn collect_garbage(network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let owners = valid.iter().map(|attachment| MasqueradeOwner {
        network,
        ifname: &attachment.ifname,
        container_id: &attachment.container_id,
    });
    let prefixes: Vec<_> = owners.map(MasqueradeOwner::prefix).collect();
    let prefix = format!("{}-", hash(network, 16));
    let is_garbage = |rule: &NftRule| {
        rule.comment.starts_with(&prefix)
            && !prefixes.iter().any(|valid| rule.comment.starts_with(valid))
    };
    let removed = Nft::open().and_then(|mut nft| remove_rules(&mut nft, is_garbage));
    let removed = match removed {
        Err(error) if error.is_unknown_family() => Ok(()),
        other => other.map_err(|error| failed(&error)),
    };
    removed.and(iptables::collect_garbage(network, valid))
}

/// Removes the rules for which `is_chosen` holds.
fn remove_rules(nft: &mut Nft, is_chosen: impl Fn(&NftRule) -> bool) -> Result<(), NetlinkError> {
    /// The number of deletions that fit into the socket's send buffer.
    const AT_ONCE: usize = 500;
    loop {
        let mut rules = nft.rules(CHECKS)?;
        rules.retain(&is_chosen);
        if rules.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::default();
        for rule in rules.iter().take(AT_ONCE) {
            batch.delete_rule(CHECKS, rule.handle);
        }
        match nft.apply(batch) {
            // Another process has removed one, and the batch has done nothing: list again.
            Err(error) if error.is_not_found() => {}
            other => other?,
        }
        if rules.len() <= AT_ONCE {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are from `sha512sum`.
    #[test]
    fn comments_equal_those_of_the_reference() {
        let owner = MasqueradeOwner {
            network: "mynet",
            ifname: "eth0",
            container_id: "c\"1",
        };
        assert_eq!(
            owner.comment(),
            "d23676b4f2d9fe04-9655acbe54701adf, net: mynet, if: eth0, id: c1"
        );
        let long = MasqueradeOwner {
            network: &"n".repeat(200),
            ..owner
        };
        assert_eq!(long.comment().len(), 128);
        assert!(long.comment().starts_with(&long.prefix()));
    }

    #[test]
    fn parses_the_backend_by_name() {
        let parse = |name| MasqueradeBackend::parse(name).unwrap();
        assert_eq!(parse(None), None);
        assert_eq!(parse(Some("auto")), None);
        assert_eq!(parse(Some("nftables")), Some(MasqueradeBackend::Nftables));
        assert_eq!(parse(Some("iptables")), Some(MasqueradeBackend::Iptables));
        let error = MasqueradeBackend::parse(Some("x")).unwrap_err();
        assert_eq!(error.to_string(), "unknown ipmasq backend \"x\"");
    }
}

//! A set of prefixes with a search for those that contain an address.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

/// Prefixes by value and length: a lookup takes one step for each length that occurs.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    nets: BTreeSet<IpNet>,
    lengths: BTreeSet<u8>,
}

impl FromIterator<IpNet> for Prefixes {
    fn from_iter<I: IntoIterator<Item = IpNet>>(nets: I) -> Self {
        let nets: BTreeSet<IpNet> = nets.into_iter().map(|net| net.trunc()).collect();
        let lengths = nets.iter().map(IpNet::prefix_len).collect();
        Self { nets, lengths }
    }
}

impl Prefixes {
    pub(crate) fn is_empty(&self) -> bool {
        self.nets.is_empty()
    }

    /// The prefixes that contain the address, the widest first.
    pub(crate) fn containing(&self, ip: IpAddr) -> impl Iterator<Item = IpNet> {
        let of_length = move |length: &u8| {
            let net = IpNet::new(ip, *length).ok()?.trunc();
            self.nets.contains(&net).then_some(net)
        };
        self.lengths.iter().filter_map(of_length)
    }

    pub(crate) fn contains(&self, ip: IpAddr) -> bool {
        self.containing(ip).next().is_some()
    }

    /// True if one of the prefixes contains the block.
    pub(crate) fn has_block(&self, block: &IpNet) -> bool {
        self.containing(block.addr()).any(|net| net.contains(block))
    }
}

//! A lease: the content of a file that is named by an address.

use std::net::IpAddr;

/// An address and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// The id of the container.
    pub container_id: String,
    /// The name of the interface in the container; old releases of the reference did not write it.
    pub ifname: Option<String>,
}

impl Lease {
    /// Parses a file's content, given without the white space around it.
    pub(super) fn parse(ip: IpAddr, content: &str) -> Self {
        let (container_id, ifname) = match content.split_once("\r\n") {
            Some((id, ifname)) => (id, Some(ifname.to_owned())),
            None => (content, None),
        };
        Self {
            ip,
            container_id: container_id.to_owned(),
            ifname,
        }
    }
}

/// The owner that a call is about, as the two contents that name it.
#[derive(Debug, Clone)]
pub(super) struct LeaseOwner {
    /// The content that is written.
    pub(super) content: String,
    /// The content that old releases of the reference wrote.
    legacy: String,
}

/// The form in which a lease names its [`LeaseOwner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerMatch {
    Exact,
    Legacy,
}

impl LeaseOwner {
    pub(super) fn new(container_id: &str, ifname: &str) -> Self {
        Self {
            content: format!("{container_id}\r\n{ifname}"),
            legacy: container_id.to_owned(),
        }
    }

    /// Compares the owner with a file's content, given without the white space around it.
    pub(super) fn matches(&self, content: &str) -> Option<OwnerMatch> {
        if content == self.content {
            Some(OwnerMatch::Exact)
        } else if content == self.legacy {
            Some(OwnerMatch::Legacy)
        } else {
            None
        }
    }

    /// The hashes of both contents.
    pub(super) fn hashes(&self) -> [u64; 2] {
        [hash(&self.content), hash(&self.legacy)]
    }
}

/// The FNV-1a hash of a lease's content. Nothing is decided by a hash alone: a forced collision
/// only makes a file be read and compared in vain.
pub(super) fn hash(content: &str) -> u64 {
    content.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

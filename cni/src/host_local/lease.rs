//! One lease: what stands in a file that is named by an address.

use std::net::IpAddr;

/// An address that is taken, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The address.
    pub ip: IpAddr,
    /// Id of the container.
    pub container_id: String,
    /// Name of the interface inside; old releases of the reference did not write it.
    pub ifname: Option<String>,
}

impl Lease {
    /// Reads a file's content, without the white space around it.
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

    /// Whether the lease is exactly that of this container's interface.
    #[must_use]
    pub fn is_of(&self, container_id: &str, ifname: &str) -> bool {
        self.container_id == container_id && self.ifname.as_deref() == Some(ifname)
    }

    /// Whether the lease names this container and no interface, as old releases wrote it.
    #[must_use]
    pub fn is_legacy_of(&self, container_id: &str) -> bool {
        self.container_id == container_id && self.ifname.is_none()
    }
}

/// Whose leases a call is about: the two contents that name it.
#[derive(Debug, Clone)]
pub(super) struct Owner {
    /// What is written for it.
    pub(super) content: String,
    /// What old releases of the reference wrote.
    legacy: String,
}

/// How a lease belongs to an [`Owner`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Match {
    Exact,
    Legacy,
}

impl Owner {
    pub(super) fn new(container_id: &str, ifname: &str) -> Self {
        Self {
            content: format!("{container_id}\r\n{ifname}"),
            legacy: container_id.to_owned(),
        }
    }

    /// Compares with a file's content, without the white space around it.
    pub(super) fn matches(&self, content: &str) -> Option<Match> {
        if content == self.content {
            Some(Match::Exact)
        } else if content == self.legacy {
            Some(Match::Legacy)
        } else {
            None
        }
    }

    /// The hashes of both contents.
    pub(super) fn hashes(&self) -> [u64; 2] {
        [hash(&self.content), hash(&self.legacy)]
    }
}

/// FNV-1a. Whoever makes two ids collide gains that a file is read and compared in vain: nothing is decided by a hash.
pub(super) fn hash(content: &str) -> u64 {
    content.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

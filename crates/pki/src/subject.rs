//! The names in certificates.

use std::{fmt, net::IpAddr, str::FromStr};

use crate::PkiError;

/// The user of a certificate, and its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The common name.
    pub user: String,
    /// The organization: a group, empty for none. More groups come from bindings.
    pub group: String,
}

impl Subject {
    /// A user in a group.
    pub fn new(user: impl Into<String>, group: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            group: group.into(),
        }
    }

    /// A node: `system:node:NAME` in `system:nodes`.
    pub fn node(name: &str) -> Self {
        Self::new(format!("system:node:{name}"), "system:nodes")
    }
}

/// The side of a connection that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Clients alone.
    Client,
    /// Servers alone.
    Server,
    /// Both: the members of etcd, which are servers and clients of each other with one certificate.
    Both,
}

/// A name that a server can be reached by: a DNS name or an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerName {
    /// A DNS name, in lower case.
    Dns(String),
    /// An address.
    Ip(IpAddr),
}

impl FromStr for ServerName {
    type Err = PkiError;

    fn from_str(text: &str) -> Result<Self, PkiError> {
        if let Ok(ip) = text.parse() {
            return Ok(Self::Ip(ip));
        }
        let is_dns = rustls_pki_types::DnsName::try_from(text).is_ok();
        match is_dns {
            true => Ok(Self::Dns(text.to_ascii_lowercase())),
            false => Err(PkiError::Invalid {
                what: format!("server name {text:?}"),
                why: "give a DNS name or an IP address".to_owned(),
            }),
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Ip(ip) => ip.fmt(f),
        }
    }
}

//! Where a node's addresses are known: by its CNI plugin.
//!
//! Each module has the rule of one kind of network, as pure functions of files or objects that were
//! read. [`detect`] finds the kind from the node's CNI configuration.

pub mod calico;
pub mod cilium;
pub mod detect;
pub mod host_local;
pub mod max_pods;
pub mod pod_cidr;

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use podplane_api::ObjectKey;

/// The rule by which a node's addresses are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum IpamKind {
    /// Find out from the CNI configuration
    Auto,
    /// The ranges of host-local in the CNI configuration, and its allocation files
    HostLocal,
    /// The Node's podCIDRs
    PodCidr,
    /// The Node's CiliumNode object
    Cilium,
    /// Calico's IPAMBlock, IPPool and IPAMConfig objects
    Calico,
    /// The Node's capacity of pods, for AWS VPC CNI and Azure CNI
    MaxPods,
}

impl IpamKind {
    /// The name of the kind, as in the flag.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::HostLocal => "host-local",
            Self::PodCidr => "pod-cidr",
            Self::Cilium => "cilium",
            Self::Calico => "calico",
            Self::MaxPods => "max-pods",
        }
    }
}

/// The addresses of a node, as its network knows them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIpam {
    /// The addresses that pods can have, if none are in use.
    pub capacity: FamilyCounts,
    /// The ranges that they are in; empty if those are not known.
    pub ranges: Vec<IpNet>,
    /// The addresses that are given to pods now; `None` if the source does not know them.
    pub allocated: Option<Vec<AllocatedAddress>>,
}

impl NodeIpam {
    /// Returns true if the address is in the present ranges, or if those are not known.
    pub fn gives(&self, address: IpAddr) -> bool {
        self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(&address))
    }

    /// The distinct addresses of a family that are given to pods; `None` if they are not known.
    pub fn allocated_of(&self, is_ipv4: bool) -> Option<u64> {
        let allocated = self.allocated.as_ref()?.iter().map(|each| each.address);
        let of_family = allocated.filter(|ip| ip.is_ipv4() == is_ipv4 && self.gives(*ip));
        Some(of_family.collect::<BTreeSet<_>>().len() as u64)
    }
}

/// Numbers of addresses by family. A family that pods get no address of is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyCounts {
    /// IPv4.
    pub ipv4: Option<u64>,
    /// IPv6.
    pub ipv6: Option<u64>,
}

impl FamilyCounts {
    /// The pods that can have an address of every family; 0 without families.
    pub fn pods(self) -> u64 {
        let families = [self.ipv4, self.ipv6].into_iter().flatten();
        families.min().unwrap_or(0)
    }

    /// Adds addresses of the family of `net`.
    pub(crate) fn add(&mut self, net: &IpNet, addresses: u64) {
        let count = match net {
            IpNet::V4(_) => &mut self.ipv4,
            IpNet::V6(_) => &mut self.ipv6,
        };
        *count = Some(count.unwrap_or(0).saturating_add(addresses));
    }

    /// Takes one address of the family of `address` away.
    pub(crate) fn take_one(&mut self, address: IpAddr) {
        let count = match address {
            IpAddr::V4(_) => &mut self.ipv4,
            IpAddr::V6(_) => &mut self.ipv6,
        };
        *count = count.map(|count| count.saturating_sub(1));
    }
}

/// An address that is given to a pod, or to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatedAddress {
    /// The address.
    pub address: IpAddr,
    /// The pod, if the source names it.
    pub pod: Option<ObjectKey>,
    /// The name of the allocation: another allocation of the address has another one.
    pub allocation: String,
}

/// The objects or files of a source are not as they must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The CNI configuration cannot be used.
    #[error("failed to read the CNI configuration: {0}")]
    Config(String),
    /// host-local's files cannot be read.
    #[error("failed to read the allocation files in {dir}: {error}")]
    Files {
        /// The directory.
        dir: String,
        /// The operating system's text.
        error: String,
    },
    /// A fact that the rule needs does not exist yet.
    #[error("{0}")]
    Missing(String),
    /// A field of an object cannot be read.
    #[error("invalid {kind} {name:?}: {reason}")]
    Object {
        /// The kind of the object.
        kind: &'static str,
        /// The object's name.
        name: String,
        /// The field and what is wrong with it.
        reason: String,
    },
}

//! The findings of the audit.

use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::Serialize;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information; nothing is broken.
    Info,
    /// It works now, but may fail later.
    Warning,
    /// Traffic goes to the wrong place, or pods have no address.
    Error,
}

impl Severity {
    /// All severities, the least first.
    pub const ALL: [Self; 3] = [Self::Info, Self::Warning, Self::Error];

    /// The name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Severity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|each| each.as_str() == text);
        found.ok_or_else(|| format!("invalid severity {text:?}: want info, warning or error"))
    }
}

/// The rule that a finding violates. The names are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// Several nodes have exactly the same block.
    DuplicatePodCidr,
    /// The blocks of several nodes share addresses, and are not the same.
    OverlappingPodCidr,
    /// A block is outside of the cluster CIDR, or invalid.
    ForeignPodCidr,
    /// A node has no block.
    MissingPodCidr,
    /// A block is not of the configured size.
    WrongSizePodCidr,
    /// A node's blocks are not one for each family of the cluster.
    WrongFamilyPodCidr,
    /// `spec.podCIDR` is not `spec.podCIDRs[0]`.
    PodCidrMismatch,
    /// A block shares addresses with the range of services.
    ServiceRangeOverlap,
    /// A live pod has an address that is not of its node's block.
    PodOutsideBlock,
    /// Several live pods have one address.
    DuplicatePodIp,
    /// An address is allocated twice, or not to the pod that has it.
    DuplicateAllocation,
    /// A live pod has an address that its network has not allocated to it.
    MissingAllocation,
    /// An address is allocated to a pod or node that does not exist or does not have it.
    LeakedAllocation,
    /// A network keeps a block, or another object, for a node that does not exist.
    OrphanedBlock,
    /// A block lies in no pool of its network.
    BlockOutsidePool,
    /// A node, or the cluster, is near or over the capacity of its addresses, or pods wait for one.
    IpCapacity,
}

impl Code {
    /// All codes, in the order of reports.
    pub const ALL: [Self; 16] = [
        Self::DuplicatePodCidr,
        Self::OverlappingPodCidr,
        Self::ForeignPodCidr,
        Self::MissingPodCidr,
        Self::WrongSizePodCidr,
        Self::WrongFamilyPodCidr,
        Self::PodCidrMismatch,
        Self::ServiceRangeOverlap,
        Self::PodOutsideBlock,
        Self::DuplicatePodIp,
        Self::DuplicateAllocation,
        Self::MissingAllocation,
        Self::LeakedAllocation,
        Self::OrphanedBlock,
        Self::BlockOutsidePool,
        Self::IpCapacity,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DuplicatePodCidr => "duplicate-pod-cidr",
            Self::OverlappingPodCidr => "overlapping-pod-cidr",
            Self::ForeignPodCidr => "foreign-pod-cidr",
            Self::MissingPodCidr => "missing-pod-cidr",
            Self::WrongSizePodCidr => "wrong-size-pod-cidr",
            Self::WrongFamilyPodCidr => "wrong-family-pod-cidr",
            Self::PodCidrMismatch => "pod-cidr-mismatch",
            Self::ServiceRangeOverlap => "service-range-overlap",
            Self::PodOutsideBlock => "pod-outside-block",
            Self::DuplicatePodIp => "duplicate-pod-ip",
            Self::DuplicateAllocation => "duplicate-allocation",
            Self::MissingAllocation => "missing-allocation",
            Self::LeakedAllocation => "leaked-allocation",
            Self::OrphanedBlock => "orphaned-block",
            Self::BlockOutsidePool => "block-outside-pool",
            Self::IpCapacity => "ip-capacity",
        }
    }

    /// The meaning, in one sentence.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::DuplicatePodCidr => "Several nodes have exactly the same block of addresses.",
            Self::OverlappingPodCidr => "The blocks of several nodes share addresses.",
            Self::ForeignPodCidr => "A node's block is outside of the cluster CIDR.",
            Self::MissingPodCidr => "A node has no block of addresses.",
            Self::WrongSizePodCidr => "A node's block is not of the configured size.",
            Self::WrongFamilyPodCidr => {
                "A node's blocks are not one for each address family of the cluster."
            }
            Self::PodCidrMismatch => "spec.podCIDR is not spec.podCIDRs[0].",
            Self::ServiceRangeOverlap => "A node's block shares addresses with the service range.",
            Self::PodOutsideBlock => "A live pod has an address outside of its node's block.",
            Self::DuplicatePodIp => "Several pods have the same address.",
            Self::DuplicateAllocation => {
                "An address is allocated twice, or to another pod than the one that has it."
            }
            Self::MissingAllocation => {
                "A live pod has an address that its network has not allocated to it."
            }
            Self::LeakedAllocation => {
                "An address is allocated to a pod or node that does not exist or does not have it."
            }
            Self::OrphanedBlock => "A network keeps a block for a node that does not exist.",
            Self::BlockOutsidePool => "A block lies in no pool of its network.",
            Self::IpCapacity => {
                "A node or the cluster is near or over what its addresses serve, or pods wait for an address."
            }
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A fault of the cluster, or a fact for information.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The rule.
    pub code: Code,
    /// The severity.
    pub severity: Severity,
    /// The objects concerned, sorted: `Node/NAME`, `Pod/NAMESPACE/NAME`. Empty if it is the cluster
    /// as a whole.
    pub objects: Vec<String>,
    /// The blocks and addresses concerned, sorted.
    pub prefixes: Vec<IpNet>,
    /// The fault, in one sentence.
    pub message: String,
    /// The advice.
    pub repair: String,
}

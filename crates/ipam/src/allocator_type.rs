//! The choice of an allocator.

use std::{fmt, str::FromStr};

/// The message for a [`AllocatorType::CloudAllocator`] without a cloud; the text is the
/// reference's.
pub const NO_CLOUD: &str =
    "--cidr-allocator-type is set to 'CloudAllocator' but cloud provider is not configured";

/// The source of nodes' blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    schemars(rename = "CidrAllocatorType")
)]
pub enum AllocatorType {
    /// One range for each family, cut into blocks of one size.
    #[default]
    RangeAllocator,
    /// ClusterCIDR objects, chosen by the labels of nodes.
    #[cfg_attr(feature = "schema", serde(rename = "MultiCIDRRangeAllocator"))]
    MultiCidrRangeAllocator,
    /// The cloud assigns the ranges.
    CloudAllocator,
}

/// The name is not an allocator's; the text is the reference's.
#[derive(Debug, thiserror::Error)]
#[error("invalid CIDR allocator type: {0}")]
pub struct InvalidAllocatorType(
    /// The name.
    pub String,
);

impl AllocatorType {
    const ALL: [Self; 3] = [
        Self::RangeAllocator,
        Self::MultiCidrRangeAllocator,
        Self::CloudAllocator,
    ];

    fn as_str(self) -> &'static str {
        match self {
            Self::RangeAllocator => "RangeAllocator",
            Self::MultiCidrRangeAllocator => "MultiCIDRRangeAllocator",
            Self::CloudAllocator => "CloudAllocator",
        }
    }
}

impl fmt::Display for AllocatorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for AllocatorType {
    type Err = InvalidAllocatorType;

    fn from_str(text: &str) -> Result<Self, InvalidAllocatorType> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| InvalidAllocatorType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_names_round_trip() {
        for kind in AllocatorType::ALL {
            assert_eq!(kind.to_string().parse::<AllocatorType>().unwrap(), kind);
        }
        let error = "IPAMFromCloud".parse::<AllocatorType>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid CIDR allocator type: IPAMFromCloud"
        );
    }
}

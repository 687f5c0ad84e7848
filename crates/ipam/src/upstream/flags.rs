//! Validation of the flags by each generation.

use crate::cluster::{RangeConfig, RangeConfigError, RangeFlags};
use crate::compat::Generation;
use crate::net::Family;

/// An error in the flags. The texts are those of the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// An error of kube-controller-manager.
    #[error(transparent)]
    Range(RangeConfigError),
    /// The fork's error for more than two cluster CIDRs.
    #[error("len of clusters cidrs is:{count} > more than max allowed of 2")]
    TooManyClusterCidrs {
        /// The number of cluster CIDRs.
        count: usize,
    },
}

impl Generation {
    /// Validates the flags. A service range that takes every block is accepted.
    ///
    /// # Errors
    ///
    /// [`FlagError`].
    pub fn validate(self, flags: &RangeFlags) -> Result<RangeConfig, FlagError> {
        if self != Self::Gcp {
            return flags.validate().map_err(FlagError::Range);
        }
        let mut flags = flags.clone();
        let mut families = Vec::new();
        for (index, text) in flags.cluster_cidr.trim().split(',').enumerate() {
            let cidr = self.parse_cidr(text).map_err(|invalid| {
                FlagError::Range(RangeConfigError::InvalidClusterCidr { index, invalid })
            })?;
            families.push(Family::of(&cidr));
        }
        // The fork only logs a mask for a family without a range.
        if families.len() == 1 && flags.node_cidr_mask_size.is_none_or(|mask| mask == 0) {
            if families == [Family::V6] {
                flags.node_cidr_mask_size_ipv4 = None;
            } else {
                flags.node_cidr_mask_size_ipv6 = None;
            }
        }
        flags.validate().map_err(|error| match error {
            RangeConfigError::TooManyClusterCidrs { count } => {
                FlagError::TooManyClusterCidrs { count }
            }
            other => FlagError::Range(other),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(cluster_cidr: &str) -> RangeFlags {
        RangeFlags {
            cluster_cidr: cluster_cidr.into(),
            ..RangeFlags::default()
        }
    }

    #[test]
    fn the_fork_has_its_own_messages_and_parser() {
        let refused = |generation: Generation, cidrs: &str| {
            generation.validate(&flags(cidrs)).unwrap_err().to_string()
        };
        let three = "10.0.0.0/8,fd00::/48,11.0.0.0/8";
        assert_eq!(
            refused(Generation::Gcp, three),
            "len of clusters cidrs is:3 > more than max allowed of 2"
        );
        assert_eq!(
            refused(Generation::G1, three),
            "length of clusterCIDRs is:3 more than max allowed of 2"
        );
        assert_eq!(
            refused(Generation::Gcp, "010.0.0.0/8"),
            "invalid CIDR[0]: <nil> (invalid CIDR address: 010.0.0.0/8)"
        );
        assert!(Generation::G3.validate(&flags("010.0.0.0/8")).is_ok());
    }

    #[test]
    fn the_fork_overlooks_a_mask_of_the_other_family() {
        let flags = RangeFlags {
            node_cidr_mask_size_ipv6: Some(64),
            ..flags("10.0.0.0/8")
        };
        assert!(Generation::Gcp.validate(&flags).is_ok());
        assert_eq!(
            Generation::G1.validate(&flags).unwrap_err().to_string(),
            "usage of --node-cidr-mask-size-ipv6 is not allowed for a single-stack IPv4 cluster"
        );
    }
}

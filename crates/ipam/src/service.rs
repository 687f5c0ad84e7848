//! The ranges of service addresses, as in the API server's flag (kube-apiserver,
//! `--service-cluster-ip-range`).

use std::str::FromStr;

use ipnet::IpNet;

use crate::net::{Family, InvalidCidr, overlap, parse_cidr};

/// At most one range for each family, without host bits; none if the flag is not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceRanges(Vec<IpNet>);

impl ServiceRanges {
    /// The ranges in the order of the flag.
    #[must_use]
    pub fn as_slice(&self) -> &[IpNet] {
        &self.0
    }

    /// The range that shares an address with `net`.
    #[must_use]
    pub fn overlapping(&self, net: &IpNet) -> Option<&IpNet> {
        self.0.iter().find(|range| overlap(range, net))
    }
}

/// An error in a list of service ranges. These are the rules of the API server; those of the
/// controllers for the same flag are more lenient.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceRangeError {
    /// There are more than two ranges.
    #[error("--service-cluster-ip-range must not contain more than two entries")]
    TooMany,
    /// An element is not a valid prefix.
    #[error(transparent)]
    Invalid(#[from] InvalidCidr),
    /// Both ranges are of one family.
    #[error(
        "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family"
    )]
    NotDualStack,
}

impl FromStr for ServiceRanges {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let texts: Vec<&str> = text.split(',').collect();
        if texts.len() > 2 {
            return Err(ServiceRangeError::TooMany);
        }
        let parsed = texts.into_iter().map(parse_cidr);
        let ranges: Vec<IpNet> = parsed
            .map(|range| range.map(|range| range.trunc()))
            .collect::<Result<_, _>>()?;
        match ranges.as_slice() {
            [a, b] if Family::of(a) == Family::of(b) => Err(ServiceRangeError::NotDualStack),
            _ => Ok(Self(ranges)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_flag_as_the_api_server_does() {
        for (text, want) in [
            ("", Ok("")),
            ("10.96.0.0/16", Ok("10.96.0.0/16")),
            (
                "10.96.0.1/16,fd00:96::/112",
                Ok("10.96.0.0/16,fd00:96::/112"),
            ),
            (
                "fd00:96::/112,10.96.0.0/16",
                Ok("fd00:96::/112,10.96.0.0/16"),
            ),
            ("rubbish", Err("invalid CIDR address: rubbish")),
            ("10.96.0.0/16,", Err("invalid CIDR address: ")),
            (
                "10.96.0.0/16,10.97.0.0/16",
                Err(
                    "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
                ),
            ),
            (
                "10.96.0.0/16,fd00::/112,fd01::/112",
                Err("--service-cluster-ip-range must not contain more than two entries"),
            ),
        ] {
            let ranges = text.parse::<ServiceRanges>().map(|ranges| {
                let each: Vec<_> = ranges.as_slice().iter().map(ToString::to_string).collect();
                each.join(",")
            });
            assert_eq!(
                ranges.map_err(|error| error.to_string()),
                want.map(str::to_owned).map_err(str::to_owned),
                "{text}"
            );
        }
    }
}

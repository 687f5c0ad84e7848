//! The parameters of requests, and what they mean for a space.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_ipam::parse_cidr;
use podplane_map::{AddressSpace, GridLimit, Network, ViewError};
use serde::Deserialize;

/// The columns and rows of a map.
const GRID: std::ops::RangeInclusive<u16> = 8..=128;
const DEFAULT_GRID: u16 = 64;

/// The addresses of a page.
const DEFAULT_LIMIT: usize = 500;
const MAX_LIMIT: usize = 5_000;

/// A parameter that cannot be used. The text names it and its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// It is not a prefix.
    #[error("invalid {field} {value:?}: want a CIDR such as 10.244.0.0/16")]
    NotACidr {
        /// The parameter.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// It is not a number in the range.
    #[error("invalid {field} {value:?}: want a number from {min} to {max}")]
    NotInRange {
        /// The parameter.
        field: &'static str,
        /// Its value.
        value: String,
        /// The least.
        min: usize,
        /// The most.
        max: usize,
    },
    /// It is not an address.
    #[error("invalid continue {0:?}: not from an answer of this server")]
    NotAToken(String),
    /// The cluster has no such network.
    #[error("unknown network {0}: the cluster's networks are those of /summary/v1alpha1/cluster")]
    UnknownNetwork(IpNet),
    /// The cluster has no network at all, so far.
    #[error("the cluster has no network: neither a range of pods nor a node with a block")]
    NoNetwork,
    /// The prefix cannot be shown.
    #[error(transparent)]
    View(#[from] ViewError),
}

/// The parameters of `map`, as text.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct MapQuery {
    network: Option<String>,
    prefix: Option<String>,
    columns: Option<String>,
    rows: Option<String>,
}

/// The parameters of `map`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest {
    pub(crate) network: Option<IpNet>,
    pub(crate) prefix: Option<IpNet>,
    pub(crate) limit: GridLimit,
}

impl QueryError {
    /// Returns true if the cluster does not have what was asked for; else the request is wrong.
    #[must_use]
    pub const fn is_not_found(&self) -> bool {
        matches!(self, Self::UnknownNetwork(_) | Self::NoNetwork)
    }
}

impl TryFrom<&MapQuery> for MapRequest {
    type Error = QueryError;

    fn try_from(query: &MapQuery) -> Result<Self, QueryError> {
        let columns = side("columns", query.columns.as_deref())?;
        let rows = side("rows", query.rows.as_deref())?;
        let limit = GridLimit::new(columns, rows).map_err(|_| QueryError::NotInRange {
            field: "columns",
            value: columns.to_string(),
            min: usize::from(*GRID.start()),
            max: usize::from(*GRID.end()),
        })?;
        Ok(Self {
            network: cidr("network", query.network.as_deref())?,
            prefix: cidr("prefix", query.prefix.as_deref())?,
            limit,
        })
    }
}

impl MapRequest {
    /// The network and the prefix that it asks for.
    ///
    /// # Errors
    ///
    /// [`QueryError::UnknownNetwork`] or [`QueryError::NoNetwork`].
    pub(crate) fn place<'a>(
        &self,
        space: &'a AddressSpace,
    ) -> Result<(&'a Network, IpNet), QueryError> {
        let networks = || space.networks().iter();
        let network = match self.network {
            Some(cidr) => {
                let found = networks().find(|network| network.cidr() == cidr);
                found.ok_or(QueryError::UnknownNetwork(cidr))?
            }
            None => {
                let meets = |network: &&Network| {
                    let (at, cidr) = (self.prefix, network.cidr());
                    at.is_some_and(|at| cidr.contains(&at) || at.contains(&cidr))
                };
                // Those of pods come first.
                let found = networks().find(meets).or(space.networks().first());
                found.ok_or(QueryError::NoNetwork)?
            }
        };
        let cidr = network.cidr();
        // Of a prefix around it, the network is shown; host bits are refused.
        let is_around = |at: &IpNet| at.contains(&cidr) && *at == at.trunc();
        let prefix = self
            .prefix
            .filter(|at| self.network.is_some() || !is_around(at));
        Ok((network, prefix.unwrap_or(cidr)))
    }
}

/// The parameters of `addresses`, as text.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AddressQuery {
    prefix: Option<String>,
    limit: Option<String>,
    r#continue: Option<String>,
}

/// The parameters of `addresses`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressesRequest {
    /// `None`: all networks.
    pub(crate) prefix: Option<IpNet>,
    pub(crate) limit: usize,
    /// The last address of the page before.
    pub(crate) after: Option<IpAddr>,
}

impl TryFrom<&AddressQuery> for AddressesRequest {
    type Error = QueryError;

    fn try_from(query: &AddressQuery) -> Result<Self, QueryError> {
        let limit = match given(query.limit.as_deref()) {
            None => DEFAULT_LIMIT,
            Some(text) => number("limit", text, 1, MAX_LIMIT)?,
        };
        let after = given(query.r#continue.as_deref()).map(|token| {
            let parsed = token.parse();
            parsed.map_err(|_| QueryError::NotAToken(token.to_owned()))
        });
        Ok(Self {
            prefix: cidr("prefix", query.prefix.as_deref())?,
            limit,
            after: after.transpose()?,
        })
    }
}

/// An empty parameter is one that was not given.
fn given(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

fn cidr(field: &'static str, text: Option<&str>) -> Result<Option<IpNet>, QueryError> {
    let parsed = given(text).map(|text| {
        parse_cidr(text).map_err(|_| QueryError::NotACidr {
            field,
            value: text.to_owned(),
        })
    });
    parsed.transpose()
}

fn side(field: &'static str, text: Option<&str>) -> Result<u16, QueryError> {
    let Some(text) = given(text) else {
        return Ok(DEFAULT_GRID);
    };
    let (min, max) = (usize::from(*GRID.start()), usize::from(*GRID.end()));
    let side = number(field, text, min, max)?;
    Ok(u16::try_from(side).unwrap_or(DEFAULT_GRID))
}

fn number(field: &'static str, text: &str, min: usize, max: usize) -> Result<usize, QueryError> {
    let parsed = text
        .parse()
        .ok()
        .filter(|number| (min..=max).contains(number));
    parsed.ok_or_else(|| QueryError::NotInRange {
        field,
        value: text.to_owned(),
        min,
        max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(change: impl Fn(&mut MapQuery)) -> Result<MapRequest, String> {
        let mut query = MapQuery::default();
        change(&mut query);
        MapRequest::try_from(&query).map_err(|error| error.to_string())
    }

    #[test]
    fn errors_name_the_parameter_and_its_value() {
        let text = |text: &str| Some(text.to_owned());
        for (result, want) in [
            (
                map(|query| query.network = text("10.0.0.0")),
                "invalid network \"10.0.0.0\": want a CIDR such as 10.244.0.0/16",
            ),
            (
                map(|query| query.rows = text("129")),
                "invalid rows \"129\": want a number from 8 to 128",
            ),
            (
                map(|query| query.columns = text("-1")),
                "invalid columns \"-1\": want a number from 8 to 128",
            ),
        ] {
            assert_eq!(result.unwrap_err(), want);
        }
        let request = map(|query| query.rows = text("")).unwrap();
        assert_eq!((request.limit.columns(), request.limit.rows()), (64, 64));
        for (limit, token) in [("0", ""), ("5001", ""), ("5", "10.0.0")] {
            let query = AddressQuery {
                limit: text(limit),
                r#continue: text(token),
                ..AddressQuery::default()
            };
            assert!(AddressesRequest::try_from(&query).is_err(), "{query:?}");
        }
    }
}

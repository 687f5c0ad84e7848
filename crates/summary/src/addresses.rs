//! The table behind the map: addresses with their states and holders.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use podplane_map::{AddressRecord, AddressSpace, AddressState, Holder};
use serde::Serialize;

use crate::query::AddressesRequest;

/// An address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressRow<'a> {
    /// The address.
    pub ip: IpAddr,
    /// Its state.
    pub state: AddressState,
    /// Its holders; none of the gateway of a block, and of the ends of a service range.
    pub holders: Vec<HolderRow<'a>>,
}

/// A holder of an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderRow<'a> {
    /// `pod`, `sandbox`, `orphan`, `node`, `service`, `gateway` or `reserved`.
    pub kind: &'static str,
    /// `NAMESPACE/NAME`, or the name.
    pub name: &'a str,
    /// The node on which it is, if that is known.
    pub node: Option<&'a str>,
}

impl<'a> AddressRow<'a> {
    /// The row of a record.
    #[must_use]
    pub fn of(record: &AddressRecord<'a>) -> Self {
        let holders = record.claims.iter().map(|claim| {
            let holder = claim.holder();
            HolderRow {
                kind: match holder {
                    Holder::Gateway { .. } => "gateway",
                    other => other.kind(),
                },
                name: holder.name(),
                node: holder.node(),
            }
        });
        Self {
            ip: record.ip,
            state: record.state,
            holders: holders.collect(),
        }
    }
}

/// A part of the addresses of a prefix that have a state of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AddressPage<'a> {
    /// The addresses, ascending; those of IPv4 first.
    pub items: Vec<AddressRow<'a>>,
    /// The token of the next page; empty if there is none.
    pub r#continue: String,
}

impl<'a> AddressPage<'a> {
    /// The page that is asked for. It is as of now, whatever the page before was made of.
    #[must_use]
    pub fn new(space: &'a AddressSpace, request: &AddressesRequest) -> Self {
        let everywhere = [
            IpNet::from(Ipv4Net::default()),
            IpNet::from(Ipv6Net::default()),
        ];
        let prefixes = match &request.prefix {
            Some(prefix) => std::slice::from_ref(prefix),
            None => &everywhere,
        };
        let is_next =
            |record: &AddressRecord<'_>| request.after.is_none_or(|last| record.ip > last);
        let records = prefixes.iter().flat_map(|prefix| space.records(prefix));
        let mut records = records.filter(is_next);
        let items: Vec<_> = records
            .by_ref()
            .take(request.limit)
            .map(|record| AddressRow::of(&record))
            .collect();
        let last = items.last().map(|item| item.ip.to_string());
        Self {
            items,
            r#continue: records.next().and(last).unwrap_or_default(),
        }
    }
}

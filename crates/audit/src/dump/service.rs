//! Services and their ranges, which no rule needs: the map shows them.

use std::net::IpAddr;

use ipnet::IpNet;
use podplane_ipam::parse_cidr;

use crate::item::{LenientValue, RawObject};

/// The cluster addresses of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DumpedService {
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// `spec.clusterIPs`, else `spec.clusterIP`; empty for a headless one.
    pub addresses: Vec<IpAddr>,
}

/// A range of Services.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceRange {
    /// The name of the ServiceCIDR.
    pub name: String,
    /// The range, without host bits.
    pub cidr: IpNet,
}

impl DumpedService {
    pub(super) fn of(item: &RawObject<'_>) -> Self {
        let LenientValue(metadata) = &item.metadata;
        let LenientValue(spec) = &item.spec;
        let listed = spec.cluster_ips.0.iter();
        let only = Some(&spec.cluster_ip).filter(|_| spec.cluster_ips.0.is_empty());
        // The address of a headless one is `None`.
        let addresses = listed
            .chain(only)
            .filter_map(|text| text.as_str().parse().ok());
        Self {
            name: format!("{}/{}", metadata.namespace.as_str(), metadata.name.as_str()),
            addresses: addresses.collect(),
        }
    }
}

impl ServiceRange {
    /// The ranges of a ServiceCIDR.
    pub(super) fn all_of(item: &RawObject<'_>) -> impl Iterator<Item = Self> {
        let cidrs = item.spec.0.cidrs.0.iter();
        cidrs.filter_map(|text| {
            Some(Self {
                name: item.metadata.0.name.as_str().to_owned(),
                cidr: parse_cidr(text.as_str()).ok()?.trunc(),
            })
        })
    }
}

//! The result object, read and written in the format of each version.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize, Serializer, de::IgnoredAny};
use serde_json::Value;

use super::{GoCidr, GoIp, Version, canonical_net, json};

/// The result of a successful ADD. Only its written format depends on the version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniResult {
    /// The version whose format the result was read in and will be written in.
    pub version: Version,
    /// The interfaces that the attachment made; empty below 0.3.0.
    pub interfaces: Vec<Interface>,
    /// The addresses.
    pub ips: Vec<IpConfig>,
    /// The routes.
    pub routes: Vec<Route>,
    /// The settings of name resolution.
    pub dns: Dns,
}

/// An interface of a [`CniResult`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The hardware address, lower case with colons.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU in bytes (1.1.0); 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// The path of the network namespace; empty for the host's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The socket of a virtio device (1.1.0).
    #[serde(
        rename = "socketPath",
        alias = "socketpath",
        skip_serializing_if = "String::is_empty"
    )]
    pub socket_path: String,
    /// The PCI address (1.1.0).
    #[serde(
        rename = "pciID",
        alias = "pciid",
        skip_serializing_if = "String::is_empty"
    )]
    pub pci_id: String,
}

/// An address of a [`CniResult`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpConfig {
    /// The index in [`CniResult::interfaces`].
    pub interface: Option<u32>,
    /// The address with the prefix length of its subnet.
    pub address: IpNet,
    /// The subnet's gateway.
    pub gateway: Option<IpAddr>,
}

/// A route of a [`CniResult`], or of a configuration. Its numbers are as wide as the reference's,
/// wider than the kernel's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// The destination, possibly with host bits; `None` prints as `<nil>`, as in the reference.
    #[serde(serialize_with = "serialize_dst", deserialize_with = "deserialize_dst")]
    pub dst: Option<IpNet>,
    /// The next hop; the subnet's gateway if `None`.
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "deserialize_ip"
    )]
    pub gw: Option<IpAddr>,
    /// The MTU in bytes; 0 if unset.
    #[serde(skip_serializing_if = "is_unset")]
    pub mtu: i64,
    /// The advertised maximal segment size; 0 if unset.
    #[serde(skip_serializing_if = "is_unset")]
    pub advmss: i64,
    /// The priority; 0 if unset.
    #[serde(skip_serializing_if = "is_unset")]
    pub priority: i64,
    /// The routing table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<i64>,
    /// The scope.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<i64>,
}

/// The name resolution of a [`CniResult`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The servers, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// The search list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// The options of the resolver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Returns true if nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A failure to read a result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResultError {
    /// The text is not JSON, or not a result.
    #[error("failed to unmarshal raw result: {}", json::go_error(.0))]
    Json(serde_json::Error),
    /// The `cniVersion` is unknown.
    #[error("unsupported CNI result version \"{0}\"")]
    UnsupportedVersion(String),
}

impl CniResult {
    /// Parses a plugin's output. A result without a version gets `default_version`, that of the
    /// configuration. `null` is an empty result.
    ///
    /// # Errors
    /// [`ResultError`], with libcni's texts.
    pub fn parse(text: &[u8], default_version: &str) -> Result<Self, ResultError> {
        let value = json::parse_folded(text).map_err(ResultError::Json)?;
        Self::from_folded(value, default_version)
    }

    /// Reads a result that is part of another document (`prevResult`, the cache).
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn from_value(value: &Value, default_version: &str) -> Result<Self, ResultError> {
        Self::from_folded(json::fold(value), default_version)
    }

    fn from_folded(value: Value, default_version: &str) -> Result<Self, ResultError> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct VersionField {
            cniversion: String,
        }
        let value = if value.is_null() {
            Value::Object(serde_json::Map::new())
        } else {
            value
        };
        let probe = VersionField::deserialize(&value).map_err(ResultError::Json)?;
        let text = if probe.cniversion.is_empty() {
            default_version
        } else {
            &probe.cniversion
        };
        let version: Version = text
            .parse()
            .map_err(|_| ResultError::UnsupportedVersion(text.to_owned()))?;
        if version < Version::V0_3_0 {
            let wire: WireLegacy = serde_json::from_value(value).map_err(ResultError::Json)?;
            Ok(wire.into_result(version))
        } else {
            let wire: WireIn = serde_json::from_value(value).map_err(ResultError::Json)?;
            Ok(wire.into_result(version))
        }
    }

    /// The text that a plugin prints, in the format of [`Self::version`].
    #[must_use]
    pub fn to_json(&self) -> String {
        // From 1.0.0 on the reference passes its result through a map, so keys are sorted.
        if self.version >= Version::V1_0_0 {
            json::pretty(&self.to_value())
        } else {
            json::pretty(self)
        }
    }

    /// The result as a JSON value with sorted keys, to be part of another document.
    #[must_use]
    pub(crate) fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        value.sort_all_objects();
        value
    }

    /// Converts the result to the format of another version.
    #[must_use]
    pub fn with_version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }
}

impl Serialize for CniResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.version < Version::V0_3_0 {
            WireLegacy::from(self).serialize(serializer)
        } else {
            WireOut::from(self).serialize(serializer)
        }
    }
}

fn is_unset(n: &i64) -> bool {
    *n == 0
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn serialize_dst<S: Serializer>(dst: &Option<IpNet>, serializer: S) -> Result<S::Ok, S::Error> {
    match dst {
        Some(dst) => dst.serialize(serializer),
        None => serializer.serialize_str("<nil>"),
    }
}

fn deserialize_dst<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<IpNet>, D::Error> {
    GoCidr::deserialize(d).map(|cidr| Some(canonical_net(cidr.0)))
}

fn deserialize_ip<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Option<IpAddr>, D::Error> {
    GoIp::deserialize(d).map(|ip| ip.0)
}

/// The written format of 0.3.0 and later.
#[derive(Serialize)]
struct WireOut<'a> {
    #[serde(rename = "cniVersion")]
    version: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<WireIp>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    routes: &'a [Route],
    #[serde(skip_serializing_if = "Option::is_none")]
    dns: Option<&'a Dns>,
}

#[derive(Serialize)]
struct WireIp {
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<u32>,
    address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

impl<'a> From<&'a CniResult> for WireOut<'a> {
    fn from(result: &'a CniResult) -> Self {
        let CniResult {
            version,
            interfaces,
            ips,
            routes,
            dns,
        } = result;
        let before_1_0 = *version < Version::V1_0_0;
        let ips = ips.iter().map(|ip| WireIp {
            version: before_1_0.then(|| {
                if ip.address.addr().is_ipv4() {
                    "4"
                } else {
                    "6"
                }
            }),
            interface: ip.interface,
            address: ip.address,
            gateway: ip.gateway,
        });
        let interfaces = interfaces.iter().cloned().map(|interface| {
            if *version < Version::V1_1_0 {
                Interface {
                    mtu: 0,
                    socket_path: String::new(),
                    pci_id: String::new(),
                    ..interface
                }
            } else {
                interface
            }
        });
        Self {
            version: version.as_str(),
            interfaces: interfaces.collect(),
            ips: ips.collect(),
            routes,
            dns: (before_1_0 || !dns.is_empty()).then_some(dns),
        }
    }
}

/// The read format of 0.3.0 and later. The `version` of an address is implied by the address.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WireIn {
    interfaces: Vec<Interface>,
    ips: Vec<WireIpIn>,
    routes: Vec<Option<Route>>,
    dns: Dns,
}

#[derive(Deserialize)]
struct WireIpIn {
    interface: Option<u32>,
    address: GoCidr,
    #[serde(default)]
    gateway: GoIp,
    #[serde(default, rename = "version")]
    _version: Option<IgnoredAny>,
}

impl WireIn {
    fn into_result(self, version: Version) -> CniResult {
        let ips = self.ips.into_iter().map(|ip| IpConfig {
            interface: ip.interface,
            address: canonical_net(ip.address.0),
            gateway: ip.gateway.0,
        });
        CniResult {
            version,
            interfaces: self.interfaces,
            ips: ips.collect(),
            routes: self.routes.into_iter().flatten().collect(),
            dns: self.dns,
        }
    }
}

/// The format of 0.1.0 and 0.2.0.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct WireLegacy {
    #[serde(rename = "cniVersion", alias = "cniversion")]
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<WireLegacyIp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<WireLegacyIp>,
    dns: Dns,
}

#[derive(Serialize, Deserialize)]
struct WireLegacyIp {
    #[serde(serialize_with = "serialize_dst", deserialize_with = "deserialize_dst")]
    ip: Option<IpNet>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "deserialize_ip"
    )]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl From<&CniResult> for WireLegacy {
    /// Converts the first address of each family, and the routes of that family; the format has no
    /// place for the rest.
    fn from(result: &CniResult) -> Self {
        let family = |is_v4: bool| {
            let ip = result
                .ips
                .iter()
                .find(|ip| ip.address.addr().is_ipv4() == is_v4)?;
            // A route without a destination counts as IPv6, since it is not IPv4.
            let of_family =
                |route: &&Route| route.dst.is_some_and(|dst| dst.addr().is_ipv4()) == is_v4;
            let routes = result.routes.iter().filter(of_family);
            Some(WireLegacyIp {
                ip: Some(ip.address),
                gateway: ip.gateway,
                routes: routes
                    .map(|route| Route {
                        dst: route.dst,
                        gw: route.gw,
                        ..Route::default()
                    })
                    .collect(),
            })
        };
        Self {
            version: result.version.to_string(),
            ip4: family(true),
            ip6: family(false),
            dns: result.dns.clone(),
        }
    }
}

impl WireLegacy {
    fn into_result(self, version: Version) -> CniResult {
        let mut result = CniResult {
            version,
            dns: self.dns,
            ..CniResult::default()
        };
        for ip in [self.ip4, self.ip6].into_iter().flatten() {
            if let Some(address) = ip.ip {
                result.ips.push(IpConfig {
                    interface: None,
                    address,
                    gateway: ip.gateway,
                });
            }
            result.routes.extend(ip.routes);
        }
        result
    }
}

#[cfg(test)]
mod tests;

//! The configuration of `host-local`: parsed, completed and checked, with the reference's texts.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use podplane_cni::types::{
    CniError, GoCidr, GoIp, NetworkConfigList, Route, cni_arg, go_json, json, parse_ip, validate,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Options,
    range::{RangeSet, RangeSpec},
    schema,
};

/// The reference's directory of networks.
const DEFAULT_DATA_DIR: &str = "/var/lib/cni/networks";

/// The parsed configuration: ranges, directories, and further fields of the result.
#[derive(Debug, Clone)]
pub struct Config {
    /// The name of the network.
    pub name: String,
    /// The range sets; one address is given out of each.
    pub sets: Vec<RangeSet>,
    /// The routes of the result.
    pub routes: Vec<Route>,
    /// The resolver configuration from which the result's DNS settings are read.
    pub resolv_conf: Option<PathBuf>,
    /// The requested addresses, in order of precedence, each once.
    pub requested: Vec<IpAddr>,
    /// The options of the directory.
    pub options: Options,
    data_dir: PathBuf,
}

/// The number of addresses that a configuration can give, by family. A family without a range set
/// is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// IPv4.
    pub ipv4: Option<u128>,
    /// IPv6.
    pub ipv6: Option<u128>,
}

impl Capacity {
    /// The number of pods that can run if each needs an address of every family.
    #[must_use]
    pub fn pods(&self) -> u128 {
        [self.ipv4, self.ipv6]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(0)
    }
}

/// The capacity of a configuration, by family.
///
/// Counts the addresses of the ranges, less the gateway; by default, ranges exclude network and
/// broadcast. Of several sets of one family the smallest counts, since a pod takes an address of
/// each.
#[must_use]
pub fn capacity(config: &Config) -> Capacity {
    let family = |is_v4| {
        let sets = config.sets.iter().filter(|set| set.is_ipv4() == is_v4);
        sets.map(RangeSet::capacity).min()
    };
    Capacity {
        ipv4: family(true),
        ipv6: family(false),
    }
}

// Keys are folded before decoding, so the names here are lower case.

#[derive(Default, Deserialize)]
#[serde(default)]
struct NetConf {
    name: String,
    cniversion: String,
    ipam: Option<IpamConf>,
    runtimeconfig: RuntimeConfig,
    args: NetConfArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamConf {
    #[serde(flatten)]
    flat: FlatRange,
    ranges: Vec<Option<Vec<Option<FlatRange>>>>,
    routes: Vec<Option<Route>>,
    datadir: String,
    resolvconf: String,
    // Keys of our own: the reference ignores them.
    locktimeout: String,
    bootid: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FlatRange {
    subnet: Option<GoCidr>,
    rangestart: GoIp,
    rangeend: GoIp,
    gateway: GoIp,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    ips: Vec<Option<String>>,
    ipranges: Vec<Option<Vec<Option<FlatRange>>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NetConfArgs {
    cni: CniArgs,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct CniArgs {
    ips: Vec<Option<String>>,
}

impl FlatRange {
    fn spec(self) -> RangeSpec {
        RangeSpec {
            subnet: self.subnet.map(|subnet| subnet.0),
            start: self.rangestart.0,
            end: self.rangeend.0,
            gateway: self.gateway.0,
        }
    }
}

impl Config {
    /// Parses a plugin's standard input, and `CNI_ARGS`.
    ///
    /// # Errors
    /// Code 999 with the reference's texts, in the reference's order.
    pub fn parse(stdin: &[u8], cni_args: &str) -> Result<Self, CniError> {
        Self::read(stdin, cni_args).map_err(CniError::internal)
    }

    /// The configuration of a network whose first plugin uses `host-local`.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn of_network(list: &NetworkConfigList) -> Result<Self, CniError> {
        let mut document = list.plugins.first().cloned().unwrap_or_default();
        document.insert("name".to_owned(), list.name.clone().into());
        document.insert("cniVersion".to_owned(), list.cni_version.clone().into());
        Self::parse(
            serde_json::Value::Object(document).to_string().as_bytes(),
            "",
        )
    }

    /// The network's directory of leases.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        clean(&self.data_dir.join(&self.name))
    }

    /// The directory of leases and its options, which suffice to release an address. Routes, ranges
    /// and requested addresses are not checked, so that a lease can be released after its
    /// configuration became invalid.
    ///
    /// # Errors
    /// As [`Self::parse`], for the other keys.
    pub(super) fn place(stdin: &[u8]) -> Result<(PathBuf, Options), CniError> {
        const JUDGED: [&str; 6] = [
            "routes",
            "ranges",
            "subnet",
            "rangestart",
            "rangeend",
            "gateway",
        ];
        let mut document = json::parse_folded(stdin)
            .map_err(|error| CniError::internal(json::go_error(&error)))?;
        if let Some(document) = document.as_object_mut() {
            document.retain(|key, _| !matches!(key.as_str(), "runtimeconfig" | "args"));
            if let Some(ipam) = document.get_mut("ipam").and_then(Value::as_object_mut) {
                ipam.retain(|key, _| !JUDGED.contains(&key.as_str()));
                ipam.insert("ranges".to_owned(), json!([[{"subnet": "192.0.2.0/24"}]]));
            }
        }
        let config = Self::parse(document.to_string().as_bytes(), "")?;
        Ok((config.dir(), config.options))
    }

    fn read(stdin: &[u8], cni_args: &str) -> Result<Self, String> {
        let decoded = go_json::decode(stdin, &schema::DOCUMENT)?;
        let document: NetConf =
            serde_json::from_value(decoded).map_err(|error| error.to_string())?;
        let NetConf {
            name,
            cniversion,
            ipam,
            runtimeconfig,
            args,
        } = document;
        let ipam = ipam.ok_or("IPAM config missing 'ipam' key")?;
        let parse = |text: &str| requested_ip(text);
        let wish = cni_arg(cni_args, "IP", parse)?;
        let mut requested: Vec<_> = wish.into_iter().collect();
        for text in args.cni.ips.iter().chain(&runtimeconfig.ips) {
            requested.push(requested_ip(text.as_deref().unwrap_or_default())?);
        }
        let mut seen = BTreeSet::new();
        requested.retain(|ip| seen.insert(*ip));

        let mut sets = runtimeconfig.ipranges;
        if ipam.flat.subnet.is_some() {
            sets.push(Some(vec![Some(ipam.flat)]));
        }
        sets.extend(ipam.ranges);
        if sets.is_empty() {
            return Err("no IP ranges specified".to_owned());
        }
        let mut checked = Vec::with_capacity(sets.len());
        for (index, set) in sets.into_iter().enumerate() {
            let specs = set
                .unwrap_or_default()
                .into_iter()
                .map(|range| range.unwrap_or_default().spec());
            let set = RangeSet::canonicalise(specs.collect());
            checked.push(set.map_err(|error| format!("invalid range set {index}: {error}"))?);
        }
        let ranges = checked.iter().filter_map(|set| set.ranges().first());
        validate::families(&cniversion, ranges.map(|range| range.subnet().addr()))?;
        for (i, a) in checked.iter().enumerate() {
            if let Some(j) = checked[i + 1..].iter().position(|b| a.overlaps(b)) {
                return Err(format!("range set {i} overlaps with {}", i + 1 + j));
            }
        }
        let path = |text: String| {
            Some(text)
                .filter(|text| !text.is_empty())
                .map(PathBuf::from)
        };
        let lock_timeout = lock_timeout(&ipam.locktimeout)?;
        Ok(Self {
            name,
            options: Options {
                lock_timeout,
                boot_id: ipam.bootid,
            },
            sets: checked,
            routes: ipam.routes.into_iter().flatten().collect(),
            resolv_conf: path(ipam.resolvconf),
            requested,
            data_dir: path(ipam.datadir).unwrap_or_else(|| DEFAULT_DATA_DIR.into()),
        })
    }
}

/// Parses a duration in Go's notation; `None` for the empty string.
fn lock_timeout(text: &str) -> Result<Option<Duration>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let refuse = || {
        format!("invalid ipam.lockTimeout {text:?}: write a duration such as \"5s\" or \"1m30s\"")
    };
    humantime::parse_duration(text)
        .map(Some)
        .map_err(|_| refuse())
}

/// Removes `.` and `..` from a path, by its text alone: the reference uses that path, and so must
/// every other program.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if clean.file_name().is_some() => _ = clean.pop(),
            Component::ParentDir if clean.has_root() => {}
            part => clean.push(part),
        }
    }
    clean
}

/// Parses a requested address, `a.b.c.d` or `a.b.c.d/n`; the length is ignored.
pub(super) fn requested_ip(text: &str) -> Result<IpAddr, String> {
    if text.is_empty() {
        return Err("cannot understand ip: IP <nil> not v4 nor v6".to_owned());
    }
    let invalid = || format!("invalid IP address {text}");
    if text.contains('/') {
        let net = podplane_cni::types::parse_cidr(text).map_err(|_| invalid());
        return net.map(|net| net.addr().to_canonical());
    }
    parse_ip(text).map_err(|_| invalid())
}

#[cfg(test)]
mod tests;

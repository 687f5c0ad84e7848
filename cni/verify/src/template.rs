//! The template of network configurations, each of which has a name and a directory of its own.

use std::{net::IpAddr, path::Path};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// A template of configurations.
#[derive(Debug, Clone)]
pub struct Template {
    config: Value,
    is_authors: bool,
}

/// The reason why a template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The text is not JSON.
    #[error("the network configuration is no JSON")]
    Json(#[from] serde_json::Error),
    /// The text is not an object with a section for the IPAM plugin.
    #[error(
        "the network configuration has no \"ipam\" object; it must be one plugin's configuration, not a list"
    )]
    NoIpam,
}

/// A range of a configuration that has host-local's format.
#[derive(Debug, Clone)]
pub(super) struct KnownRange {
    pub(super) subnet: IpNet,
    start: Option<IpAddr>,
    end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

/// The keys of host-local's ranges that a plugin follows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SupportedKeys {
    /// `ranges`, with `subnet` in it.
    pub(super) sets: bool,
    /// `rangeStart`, `rangeEnd` and `gateway`.
    pub(super) bounds: bool,
    /// Several sets, of IPv4 and IPv6.
    pub(super) families: bool,
}

impl SupportedKeys {
    pub(super) const ALL: Self = Self {
        sets: true,
        bounds: true,
        families: true,
    };

    /// Returns true if the plugin follows all keys of these ranges.
    pub(super) fn take(self, ranges: &Value) -> bool {
        let sets: Vec<_> = ranges.as_array().into_iter().flatten().collect();
        let mut all = sets.iter().filter_map(|set| set.as_array()).flatten();
        let is_bounded = all.any(|range| range.as_object().is_some_and(|keys| keys.len() > 1));
        self.sets && (self.bounds || !is_bounded) && (self.families || sets.len() < 2)
    }
}

impl Template {
    /// A configuration like host-local's for the plugin of this name, with 13 addresses.
    #[must_use]
    pub fn host_local(plugin: &str) -> Self {
        let config = json!({
            "type": plugin,
            "ipam": {"type": plugin, "dataDir": "${dataDir}", "ranges": [[{"subnet": "10.89.0.0/28"}]]},
        });
        Self {
            config,
            is_authors: false,
        }
    }

    /// Parses a plugin's configuration. Name and version are replaced for each network, and so are
    /// `ipam.dataDir` if present, and `${name}` and `${dataDir}` in any string.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn parse(text: &[u8]) -> Result<Self, TemplateError> {
        let mut config: Value = serde_json::from_slice(text)?;
        let ipam = config["ipam"].as_object_mut();
        let ipam = ipam.ok_or(TemplateError::NoIpam)?;
        if ipam.contains_key("dataDir") {
            ipam.insert("dataDir".into(), "${dataDir}".into());
        }
        Ok(Self {
            config,
            is_authors: true,
        })
    }

    /// Returns true if addresses are kept in a directory that each network has of its own.
    pub(super) fn has_own_directory(&self) -> bool {
        self.config.to_string().contains("${dataDir}")
    }

    /// Returns true if the plugin's author wrote the template, rather than this program.
    pub(super) fn is_authors(&self) -> bool {
        self.is_authors
    }

    /// Returns true if the configuration has ranges in host-local's format, which can be replaced.
    pub(super) fn has_ranges(&self) -> bool {
        let ipam = &self.config["ipam"];
        ipam["ranges"].is_array() || ipam["subnet"].is_string()
    }

    /// The configuration of a network.
    pub(super) fn config(&self, name: &str, data_dir: &Path, version: &str) -> Value {
        let mut config = self.config.clone();
        substitute(&mut config, name, &data_dir.to_string_lossy());
        config["name"] = name.into();
        config["cniVersion"] = version.into();
        config
    }
}

/// Replaces the ranges of a configuration by other range sets.
pub(super) fn with_ranges(config: &Value, ranges: &Value) -> Value {
    let mut config = config.clone();
    if let Some(ipam) = config["ipam"].as_object_mut() {
        for key in ["subnet", "rangeStart", "rangeEnd", "gateway"] {
            ipam.remove(key);
        }
        ipam.insert("ranges".into(), ranges.clone());
    }
    config
}

fn substitute(value: &mut Value, name: &str, data_dir: &str) {
    match value {
        Value::String(text) => {
            *text = text
                .replace("${name}", name)
                .replace("${dataDir}", data_dir);
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| substitute(item, name, data_dir)),
        Value::Object(entries) => entries
            .values_mut()
            .for_each(|item| substitute(item, name, data_dir)),
        _ => {}
    }
}

/// The ranges of a configuration in host-local's format; empty for other formats.
pub(super) fn known_ranges(config: &Value) -> Vec<KnownRange> {
    let ipam = &config["ipam"];
    let flat = ipam.as_object().into_iter();
    let sets = ipam["ranges"].as_array().into_iter().flatten();
    let in_sets = sets.flat_map(|set| set.as_array().into_iter().flatten());
    flat.chain(in_sets.filter_map(Value::as_object))
        .filter_map(KnownRange::read)
        .collect()
}

impl KnownRange {
    fn read(range: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| range.get(key).and_then(Value::as_str);
        let ip = |key: &str| text(key).and_then(|text| text.parse().ok());
        let subnet: IpNet = text("subnet")?.parse().ok()?;
        Some(Self {
            subnet,
            start: ip("rangeStart"),
            end: ip("rangeEnd"),
            gateway: ip("gateway"),
        })
    }

    /// Returns true if the address is in the subnet, and between the start and the end if these are
    /// configured.
    pub(super) fn contains(&self, ip: IpAddr) -> bool {
        self.subnet.contains(&ip)
            && self.start.is_none_or(|start| ip >= start)
            && self.end.is_none_or(|end| ip <= end)
    }

    /// The reason why the range cannot give this address; `None` if it can. `gateway` is the
    /// result's: if the configuration names no gateway, the plugin chooses.
    fn objection(&self, net: IpNet, gateway: Option<IpAddr>) -> Option<String> {
        let ip = net.addr();
        let subnet = &self.subnet;
        let has_edges = subnet.max_prefix_len() - subnet.prefix_len() > 1;
        let is_edge =
            has_edges && (ip == subnet.network() || ip.is_ipv4() && ip == subnet.broadcast());
        if !self.subnet.contains(&ip) {
            Some(format!("{ip} is outside of the subnet {}", self.subnet))
        } else if self.start.is_some_and(|start| ip < start) {
            Some(format!("{ip} is before the range's start"))
        } else if self.end.is_some_and(|end| ip > end) {
            Some(format!("{ip} is after the range's end"))
        } else if self.gateway.or(gateway) == Some(ip) {
            Some(format!("{ip} is the gateway"))
        } else if is_edge && self.start != Some(ip) && self.end != Some(ip) {
            Some(format!(
                "{ip} is the network's own or its broadcast address"
            ))
        } else if ![subnet.prefix_len(), subnet.max_prefix_len()].contains(&net.prefix_len()) {
            Some(format!(
                "{net} has neither the prefix length of {subnet} nor that of one address"
            ))
        } else {
            None
        }
    }
}

/// The reason why none of the ranges can give this address; `None` if one can, or if no range is
/// known.
pub(super) fn objection(
    ranges: &[KnownRange],
    net: IpNet,
    gateway: Option<IpAddr>,
) -> Option<String> {
    let objections = ranges.iter().map(|range| range.objection(net, gateway));
    let mut objections: Vec<_> = objections.collect();
    if objections.iter().any(Option::is_none) {
        return None;
    }
    // The objection of the address's own subnet says most.
    let own = ranges
        .iter()
        .position(|range| range.subnet.contains(&net.addr()));
    (!objections.is_empty()).then(|| objections.swap_remove(own.unwrap_or(0)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_in_the_directory_and_the_name() {
        let text = br#"{"name": "mine", "ipam": {"type": "x", "dataDir": "/old", "dsn": "file:${dataDir}/${name}.db"}}"#;
        let template = Template::parse(text).unwrap();
        assert!(template.has_own_directory() && !template.has_ranges());
        let config = template.config("n1", Path::new("/d"), "1.0.0");
        assert_eq!(
            config,
            json!({"name": "n1", "cniVersion": "1.0.0", "ipam": {"type": "x", "dataDir": "/d", "dsn": "file:/d/n1.db"}})
        );
        assert!(Template::parse(br#"{"plugins": []}"#).is_err());
    }

    #[test]
    fn objects_to_addresses_outside_of_the_ranges() {
        let config = json!({"ipam": {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.5", "ranges": [[{"subnet": "fd00::/120"}]]}});
        let ranges = known_ranges(&config);
        let objects = |net: &str| objection(&ranges, net.parse().unwrap(), None).is_some();
        for good in [
            "10.0.0.5/24",
            "10.0.0.254/24",
            "fd00::2/120",
            "fd00::ff/120",
            "fd00::1/120",
            "10.0.0.5/32",
        ] {
            assert!(!objects(good), "{good}");
        }
        for bad in [
            "10.0.0.1/24",
            "10.0.0.4/24",
            "10.0.0.255/24",
            "10.0.1.0/24",
            "10.0.0.5/25",
            "fd00::/120",
        ] {
            assert!(objects(bad), "{bad}");
        }
        let (net, gateway) = ("10.0.0.5/24".parse().unwrap(), "10.0.0.5".parse().ok());
        assert!(objection(&ranges, net, gateway).is_some());
        assert_eq!(objection(&[], net, gateway), None);
    }
}

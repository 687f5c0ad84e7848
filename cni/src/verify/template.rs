//! The network configuration that a plugin is given, with a name and a directory of its own each time.

use std::{net::IpAddr, path::Path};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

/// What configurations are made from.
#[derive(Debug, Clone)]
pub struct Template(Value);

/// The template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// Not JSON.
    #[error("the network configuration is no JSON")]
    Json(#[from] serde_json::Error),
    /// Not an object with a section for the IPAM plugin.
    #[error(
        "the network configuration has no \"ipam\" object; it must be one plugin's configuration, not a list"
    )]
    NoIpam,
}

/// A range of a configuration whose form is host-local's.
#[derive(Debug, Clone)]
pub(super) struct KnownRange {
    pub(super) subnet: IpNet,
    start: Option<IpAddr>,
    end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

impl Template {
    /// A host-local-like configuration for the plugin of this name, with 13 addresses.
    #[must_use]
    pub fn host_local(plugin: &str) -> Self {
        Self(json!({
            "type": plugin,
            "ipam": {"type": plugin, "dataDir": "${dataDir}", "ranges": [[{"subnet": "10.89.0.0/28"}]]},
        }))
    }

    /// Reads a plugin's configuration. Its name and version are replaced, so is `ipam.dataDir` if there is one, and
    /// `${name}` and `${dataDir}` in any string.
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
        Ok(Self(config))
    }

    /// Whether addresses are kept in a directory that each network has of its own.
    pub(super) fn has_own_directory(&self) -> bool {
        self.0.to_string().contains("${dataDir}")
    }

    /// Whether the ranges are told as host-local is told them, so that others can take their place.
    pub(super) fn has_ranges(&self) -> bool {
        let ipam = &self.0["ipam"];
        ipam["ranges"].is_array() || ipam["subnet"].is_string()
    }

    /// The configuration of a network.
    pub(super) fn config(&self, name: &str, data_dir: &Path, version: &str) -> Value {
        let mut config = self.0.clone();
        substitute(&mut config, name, &data_dir.to_string_lossy());
        config["name"] = name.into();
        config["cniVersion"] = version.into();
        config
    }
}

/// The same configuration with other range sets.
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

/// The ranges of a configuration of host-local's form; none of any other.
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
            gateway: ip("gateway").or_else(|| subnet.hosts().find(|ip| *ip != subnet.network())),
        })
    }

    /// Why the range does not give this address; `None` if it does.
    fn objection(&self, net: IpNet) -> Option<String> {
        let ip = net.addr();
        let is_edge = ip == self.subnet.network() || ip.is_ipv4() && ip == self.subnet.broadcast();
        if !self.subnet.contains(&ip) {
            Some(format!("{ip} is outside of the subnet {}", self.subnet))
        } else if self.start.is_some_and(|start| ip < start) {
            Some(format!("{ip} is before the range's start"))
        } else if self.end.is_some_and(|end| ip > end) {
            Some(format!("{ip} is after the range's end"))
        } else if self.gateway == Some(ip) {
            Some(format!("{ip} is the gateway"))
        } else if is_edge && self.start != Some(ip) && self.end != Some(ip) {
            Some(format!(
                "{ip} is the network's own or its broadcast address"
            ))
        } else if net.prefix_len() != self.subnet.prefix_len() {
            Some(format!(
                "{net} has not the prefix length of {}",
                self.subnet
            ))
        } else {
            None
        }
    }
}

/// Why none of the ranges gives this address; `None` if one does, or none is known.
pub(super) fn objection(ranges: &[KnownRange], net: IpNet) -> Option<String> {
    let mut objections: Vec<_> = ranges.iter().map(|range| range.objection(net)).collect();
    if objections.iter().any(Option::is_none) {
        return None;
    }
    // That of its own subnet says most.
    let own = ranges
        .iter()
        .position(|range| range.subnet.contains(&net.addr()));
    (!objections.is_empty()).then(|| objections.swap_remove(own.unwrap_or(0)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_in() {
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
    fn addresses_that_a_range_does_not_give() {
        let config = json!({"ipam": {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.5", "ranges": [[{"subnet": "fd00::/120"}]]}});
        let ranges = known_ranges(&config);
        let objects = |net: &str| objection(&ranges, net.parse().unwrap()).is_some();
        for good in [
            "10.0.0.5/24",
            "10.0.0.254/24",
            "fd00::2/120",
            "fd00::ff/120",
        ] {
            assert!(!objects(good), "{good}");
        }
        for bad in [
            "10.0.0.1/24",
            "10.0.0.4/24",
            "10.0.0.255/24",
            "10.0.1.0/24",
            "10.0.0.5/32",
            "fd00::1/120",
            "fd00::/120",
        ] {
            assert!(objects(bad), "{bad}");
        }
        assert_eq!(objection(&[], "10.0.0.1/8".parse().unwrap()), None);
    }
}

//! The input of a plugin: its configuration on standard input, and its environment.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{Attachment, PluginError, RuntimeError};
use crate::types::{CniResult, NetworkConfigList, PluginConfig, config_field};

/// A step of a chain: a program and its configuration.
pub(super) struct ChainStep<'a> {
    pub(super) program: &'a str,
    pub(super) config: &'a PluginConfig,
}

impl ChainStep<'_> {
    pub(super) fn failed(&self, action: &'static str, source: PluginError) -> RuntimeError {
        RuntimeError::Plugin {
            plugin: self.program.to_owned(),
            name: text(self.config, "name").to_owned(),
            action,
            source: Box::new(source),
        }
    }
}

fn text<'a>(config: &'a PluginConfig, key: &str) -> &'a str {
    let value = config_field(config, key).and_then(Value::as_str);
    value.unwrap_or_default()
}

pub(super) fn chain(list: &NetworkConfigList) -> Vec<ChainStep<'_>> {
    list.plugins
        .iter()
        .map(|config| ChainStep {
            program: text(config, "type"),
            config,
        })
        .collect()
}

pub(super) fn ipam_step(list: &NetworkConfigList) -> Result<ChainStep<'_>, RuntimeError> {
    let first = list
        .plugins
        .first()
        .ok_or_else(|| RuntimeError::NoIpam(String::new()))?;
    let ipam = first
        .get("ipam")
        .and_then(|ipam| ipam.get("type"))
        .and_then(Value::as_str);
    let program = ipam.filter(|name| !name.is_empty());
    let program = program.ok_or_else(|| RuntimeError::NoIpam(text(first, "type").to_owned()))?;
    Ok(ChainStep {
        program,
        config: first,
    })
}

/// The configuration that is passed to a plugin (CNI 1.1 §Deriving request configuration).
pub(super) fn request(
    list: &NetworkConfigList,
    plugin: &PluginConfig,
    capability_args: &Map<String, Value>,
    previous: Option<&CniResult>,
) -> Value {
    let mut config = plugin.clone();
    config.insert("name".to_owned(), list.name.clone().into());
    config.insert("cniVersion".to_owned(), list.cni_version.clone().into());
    if let Some(previous) = previous {
        config.insert("prevResult".to_owned(), previous.to_value());
    }
    let capabilities = config_field(plugin, "capabilities");
    let asked = |key: &str| capabilities.and_then(|c| c.get(key)) == Some(&Value::Bool(true));
    let given = capability_args.iter().filter(|(key, _)| asked(key));
    let given: Map<_, _> = given
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    if !given.is_empty() {
        config.insert("runtimeConfig".to_owned(), Value::Object(given));
    }
    let mut config = Value::Object(config);
    config.sort_all_objects();
    config
}

pub(super) fn environment(
    command: &'static str,
    attachment: Option<&Attachment>,
    bin_dirs: &[PathBuf],
) -> Vec<(&'static str, OsString)> {
    let args = attachment.map(|a| {
        a.args
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
    });
    let netns = attachment
        .and_then(|a| a.netns.as_deref())
        .map(Path::as_os_str);
    let mut path = OsString::new();
    for (index, dir) in bin_dirs.iter().enumerate() {
        if index > 0 {
            path.push(":");
        }
        path.push(dir);
    }
    vec![
        ("CNI_COMMAND", command.into()),
        (
            "CNI_CONTAINERID",
            attachment
                .map(|a| a.container_id.clone().into())
                .unwrap_or_default(),
        ),
        ("CNI_NETNS", netns.map(OsString::from).unwrap_or_default()),
        ("CNI_ARGS", args.unwrap_or_default().join(";").into()),
        (
            "CNI_IFNAME",
            attachment
                .map(|a| a.ifname.clone().into())
                .unwrap_or_default(),
        ),
        ("CNI_PATH", path),
    ]
}

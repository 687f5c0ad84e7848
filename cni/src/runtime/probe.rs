//! Versions of plugins (CNI 1.1 §VERSION), and the check of a whole network.

use std::{collections::BTreeSet, ffi::OsString};

use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, Runtime, RuntimeError, find_plugin, request::chain};
use crate::types::{NetworkConfigList, Version, config_field, json};

impl Runtime {
    /// Checks that every plugin of the list exists and supports the list's version. Returns the
    /// capabilities that the list declares.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn validate(&self, list: &NetworkConfigList) -> Result<BTreeSet<String>, RuntimeError> {
        let wanted = match list.cni_version.as_str() {
            "" => Version::V0_1_0.as_str(),
            version => version,
        };
        let (mut errors, mut capabilities) = (Vec::new(), BTreeSet::new());
        for step in chain(list) {
            match self.supported_versions(step.program) {
                Ok(versions) if versions.iter().any(|version| version == wanted) => {}
                Ok(_) => errors.push(RuntimeError::VersionUnsupported {
                    plugin: step.program.to_owned(),
                    version: wanted.to_owned(),
                }),
                Err(error) => errors.push(error),
            }
            let declared = config_field(step.config, "capabilities").and_then(Value::as_object);
            let enabled = declared
                .into_iter()
                .flatten()
                .filter(|(_, on)| **on == true);
            capabilities.extend(enabled.map(|(key, _)| key.clone()));
        }
        RuntimeError::join(errors).map(|()| capabilities)
    }

    /// Asks a plugin for its versions. A plugin that does not know the question supports 0.1.0.
    ///
    /// # Errors
    /// [`RuntimeError::Plugin`].
    pub fn supported_versions(&self, plugin: &str) -> Result<Vec<String>, RuntimeError> {
        let failed = |source| RuntimeError::Plugin {
            plugin: plugin.to_owned(),
            name: String::new(),
            action: "version",
            source: Box::new(source),
        };
        let program = find_plugin(plugin, &self.bin_dirs).map_err(failed)?;
        // Plugins with an old skeleton require these for every command.
        let env = [
            ("CNI_COMMAND", "VERSION"),
            ("CNI_CONTAINERID", ""),
            ("CNI_NETNS", "dummy"),
            ("CNI_ARGS", ""),
            ("CNI_IFNAME", "dummy"),
            ("CNI_PATH", "dummy"),
        ]
        .map(|(key, value)| (key, OsString::from(value)));
        let stdin = format!("{{\"cniVersion\":\"{}\"}}", Version::LATEST);
        match self.execute(
            plugin,
            "VERSION",
            &program,
            stdin.as_bytes(),
            &env,
            &mut Vec::new(),
        )? {
            Ok(output) => parse(&output.stdout).map_err(failed),
            Err(PluginError::Refused { error, .. })
                if error.to_string() == "unknown CNI_COMMAND: VERSION" =>
            {
                Ok(vec![Version::V0_1_0.to_string()])
            }
            Err(error) => Err(failed(error)),
        }
    }
}

fn parse(answer: &[u8]) -> Result<Vec<String>, PluginError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct VersionAnswer {
        cniversion: String,
        supportedversions: Vec<String>,
    }
    let answer = json::parse_folded(answer).and_then(serde_json::from_value::<VersionAnswer>);
    let answer = answer.map_err(|error| PluginError::Version(json::go_error(&error)))?;
    match (answer.cniversion.as_str(), answer.supportedversions) {
        ("", _) => Err(PluginError::Version("missing field cniVersion".to_owned())),
        ("0.2.0", versions) if versions.is_empty() => Ok([Version::V0_1_0, Version::V0_2_0]
            .map(|v| v.to_string())
            .into()),
        (_, versions) if versions.is_empty() => {
            let missing = "missing field supportedVersions";
            Err(PluginError::Version(missing.to_owned()))
        }
        (_, versions) => Ok(versions),
    }
}

//! Network configuration lists, found and read as libcni does.

use std::{
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use podplane_host::fs;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Version, json::go_quote, version::triple as version_triple};

/// One plugin's configuration: the JSON object as it is in the list.
pub type PluginConfig = Map<String, Value>;

/// A network: the chain of plugins that an attachment runs through.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfigList {
    /// The name of the network.
    pub name: String,
    /// `cniVersion` as written, or the highest supported of `cniVersions`. It may be empty, which
    /// means 0.1.0.
    pub cni_version: String,
    /// CHECK succeeds without running any plugin.
    pub disable_check: bool,
    /// GC succeeds without running any plugin.
    pub disable_gc: bool,
    /// The chain; never empty, and each element has a `type`.
    pub plugins: Vec<PluginConfig>,
    /// The list as written, which the cache keeps.
    pub bytes: Vec<u8>,
}

/// A failure to find or read a configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The directory has no file that ends in `.conflist`, `.conf` or `.json`.
    #[error("no net configurations found in {}", .0.display())]
    NoneFound(PathBuf),
    /// The directory has no configuration of that name.
    #[error("no net configuration with name \"{name}\" in {}", dir.display())]
    NotFound {
        /// The name that was looked for.
        name: String,
        /// The directory that was searched.
        dir: PathBuf,
    },
    /// A file or directory could not be read.
    #[error("error reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The text is not a configuration list.
    #[error("error parsing configuration list: {0}")]
    Invalid(String),
    /// The text is not the configuration of a plugin.
    #[error("error parsing configuration: {0}")]
    InvalidPlugin(String),
    /// An element of the list's `plugins` is not the configuration of a plugin.
    #[error("failed to parse plugin config {index}")]
    InvalidElement {
        /// The index in the list.
        index: usize,
        /// The cause.
        source: Box<ConfigError>,
    },
    /// Neither the list nor the directory named after it has a plugin.
    #[error("no plugin configs found")]
    NoPlugins,
    /// A file is not a configuration.
    #[error("{}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: Box<ConfigError>,
    },
}

impl NetworkConfigList {
    /// Parses a list (`.conflist`). Only [`Self::load`] appends the plugins of
    /// `<dir>/<name>/*.conf`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn from_list(bytes: &[u8]) -> Result<Self, ConfigError> {
        Self::parse_list(bytes, None)
    }

    /// Parses a single plugin's configuration (`.conf`) as a list of one.
    ///
    /// # Errors
    /// [`ConfigError::InvalidPlugin`].
    pub fn from_plugin(bytes: &[u8]) -> Result<Self, ConfigError> {
        let plugin = plugin(parse(bytes).map_err(ConfigError::InvalidPlugin)?)?;
        // A missing name is accepted: `load` passes over the file.
        let field = |key| plugin_text(&plugin, key).map(str::to_owned);
        let (name, cni_version) = (field("name")?, field("cniVersion")?);
        // The cache keeps text that a parser of lists can read.
        let list =
            serde_json::json!({"name": name, "cniVersion": cni_version, "plugins": [&plugin]});
        Ok(Self {
            bytes: list.to_string().into_bytes(),
            name,
            cni_version,
            disable_check: false,
            disable_gc: false,
            plugins: vec![plugin],
        })
    }

    /// The network of that name in a directory: `*.conflist` first, then `*.conf` and `*.json`,
    /// each in lexical order. An invalid file that comes before it is an error.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(dir: &Path, name: &str) -> Result<Self, ConfigError> {
        let lists = files(dir, &["conflist"])?;
        let singles = files(dir, &["conf", "json"])?;
        if lists.is_empty() && singles.is_empty() {
            return Err(ConfigError::NoneFound(dir.to_owned()));
        }
        for path in lists.iter().chain(&singles) {
            let list = Self::load_file(path)?;
            if list.name == name {
                return Ok(list);
            }
        }
        Err(ConfigError::NotFound {
            name: name.to_owned(),
            dir: dir.to_owned(),
        })
    }

    /// The default network of a directory: the first file of any kind in lexical order, as
    /// container runtimes choose it.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load_first(dir: &Path) -> Result<Self, ConfigError> {
        Self::load_file(&Self::first_file(dir)?)
    }

    /// The path of the file that [`Self::load_first`] loads.
    ///
    /// # Errors
    /// [`ConfigError::NoneFound`], and [`ConfigError::Read`] of the directory.
    pub(crate) fn first_file(dir: &Path) -> Result<PathBuf, ConfigError> {
        let files = files(dir, &["conflist", "conf", "json"])?;
        let first = files.into_iter().next();
        first.ok_or_else(|| ConfigError::NoneFound(dir.to_owned()))
    }

    /// Loads one file, by its extension.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load_file(path: &Path) -> Result<Self, ConfigError> {
        let bytes = read(path)?;
        let list = if path.extension() == Some(OsStr::new("conflist")) {
            Self::parse_list(&bytes, path.parent())
        } else {
            Self::from_plugin(&bytes)
        };
        list.map_err(|source| ConfigError::InvalidFile {
            path: path.to_owned(),
            source: Box::new(source),
        })
    }

    fn parse_list(bytes: &[u8], dir: Option<&Path>) -> Result<Self, ConfigError> {
        let list: Map<_, _> = parse(bytes).map_err(ConfigError::Invalid)?;
        let name = match list.get("name") {
            None => return Err(invalid("no name")),
            Some(Value::String(name)) => name.clone(),
            Some(other) => return Err(invalid(format!("invalid name type {}", kind(other)))),
        };
        let only_inlined = flag(&list, "loadOnlyInlinedPlugins")?;
        let (cni_version, disable_check, disable_gc) = (
            negotiate(&list)?,
            flag(&list, "disableCheck")?,
            flag(&list, "disableGC")?,
        );
        let mut plugins = match list.get("plugins") {
            Some(Value::Array(items)) if items.is_empty() => {
                return Err(invalid("no plugins in list"));
            }
            Some(Value::Array(items)) => items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    plugin(item.clone()).map_err(|source| ConfigError::InvalidElement {
                        index,
                        source: Box::new(source),
                    })
                })
                .collect::<Result<Vec<_>, _>>()?,
            Some(other) => return Err(invalid(format!("invalid 'plugins' type {}", kind(other)))),
            None if only_inlined => {
                return Err(invalid(
                    "`loadOnlyInlinedPlugins` is true, and no 'plugins' key",
                ));
            }
            None => Vec::new(),
        };
        if let Some(dir) =
            dir.filter(|_| !only_inlined && super::validate::network_name(&name).is_ok())
        {
            for path in files(&dir.join(&name), &["conf"])? {
                let text = parse(&read(&path)?).map_err(ConfigError::InvalidPlugin);
                let config = text.and_then(plugin);
                plugins.push(config.map_err(|source| ConfigError::InvalidFile {
                    path,
                    source: Box::new(source),
                })?);
            }
        }
        if plugins.is_empty() {
            return Err(ConfigError::NoPlugins);
        }
        Ok(Self {
            name,
            cni_version,
            disable_check,
            disable_gc,
            plugins,
            bytes: bytes.to_owned(),
        })
    }

    /// Returns true if the list's version is at least this one. An invalid version counts as newer;
    /// the plugins refuse it.
    #[must_use]
    pub fn is_at_least(&self, version: Version) -> bool {
        let own = match self.cni_version.as_str() {
            "" => Version::V0_1_0.as_str(),
            text => text,
        };
        version_triple(own).map_or(true, |own| own >= version.triple())
    }
}

/// The version to use: `cniVersion`, or the highest of it and `cniVersions` that is not above the
/// newest that this package supports.
fn negotiate(list: &Map<String, Value>) -> Result<String, ConfigError> {
    let single = match list.get("cniVersion") {
        None => "",
        Some(Value::String(text)) => text,
        Some(other) => return Err(invalid(format!("invalid cniVersion type {}", kind(other)))),
    };
    let several = match list.get("cniVersions") {
        None => return Ok(single.to_owned()),
        Some(Value::Array(several)) => several,
        Some(other) => {
            let kind = kind(other);
            return Err(invalid(format!("invalid type for cniVersions: {kind}")));
        }
    };
    let mut best = None;
    let mut consider = |text: &str, place: &str| {
        let version =
            version_triple(text).map_err(|error| invalid(format!("invalid {place}: {error}")))?;
        if version <= Version::LATEST.triple() {
            best = best.take().max(Some((version, text.to_owned())));
        }
        Ok(())
    };
    for (index, item) in several.iter().enumerate() {
        let Value::String(text) = item else {
            let kind = kind(item);
            return Err(invalid(format!(
                "invalid type for cniVersions index {index}: {kind}"
            )));
        };
        consider(text, &format!("cniVersions entry {text} at index {index}"))?;
    }
    if !single.is_empty() {
        consider(single, &format!("cniVersion {single}"))?;
    }
    Ok(best.map_or_else(|| single.to_owned(), |(_, text)| text))
}

/// A field of a plugin's configuration. Keys match in any case, as Go decodes them.
pub(crate) fn config_field<'a>(config: &'a PluginConfig, key: &str) -> Option<&'a Value> {
    let folded = || {
        let found = config
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value)
    };
    config.get(key).or_else(folded)
}

/// Checks the fields of a plugin's configuration that libcni reads; the rest is the plugin's own.
fn plugin(config: Value) -> Result<PluginConfig, ConfigError> {
    let refused = |why: String| ConfigError::InvalidPlugin(why);
    let Value::Object(config) = config else {
        return Err(refused(format!("want an object, not {}", kind(&config))));
    };
    if plugin_text(&config, "type")?.is_empty() {
        return Err(refused("missing 'type'".to_owned()));
    }
    plugin_text(&config, "name")?;
    match config_field(&config, "capabilities") {
        None | Some(Value::Null) => {}
        Some(Value::Object(map)) if map.values().all(|v| v.is_boolean() || v.is_null()) => {}
        Some(other) => {
            let text = format!("capabilities: want an object of booleans, not {other}");
            return Err(refused(text));
        }
    }
    Ok(config)
}

fn plugin_text<'a>(config: &'a PluginConfig, key: &str) -> Result<&'a str, ConfigError> {
    match config_field(config, key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(other) => Err(ConfigError::InvalidPlugin(format!(
            "{key}: want a string, not {}",
            kind(other)
        ))),
    }
}

fn invalid(why: impl Into<String>) -> ConfigError {
    ConfigError::Invalid(why.into())
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(bytes).map_err(|error| super::json::go_error(&error))
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

/// A boolean, or its name as a string in any case.
fn flag(list: &Map<String, Value>, key: &str) -> Result<bool, ConfigError> {
    let text = match list.get(key) {
        None => return Ok(false),
        Some(Value::Bool(value)) => return Ok(*value),
        Some(Value::String(text)) => text.to_lowercase(),
        Some(other) => {
            let kind = kind(other);
            return Err(invalid(format!("invalid type {kind} for {key}")));
        }
    };
    text.parse()
        .map_err(|_| invalid(format!("invalid value {} for {key}", go_quote(&text))))
}

/// Go's name of a value's type, for errors.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// The regular files with one of the extensions, in lexical order. A missing directory has none.
fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, ConfigError> {
    let failed = |source| ConfigError::Read {
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(OsStr::to_str).unwrap_or_default();
        if extensions.contains(&extension) && !fs::is_dir(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests;

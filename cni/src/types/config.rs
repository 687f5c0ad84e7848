//! Network configuration lists, found and read as libcni does.

use std::{
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::Version;

/// One plugin's configuration: the JSON object as it stands in the list.
pub type PluginConfig = Map<String, Value>;

/// A network: the chain of plugins that an attachment runs through.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfigList {
    /// Name of the network.
    pub name: String,
    /// `cniVersion` as written, or the highest supported of `cniVersions`. May be empty, which is 0.1.0.
    pub cni_version: String,
    /// CHECK succeeds without running anything.
    pub disable_check: bool,
    /// GC succeeds without running anything.
    pub disable_gc: bool,
    /// The chain; never empty, and each has a `type`.
    pub plugins: Vec<PluginConfig>,
    /// The list as it was written: what the cache keeps.
    pub bytes: Vec<u8>,
}

/// A configuration that could not be found or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Nothing ends in `.conflist`, `.conf` or `.json`.
    #[error("no net configurations found in {}", .0.display())]
    NoneFound(PathBuf),
    /// There are configurations, but none of that name.
    #[error("no net configuration with name \"{name}\" in {}", dir.display())]
    NotFound {
        /// The name looked for.
        name: String,
        /// The directory searched.
        dir: PathBuf,
    },
    /// A file or directory could not be read.
    #[error("error reading {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The text is not a configuration.
    #[error("error parsing configuration list: {0}")]
    Invalid(String),
    /// A file is not a configuration.
    #[error("{}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<ConfigError>,
    },
}

impl NetworkConfigList {
    /// Reads a list (`.conflist`); plugins of `<dir>/<name>/*.conf` are appended by [`Self::load`] only.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn from_list(bytes: &[u8]) -> Result<Self, ConfigError> {
        Self::parse_list(bytes, None)
    }

    /// Reads a single plugin's configuration (`.conf`) as a list of one.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`].
    pub fn from_plugin(bytes: &[u8]) -> Result<Self, ConfigError> {
        let plugin = object(bytes)?;
        required_type(&plugin)?;
        let name = text(&plugin, "name")?.ok_or_else(|| invalid("missing network name"))?;
        let cni_version = text(&plugin, "cniVersion")?.unwrap_or_default();
        // The cache keeps what a reader of lists can read.
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

    /// The network of that name in a directory: `*.conflist` first, then `*.conf` and `*.json`, each in
    /// lexical order. A broken file before it is an error.
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

    /// The default network of a directory: the first file of any kind in lexical order, as container
    /// runtimes choose it.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load_first(dir: &Path) -> Result<Self, ConfigError> {
        let files = files(dir, &["conflist", "conf", "json"])?;
        let first = files
            .first()
            .ok_or_else(|| ConfigError::NoneFound(dir.to_owned()))?;
        Self::load_file(first)
    }

    /// One file, by its extension.
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
        let list = object(bytes)?;
        let name = match list.get("name") {
            None => return Err(invalid("no name")),
            Some(Value::String(name)) => name.clone(),
            Some(other) => return Err(invalid(format!("invalid name type {}", kind(other)))),
        };
        let only_inlined = flag(&list, "loadOnlyInlinedPlugins")?;
        let mut plugins = Vec::new();
        match list.get("plugins") {
            Some(Value::Array(items)) if items.is_empty() => {
                return Err(invalid("'plugins' list is empty"));
            }
            Some(Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    let Value::Object(plugin) = item else {
                        return Err(invalid(format!("plugin {index} is not an object")));
                    };
                    plugins.push(plugin.clone());
                }
            }
            Some(other) => return Err(invalid(format!("invalid 'plugins' type {}", kind(other)))),
            None if only_inlined => {
                return Err(invalid(
                    "`loadOnlyInlinedPlugins` is true, and no 'plugins' key",
                ));
            }
            None => {}
        }
        if let Some(dir) =
            dir.filter(|_| !only_inlined && super::validate::network_name(&name).is_ok())
        {
            for path in files(&dir.join(&name), &["conf"])? {
                plugins.push(object(&read(&path)?)?);
            }
        }
        if plugins.is_empty() {
            return Err(invalid("no plugin configs found"));
        }
        plugins.iter().try_for_each(required_type)?;
        Ok(Self {
            name,
            cni_version: negotiate(&list)?,
            disable_check: flag(&list, "disableCheck")?,
            disable_gc: flag(&list, "disableGC")?,
            plugins,
            bytes: bytes.to_owned(),
        })
    }

    /// Whether the list's version is at least this one; a version that is not known is taken as newer.
    #[must_use]
    pub fn is_at_least(&self, version: Version) -> bool {
        self.cni_version
            .parse::<Version>()
            .map_or(true, |own| own >= version)
    }
}

/// `cniVersion`, or the highest that this package speaks of it and `cniVersions`.
fn negotiate(list: &Map<String, Value>) -> Result<String, ConfigError> {
    let single = text(list, "cniVersion")?.unwrap_or_default();
    let Some(several) = list.get("cniVersions") else {
        return Ok(single);
    };
    let Value::Array(several) = several else {
        return Err(invalid(format!(
            "invalid type for cniVersions: {}",
            kind(several)
        )));
    };
    let mut best = None;
    let texts = several
        .iter()
        .map(|item| item.as_str())
        .chain([Some(single.as_str()).filter(|s| !s.is_empty())]);
    for version in texts.flatten() {
        best = best.max(version.parse::<Version>().ok());
    }
    Ok(best.map_or(single, |version| version.to_string()))
}

fn invalid(why: impl Into<String>) -> ConfigError {
    ConfigError::Invalid(why.into())
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    serde_json::from_slice(bytes).map_err(|error| invalid(super::json::go_error(&error)))
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })
}

fn required_type(plugin: &PluginConfig) -> Result<(), ConfigError> {
    match plugin.get("type") {
        Some(Value::String(name)) if !name.is_empty() => Ok(()),
        _ => Err(invalid("missing 'type'")),
    }
}

fn text(object: &Map<String, Value>, key: &str) -> Result<Option<String>, ConfigError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(other) => Err(invalid(format!("invalid {key} type {}", kind(other)))),
    }
}

/// A boolean, or its name as a string.
fn flag(object: &Map<String, Value>, key: &str) -> Result<bool, ConfigError> {
    match object.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(other) => Err(invalid(format!("invalid value \"{other}\" for {key}"))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Regular files with one of the extensions, in lexical order; a directory that is missing has none.
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
        if extensions.contains(&extension) && !path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_before_single_files_and_the_name_decides() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let missing = NetworkConfigList::load(dir.path(), "a")
            .unwrap_err()
            .to_string();
        assert_eq!(
            missing,
            format!("no net configurations found in {}", dir.path().display())
        );
        write("00.conf", r#"{"name": "a", "type": "single"}"#);
        write(
            "99.conflist",
            r#"{"name": "a", "cniVersion": "1.0.0", "plugins": [{"type": "listed"}]}"#,
        );
        let list = NetworkConfigList::load(dir.path(), "a").unwrap();
        assert_eq!(list.plugins[0]["type"], "listed");
        assert_eq!(
            NetworkConfigList::load_first(dir.path()).unwrap().plugins[0]["type"],
            "single"
        );
        let other = NetworkConfigList::load(dir.path(), "b")
            .unwrap_err()
            .to_string();
        assert_eq!(
            other,
            format!(
                "no net configuration with name \"b\" in {}",
                dir.path().display()
            )
        );
        write("01.conflist", "{");
        assert!(
            NetworkConfigList::load(dir.path(), "a").is_err(),
            "a broken earlier file aborts"
        );
    }

    #[test]
    fn plugins_of_the_networks_directory_are_appended() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("10.conflist");
        fs::write(&path, r#"{"name": "n", "plugins": [{"type": "a"}]}"#).unwrap();
        fs::create_dir(dir.path().join("n")).unwrap();
        fs::write(dir.path().join("n/5.conf"), r#"{"type": "b"}"#).unwrap();
        let types = |path: &Path| -> Vec<_> {
            let list = NetworkConfigList::load_file(path).unwrap();
            list.plugins
                .iter()
                .map(|p| p["type"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(types(&path), ["a", "b"]);
        fs::write(
            &path,
            r#"{"name": "n", "loadOnlyInlinedPlugins": "true", "plugins": [{"type": "a"}]}"#,
        )
        .unwrap();
        assert_eq!(types(&path), ["a"]);
    }

    #[test]
    fn the_highest_supported_version_is_chosen() {
        let text = br#"{"name": "n", "cniVersion": "0.3.1", "cniVersions": ["0.4.0", "9.0.0", "1.0.0"], "plugins": [{"type": "a"}]}"#;
        assert_eq!(
            NetworkConfigList::from_list(text).unwrap().cni_version,
            "1.0.0"
        );
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"name": 5, "plugins": [{"type": "a"}]}"#,
            r#"{"name": "n"}"#,
            r#"{"name": "n", "plugins": []}"#,
            r#"{"name": "n", "plugins": [{}]}"#,
            r#"{"name": "n", "plugins": {}}"#,
            r#"{"name": "n", "disableCheck": 3, "plugins": [{"type": "a"}]}"#,
            r#"{"name": "n", "loadOnlyInlinedPlugins": true}"#,
        ] {
            assert!(
                NetworkConfigList::from_list(bad.as_bytes()).is_err(),
                "{bad}"
            );
        }
    }
}

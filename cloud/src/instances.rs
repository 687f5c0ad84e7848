//! The file of instances.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    time::{Duration, SystemTime},
};

use ipnet::{Ipv4Net, Ipv6Net};
use podplane_host::{clock, fs};
use podplane_proto::cloud as wire;
use serde::Deserialize;

/// The resolution of a file's times: a file changed less than this ago may have been changed again
/// since it was read.
const TIMES_ARE_COARSE: Duration = Duration::from_secs(1);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct InstancesDocument {
    #[serde(default)]
    instances: Vec<Instance>,
}

/// An instance, with GCE's names of fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Instance {
    #[serde(rename = "providerID")]
    provider_id: String,
    #[serde(default)]
    network_interfaces: Vec<NetworkInterface>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct NetworkInterface {
    name: String,
    #[serde(default = "default_network")]
    network: String,
    #[serde(default)]
    alias_ip_ranges: Vec<AliasIpRange>,
    ipv6_cidr_range: Option<Ipv6Net>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AliasIpRange {
    ip_cidr_range: Ipv4Net,
    #[serde(default)]
    subnetwork_range_name: String,
}

fn default_network() -> String {
    "default".to_owned()
}

/// The reasons why a file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The content is not a list of instances.
    #[error("failed to parse {}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The decoder's error, with its place.
        source: Box<serde_saphyr::Error>,
    },
    /// Two instances have one id.
    #[error("{}: instances: duplicate providerID {provider_id:?}", path.display())]
    Duplicate {
        /// The file.
        path: PathBuf,
        /// The id.
        provider_id: String,
    },
}

/// The instances of a file, by id.
type Instances = BTreeMap<String, wire::Instance>;

/// The modification time and the length of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    modified: SystemTime,
    length: u64,
}

impl FileVersion {
    /// Returns whether an equal version has the same content for certain.
    fn is_settled(&self, now: SystemTime) -> bool {
        // A time in the future is not reliable.
        now.duration_since(self.modified)
            .is_ok_and(|age| age > TIMES_ARE_COARSE)
    }
}

/// A file of instances that may change.
#[derive(Debug)]
pub struct InstancesFile {
    path: PathBuf,
    text: String,
    instances: Instances,
    /// The version that was last read, if an equal one has the same content for certain.
    seen: Option<FileVersion>,
    /// Set if the file was invalid when it was last read; the instances are the former ones.
    broken: bool,
}

impl InstancesFile {
    /// Reads the file.
    ///
    /// # Errors
    ///
    /// [`FileError`] if the file is invalid.
    pub fn open(path: PathBuf) -> Result<Self, FileError> {
        let mut file = Self {
            path,
            text: String::new(),
            instances: Instances::new(),
            seen: None,
            broken: false,
        };
        file.read()?;
        Ok(file)
    }

    /// The number of instances.
    pub fn len(&self) -> usize {
        self.instances.len()
    }

    /// Returns whether there are no instances.
    pub fn is_empty(&self) -> bool {
        self.instances.is_empty()
    }

    /// The instance of that id in the present file. While the file is invalid, its former content
    /// applies.
    pub fn get(&mut self, provider_id: &str) -> Option<&wire::Instance> {
        match self.read() {
            Ok(()) => self.broken = false,
            Err(error) => {
                if !self.broken {
                    let reason = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(%error, reason, "instances file is invalid; keeping the former instances");
                }
                self.broken = true;
            }
        }
        self.instances.get(provider_id)
    }

    /// Reads the file if it may have changed.
    fn read(&mut self) -> Result<(), FileError> {
        let failed = |source| FileError::Read {
            path: self.path.clone(),
            source,
        };
        let metadata = fs::metadata(&self.path).map_err(failed)?;
        let version = FileVersion {
            modified: metadata.modified().map_err(failed)?,
            length: metadata.len(),
        };
        if self.seen == Some(version) {
            return Ok(());
        }
        let text = fs::read_to_string(&self.path).map_err(failed)?;
        if text != self.text || self.broken {
            self.instances = parse(&text).map_err(|problem| match problem {
                ParseError::Syntax(source) => FileError::Syntax {
                    path: self.path.clone(),
                    source,
                },
                ParseError::Duplicate(provider_id) => FileError::Duplicate {
                    path: self.path.clone(),
                    provider_id,
                },
            })?;
            self.text = text;
        }
        self.seen = Some(version).filter(|version| version.is_settled(clock::system_time()));
        Ok(())
    }
}

#[derive(Debug)]
enum ParseError {
    Syntax(Box<serde_saphyr::Error>),
    Duplicate(String),
}

fn parse(text: &str) -> Result<Instances, ParseError> {
    let options = serde_saphyr::options! {
        // The file is the user's own, and may be long.
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
        with_snippet: false,
    };
    // An empty file is a cloud without instances.
    let document: Option<InstancesDocument> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| ParseError::Syntax(Box::new(error)))?;
    let mut instances = Instances::new();
    for instance in document.unwrap_or_default().instances {
        let id = instance.provider_id.clone();
        if instances.insert(id.clone(), instance.into()).is_some() {
            return Err(ParseError::Duplicate(id));
        }
    }
    Ok(instances)
}

impl From<Instance> for wire::Instance {
    fn from(instance: Instance) -> Self {
        let Instance {
            provider_id,
            network_interfaces,
        } = instance;
        Self {
            provider_id,
            network_interfaces: network_interfaces.into_iter().map(Into::into).collect(),
        }
    }
}

impl From<NetworkInterface> for wire::NetworkInterface {
    fn from(interface: NetworkInterface) -> Self {
        let NetworkInterface {
            name,
            network,
            alias_ip_ranges,
            ipv6_cidr_range,
        } = interface;
        let alias = |range: AliasIpRange| wire::AliasIpRange {
            ip_cidr_range: range.ip_cidr_range.to_string(),
            subnetwork_range_name: range.subnetwork_range_name,
        };
        Self {
            name,
            network,
            alias_ip_ranges: alias_ip_ranges.into_iter().map(alias).collect(),
            ipv6_cidr_range: ipv6_cidr_range.map_or_else(String::new, |net| net.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "\
instances:
- providerID: gce://demo/zone-a/node-0
  networkInterfaces:
  - name: nic0
    aliasIpRanges:
    - ipCidrRange: 10.244.0.0/24
      subnetworkRangeName: pods
    ipv6CidrRange: 2001:db8:1::/112
";

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cloud.yaml");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn reads_instances_with_their_ranges() {
        let instances = parse(ONE).unwrap();
        let nic = &instances["gce://demo/zone-a/node-0"].network_interfaces[0];
        assert_eq!((&*nic.name, &*nic.network), ("nic0", "default"));
        assert_eq!(nic.alias_ip_ranges[0].ip_cidr_range, "10.244.0.0/24");
        assert_eq!(nic.ipv6_cidr_range, "2001:db8:1::/112");
        assert!(parse("").unwrap().is_empty());
        assert!(parse("instances: []").unwrap().is_empty());
    }

    #[test]
    fn rejects_invalid_instances_with_their_place() {
        let refused = |text: &str| match parse(text).unwrap_err() {
            ParseError::Syntax(error) => error.to_string(),
            ParseError::Duplicate(id) => format!("duplicate {id}"),
        };
        let typo = ONE.replace("aliasIpRanges", "aliasRanges");
        assert!(refused(&typo).contains("aliasRanges"), "{}", refused(&typo));
        let wrong = ONE.replace("10.244.0.0/24", "10.244.0.0");
        assert!(refused(&wrong).contains("line 6"), "{}", refused(&wrong));
        let second = ONE.strip_prefix("instances:\n").unwrap();
        assert_eq!(
            refused(&format!("{ONE}{second}")),
            "duplicate gce://demo/zone-a/node-0"
        );
    }

    #[test]
    fn reads_changed_files_again_and_ignores_invalid_ones() {
        let (_dir, path) = written(ONE);
        let mut file = InstancesFile::open(path.clone()).unwrap();
        let range = |file: &mut InstancesFile| {
            let found = file.get("gce://demo/zone-a/node-0")?;
            let ranges = &found.network_interfaces[0].alias_ip_ranges;
            Some(ranges[0].ip_cidr_range.clone())
        };
        assert_eq!(range(&mut file).as_deref(), Some("10.244.0.0/24"));
        // Of the same length, and within one tick of the clock that stamps files.
        fs::write(&path, ONE.replace("10.244.0.0", "10.244.9.0")).unwrap();
        assert_eq!(range(&mut file).as_deref(), Some("10.244.9.0/24"));
        fs::write(&path, "instances: 7").unwrap();
        assert_eq!(range(&mut file).as_deref(), Some("10.244.9.0/24"));
        fs::remove_file(&path).unwrap();
        assert_eq!(range(&mut file).as_deref(), Some("10.244.9.0/24"));
        fs::write(&path, "").unwrap();
        assert_eq!(range(&mut file), None);
    }

    #[test]
    fn names_a_missing_file() {
        let error = InstancesFile::open("/nowhere/cloud.yaml".into()).unwrap_err();
        assert_eq!(error.to_string(), "failed to read /nowhere/cloud.yaml");
    }
}

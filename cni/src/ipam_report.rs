//! Reports of IPAM plugins: the number of addresses that a plugin can give on a node, and the
//! addresses it holds.
//!
//! CNI has no request for this, so the author of a plugin provides it by a command or a file that
//! [`KEY`] names at the top level of the network configuration list. libcni, and every runtime
//! built on it, passes top-level keys to no plugin. docs/cni.md describes the format.
//!
//! The list is trusted configuration: its author names programs that run as the kubelet's user
//! anyway.

#[cfg(test)]
mod tests;

use std::{
    env,
    io::{self, Read as _},
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ipnet::IpNet;
use podplane_host::fs;
use serde::{Deserialize, Deserializer, Serialize, de};
use serde_json::{Map, Value};

use crate::{
    runtime::{PluginError, RunningPlugin, find_plugin},
    types::{ConfigError, NetworkConfigList},
};

/// The top-level key of a network configuration list that names the source of the report.
pub const KEY: &str = "podplane.io/ipam-report";

/// The largest report: about 70,000 addresses.
const MAX_BYTES: usize = 8 << 20;
/// The default time-out of a command.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time-out that [`KEY`] may ask for, since the kubelet waits for the report.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// The number of characters of a command's output that an error message shows.
const SHOWN: usize = 500;

/// A plugin's report.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct IpamReport {
    /// The number of addresses that can be given to pods, including those that are held.
    pub capacity: Capacity,
    /// The addresses that are held; `None` if the reporter does not know them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Vec<HeldAddress>>,
    /// The ranges of the addresses, if they differ from the node's podCIDRs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranges: Vec<IpNet>,
}

/// Numbers of addresses by family. Pods get no address of a family that is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Capacity {
    /// IPv4.
    #[serde(
        default,
        deserialize_with = "saturating",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv4: Option<u64>,
    /// IPv6.
    #[serde(
        default,
        deserialize_with = "saturating",
        skip_serializing_if = "Option::is_none"
    )]
    pub ipv6: Option<u64>,
}

/// An address that a container holds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct HeldAddress {
    /// The address; in the report it may have a prefix length, which is dropped.
    #[serde(deserialize_with = "address")]
    pub address: IpAddr,
    /// `CNI_CONTAINERID` of the ADD that got the address.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// `CNI_IFNAME` of that ADD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifname: Option<String>,
}

/// A failure to get a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The network configuration is missing or cannot be read.
    #[error("failed to read the network configuration")]
    Config(#[from] ConfigError),
    /// The value of the key is invalid.
    #[error("invalid {KEY:?} of {}: {reason}", path.display())]
    Key {
        /// The configuration file.
        path: PathBuf,
        /// The fault, and the expected value.
        reason: String,
    },
    /// The file cannot be read.
    #[error("failed to read the IPAM report {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The command failed, or did not end in time.
    #[error("the IPAM report command {} {reason}", path.display())]
    Command {
        /// The program.
        path: PathBuf,
        /// The failure, as the end of a sentence that begins with the program.
        reason: String,
    },
    /// The report is longer than the limit.
    #[error("the IPAM report of {} has more than {MAX_BYTES} bytes", from.display())]
    TooLong {
        /// The program or the file.
        from: PathBuf,
    },
    /// The text is not a valid report.
    #[error("invalid IPAM report of {}: {reason}", from.display())]
    Invalid {
        /// The program or the file.
        from: PathBuf,
        /// The field and its fault.
        reason: String,
    },
}

impl ReportError {
    /// The error with all its causes, on one line.
    #[must_use]
    pub fn message(&self) -> String {
        podplane_error_chain::one_line(self)
    }
}

/// The source of a node's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportSource {
    network: String,
    conflist: PathBuf,
    text: Vec<u8>,
    origin: ReportOrigin,
}

/// The facts about a node that a command gets in its environment.
#[derive(Clone, Copy, Debug)]
pub struct ReportNode<'a> {
    /// The node's name.
    pub name: &'a str,
    /// The directory of the node's files.
    pub dir: &'a Path,
    /// The node's blocks.
    pub pod_cidrs: &'a [String],
    /// The directories of CNI plugins.
    pub bin_dirs: &'a [PathBuf],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ReportOrigin {
    Command {
        argv: Vec<String>,
        timeout: Duration,
    },
    File(PathBuf),
}

/// The value of [`KEY`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportSpec {
    command: Option<Vec<String>>,
    timeout: Option<String>,
    file: Option<PathBuf>,
}

impl ReportSource {
    /// The source named by the active network configuration, which is the first of `net_d`. `None`
    /// if it names none, or is not a list (`.conflist`).
    ///
    /// # Errors
    /// [`ReportError::Config`] and [`ReportError::Key`].
    pub fn of_first(net_d: &Path) -> Result<Option<Self>, ReportError> {
        let path = NetworkConfigList::first_file(net_d)?;
        if path.extension().is_none_or(|kind| kind != "conflist") {
            return Ok(None);
        }
        let list = NetworkConfigList::load_file(&path)?;
        // A list that loaded is an object.
        let keys: Map<String, Value> = serde_json::from_slice(&list.bytes).unwrap_or_default();
        let Some(spec) = keys.get(KEY) else {
            return Ok(None);
        };
        let origin = ReportSpec::deserialize(spec).map_err(|error| error.to_string());
        match origin.and_then(ReportOrigin::try_from) {
            Ok(origin) => Ok(Some(Self {
                network: list.name,
                text: list.bytes,
                conflist: path,
                origin,
            })),
            Err(reason) => Err(ReportError::Key { path, reason }),
        }
    }

    /// The name of the network.
    #[must_use]
    pub fn network(&self) -> &str {
        &self.network
    }

    /// Reads the file, or runs the command and waits for it.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn read(&self, node: &ReportNode<'_>) -> Result<IpamReport, ReportError> {
        let (from, text) = match &self.origin {
            ReportOrigin::File(file) => {
                let path = self.dir().join(file);
                let text = read_file(&path).map_err(|source| ReportError::File {
                    path: path.clone(),
                    source,
                })?;
                (path, text)
            }
            ReportOrigin::Command { argv, timeout } => self.run(argv, *timeout, node)?,
        };
        if text.len() > MAX_BYTES {
            return Err(ReportError::TooLong { from });
        }
        IpamReport::parse(&text).map_err(|reason| ReportError::Invalid { from, reason })
    }

    /// Runs the command with the list, as written, on standard input. Returns the program and its
    /// output.
    fn run(
        &self,
        argv: &[String],
        timeout: Duration,
        node: &ReportNode<'_>,
    ) -> Result<(PathBuf, Vec<u8>), ReportError> {
        let [program, args @ ..] = argv else {
            return Ok((PathBuf::new(), Vec::new()));
        };
        let path = self.program(program, node.bin_dirs);
        let mut command = Command::new(&path);
        let cni_path = env::join_paths(node.bin_dirs).unwrap_or_default();
        command
            .args(args)
            .current_dir(self.dir())
            .env("CNI_PATH", cni_path)
            .env("IPAM_REPORT_NODE", node.name)
            .env("IPAM_REPORT_NODE_DIR", node.dir)
            .env("IPAM_REPORT_POD_CIDRS", node.pod_cidrs.join(","))
            .env("IPAM_REPORT_NETWORK", &self.network)
            .env("IPAM_REPORT_CONFLIST", &self.conflist);
        let started =
            RunningPlugin::start_command(command, &self.text, Some(timeout), MAX_BYTES + 1);
        match started.and_then(|running| running.finish(&mut Vec::new())) {
            Ok(output) => Ok((path, output.stdout)),
            Err(error) => {
                let reason = told(&error);
                Err(ReportError::Command { path, reason })
            }
        }
    }

    /// The program that `name` stands for. A name with a slash is a path relative to the list's
    /// directory. Another name is looked up among the CNI plugins, then in `PATH`.
    fn program(&self, name: &str, bin_dirs: &[PathBuf]) -> PathBuf {
        if name.contains('/') {
            return self.dir().join(name);
        }
        find_plugin(name, bin_dirs).unwrap_or_else(|_| name.into())
    }

    fn dir(&self) -> &Path {
        self.conflist.parent().unwrap_or(Path::new("."))
    }
}

/// Reads a file, up to one byte more than a report may have. Refuses a FIFO or a device: opening or
/// reading it might block for ever.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    let limit = u64::try_from(MAX_BYTES + 1).unwrap_or(u64::MAX);
    fs::open(path)?.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

/// Describes a command's failure, as the end of a sentence that begins with the program.
fn told(error: &PluginError) -> String {
    let said = |stderr: &str| match stderr.trim() {
        "" => String::new(),
        text => format!(": {}", shortened(text)),
    };
    match error {
        PluginError::TimedOut { after, stderr, .. } => {
            format!(
                "did not finish within {after:?} and was killed{}",
                said(stderr)
            )
        }
        PluginError::Silent { status, stderr } => format!("failed: {status}{}", said(stderr)),
        PluginError::Refused { error, .. } => format!("failed: {error}"),
        PluginError::Unreadable { stdout, .. } => {
            format!("failed and printed {:?}", shortened(stdout.trim()))
        }
        PluginError::Run { source, .. } => format!("could not be run: {source}"),
        other => format!("failed: {other}"),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

impl TryFrom<ReportSpec> for ReportOrigin {
    type Error = String;

    fn try_from(spec: ReportSpec) -> Result<Self, String> {
        match spec {
            ReportSpec {
                command: None,
                timeout: None,
                file: Some(file),
            } => Ok(Self::File(file)),
            ReportSpec {
                file: Some(_),
                command: None,
                timeout: Some(_),
            } => Err("timeout: only a command has one".to_owned()),
            ReportSpec {
                command: Some(argv),
                timeout,
                file: None,
            } => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(
                        "command: must be a list that begins with a program, such as [\"my-ipam\", \"report\"]"
                            .to_owned(),
                    );
                }
                let timeout = timeout.as_deref().map_or(Ok(TIMEOUT), parse_timeout)?;
                Ok(Self::Command { argv, timeout })
            }
            _ => Err("must have either \"command\" or \"file\"".to_owned()),
        }
    }
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let parsed = humantime::parse_duration(text).ok();
    let allowed = parsed.filter(|timeout| !timeout.is_zero() && *timeout <= MAX_TIMEOUT);
    allowed.ok_or_else(|| {
        format!(
            "timeout: invalid duration {text:?}: must be at most {MAX_TIMEOUT:?}, such as \"2s\""
        )
    })
}

impl IpamReport {
    /// Parses a report.
    ///
    /// # Errors
    /// The field and its fault.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut json = serde_json::Deserializer::from_slice(text);
        let report: Self =
            serde_path_to_error::deserialize(&mut json).map_err(|error| error.to_string())?;
        json.end().map_err(|error| error.to_string())?;
        if report.capacity == Capacity::default() {
            return Err("capacity: must have ipv4, ipv6 or both".to_owned());
        }
        let mut addresses = report.addresses.iter().flatten().enumerate();
        if let Some((index, _)) = addresses.find(|(_, held)| held.container_id.is_empty()) {
            return Err(format!("addresses[{index}].containerID: must not be empty"));
        }
        Ok(report)
    }
}

/// Reads a whole number; one beyond 64 bits becomes the largest, since some IPv6 ranges are that
/// large.
fn saturating<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let Some(number) = Option::<serde_json::Number>::deserialize(from)? else {
        return Ok(None);
    };
    match (number.as_u64(), number.as_f64()) {
        (Some(count), _) => Ok(Some(count)),
        // Only integers reach here with such a value.
        (None, Some(count)) if count >= 18_446_744_073_709_551_615.0 => Ok(Some(u64::MAX)),
        _ => Err(de::Error::custom(format!(
            "invalid number {number}: must be a whole number that is not negative"
        ))),
    }
}

fn address<'de, D: Deserializer<'de>>(from: D) -> Result<IpAddr, D::Error> {
    let text = String::deserialize(from)?;
    let plain = text.parse::<IpAddr>().ok();
    let parsed = plain.or_else(|| Some(text.parse::<IpNet>().ok()?.addr()));
    parsed.ok_or_else(|| {
        de::Error::custom(format!(
            "invalid address {text:?}: must be an IP address such as 10.0.0.2"
        ))
    })
}

//! Errors of running plugins.

use std::{fmt, io, path::PathBuf, time::Duration};

use podplane_netlink::netns::NetnsError;

use crate::types::{CniError, ResultError, json};

/// A failed operation of the [`Runtime`](super::Runtime). `Display` names the failed step;
/// [`message`](Self::message) has the whole chain, which is libcni's text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The container id, the network's name or the interface's name is invalid.
    #[error(transparent)]
    Invalid(CniError),
    /// A plugin failed.
    #[error("plugin {} failed ({action})", Described(plugin, name))]
    Plugin {
        /// The plugin's `type`.
        plugin: String,
        /// The plugin's own `name`, which single-plugin files have; otherwise empty.
        name: String,
        /// `add`, `delete`, `check`, `gc` or `status`.
        action: &'static str,
        /// The failure.
        source: Box<PluginError>,
    },
    /// An ADD failed, and so did the DEL that should have undone it.
    #[error("{}; rolling it back failed too: {}", add.message(), rollback.message())]
    Rollback {
        /// The failure of the ADD.
        add: Box<RuntimeError>,
        /// The failure of the DEL. What it left is freed by a later DEL or GC.
        rollback: Box<RuntimeError>,
    },
    /// Several plugins or attachments failed; the others were processed.
    #[error("{}", join(.0))]
    Several(Vec<RuntimeError>),
    /// GC failed to delete an attachment that is not valid.
    #[error("failed to delete stale attachment {container_id} {ifname}")]
    Stale {
        /// The container's id.
        container_id: String,
        /// The interface in the container.
        ifname: String,
        /// The cause.
        source: Box<RuntimeError>,
    },
    /// Two attachments of one call have the same interface of the same container.
    #[error("interface {ifname:?} of container {container_id:?} is asked for twice")]
    SameInterface {
        /// The container's id.
        container_id: String,
        /// The interface in the container.
        ifname: String,
    },
    /// The plugin does not support the configuration's version.
    #[error("plugin {plugin} does not support config version \"{version}\"")]
    VersionUnsupported {
        /// The plugin's `type`.
        plugin: String,
        /// The list's `cniVersion`.
        version: String,
    },
    /// The configuration's version, the value of the variant, has no CHECK.
    #[error("configuration version \"{0}\" does not support the CHECK command")]
    CheckUnsupported(String),
    /// The first plugin of the list has no `ipam.type`.
    #[error("plugin type=\"{0}\" has no IPAM plugin")]
    NoIpam(String),
    /// The cached result cannot be read.
    #[error("failed to get network \"{network}\" cached result: {reason}")]
    CachedResult {
        /// The network's name.
        network: String,
        /// The fault.
        reason: String,
    },
    /// The cache could not be written or read.
    #[error("failed to {action} the cached result {}", path.display())]
    Cache {
        /// `write`, `read` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The node's namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

impl RuntimeError {
    /// The error with all its causes, on one line.
    #[must_use]
    pub fn message(&self) -> String {
        podplane_error_chain::one_line(self)
    }

    /// The error object that a plugin printed, if the failure is one.
    #[must_use]
    pub fn cni_error(&self) -> Option<&CniError> {
        match self {
            Self::Invalid(error) => Some(error),
            Self::Plugin { source, .. } => match &**source {
                PluginError::Refused { error, .. } => Some(error),
                _ => None,
            },
            Self::Rollback { add, .. } => add.cni_error(),
            Self::Stale { source, .. } => source.cni_error(),
            _ => None,
        }
    }

    pub(super) fn join(mut errors: Vec<Self>) -> Result<(), Self> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}

fn join(errors: &[RuntimeError]) -> String {
    let messages: Vec<_> = errors.iter().map(RuntimeError::message).collect();
    messages.join("; ")
}

/// A failed execution of a plugin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The plugin printed an error object.
    #[error("{error}")]
    Refused {
        /// The error, as printed.
        error: CniError,
        /// The plugin's standard error.
        stderr: String,
    },
    /// The program was not found.
    #[error("failed to find plugin \"{name}\" in path [{}]", DirList(path))]
    NotFound {
        /// The plugin's `type`.
        name: String,
        /// The directories that were searched.
        path: Vec<PathBuf>,
    },
    /// The plugin's `type` is not a file name.
    #[error("invalid plugin name: {0}")]
    InvalidName(String),
    /// The program could not be started, or its pipes failed.
    #[error("failed to run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The plugin did not end in time; it and its process group were killed.
    #[error("plugin {} did not finish within {after:?} and was killed{}", path.display(), Stderr(stderr))]
    TimedOut {
        /// The program.
        path: PathBuf,
        /// The time limit.
        after: Duration,
        /// The plugin's standard error until then.
        stderr: String,
    },
    /// The plugin failed and printed nothing on standard output.
    #[error("{}", silent(status, stderr))]
    Silent {
        /// The exit, such as `exit status 2` or `signal: 9`.
        status: String,
        /// The plugin's standard error.
        stderr: String,
    },
    /// The plugin failed and did not print an error object.
    #[error(
        "netplugin failed but error parsing its diagnostic message {}: {reason}",
        json::go_quote(stdout)
    )]
    Unreadable {
        /// The plugin's standard output.
        stdout: String,
        /// The reason why it is not an error object.
        reason: String,
    },
    /// The plugin's answer to VERSION lists no versions.
    #[error("decoding version info: {0}")]
    Version(String),
    /// The plugin succeeded, but did not print a result.
    #[error(transparent)]
    Result(#[from] ResultError),
}

impl PluginError {
    /// Returns true if the plugin has certainly not run.
    #[must_use]
    pub(crate) fn is_not_run(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::InvalidName(_))
    }
}

struct Described<'a>(&'a str, &'a str);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(kind, name) = self;
        write!(f, "type={}", json::go_quote(kind))?;
        if name.is_empty() {
            Ok(())
        } else {
            write!(f, " name={}", json::go_quote(name))
        }
    }
}

struct DirList<'a>(&'a [PathBuf]);

impl fmt::Display for DirList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, dir) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{}", dir.display())?;
        }
        Ok(())
    }
}

struct Stderr<'a>(&'a str);

impl fmt::Display for Stderr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            Ok(())
        } else {
            write!(f, ": {}", json::go_quote(self.0))
        }
    }
}

fn silent(status: &str, stderr: &str) -> String {
    if stderr.is_empty() {
        format!("netplugin failed with no error message: {status}")
    } else {
        format!("netplugin failed: {}: {status}", json::go_quote(stderr))
    }
}

//! What can go wrong when plugins are run.

use std::{error::Error, fmt, io, path::PathBuf, time::Duration};

use crate::{
    netns::NetnsError,
    types::{CniError, ResultError, json},
};

/// An operation of the [`Runtime`](super::Runtime) that failed. `Display` names the failed step;
/// [`message`](Self::message) is the whole chain, which is libcni's text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The id, the network's or the interface's name is not valid.
    #[error(transparent)]
    Invalid(CniError),
    /// A plugin failed.
    #[error("plugin {} failed ({action})", Described(plugin, name))]
    Plugin {
        /// Its `type`.
        plugin: String,
        /// Its own `name`, which single-plugin files have; else empty.
        name: String,
        /// `add`, `delete`, `check`, `gc` or `status`.
        action: &'static str,
        /// How.
        source: Box<PluginError>,
    },
    /// An ADD failed, and so did the DEL that should have taken its parts back.
    #[error("{}; rolling it back failed too: {}", add.message(), rollback.message())]
    Rollback {
        /// The failure of the ADD.
        add: Box<RuntimeError>,
        /// The failure of the DEL. What it left is freed by a later DEL or GC.
        rollback: Box<RuntimeError>,
    },
    /// Several plugins, or attachments, failed; the others were dealt with.
    #[error("{}", join(.0))]
    Several(Vec<RuntimeError>),
    /// A DEL that GC made for an attachment that is not valid failed.
    #[error("failed to delete stale attachment {container_id} {ifname}")]
    Stale {
        /// The container.
        container_id: String,
        /// The interface inside.
        ifname: String,
        /// Why.
        source: Box<RuntimeError>,
    },
    /// Two attachments that are to be made at once have the same interface of the same container.
    #[error("interface {ifname:?} of container {container_id:?} is asked for twice")]
    SameInterface {
        /// The container.
        container_id: String,
        /// The interface inside.
        ifname: String,
    },
    /// The plugin does not speak the configuration's version.
    #[error("plugin {plugin} does not support config version \"{version}\"")]
    VersionUnsupported {
        /// Its `type`.
        plugin: String,
        /// The list's `cniVersion`.
        version: String,
    },
    /// The configuration's version has no CHECK.
    #[error("configuration version \"{0}\" does not support the CHECK command")]
    CheckUnsupported(String),
    /// The list's first plugin has no `ipam.type`.
    #[error("plugin type=\"{0}\" has no IPAM plugin")]
    NoIpam(String),
    /// There is a cached result, and it cannot be read.
    #[error("failed to get network \"{network}\" cached result: {reason}")]
    CachedResult {
        /// The network.
        network: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The cache could not be written or read.
    #[error("failed to {action} the cached result {}", path.display())]
    Cache {
        /// `write`, `read` or `remove`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
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
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            text = format!("{text}: {error}");
            source = error.source();
        }
        text
    }

    /// The error object that a plugin printed, if it was a plugin that refused.
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

/// How one execution of a plugin failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PluginError {
    /// The plugin's own error object.
    #[error("{error}")]
    Refused {
        /// As printed.
        error: CniError,
        /// What it said on standard error.
        stderr: String,
    },
    /// No such program.
    #[error("failed to find plugin \"{name}\" in path [{}]", Dirs(path))]
    NotFound {
        /// Its `type`.
        name: String,
        /// Where it was looked for.
        path: Vec<PathBuf>,
    },
    /// A `type` that is not a file name.
    #[error("invalid plugin name: {0}")]
    InvalidName(String),
    /// The program could not be started, or its pipes failed.
    #[error("failed to run {}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The plugin did not end in time; it and its process group were killed.
    #[error("plugin {} did not finish within {after:?} and was killed{}", path.display(), Stderr(stderr))]
    TimedOut {
        /// The program.
        path: PathBuf,
        /// The time it had.
        after: Duration,
        /// What it had to say until then.
        stderr: String,
    },
    /// It failed and said nothing on standard output.
    #[error("{}", silent(status, stderr))]
    Silent {
        /// `exit status 2`, `signal: 9`.
        status: String,
        /// Standard error.
        stderr: String,
    },
    /// It failed and did not print an error object.
    #[error(
        "netplugin failed but error parsing its diagnostic message {}: {reason}",
        json::go_quote(stdout)
    )]
    Unreadable {
        /// Standard output.
        stdout: String,
        /// Why it is not an error object.
        reason: String,
    },
    /// Its answer to VERSION says nothing about versions.
    #[error("decoding version info: {0}")]
    Version(String),
    /// It succeeded, but did not print a result.
    #[error(transparent)]
    Result(#[from] ResultError),
}

impl PluginError {
    /// Whether the plugin certainly has not run.
    #[must_use]
    pub fn is_not_run(&self) -> bool {
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

struct Dirs<'a>(&'a [PathBuf]);

impl fmt::Display for Dirs<'_> {
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

//! What can go wrong with a cluster under test.

use std::{error::Error as _, fmt, io, path::PathBuf, time::Duration};

use podplane_client::{ApiError, endpoint::EndpointError};
use podplane_cni::ipam_report::ReportError;
use podplane_ipam::audit::Violation;

use crate::Finished;

/// A result of this crate.
pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// What can go wrong with a cluster under test. Its `Debug`, which a test that returns it prints, is for people too: the message, and what
/// caused it.
#[derive(thiserror::Error)]
pub enum ClusterError {
    /// The program is nowhere.
    #[error(
        "no program podplane in {}: build it, and name its directory in PODPLANE_BIN_DIR",
        list(looked)
    )]
    NoProgram {
        /// The directories where it was looked for.
        looked: Vec<PathBuf>,
    },
    /// A program failed.
    #[error("{command} failed with {}:\n{}{}", code(finished), finished.stdout, finished.stderr)]
    Failed {
        /// Its command line.
        command: String,
        /// What it left.
        finished: Finished,
    },
    /// The machine refused something.
    #[error("{step}")]
    Io {
        /// What was tried.
        step: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The API server refused something, or is not there.
    #[error("ask the API server")]
    Api(#[from] ApiError),
    /// The cluster's supervisor refused something, or is not there.
    #[error("ask the supervisor")]
    Supervisor(#[from] tonic::Status),
    /// Something has not come true in time.
    #[error("after {deadline:?}, not yet: {what}; seen last: {last}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// How long.
        deadline: Duration,
        /// What was there instead.
        last: String,
    },
    /// Invariants are broken, and stay so.
    #[error("broken invariants:{}", lines(.0))]
    Violations(Vec<Violation>),
    /// Something of the cluster is left after its end.
    #[error("left after the end of the cluster:{}", lines(.0))]
    Left(Vec<String>),
    /// The cluster has no process of that name, or it does not run just now.
    #[error("no process {name} runs; there are: {}", running.join(", "))]
    NoProcess {
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        running: Vec<String>,
    },
    /// It was not asked for when the cluster was started.
    #[error("this cluster has no {what}: ask for it with ClusterBuilder::{how}")]
    NotWired {
        /// What it lacks.
        what: String,
        /// How it would have it.
        how: &'static str,
    },
    /// There is no link of that client.
    #[error("no link of {client}; there are links of: {}", clients.join(", "))]
    NoLink {
        /// The client that was asked for.
        client: String,
        /// Those that there are.
        clients: Vec<String>,
    },
    /// No service has a method of that name.
    #[error("no service has a method {method}; did you mean {nearest}?")]
    NoMethod {
        /// The name that was asked for.
        method: String,
        /// The one that is most like it.
        nearest: String,
    },
    /// What a cluster says of itself cannot be understood.
    #[error("{what} is {found:?}, which cannot be understood")]
    Unclear {
        /// What it is about.
        what: String,
        /// What is there.
        found: String,
    },
    /// The IPAM plugin of a node does not report the addresses that it holds.
    #[error("read the IPAM report of {node}")]
    IpamReport {
        /// The node.
        node: String,
        /// Why.
        source: ReportError,
    },
    /// An address that is none.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl fmt::Debug for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        let mut cause = self.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

impl ClusterError {
    /// An [`ClusterError::Io`], for `map_err`.
    pub(crate) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Io { step, source }
    }
}

fn code(finished: &Finished) -> String {
    finished
        .code
        .map_or_else(|| "a signal".into(), |code| format!("code {code}"))
}

fn list(dirs: &[PathBuf]) -> String {
    let each: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    each.join(", ")
}

fn lines(each: &[impl ToString]) -> String {
    each.iter()
        .map(|line| format!("\n  {}", line.to_string()))
        .collect()
}

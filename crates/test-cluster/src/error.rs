//! Errors of a cluster under test.

use std::{fmt, io, path::PathBuf, time::Duration};

use podplane_client::{ApiError, endpoint::EndpointError};
use podplane_cni::ipam_report::ReportError;
use podplane_ipam::invariants::Violation;

use crate::ProgramOutput;

/// A result of this crate.
pub type Result<T, E = ClusterError> = std::result::Result<T, E>;

/// An error of a cluster under test. Its `Debug`, which a test that returns it prints, is the
/// message with its causes, for people.
#[derive(thiserror::Error)]
pub enum ClusterError {
    /// The program was not found.
    #[error(
        "no program podplane in {}: build it, and name its directory in PODPLANE_BIN_DIR",
        list(looked)
    )]
    NoProgram {
        /// The directories that were searched.
        looked: Vec<PathBuf>,
    },
    /// A program failed.
    #[error("{command} failed with {}:\n{}{}", code(finished), finished.stdout, finished.stderr)]
    Failed {
        /// Its command line.
        command: String,
        /// Its end: exit code and output.
        finished: ProgramOutput,
    },
    /// The operating system refused an operation.
    #[error("failed to {step}")]
    Io {
        /// The operation.
        step: String,
        /// The cause.
        source: io::Error,
    },
    /// The API server refused a request, or cannot be reached.
    #[error("failed to call the API server")]
    Api(#[from] ApiError),
    /// The cluster's supervisor refused a request, or cannot be reached.
    #[error("failed to call the supervisor")]
    Supervisor(#[from] tonic::Status),
    /// A condition did not come true before the deadline.
    #[error("after {deadline:?}, not yet: {what}; seen last: {last}")]
    TimedOut {
        /// The condition.
        what: String,
        /// The time limit.
        deadline: Duration,
        /// The state at the last look.
        last: String,
    },
    /// Invariants are broken, and stay broken.
    #[error("broken invariants:{}", lines(.0))]
    Violations(Vec<Violation>),
    /// Processes of the cluster are left after its end.
    #[error("left after the end of the cluster:{}", lines(.0))]
    Left(Vec<String>),
    /// The cluster has no process of that name, or it does not run at the moment.
    #[error("no process {name} runs; there are: {}", running.join(", "))]
    NoProcess {
        /// The name that was asked for.
        name: String,
        /// The names of the processes that run.
        running: Vec<String>,
    },
    /// The cluster was started without a facility that this call needs.
    #[error("this cluster has no {what}: ask for it with ClusterBuilder::{how}")]
    NotWired {
        /// The missing facility.
        what: String,
        /// The method of [`ClusterBuilder`](crate::ClusterBuilder) that provides it.
        how: &'static str,
    },
    /// No link has that client.
    #[error("no link of {client}; there are links of: {}", clients.join(", "))]
    NoLink {
        /// The client that was asked for.
        client: String,
        /// The clients that have links.
        clients: Vec<String>,
    },
    /// No service has a method of that name.
    #[error("no service has a method {method}; did you mean {nearest}?")]
    NoMethod {
        /// The name that was asked for.
        method: String,
        /// The most similar name.
        nearest: String,
    },
    /// A file or an answer of the cluster cannot be parsed.
    #[error("failed to parse {what}: {found:?}")]
    Unclear {
        /// The name of the part that cannot be parsed.
        what: String,
        /// Its text.
        found: String,
    },
    /// The IPAM plugin of a node does not report the addresses that it holds.
    #[error("failed to read the IPAM report of {node}")]
    IpamReport {
        /// The node.
        node: String,
        /// The cause.
        source: ReportError,
    },
    /// An invalid address.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
}

impl fmt::Debug for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&podplane_error_chain::one_line(self))
    }
}

impl ClusterError {
    /// Makes a function for `map_err`, which wraps an error in [`ClusterError::Io`].
    pub(crate) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |source| Self::Io { step, source }
    }
}

fn code(finished: &ProgramOutput) -> String {
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

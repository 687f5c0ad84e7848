//! Errors of calls, by what the caller can do about them.

use std::error::Error;

use tonic::{Code, ConnectError, Status};

/// An error of a call to etcd.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EtcdError {
    /// No member answered in time, or none had a leader. A write may have been applied.
    #[error("etcd did not answer: {message}")]
    NoAnswer {
        /// The last error.
        message: String,
    },
    /// There is no connection to a member: nothing was sent.
    #[error("etcd cannot be reached: {message}")]
    NotConnected {
        /// The last error.
        message: String,
    },
    /// The revision is older than the history that etcd keeps.
    #[error("etcd has compacted the revision")]
    Compacted,
    /// The database has reached its quota (`--quota-backend-bytes`), or a member's disk is full.
    /// Deletes and reads go on.
    #[error(
        "etcd takes no more data: its database has reached the quota; compact and defragment it, then disarm the alarm NOSPACE"
    )]
    NoSpace,
    /// The request is larger than etcd takes (`--max-request-bytes`).
    #[error("the request is larger than etcd takes; raise its --max-request-bytes")]
    TooLarge,
    /// etcd refused the call; the same call would be refused again.
    #[error("etcd refused the call: {message}")]
    Refused {
        /// etcd's words.
        message: String,
    },
}

impl EtcdError {
    /// True if another attempt may succeed, of a write after [`NoAnswer`](Self::NoAnswer) only if
    /// it may be applied twice.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::NotConnected { .. })
    }
}

impl From<Status> for EtcdError {
    fn from(status: Status) -> Self {
        let message = status.message();
        let has = |text| message.contains(text);
        match status.code() {
            Code::OutOfRange if has("compacted") => Self::Compacted,
            Code::ResourceExhausted if has("database space exceeded") => Self::NoSpace,
            Code::InvalidArgument if has("request is too large") => Self::TooLarge,
            // Of tonic or of a proxy: the message is larger than the peer accepts.
            Code::ResourceExhausted if has("larger than max") => Self::TooLarge,
            Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::OutOfRange
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::Unimplemented => Self::Refused {
                message: message.to_owned(),
            },
            _ if was_not_connected(&status) => Self::NotConnected {
                message: explained(&status),
            },
            // Unavailable, deadlines, a lost leader, and what is only known to have gone wrong.
            _ => Self::NoAnswer {
                message: explained(&status),
            },
        }
    }
}

/// Returns true if tonic had no connection on which it could have sent the call.
fn was_not_connected(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<ConnectError>())
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Error::source(status), |&cause| cause.source())
}

/// The words of a status, with the causes that tonic keeps apart, such as a refused connection.
fn explained(status: &Status) -> String {
    let mut text = status.message().to_owned();
    for cause in causes(status).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

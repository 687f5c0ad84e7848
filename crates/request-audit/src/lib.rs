//! The audit log of the API server's requests, with the policy and the events of `audit.k8s.io/v1`.
//!
//! Not to be confused with `podplane-audit`, which audits the addresses of a cluster. A [`Policy`]
//! selects the requests and how much is written of each; an [`AuditedRequest`] collects what
//! becomes known of one, and makes a line of JSON for each of its stages. These are functions of
//! values, without a clock and without I/O. What never reaches a line, whatever the policy says, is
//! in [`redaction`]. An [`AuditLog`] writes lines to a file, which it rotates.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod event;
mod level;
mod line;
pub mod log;
mod origin;
pub mod policy;
pub mod redaction;

pub use event::{AuditedRequest, ReceivedRequest, ResponseStatus};
pub use level::{Level, Stage, StageSet};
pub use line::MAX_LINE_BYTES;
pub use log::{AuditLog, AuditMetrics, LogOptions, LogThread, OpenLogError};
pub use origin::{AUDIT_ID_HEADER, audit_id, source_ips, user_agent};
pub use policy::{Decision, Policy, PolicyError};

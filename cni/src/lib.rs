//! CNI: the types of the specification, the runtime that executes plugin programs, and what all
//! plugin programs share.
//!
//! Everything here blocks: plugins are short programs that must start fast, and the runtime's
//! callers choose the thread that waits. There is no async runtime, and no plugin: those are in
//! `cni/plugins`.
//!
//! Start at [`runtime::Runtime`] for running plugins, and at [`skel`] for what all plugin programs
//! share.
#![warn(missing_docs)]
#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests are outside of the seam")
)]

pub mod ipam_report;
pub mod loopback;
pub mod runtime;
pub mod skel;
pub mod spare;
mod sys;
pub mod trace;
pub mod types;

pub use runtime::{Attachment, Runtime, RuntimeError, ValidAttachment};
pub use types::{CniError, CniResult, NetworkConfigList, Version};

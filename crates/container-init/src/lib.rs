//! Starts a program as an unprivileged container: in namespaces and a file tree of its own, without
//! capabilities, without a way to gain any, and with a list of allowed system calls.
//!
//! The program that wants containers executes a helper, itself under the name [`NAME`], whose only
//! work is [`run`]. Only a process with one thread can do this work: it enters namespaces and
//! forks. The helper gets a [`LaunchRequest`] over the socket that is its standard input
//! ([`Channel`]), reports there what becomes of it ([`LaunchEvent`]), waits for the program, and
//! exits as it did.
//!
//! ```text
//! launcher ── LaunchRequest, descriptors ──▶ helper ── fork ──▶ first process of the container
//!          ◀── LaunchEvent ─────────────────                    mounts, pivot_root, rights, execve
//! ```
//!
//! If the launcher closes the socket, or dies, the helper kills the program; if the helper dies,
//! the kernel does. The kernel ends all processes of a container with its first one.
//!
//! This crate never follows a symbolic link of an image on the machine's side, and never writes
//! outside of the container's own mounts. Start reading at [`spec`].
#![warn(missing_docs)]

mod beneath;
mod channel;
mod enter;
mod error;
mod helper;
mod mounts;
mod rights;
mod seccomp;
pub mod spec;
mod sys;
mod syscalls;

pub use beneath::read_beneath;
pub use channel::Channel;
pub use error::LaunchError;
pub use helper::run;
pub use spec::{ContainerSpec, LaunchEvent, LaunchRequest, ProcessSpec};

/// The name under which a program has to call [`run`], and do nothing else.
pub const NAME: &str = "podplane-container-init";

/// The exit code of a helper that could not start its program; the event has the reason.
pub const NOT_STARTED: u8 = 128;

//! The machine that a process runs on: its clocks, network, tasks, programs, files and source of
//! randomness, each in one place. Every process reaches them through this crate, which its
//! `clippy.toml` enforces, so that a simulation replaces the bodies of this crate and nothing else.
//!
//! It decides nothing, and it wraps what *acts*, not the types that std and tokio have for it:
//! [`Duration`](std::time::Duration), `JoinSet`, [`File`](std::fs::File) and `Command` are theirs.
//! A simulation is a runtime of one thread with a paused clock, in which
//!
//! - [`clock`]: the wall clock follows tokio's;
//! - [`random`]: one generator with a seed;
//! - `net`: a `Stream` is a pipe in memory, and a `Listener` a queue of them by address;
//! - [`task`]: what would block or be a thread runs at once;
//! - [`process`]: a program is a function, called by its name;
//! - [`fs`]: each process has a directory by its configuration already; what is written and not
//!   synced is removed at a crash, and calls fail on demand.
//!
//! The feature `simulation` has the first three of them already. Not here: calls of the kernel that
//! have no other side (netlink, namespaces, mounts, locks of descriptors), sled's own files, and
//! pure functions of the environment such as `std::env`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod clock;
pub mod fs;
#[cfg(feature = "async")]
pub mod net;
pub mod process;
pub mod random;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod task;

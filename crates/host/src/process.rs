//! Programs.

use std::{
    io,
    process::{Child, Command},
};

/// Starts a program.
///
/// # Errors
///
/// The operating system's.
#[inline]
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    command.spawn()
}

/// Starts a program whose end is awaited.
///
/// # Errors
///
/// The operating system's.
#[cfg(feature = "async")]
#[inline]
pub fn spawn_async(command: &mut tokio::process::Command) -> io::Result<tokio::process::Child> {
    command.spawn()
}

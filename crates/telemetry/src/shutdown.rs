//! When a process is asked to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// All that asks a process to end.
#[derive(Debug)]
pub struct Requests {
    interrupt: Signal,
    terminate: Signal,
}

impl Requests {
    /// Those from now on.
    ///
    /// # Errors
    ///
    /// The operating system's, if no handler can be installed.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Completes at the next SIGINT or SIGTERM, and says which.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a signal that comes meanwhile is told by the next call.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// Completes at the first SIGINT or SIGTERM, and says which.
///
/// # Errors
///
/// The operating system's, if no handler can be installed.
///
/// # Cancel safety
///
/// A signal that arrives after this was dropped is lost, so keep one call for the life of the process.
pub async fn requested() -> io::Result<&'static str> {
    Ok(Requests::listen()?.next().await)
}

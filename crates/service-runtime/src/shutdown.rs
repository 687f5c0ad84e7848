//! Requests to stop the process, by signals.

use std::io;

use procfs::process::Process;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a process to stop.
#[derive(Debug)]
pub struct Requests {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal was closed. `None` under `nohup`, which ignores the signal.
    hangup: Option<Signal>,
}

impl Requests {
    /// Listens for signals from now on.
    ///
    /// # Errors
    ///
    /// The operating system's, if no handler can be installed.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match is_ignored(SignalKind::hangup()) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Completes at the next SIGINT, SIGTERM or SIGHUP, and returns its name.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a signal that arrives meanwhile is returned by the next call.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            Some(_) = next(self.hangup.as_mut()) => "SIGHUP",
        }
    }
}

async fn next(signal: Option<&mut Signal>) -> Option<()> {
    signal?.recv().await
}

/// Returns true if this process ignores a signal, as it does from its start under `nohup`.
fn is_ignored(signal: SignalKind) -> bool {
    let status = Process::myself().and_then(|process| process.status());
    // Signals count from 1.
    let bit = u32::try_from(signal.as_raw_value() - 1).unwrap_or_default();
    status.is_ok_and(|status| {
        status
            .sigign
            .checked_shr(bit)
            .is_some_and(|set| set & 1 == 1)
    })
}

/// Completes at the first SIGINT, SIGTERM or SIGHUP, and returns its name.
///
/// # Errors
///
/// The operating system's, if no handler can be installed.
///
/// # Cancel safety
///
/// A signal that arrives after this was dropped is lost, so keep one call for the life of the
/// process.
pub async fn requested() -> io::Result<&'static str> {
    Ok(Requests::listen()?.next().await)
}

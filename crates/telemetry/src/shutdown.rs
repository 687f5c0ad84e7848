//! When a process is asked to end.

use std::io;

use procfs::process::Process;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// All that asks a process to end.
#[derive(Debug)]
pub struct Requests {
    interrupt: Signal,
    terminate: Signal,
    /// The terminal is gone. Absent under `nohup`, which has it ignored.
    hangup: Option<Signal>,
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
            hangup: match is_ignored(SignalKind::hangup()) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
        })
    }

    /// Completes at the next SIGINT, SIGTERM or SIGHUP, and says which.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a signal that comes meanwhile is told by the next call.
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

/// Completes at the first SIGINT, SIGTERM or SIGHUP, and says which.
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

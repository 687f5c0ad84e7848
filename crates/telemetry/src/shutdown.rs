//! When a process is asked to end.

use tokio::signal::unix::{SignalKind, signal};

/// Completes at the first SIGINT or SIGTERM, and says which.
///
/// # Errors
///
/// The operating system's, if no handler can be installed.
///
/// # Cancel safety
///
/// A signal that arrives after this was dropped is lost, so keep one call for the life of the process.
pub async fn requested() -> std::io::Result<&'static str> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    // Each arm only waits for a signal, so losing it loses nothing: the process ends.
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
    })
}

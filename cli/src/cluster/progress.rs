//! How long work tells what it does: a line that changes on a terminal, lines that stay elsewhere. On standard error.

use std::{
    io::IsTerminal as _,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use podplane_api::printable;

/// How often the sign of life moves.
const TICK: Duration = Duration::from_millis(100);
/// How often there is a line about what goes on, where lines stay.
const LINE: Duration = Duration::from_secs(1);

/// What is being done, for people. Dropping it removes the changing line.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    said: Mutex<Option<Instant>>,
}

impl Progress {
    pub(crate) fn new(doing: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(TICK);
            bar
        });
        let progress = Self {
            bar,
            said: Mutex::default(),
        };
        progress.doing(doing);
        progress
    }

    /// Something is done. Text of servers and logs in it does not drive the terminal.
    pub(crate) fn done(&self, what: &str) {
        let what = printable::lines(what);
        match &self.bar {
            Some(bar) => bar.println(what),
            None => anstream::eprintln!("{what}"),
        }
    }

    /// Does something that writes to the terminal, with the changing line out of the way.
    pub(crate) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Something is under way. Nothing is said where lines stay.
    pub(crate) fn changes(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Something is under way, further than when this was called last.
    pub(crate) fn doing(&self, what: &str) {
        let what = printable::lines(what);
        if let Some(bar) = &self.bar {
            return bar.set_message(what.into_owned());
        }
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|said| said.elapsed() > LINE) {
            *said = Some(Instant::now());
            anstream::eprintln!("{what}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

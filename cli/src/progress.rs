//! The progress of long work, on standard error: a changing line on a terminal, separate lines
//! elsewhere.

use std::{
    io::IsTerminal as _,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use podplane_api::printable;

/// The interval of the spinner.
const TICK: Duration = Duration::from_millis(100);
/// The interval of lines about the present work, without a terminal.
const LINE: Duration = Duration::from_secs(1);

/// The display of the present work. Dropping it removes the changing line.
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

    /// Reports finished work. Control characters of untrusted text are escaped.
    pub(crate) fn done(&self, what: &str) {
        let what = printable::lines(what);
        match &self.bar {
            Some(bar) => bar.println(what),
            None => anstream::eprintln!("{what}"),
        }
    }

    /// Writes to the terminal while the changing line is hidden.
    pub(crate) fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Reports the present work. Prints nothing without a terminal.
    pub(crate) fn changes(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(what.to_owned());
        }
    }

    /// Reports progress of the present work.
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

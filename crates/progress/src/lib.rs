//! The progress of long work, on standard error: a changing line on a terminal, separate lines
//! elsewhere.
//!
//! One style for all programs of the workspace: a spinner, the present work, a bar if the total is
//! known, and the time. Nothing is drawn in the first second: most work ends before. Start reading
//! at [`Progress`]; where many lines change at once, [`animate`] gives each the same look.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::{
    io::{self, IsTerminal as _, Read, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub use indicatif::HumanBytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use podplane_printable as printable;

/// The interval of the spinner.
const TICK: Duration = Duration::from_millis(100);
/// The time before a terminal shows a line.
const QUIET: Duration = Duration::from_secs(1);
/// The interval of lines about the present work, without a terminal.
const LINE: Duration = Duration::from_secs(1);
/// The same for bytes and counts, which change all the time.
const LINE_OF_AMOUNT: Duration = Duration::from_secs(10);

const SPINNER: &str = "{spinner} {msg} ({elapsed})";
const COUNT: &str = "{spinner} {msg} [{bar:24}] {pos} of {len} ({elapsed})";
const BYTES: &str = "{spinner} {msg} [{bar:24}] {bytes} of {total_bytes} ({elapsed})";
const BYTES_WITHOUT_TOTAL: &str = "{spinner} {msg}: {bytes} ({elapsed})";

/// The lines about the present work where no terminal shows a changing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainLines {
    /// At once: the work always takes a while.
    AtOnce,
    /// Only for work that takes longer than a second.
    IfSlow,
    /// None: a program reads the output.
    Never,
}

/// The unit of an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AmountUnit {
    Bytes,
    Count,
}

/// The display of the present work. Dropping it removes the changing line.
#[derive(Debug)]
pub struct Progress {
    shared: Arc<Shared>,
    /// Shows the work once it is slow, also if the work itself says nothing.
    clock: Option<JoinHandle<()>>,
}

/// The state that the clock shares.
#[derive(Debug)]
struct Shared {
    /// Hidden at first, and always without a terminal; it counts all the same.
    bar: ProgressBar,
    is_terminal: bool,
    lines: PlainLines,
    begun: Instant,
    said: Mutex<Option<Instant>>,
    unit: Mutex<AmountUnit>,
    /// True if the work has ended. Held while something is written, so that the changing line does
    /// not appear in the middle of it.
    is_over: Mutex<bool>,
    ended: Condvar,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Progress {
    /// Work without a known amount, with lines at once.
    pub fn new(doing: &str) -> Self {
        Self::with_lines(doing, PlainLines::AtOnce)
    }

    /// Work without a known amount.
    pub fn with_lines(doing: &str, lines: PlainLines) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let shared = Arc::new(Shared {
            bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
            is_terminal,
            lines,
            begun: Instant::now(),
            said: Mutex::default(),
            unit: Mutex::new(AmountUnit::Count),
            is_over: Mutex::default(),
            ended: Condvar::new(),
        });
        let clock = match (is_terminal, lines) {
            // Nothing is to be shown later.
            (false, PlainLines::AtOnce | PlainLines::Never) => None,
            (true, _) | (false, PlainLines::IfSlow) => {
                let shared = shared.clone();
                let thread = thread::Builder::new().name("progress".into());
                // Without a thread the work goes on unseen.
                thread.spawn(move || shared.show_slow_work()).ok()
            }
        };
        let progress = Self { shared, clock };
        progress.style(SPINNER);
        progress.doing(doing);
        progress
    }

    fn style(&self, template: &str) {
        set_template(&self.shared.bar, template);
    }

    /// Begins work on a number of bytes, of which the total may be unknown.
    pub fn bytes(&self, doing: &str, total: Option<u64>) {
        self.amount(doing, total, AmountUnit::Bytes);
        self.style(match total {
            Some(_) => BYTES,
            None => BYTES_WITHOUT_TOTAL,
        });
    }

    /// Begins work on a number of things.
    pub fn count(&self, doing: &str, total: u64) {
        self.amount(doing, Some(total), AmountUnit::Count);
        self.style(COUNT);
    }

    /// Begins work without a known amount.
    pub fn work(&self, doing: &str) {
        self.style(SPINNER);
        self.amount(doing, None, AmountUnit::Count);
    }

    fn amount(&self, doing: &str, total: Option<u64>, unit: AmountUnit) {
        let Shared { bar, .. } = &*self.shared;
        *locked(&self.shared.unit) = unit;
        bar.set_position(0);
        match total {
            Some(total) => bar.set_length(total),
            None => bar.unset_length(),
        }
        self.doing(doing);
    }

    /// Sets the number of things that are done.
    pub fn position(&self, done: u64) {
        self.shared.bar.set_position(done);
        self.shared.tell_amount();
    }

    /// Counts what is read or written through this.
    pub fn counted<T>(&self, inner: T) -> Counted<'_, T> {
        Counted {
            inner,
            progress: self,
        }
    }

    /// Adds to the number of things that are done.
    pub fn advance(&self, amount: u64) {
        self.shared.bar.inc(amount);
        self.shared.tell_amount();
    }

    fn advance_bytes(&self, bytes: usize) {
        self.advance(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    /// Reports finished work. Control characters of untrusted text are escaped.
    pub fn done(&self, what: &str) {
        let what = printable::lines(what);
        self.suspend(|| tell(&what));
    }

    /// Writes to the terminal while the changing line is hidden.
    pub fn suspend<T>(&self, write: impl FnOnce() -> T) -> T {
        if !self.shared.is_terminal {
            return write();
        }
        let _guard = locked(&self.shared.is_over);
        self.shared.bar.suspend(write)
    }

    /// Reports the present work. Prints nothing without a terminal.
    pub fn changes(&self, what: &str) {
        let what = printable::line(what).into_owned();
        self.shared.bar.set_message(what);
    }

    /// Reports progress of the present work.
    pub fn doing(&self, what: &str) {
        self.changes(what);
        if !self.shared.is_terminal && self.shared.is_due(LINE) {
            tell(&printable::lines(what));
        }
    }
}

impl Shared {
    /// Waits until the work is slow, and shows it until it ends.
    fn show_slow_work(&self) {
        let mut is_over = locked(&self.is_over);
        let mut wait = QUIET;
        loop {
            let waited = self
                .ended
                .wait_timeout_while(is_over, wait, |is_over| !*is_over);
            let (guard, _) = waited.unwrap_or_else(PoisonError::into_inner);
            is_over = guard;
            if *is_over {
                return;
            }
            if self.is_terminal {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
                self.bar.enable_steady_tick(TICK);
                return;
            }
            wait = LINE_OF_AMOUNT;
            self.tell_amount();
        }
    }

    /// Writes the present work as a line, with its amount, where no changing line shows it.
    fn tell_amount(&self) {
        if self.is_terminal || !self.is_due(LINE_OF_AMOUNT) {
            return;
        }
        let (done, total) = (self.bar.position(), self.bar.length());
        let unit = *locked(&self.unit);
        let shown = |amount| match unit {
            AmountUnit::Bytes => HumanBytes(amount).to_string(),
            AmountUnit::Count => amount.to_string(),
        };
        let of = total.map_or_else(String::new, |total| format!(" of {}", shown(total)));
        let amount = match (done, total) {
            (0, None) => String::new(),
            _ => format!(": {}{of}", shown(done)),
        };
        tell(&format!("{}{amount}", self.bar.message()));
    }

    /// Returns true if a line may be written now, and takes that it is.
    fn is_due(&self, interval: Duration) -> bool {
        let is_late_enough = match self.lines {
            PlainLines::AtOnce => true,
            PlainLines::IfSlow => self.begun.elapsed() >= QUIET,
            PlainLines::Never => false,
        };
        let mut said = locked(&self.said);
        let is_due = is_late_enough && said.is_none_or(|said| said.elapsed() >= interval);
        if is_due {
            *said = Some(Instant::now());
        }
        is_due
    }
}

/// Gives a changing line its template and lets its spinner turn.
pub fn animate(bar: &ProgressBar, template: &str) {
    set_template(bar, template);
    bar.enable_steady_tick(TICK);
}

fn set_template(bar: &ProgressBar, template: &str) {
    // The templates are constants, and valid.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> "));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        *locked(&self.shared.is_over) = true;
        self.shared.ended.notify_all();
        if let Some(clock) = self.clock.take() {
            // A panic of the clock has printed itself, and the work has ended all the same.
            _ = clock.join();
        }
        self.shared.bar.finish_and_clear();
    }
}

/// Writes a line to standard error, which may be closed: the work goes on all the same.
fn tell(line: &str) {
    _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// A reader or writer whose bytes are progress.
#[derive(Debug)]
pub struct Counted<'a, T> {
    inner: T,
    progress: &'a Progress,
}

impl<T: Read> Read for Counted<'_, T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.progress.advance_bytes(read);
        Ok(read)
    }
}

impl<T: io::Seek> io::Seek for Counted<'_, T> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let place = self.inner.seek(to)?;
        self.progress.shared.bar.set_position(place);
        Ok(place)
    }
}

impl<T: Write> Write for Counted<'_, T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.progress.advance_bytes(written);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

//! The time that each part of a command takes.

use std::time::{Duration, Instant};

use anyhow::Result;

/// The parts of one command, timed one after the other.
#[derive(Debug)]
pub(crate) struct Parts {
    command: &'static str,
    /// The number of parts.
    count: usize,
    done: Vec<(&'static str, Duration)>,
}

impl Parts {
    pub(crate) fn of(command: &'static str, count: usize) -> Self {
        Self {
            command,
            count,
            done: Vec::new(),
        }
    }

    /// Runs one part. Prints which one it is, and the time that it took, also if it failed.
    pub(crate) fn time<T>(
        &mut self,
        part: &'static str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let number = self.done.len() + 1;
        self.note(&format!("{part} ({number} of {})", self.count));
        let begun = Instant::now();
        let result = work();
        let took = begun.elapsed();
        let failed = if result.is_ok() { "" } else { ", and failed" };
        self.note(&format!("{part} took {}{failed}", display(took)));
        self.done.push((part, took));
        result
    }

    /// Prints all parts on one line.
    pub(crate) fn summary(&self) {
        let each: Vec<_> = self
            .done
            .iter()
            .map(|(part, took)| format!("{part} {}", display(*took)))
            .collect();
        self.note(&each.join(", "));
    }

    /// Prints a line on standard error.
    #[expect(clippy::print_stderr, reason = "progress of a tool")]
    pub(crate) fn note(&self, text: &str) {
        eprintln!("xtask {}: {text}", self.command);
    }
}

fn display(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = time.as_secs();
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_displayed_in_minutes_from_one_minute_on() {
        assert_eq!(display(Duration::from_millis(4_250)), "4.2 s");
        assert_eq!(display(Duration::from_secs(60)), "1 min 00 s");
        assert_eq!(display(Duration::from_secs(425)), "7 min 05 s");
    }
}

//! The table, for the terminal and for the docs.

use anyhow::Result;
use comfy_table::{Table, presets};

use super::stats::{Pairs, quantile};

/// The unit of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReportUnit {
    Milliseconds,
    Seconds,
    /// This many per second.
    PerSecond(&'static str),
    Kibibytes,
    Mebibytes,
    /// A ratio of two of our figures.
    Times,
    Nanoseconds,
    Microseconds,
    Bytes,
}

/// The target of a line.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    /// Ours is at least this many times better than the reference.
    Better(f64),
    /// Ours takes at most this many times as long as the lower bound.
    Within(f64),
    /// Ours is at least this value, independent of a peer.
    AtLeast(f64),
    /// Ours is at most this value, independent of a peer.
    AtMost(f64),
    /// There is no target.
    None,
}

/// A line of the table.
#[derive(Debug)]
pub(super) struct ReportLine {
    pub(super) what: String,
    pub(super) unit: ReportUnit,
    pub(super) goal: Goal,
    /// Errors are shown in the table, so that one failed row does not hide the others.
    pub(super) measured: Result<Pairs>,
}

impl ReportLine {
    /// True if the line was measured and reached its target.
    pub(super) fn is_reached(&self) -> bool {
        let Ok(pairs) = &self.measured else {
            return false;
        };
        let median = quantile(&self.ratios(pairs), 0.5);
        let ours = quantile(&pairs.ours, 0.5);
        match self.goal {
            Goal::AtLeast(least) => ours.is_some_and(|ours| ours >= least),
            Goal::AtMost(most) => ours.is_some_and(|ours| ours <= most),
            Goal::Better(least) => median.is_some_and(|ratio| ratio >= least),
            Goal::Within(most) => median.is_some_and(|ratio| ratio <= most),
            Goal::None => true,
        }
    }

    fn ratios(&self, pairs: &Pairs) -> Vec<f64> {
        let ratios = pairs.theirs_over_ours();
        match (self.goal, self.unit) {
            (Goal::Within(_), _) | (_, ReportUnit::PerSecond(_)) => {
                ratios.iter().map(|ratio| 1.0 / ratio).collect()
            }
            _ => ratios,
        }
    }

    fn cells(&self) -> [String; 5] {
        let goal = match self.goal {
            Goal::Better(least) => format!("≥ {least}×"),
            Goal::Within(most) => format!("≤ {most}× the time"),
            Goal::AtLeast(least) => format!("≥ {}", self.amount(least)),
            Goal::AtMost(most) => format!("≤ {}", self.amount(most)),
            Goal::None => String::new(),
        };
        let pairs = match &self.measured {
            Ok(pairs) => pairs,
            Err(error) => {
                let text = format!("not measured: {error:#}");
                let dash = || "—".to_owned();
                return [self.what.clone(), dash(), dash(), text, goal];
            }
        };
        let ratios = self.ratios(pairs);
        let [low, median, high] =
            [0.25, 0.5, 0.75].map(|q| quantile(&ratios, q).unwrap_or(f64::NAN));
        let missed = if self.is_reached() { "" } else { " (missed)" };
        [
            self.what.clone(),
            self.value(&pairs.ours),
            self.value(&pairs.theirs),
            if ratios.is_empty() {
                "—".to_owned()
            } else {
                format!("{median:.2}× ({low:.2} to {high:.2})")
            },
            format!("{goal}{missed}"),
        ]
    }

    fn value(&self, values: &[f64]) -> String {
        let [p50, p95] = [0.5, 0.95].map(|q| quantile(values, q).unwrap_or(f64::NAN));
        match self.unit {
            _ if values.is_empty() => "—".to_owned(),
            ReportUnit::Milliseconds => format!("{p50:.2} ({p95:.2}) ms"),
            _ => self.amount(p50),
        }
    }

    fn amount(&self, value: f64) -> String {
        match self.unit {
            ReportUnit::Milliseconds => format!("{value} ms"),
            ReportUnit::Nanoseconds => format!("{value:.0} ns"),
            ReportUnit::Microseconds => format!("{value:.0} µs"),
            ReportUnit::Bytes => format!("{value:.1} B"),
            ReportUnit::Seconds => format!("{value:.1} s"),
            ReportUnit::PerSecond(what) => format!("{value:.0} {what}/s"),
            ReportUnit::Mebibytes => format!("{value:.0} MiB"),
            ReportUnit::Times => format!("{value:.2}×"),
            ReportUnit::Kibibytes if value < 100.0 => format!("{value:.2} KiB"),
            ReportUnit::Kibibytes => format!("{value:.0} KiB"),
        }
    }
}

/// Formats the lines as a Markdown table.
pub(super) fn table(lines: &[ReportLine]) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::ASCII_MARKDOWN)
        .set_header(["what", "ours", "peer", "ratio", "target"])
        .add_rows(lines.iter().map(ReportLine::cells));
    table.to_string()
}

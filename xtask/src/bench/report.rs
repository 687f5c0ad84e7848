//! The table, for the terminal and for the docs.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::{Value, json};

use super::stats::{Pairs, quantile};

/// The most values of a line that are drawn; of more, as many evenly spaced quantiles are.
const MOST_POINTS: u32 = 200;

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

    fn goal_text(&self) -> String {
        match self.goal {
            Goal::Better(least) => format!("≥ {least}×"),
            Goal::Within(most) => format!("≤ {most}× the time"),
            Goal::AtLeast(least) => format!("≥ {}", self.amount(least)),
            Goal::AtMost(most) => format!("≤ {}", self.amount(most)),
            Goal::None => String::new(),
        }
    }

    fn verdict(&self) -> &'static str {
        match (&self.measured, self.goal) {
            (Err(_), _) => "not-measured",
            (Ok(_), Goal::None) => "no-target",
            (Ok(_), _) if self.is_reached() => "reached",
            (Ok(_), _) => "missed",
        }
    }

    /// The line for the page of a benchmark.
    fn document(&self) -> Value {
        let [what, ours, peer, ratio, _] = self.cells();
        let measured = self.measured.as_ref();
        json!({
            "what": what, "ours": ours, "peer": peer, "ratio": ratio,
            "target": self.goal_text(), "verdict": self.verdict(),
            "rounds": measured.map_or(0, |pairs| pairs.ours.len()),
            "plots": measured.map_or_else(|_| Vec::new(), |pairs| self.plots(pairs)),
        })
    }

    /// The measurements on each axis that they have: beside a peer, and beside a target that is a
    /// value.
    fn plots(&self, pairs: &Pairs) -> Vec<Value> {
        let ratios = self.ratios(pairs);
        let (axis, target) = match self.goal {
            Goal::Within(most) => ("times-the-time", Some(most)),
            Goal::Better(least) => ("times-better", Some(least)),
            Goal::AtLeast(_) | Goal::AtMost(_) | Goal::None => ("times-better", None),
        };
        let median = quantile(&ratios, 0.5).unwrap_or(f64::NAN);
        let of_peer = self.plot(axis, ratios, target, &format!("{median:.2}×"));
        let of_target = match self.goal {
            Goal::AtLeast(least) => pairs.ours.iter().map(|ours| ours / least).collect(),
            Goal::AtMost(most) => pairs.ours.iter().map(|ours| most / ours).collect(),
            Goal::Better(_) | Goal::Within(_) | Goal::None => Vec::new(),
        };
        let of_target = self.plot("target", of_target, Some(1.0), &self.value(&pairs.ours));
        of_peer.into_iter().chain(of_target).collect()
    }

    fn plot(
        &self,
        axis: &str,
        mut values: Vec<f64>,
        target: Option<f64>,
        value: &str,
    ) -> Option<Value> {
        // JSON has no number for the ratio to a value that was too small to measure.
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        let quartiles: Option<Vec<f64>> = [0.0, 0.25, 0.5, 0.75, 1.0]
            .into_iter()
            .map(|q| quantile(&values, q))
            .collect();
        let quartiles = quartiles?;
        let drawn = (0..=MOST_POINTS).map(|part| f64::from(part) / f64::from(MOST_POINTS));
        let drawn = drawn.filter_map(|q| quantile(&values, q)).collect();
        let points: Vec<f64> = match u32::try_from(values.len()) {
            Ok(..=MOST_POINTS) => values,
            _ => drawn,
        };
        Some(json!({
            "axis": axis, "points": points, "quartiles": quartiles, "target": target,
            "value": match target {
                Some(_) => format!("{value} (target {})", self.goal_text()),
                None => value.to_owned(),
            },
            "verdict": if target.is_some() { self.verdict() } else { "no-target" },
        }))
    }

    fn cells(&self) -> [String; 5] {
        let goal = self.goal_text();
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

/// The lines for the page of a benchmark.
pub(super) fn documents(lines: &[ReportLine]) -> Vec<Value> {
    lines.iter().map(ReportLine::document).collect()
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

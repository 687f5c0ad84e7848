//! Measurements: a row for each series, with its values, their middle half, and a target.

use maud::{Markup, html};

use super::{AxisTick, Drawing, WIDTH, axis::vertical_lines, fitted, pixel, wide};
use crate::document::Tone;

/// The height of a row: a line of text, and the strip of the values below it.
const ROW: f64 = 46.0;
const STRIP: f64 = 16.0;
/// The distance of the strip from the upper edge of the row.
const STRIP_TOP: f64 = 22.0;
/// The legend, the labels of the axis, and the upper edge of the first row.
const LEGEND: f64 = 16.0;
const LABELS: f64 = 42.0;
const TOP: f64 = 50.0;
/// The room beside the axis for half of its first and last label.
const LEFT: f64 = 28.0;
const RIGHT: f64 = WIDTH - 28.0;

/// Series of measurements on one axis.
#[derive(Clone, Debug, Default)]
pub struct Intervals {
    /// The series.
    pub rows: Vec<IntervalRow>,
    /// The values on the axis.
    pub ticks: Vec<AxisTick>,
}

/// A series of measurements. All places are shares of the axis, from 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct IntervalRow {
    /// Its name.
    pub label: String,
    /// Its values.
    pub points: Vec<f64>,
    /// The interval with the middle half of them.
    pub middle_half: (f64, f64),
    /// The median.
    pub median: f64,
    /// The target, if there is one.
    pub target: Option<f64>,
    /// The median and the target in words.
    pub value: String,
    /// `Good` if the target is reached, `Bad` if it is missed.
    pub tone: Tone,
}

impl Intervals {
    pub(crate) fn drawing(&self) -> Drawing {
        let tops = std::iter::successors(Some(TOP), |top| Some(top + ROW));
        let height = tops.clone().nth(self.rows.len()).unwrap_or(TOP);
        let shapes = html! {
            (legend())
            (vertical_lines(&self.ticks, x, [TOP, height], LABELS))
            @for (row, top) in self.rows.iter().zip(tops) { (drawn(row, top)) }
        };
        Drawing { height, shapes }
    }
}

/// The meaning of the marks.
fn legend() -> Markup {
    let base = LEGEND - 4.0;
    html! {
        path.c-sample d={ "M8 " (base - 8.0) "v10M12 " (base - 8.0) "v10M15 " (base - 8.0) "v10" } {}
        text x="24" y=(base) { "one round each" }
        rect.c-half x="150" y=(base - 8.0) width="28" height="10" {}
        text x="186" y=(base) { "the middle half" }
        path.c-median d={ "M310 " (base - 9.0) "v12" } {}
        text x="320" y=(base) { "median" }
        path.c-limit d={ "M400 " (base - 9.0) "v12" } {}
        text x="410" y=(base) { "target" }
    }
}

fn drawn(row: &IntervalRow, top: f64) -> Markup {
    let IntervalRow {
        label,
        points,
        middle_half: (low, high),
        median,
        target,
        value,
        tone,
    } = row;
    let sign = match tone {
        Tone::Good => "✓ ",
        Tone::Bad => "✗ ",
        Tone::Neutral | Tone::Caution => "",
    };
    let value = format!("{sign}{value}");
    let strip = top + STRIP_TOP;
    let (left, right) = (x(*low), x(*high));
    // Values lie at the same places again and again.
    let mut places: Vec<f64> = points.iter().map(|point| pixel(x(*point))).collect();
    places.dedup();
    let samples: Vec<String> = places
        .iter()
        .map(|place| format!("M{place} {strip}v{STRIP}"))
        .collect();
    let room = RIGHT - LEFT - wide(&value) - 16.0;
    html! {
        g {
            title { (label) ": " (value) }
            text x=(LEFT) y=(top + 14.0) { (fitted(label, room)) }
            text.c-value.c-fault[*tone == Tone::Bad] x=(RIGHT) y=(top + 14.0) { (value) }
            rect.c-half x=(pixel(left)) y=(strip + 3.0) width=(pixel((right - left).max(1.0)))
                height=(STRIP - 6.0) {}
            path.c-sample d=(samples.concat()) {}
            path.c-median d={ "M" (pixel(x(*median))) " " (strip - 2.0) "v" (STRIP + 4.0) } {}
            @if let Some(target) = target {
                path.c-limit d={ "M" (pixel(x(*target))) " " (strip - 2.0) "v" (STRIP + 4.0) } {}
            }
        }
    }
}

/// The column of pixels of a share of the axis.
fn x(share: f64) -> f64 {
    LEFT + (RIGHT - LEFT) * share.clamp(0.0, 1.0)
}

//! The spans of a trace: a row for each, with a bar at its time.

use maud::{Markup, html};

use super::{AxisTick, Drawing, WIDTH, axis::vertical_lines, fitted, pixel, wide};
use crate::{
    document::Tone,
    table::{Cell, Column, Row, Table},
};

/// The height of a row, and that of its bar.
const ROW: f64 = 22.0;
const BAR: f64 = 14.0;
/// The lower edge of the axis.
const TOP: f64 = 26.0;
const INDENT: f64 = 12.0;
/// The left edges of the columns, and the right edge of the durations.
const PROCESS: f64 = 232.0;
const BARS: f64 = 372.0;
const BARS_END: f64 = 872.0;
const TOOK: f64 = WIDTH - 8.0;
/// The deepest indent that is drawn.
const MOST_DEPTH: usize = 8;
/// The least width of a bar.
const LEAST: f64 = 2.0;

/// The spans of a trace.
#[derive(Clone, Debug, Default)]
pub struct Waterfall {
    /// The rows, children after their parents.
    pub rows: Vec<WaterfallRow>,
    /// The times on the axis.
    pub ticks: Vec<AxisTick>,
    /// The times without any step.
    pub gaps: Vec<WaterfallGap>,
}

/// A time without any step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WaterfallGap {
    /// Its begin and its end, from 0 to 1.
    pub span: (f64, f64),
    /// Its duration in words.
    pub text: String,
}

/// A span, or several that are alike.
#[derive(Clone, Debug, Default)]
pub struct WaterfallRow {
    /// The level below the root, which has 0.
    pub depth: usize,
    /// The name of the step.
    pub name: String,
    /// The process.
    pub process: String,
    /// The begin and the end of each span, from 0 to 1.
    pub spans: Vec<(f64, f64)>,
    /// The duration, with its unit.
    pub took: String,
    /// Further facts, such as the reason of a failure.
    pub note: String,
    /// `Bad` for a failure.
    pub tone: Tone,
}

impl Waterfall {
    /// The table behind the picture.
    #[must_use]
    pub fn table(&self) -> Table {
        let row = |row: &WaterfallRow| {
            let WaterfallRow {
                depth,
                name,
                process,
                spans: _,
                took,
                note,
                tone,
            } = row;
            Row::new(vec![
                Cell::Indented(*depth, name.clone()),
                Cell::Text(process.clone()),
                Cell::Text(took.clone()),
                Cell::Toned(*tone, note.clone()),
            ])
        };
        Table {
            caption: String::new(),
            columns: vec![
                Column::text("Step"),
                Column::text("Process"),
                Column::number("Took"),
                Column::text("Details"),
            ],
            rows: self.rows.iter().map(row).collect(),
        }
    }

    pub(crate) fn drawing(&self) -> Drawing {
        let tops = std::iter::successors(Some(TOP), |top| Some(top + ROW));
        let bottom = tops.clone().nth(self.rows.len()).unwrap_or(TOP) + 6.0;
        let height = match self.gaps.is_empty() {
            true => bottom,
            false => bottom + ROW,
        };
        let shapes = html! {
            @for gap in &self.gaps { (gap.drawn(bottom)) }
            (vertical_lines(&self.ticks, place, [TOP - 6.0, bottom], 14.0))
            @for (row, top) in self.rows.iter().zip(tops) { (drawn(row, top)) }
        };
        Drawing { height, shapes }
    }
}

impl WaterfallGap {
    /// A band behind the rows, with its text below if there is room.
    fn drawn(&self, bottom: f64) -> Markup {
        let Self {
            span: (begin, end),
            text,
        } = self;
        let (left, right) = (place(*begin), place(*end));
        html! {
            g {
                title { (text) }
                rect.c-gap x=(pixel(left)) y=(TOP - 6.0) width=(pixel((right - left).max(LEAST)))
                    height=(bottom - TOP + 6.0) {}
                @if wide(text) <= right - left {
                    @let middle = pixel((left + right) / 2.0);
                    text.c-muted.c-middle x=(middle) y=(bottom + 14.0) { (text) }
                }
            }
        }
    }
}

fn drawn(row: &WaterfallRow, top: f64) -> Markup {
    let WaterfallRow {
        depth,
        name,
        process,
        spans,
        took,
        note,
        tone,
    } = row;
    let levels = std::iter::successors(Some(0.0), |x| Some(x + INDENT));
    let x = levels.take(MOST_DEPTH + 1).nth(*depth);
    let x = x.unwrap_or(INDENT * 8.0);
    let base = top + 15.0;
    let is_fault = *tone == Tone::Bad;
    let name = match is_fault {
        true => format!("✗ {name}"),
        false => name.clone(),
    };
    let class = match tone {
        Tone::Bad => "c-span-bad",
        Tone::Caution => "c-span-caution",
        Tone::Good | Tone::Neutral => "c-span",
    };
    html! {
        g {
            title { (name) ", " (process) ": " (took) @if !note.is_empty() { ", " (note) } }
            text class=[is_fault.then_some("c-fault")] x=(x) y=(base) { (fitted(&name, PROCESS - x)) }
            text.c-muted x=(PROCESS) y=(base) { (fitted(process, BARS - PROCESS)) }
            @for (begin, end) in spans {
                @let left = place(*begin);
                rect class=(class) x=(pixel(left)) y=(pixel(top + (ROW - BAR) / 2.0))
                    width=(pixel((place(*end) - left).max(LEAST))) height=(BAR) {}
            }
            text.c-value x=(TOOK) y=(base) { (took) }
        }
    }
}

/// The column of pixels of a share of the time.
fn place(share: f64) -> f64 {
    BARS + (BARS_END - BARS) * share.clamp(0.0, 1.0)
}

//! Bars in parts: how much of each whole is what.

use maud::{Markup, html};

use super::{Drawing, WIDTH, fitted, pixel, wide};

const ROW: f64 = 30.0;
const BAR: f64 = 20.0;
/// The room between a bar and the texts beside it.
const GAP: f64 = 12.0;
/// The most width of a label, and that of a value.
const MOST_TEXT: f64 = 340.0;
/// The right edge of the values.
const VALUE: f64 = WIDTH - 8.0;
const LEGEND_TOP: f64 = 10.0;
const KEY: f64 = 14.0;
/// The least width of a part that is not empty: a small one is seen all the same.
const LEAST_PART: f64 = 2.0;

/// Bars in parts, all of the same scale.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// The meaning of the parts.
    pub legend: Vec<(PartStyle, String)>,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// A bar.
#[derive(Clone, Debug, Default)]
pub struct Bar {
    /// Its name.
    pub label: String,
    /// Its parts from the left.
    pub parts: Vec<BarPart>,
    /// Its value in words.
    pub value: String,
}

/// A part of a bar.
#[derive(Clone, Debug)]
pub struct BarPart {
    /// Its meaning.
    pub style: PartStyle,
    /// Its size, as a share of the longest bar.
    pub share: f64,
    /// Its meaning and size in words.
    pub text: String,
}

/// The look of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartStyle {
    /// The subject of the chart.
    Main,
    /// A loss.
    Lost,
    /// Kept for something else.
    Kept,
    /// The remainder.
    Rest,
}

impl PartStyle {
    const fn class(self) -> &'static str {
        match self {
            Self::Main => "c-bar c-main",
            Self::Lost => "c-bar c-lost",
            Self::Kept => "c-bar c-kept",
            Self::Rest => "c-bar c-rest",
        }
    }
}

impl Bars {
    pub(crate) fn drawing(&self) -> Drawing {
        let rows = |top| std::iter::successors(Some(top), |top| Some(top + ROW));
        let legend = rows(LEGEND_TOP);
        let top = legend.clone().nth(self.legend.len()).unwrap_or(LEGEND_TOP);
        let tops = rows(top + 6.0);
        let height = tops.clone().nth(self.bars.len()).unwrap_or(top) + 6.0;
        let widest = |text: fn(&Bar) -> &String| {
            let widths = self.bars.iter().map(|bar| wide(text(bar)));
            widths.fold(0.0, f64::max).min(MOST_TEXT)
        };
        let begin = widest(|bar| &bar.label) + GAP;
        let end = VALUE - widest(|bar| &bar.value) - GAP;
        let shapes = html! {
            @for ((style, text), top) in self.legend.iter().zip(legend) {
                rect class=(style.class()) x="1" y=(top) width=(KEY) height=(KEY) {}
                text x=(KEY + 10.0) y=(top + 12.0) { (fitted(text, WIDTH - KEY - 10.0)) }
            }
            @for (bar, top) in self.bars.iter().zip(tops) { (drawn(bar, top, [begin, end])) }
        };
        Drawing { height, shapes }
    }
}

/// A bar between two columns of pixels.
fn drawn(bar: &Bar, top: f64, [begin, end]: [f64; 2]) -> Markup {
    let Bar {
        label,
        parts,
        value,
    } = bar;
    let mut left = begin;
    let mut placed = Vec::new();
    for part in parts {
        let width = (end - begin) * part.share.clamp(0.0, 1.0);
        let width = match part.share > 0.0 {
            true => width.max(LEAST_PART),
            false => 0.0,
        };
        placed.push((left, width, part));
        left += width;
    }
    html! {
        g {
            text x="0" y=(top + 15.0) { (fitted(label, begin)) }
            @for (left, width, BarPart { style, text, .. }) in placed {
                rect class=(style.class()) x=(pixel(left)) y=(top) width=(pixel(width)) height=(BAR) {
                    title { (text) }
                }
            }
            text.c-value x=(VALUE) y=(top + 15.0) { (fitted(value, VALUE - end)) }
        }
    }
}

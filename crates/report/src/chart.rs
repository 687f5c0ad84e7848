//! Charts as SVG. Their input is what is drawn, in shares of the whole, so that no chart knows a
//! unit.

mod axis;
mod bars;
mod growth;
mod intervals;
mod waterfall;

use maud::{Markup, PreEscaped, html};
use podplane_api::printable;

pub use axis::{AxisTick, LinearScale, LogScale};
pub use bars::{Bar, BarPart, Bars, PartStyle};
pub use growth::GrowthCurve;
pub use intervals::{IntervalRow, Intervals};
pub use waterfall::{Waterfall, WaterfallGap, WaterfallRow};

use crate::{document::Tone, figure::Picture};

/// The width of all charts, in pixels.
const WIDTH: f64 = 960.0;
/// The width of a character; fonts differ, so it is a large one.
const CHARACTER: f64 = 7.2;

const STYLE: &str = include_str!("chart/chart.css");

/// The shapes of a chart, and its height.
pub(crate) struct Drawing {
    pub(crate) height: f64,
    pub(crate) shapes: Markup,
}

impl Drawing {
    /// An element of a page, whose style sheet has the colours.
    pub(crate) fn element(&self, name: &str) -> Markup {
        let Self { height, shapes } = self;
        html! {
            svg.chart viewBox={ "0 0 " (WIDTH) " " (height) } width=(WIDTH) height=(height)
                role="img" aria-label=(name) { (shapes) }
        }
    }
}

/// Charts below each other, as an SVG file of its own.
#[derive(Clone, Debug)]
pub struct PictureFile {
    /// The title.
    pub title: String,
    /// The sentence that sums the pictures up, below the title.
    pub verdict: Option<(Tone, String)>,
    /// The charts with their captions. Maps are files of their own, and left out.
    pub charts: Vec<(String, Picture)>,
}

impl PictureFile {
    /// The text of the file, for light and dark pages.
    #[must_use]
    pub fn svg(&self) -> String {
        /// The upper edge of the first caption, and the height of each.
        const HEAD: f64 = 56.0;
        const CAPTION: f64 = 32.0;
        const LINE: f64 = 18.0;
        let verdict = self.verdict.iter();
        let verdict = verdict.flat_map(|(tone, text)| {
            let lines = lines(text, WIDTH).into_iter();
            lines.map(move |line| (*tone, line))
        });
        let mut top = HEAD;
        let mut said = Vec::new();
        for (tone, line) in verdict {
            said.push((top, tone, line));
            top += LINE;
        }
        let mut placed = Vec::new();
        for (caption, picture) in &self.charts {
            let drawing = match picture {
                Picture::Map(_) => continue,
                Picture::Waterfall(chart) => chart.drawing(),
                Picture::Bars(chart) => chart.drawing(),
                Picture::Growth(chart) => chart.drawing(),
                Picture::Intervals(chart) => chart.drawing(),
            };
            placed.push((top, caption, drawing.shapes));
            top += CAPTION + drawing.height;
        }
        let width = WIDTH + 48.0;
        let file = html! {
            svg.chart xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (width) " " (top + 24.0) }
                width=(width) height=(top + 24.0) role="img" aria-labelledby="title" {
                title #title { (self.title) }
                style { (PreEscaped(STYLE)) }
                rect.c-page width="100%" height="100%" {}
                g transform="translate(24 0)" {
                    text.c-title x="0" y="36" { (self.title) }
                    @for (top, tone, line) in &said {
                        text.c-verdict.c-good[*tone == Tone::Good].c-fault[*tone == Tone::Bad]
                            x="0" y=(top + 4.0) { (line) }
                    }
                    @for (top, caption, shapes) in &placed {
                        text.c-caption x="0" y=(top + 16.0) { (caption) }
                        g transform={ "translate(0 " (top + CAPTION) ")" } { (shapes) }
                    }
                }
            }
        };
        printable::lines(&file.into_string()).into_owned()
    }
}

/// The style sheet of charts.
pub(crate) const fn style() -> &'static str {
    STYLE
}

/// A coordinate: a tenth of a pixel is fine enough, and keeps files small.
fn pixel(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A text that fits into a width in pixels. The table beside the picture has all of it.
fn fitted(text: &str, width: f64) -> String {
    let room = std::iter::successors(Some(CHARACTER), |end| Some(end + CHARACTER));
    let room = room.take_while(|end| *end <= width).count();
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let kept = text.chars().take(room.saturating_sub(1));
    kept.chain(['…']).collect()
}

/// The lines of a text, each as wide as fits into a width in pixels.
fn lines(text: &str, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if wide(line) + wide(word) + CHARACTER <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(fitted(word, width)),
        }
    }
    lines
}

/// The width of a text in pixels, at most.
fn wide(text: &str) -> f64 {
    text.chars().map(|_| CHARACTER).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_broken_at_words() {
        assert_eq!(lines("as wide as fits", 75.0), ["as wide as", "fits"]);
        assert_eq!(lines("RunPodSandbox a", 40.0), ["RunP…", "a"]);
        assert!(lines(" ", 40.0).is_empty());
    }

    #[test]
    fn texts_fit_their_place() {
        assert_eq!(fitted("create", 60.0), "create");
        assert_eq!(fitted("RunPodSandbox", 40.0), "RunP…");
        assert_eq!(fitted("a", 0.0), "…");
    }
}

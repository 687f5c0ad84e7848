//! A growing number with the limit that it reaches.

use std::fmt::Write as _;

use maud::html;

use super::{AxisTick, Drawing, WIDTH, axis::vertical_lines, pixel};

const HEIGHT: f64 = 320.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - 48.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = HEIGHT - 34.0;

/// A growing number. All places are shares of the axes, from 0 to 1.
#[derive(Clone, Debug, Default)]
pub struct GrowthCurve {
    /// The points, by time.
    pub points: Vec<(f64, f64)>,
    /// The limit, with its name.
    pub limit: Option<AxisTick>,
    /// The point at which the limit is reached, with its time in words.
    pub end: Option<((f64, f64), String)>,
    /// The times.
    pub times: Vec<AxisTick>,
    /// The numbers.
    pub numbers: Vec<AxisTick>,
}

impl GrowthCurve {
    pub(crate) fn drawing(&self) -> Drawing {
        let mut line = String::new();
        for (index, (time, number)) in self.points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            // Writing to a string cannot fail.
            _ = write!(line, "{command}{} {}", x(*time), y(*number));
        }
        let shapes = html! {
            @for AxisTick { at, label } in &self.numbers {
                path.c-grid d={ "M" (LEFT) " " (y(*at)) "H" (RIGHT) } {}
                text.c-muted.c-end x=(LEFT - 8.0) y=(y(*at) + 4.0) { (label) }
            }
            (vertical_lines(&self.times, x, [TOP, BOTTOM], BOTTOM + 20.0))
            @if let Some(AxisTick { at, label }) = &self.limit {
                path.c-limit d={ "M" (LEFT) " " (y(*at)) "H" (RIGHT) } {}
                text x=(LEFT + 8.0) y=(y(*at) - 6.0) { (label) }
            }
            path.c-curve d=(line) {}
            @if let Some(((time, number), text)) = &self.end {
                circle.c-point cx=(x(*time)) cy=(y(*number)) r="5" {}
                path.c-limit d={ "M" (x(*time)) " " (y(*number)) "V" (BOTTOM) } {}
                // Above the axis, where a growing curve is not.
                @let is_late = *time > 0.5;
                text.c-fault.c-end[is_late] x=(x(*time) + if is_late { -8.0 } else { 8.0 })
                    y=(BOTTOM - 10.0) { (text) }
            }
        };
        Drawing {
            height: HEIGHT,
            shapes,
        }
    }
}

fn x(share: f64) -> f64 {
    pixel(LEFT + (RIGHT - LEFT) * share.clamp(0.0, 1.0))
}

fn y(share: f64) -> f64 {
    pixel(BOTTOM - (BOTTOM - TOP) * share.clamp(0.0, 1.0))
}

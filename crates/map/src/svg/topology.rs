//! The network of a node as one SVG file, drawn from its layout.

use super::{Canvas, MARGIN};
use crate::{
    curve::Rect,
    palette::Palette,
    state::AddressState,
    topology::{BoxRole, NodeTopology, TopologyBox, TopologyLayout, TopologyLine},
    words,
};

/// The width of a column: that of a monospaced character of 12 pixels.
const COLUMN: f64 = 7.3;
/// The height of a row.
const ROW: f64 = 17.0;
/// The distance from the upper edge of a row to the baseline of its text.
const BASELINE: f64 = 12.5;

/// Draws the network of a node.
#[must_use]
pub fn topology(topology: &NodeTopology) -> String {
    let layout = TopologyLayout::new(topology);
    let mut canvas = Canvas::default();
    let width = COLUMN * f64::from(layout.width) + 2.0 * MARGIN;
    let height = ROW * f64::from(layout.height) + 2.0 * MARGIN;
    canvas.push(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n"
    ));
    canvas.push(format_args!(
        "<title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n",
        words::xml(&format!("Network of node {}", topology.node)),
        words::xml(&topology.to_string().replace('\n', ";")),
    ));
    canvas.push(format_args!("<style>\n"));
    canvas.push(format_args!(
        "text{{font:12px ui-monospace,monospace}}\
         .head{{font-weight:600}}\
         rect,.wire{{stroke-width:1px}}\
         .wire{{fill:none}}\
         .down{{stroke-dasharray:4 3}}\n"
    ));
    colors(&mut canvas, Palette::Light);
    canvas.push(format_args!("@media (prefers-color-scheme:dark){{\n"));
    colors(&mut canvas, Palette::Dark);
    canvas.push(format_args!("}}\n</style>\n"));
    canvas.push(format_args!(
        "<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n"
    ));
    for line in &layout.lines {
        canvas.wire(*line);
    }
    for each in &layout.boxes {
        canvas.text_box(each);
    }
    canvas.push(format_args!("</svg>\n"));
    canvas.0
}

/// The colours of the map: blocks are free space, pods are pods.
fn colors(canvas: &mut Canvas, palette: Palette) {
    let (page, ink) = (palette.page(), palette.ink());
    let (link, pod) = (
        palette.fill(AddressState::Free),
        palette.fill(AddressState::Pod),
    );
    canvas.push(format_args!(
        ".page{{fill:{page}}}text{{fill:{ink}}}.box,.wire{{stroke:{ink}}}.namespace,.routes{{fill:none}}\
         .link,.down{{fill:{link}}}.pod{{fill:{pod}}}.on-pod{{fill:#ffffff}}\n"
    ));
}

const fn class(role: BoxRole) -> &'static str {
    match role {
        BoxRole::Namespace => "namespace",
        BoxRole::Link => "link",
        BoxRole::DownLink => "down",
        BoxRole::Pod => "pod",
        BoxRole::Routes => "routes",
    }
}

fn at((column, row): (u16, u16)) -> (f64, f64) {
    let x = MARGIN + COLUMN * f64::from(column);
    (x, MARGIN + ROW * (f64::from(row) + 0.5))
}

impl Canvas {
    /// A line with one bend in the middle.
    fn wire(&mut self, line: TopologyLine) {
        let ((x, y), (end_x, end_y)) = (at(line.from), at(line.to));
        let middle = f64::midpoint(x, end_x);
        self.push(format_args!(
            "<path class=\"wire\" d=\"M{x} {y}H{middle}V{end_y}H{end_x}\"/>\n"
        ));
    }

    fn text_box(&mut self, each: &TopologyBox) {
        let TopologyBox { role, rect, lines } = each;
        let class = class(*role);
        let Rect {
            x,
            y,
            width,
            height,
        } = *rect;
        let (left, top) = (MARGIN + COLUMN * f64::from(x), MARGIN + ROW * f64::from(y));
        // A gap between boxes that touch.
        let (wide, high) = (COLUMN * f64::from(width), ROW * f64::from(height) - 6.0);
        self.push(format_args!(
            "<rect class=\"box {class}\" x=\"{left}\" y=\"{top}\" width=\"{wide}\" height=\"{high}\" rx=\"4\"/>\n"
        ));
        let on = if *role == BoxRole::Pod { " on-pod" } else { "" };
        let text_x = left + 2.0 * COLUMN;
        for (row, line) in (1u16..).zip(lines) {
            let head = if row == 1 { "head" } else { "line" };
            let text_y = top + ROW * f64::from(row) + BASELINE - 3.0;
            self.text(&format!("{head}{on}"), text_x, text_y, line);
        }
    }
}

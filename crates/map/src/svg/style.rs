//! The style sheet and the patterns of pictures.

use super::Canvas;
use crate::{
    palette::Palette,
    state::AddressState::{self, *},
};

/// The pattern of a state in a cell of 1 by 1, as shapes; `None` for the common states, which are
/// plain.
const fn shapes(state: AddressState) -> Option<&'static str> {
    match state {
        Duplicate => Some("<path d=\"M0 0L1 1M1 0L0 1\"/>"),
        Outside => Some("<path d=\"M0 1L1 0\"/>"),
        Orphaned => Some("<circle cx=\".5\" cy=\".5\" r=\".28\"/>"),
        Draining => Some("<path d=\"M0 .35H1M0 .7H1\"/>"),
        Service => Some("<path d=\"M.5 .4V.6\"/>"),
        Node => Some("<path d=\"M.35 .35H.65V.65H.35z\"/>"),
        Withheld => Some("<path d=\"M.3 0V1M.7 0V1\"/>"),
        Reserved => Some("<path d=\"M0 0L1 1\"/>"),
        Gateway => Some("<path d=\"M.5 .2V.8M.2 .5H.8\"/>"),
        Pod | Free | Unassigned => None,
    }
}

/// Returns true if a state has a pattern of its own.
pub(super) const fn has_pattern(state: AddressState) -> bool {
    shapes(state).is_some()
}

/// The colour of letters and patterns on a state.
const fn ink_on(state: AddressState) -> &'static str {
    match state {
        Pod | Reserved => "#ffffff",
        // The ink of the page, which is that of no fixed colour.
        Gateway | Free | Unassigned => "",
        Duplicate | Outside | Orphaned | Draining | Service | Node | Withheld => "#000000",
    }
}

/// Writes the style sheet and the patterns.
pub(super) fn write(canvas: &mut Canvas) {
    canvas.push(format_args!("<style>\n"));
    canvas.push(format_args!(
        "text{{font:13px system-ui,sans-serif}}\
         .head{{font-size:20px;font-weight:600}}\
         .strong{{font-weight:600}}\
         .label{{font:10px ui-monospace,monospace;text-anchor:middle;stroke-width:3px;stroke-linejoin:round;paint-order:stroke}}\
         .letter{{font:10px ui-monospace,monospace;text-anchor:middle}}\
         .cells path{{shape-rendering:crispEdges}}\
         .b,.frame,.holder{{fill:none;stroke-width:1px;pointer-events:all}}\
         .frame{{pointer-events:none}}\
         .grid{{fill:none;stroke-width:.04}}\
         .b-foreign,.b-unowned{{stroke-dasharray:5 2}}\
         .b-draining,.b-held,.b-quarantined{{stroke-dasharray:2 2}}\
         pattern *{{fill:none;stroke-width:.1}}\n"
    ));
    colors(canvas, Palette::Light);
    for state in AddressState::ALL
        .into_iter()
        .filter(|state| has_pattern(*state))
    {
        canvas.push(format_args!(".p-{state}{{fill:url(#pattern-{state})}}"));
    }
    canvas.push(format_args!("\n@media (prefers-color-scheme:dark){{\n"));
    colors(canvas, Palette::Dark);
    canvas.push(format_args!("}}\n</style>\n<defs>\n"));
    for state in AddressState::ALL {
        if let Some(shapes) = shapes(state) {
            canvas.push(format_args!(
                "<pattern id=\"pattern-{state}\" class=\"k-{state}\" patternUnits=\"userSpaceOnUse\" width=\"1\" height=\"1\">{shapes}</pattern>\n"
            ));
        }
    }
    canvas.push(format_args!("</defs>\n"));
}

/// Writes the style sheet of marks.
pub(super) fn write_marks(canvas: &mut Canvas) {
    // The parser of PNGs knows no `:not`.
    let rules = |palette: Palette| {
        let (page, error, warning) = (palette.page(), palette.error(), palette.warning());
        format!(
            ".m-error *{{stroke:{error}}}.m-warning *{{stroke:{warning}}}.m .halo{{stroke:{page}}}"
        )
    };
    let (light, dark) = (rules(Palette::Light), rules(Palette::Dark));
    canvas.push(format_args!(
        "<style>.m *{{fill:none;stroke-width:2px;pointer-events:stroke}}.m .halo{{stroke-width:4px}}.m .thin{{stroke-width:2px}}\n{light}\n\
         @media (prefers-color-scheme:dark){{{dark}}}\n</style>\n"
    ));
}

fn colors(canvas: &mut Canvas, palette: Palette) {
    let (page, ink) = (palette.page(), palette.ink());
    canvas.push(format_args!(
        ".page{{fill:{page}}}text{{fill:{ink}}}.b,.frame{{stroke:{ink}}}.label,.grid{{stroke:{page}}}\n"
    ));
    for state in AddressState::ALL {
        let fill = palette.fill(state);
        // A gateway has the ink's colour, so the page's is the one on it.
        let on = match (ink_on(state), state) {
            ("", Gateway) => page.to_string(),
            ("", _) => ink.to_string(),
            (fixed, _) => fixed.to_owned(),
        };
        canvas.push(format_args!(
            ".s-{state}{{fill:{fill}}}.l-{state}{{fill:{on}}}.k-{state}{{stroke:{on}}}"
        ));
    }
    canvas.push(format_args!("\n"));
}

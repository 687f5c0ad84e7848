//! Pictures with the tables behind them.

use maud::{Markup, PreEscaped, html};
use podplane_map::{Scene, svg};

use crate::{
    chart::{Bars, GrowthCurve, Intervals, Waterfall},
    table::{Table, anchor},
};

/// A picture with its table.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The id to link to. It is made unique in the page.
    pub id: String,
    /// The caption, which also describes the picture to those who do not see it.
    pub caption: String,
    /// The picture.
    pub picture: Picture,
    /// The same as tables.
    pub tables: Vec<Table>,
}

/// A picture.
#[derive(Clone, Debug)]
pub enum Picture {
    /// A map of an address space; see [`Picture::map`]. A page has one at most: the ids within it
    /// are fixed.
    Map(MapPicture),
    /// The spans of a trace.
    Waterfall(Waterfall),
    /// Bars in parts.
    Bars(Bars),
    /// A growing number, and its limit.
    Growth(GrowthCurve),
    /// Series of measurements.
    Intervals(Intervals),
}

/// The SVG of a map.
#[derive(Clone, Debug)]
pub struct MapPicture(String);

impl Picture {
    /// The map of a scene.
    #[must_use]
    pub fn map(scene: &Scene<'_>) -> Self {
        Self::Map(MapPicture(svg::picture(scene)))
    }
}

impl Figure {
    const fn summary(&self) -> &'static str {
        match self.tables.as_slice() {
            [_] => "As a table",
            _ => "As tables",
        }
    }

    pub(crate) fn markup(&self) -> Markup {
        let caption = &self.caption;
        html! {
            figure id=(self.id) {
                figcaption { (caption) " " (anchor(&self.id, caption)) }
                div.picture tabindex="0" role="region" aria-label=(caption) {
                    @match &self.picture {
                        // Escaped by the crate that draws it.
                        Picture::Map(MapPicture(svg)) => (PreEscaped(svg)),
                        Picture::Waterfall(chart) => (chart.drawing().element(caption)),
                        Picture::Bars(chart) => (chart.drawing().element(caption)),
                        Picture::Growth(chart) => (chart.drawing().element(caption)),
                        Picture::Intervals(chart) => (chart.drawing().element(caption)),
                    }
                }
                details {
                    summary { (self.summary()) }
                    @for table in &self.tables { (table.markup()) }
                }
            }
        }
    }
}

//! Reports to hand out: one HTML file each, with one layout and one style sheet for all.
//!
//! A command describes its report as data, from a [`Report`] down to its tables and pictures, and
//! [`Report::html`] makes the page. The crate does no I/O and reads no clock. Start reading at
//! [`Report`]; pictures are in [`Picture`], and a file with pictures alone is a [`PictureFile`].
//!
//! A page has no script, no font and no other file, and its content security policy refuses them.
//! It is for light and dark screens and for paper. Each picture has a table beside it, and each
//! section, picture and marked row has an id to link to.
//!
//! Texts may come from anybody: everything is escaped, and characters that control a terminal or
//! the direction of text are written as their codes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod chart;
mod document;
mod figure;
mod html;
mod ids;
mod map;
mod markdown;
mod table;

pub use chart::{
    AxisTick, Bar, BarPart, Bars, GrowthCurve, IntervalRow, Intervals, LinearScale, LogScale,
    PartStyle, PictureFile, Waterfall, WaterfallGap, WaterfallRow,
};
pub use document::{Block, Count, Fact, Report, Section, Tone};
pub use figure::{Figure, Picture};
pub use ids::slug;
pub use map::map_figure;
pub use table::{Cell, Column, Row, Table};

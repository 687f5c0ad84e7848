//! Scenarios: YAML files that describe actions on a cluster, and what must hold after them.
//!
//! The crate never judges how long something took: it reports times, and deadlines end what would
//! never end by itself.
//!
//! Start with [`mod@format`], the format of a file. [`load()`] reads files and reports mistakes
//! with their positions; [`run`] starts a cluster for each scenario and carries out its steps.

#![warn(missing_docs)]

mod act;
mod check;
mod command;
mod compared;
mod console;
mod document;
mod fields;
pub mod format;
mod html;
mod invariants;
mod junit;
mod load;
mod look;
mod metrics;
mod narration;
mod objects;
mod plan;
mod problem;
mod rule;
mod runner;
mod stage;
mod suite;
#[cfg(test)]
mod tests;
mod traces;

pub use html::HtmlOptions;
pub use load::{Catalog, Values, load};
pub use plan::{Parameter, PlannedCase};
pub use problem::{Position, Problem, suggestion};
pub use suite::{SuiteOptions, SuiteVerdict, run};

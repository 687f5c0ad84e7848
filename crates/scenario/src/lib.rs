//! Scenarios: YAML files that say what is done to a cluster and what must hold.
//!
//! [`mod@format`] is what a file may say; [`load()`] reads files, finds what is wrong with them and where; [`run`] starts a cluster for each and carries the
//! steps out. How long something takes is reported and not judged; deadlines end what would never end.

#![warn(missing_docs)]

mod act;
mod check;
mod command;
mod console;
mod document;
mod fields;
pub mod format;
mod http;
mod invariants;
mod junit;
mod load;
mod look;
pub mod metrics;
mod objects;
mod plan;
mod problem;
mod rule;
mod runner;
mod stage;
mod suite;
#[cfg(test)]
mod tests;

pub use load::{Catalog, load};
pub use plan::Case;
pub use problem::{Position, Problem};
pub use suite::{Options, Verdict, run};

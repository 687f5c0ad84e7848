//! `podplane top`: a cluster on the terminal, live.
//!
//! The core is pure: [`App`] takes a [`Message`] and tells what is to be done outside
//! ([`Effect`]); [`draw()`] makes a picture of it. [`run()`] connects it with a cluster and a
//! terminal, which is restored however the program ends.
//!
//! [`run_map()`] shows the map alone, of an address space that does not change.
//!
//! It decides nothing about a cluster, and writes nothing to it. The texts of `describe`, `trace`
//! and `explain` come from its caller ([`Details`]). Start reading at [`App`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod app;
mod cluster;
mod command;
mod draw;
mod facts;
mod filter;
mod map;
mod page;
mod row;
mod rows;
mod run;
mod scope;
mod source;
mod table;
mod terminal;
mod theme;
mod view;

#[cfg(test)]
mod tests;

pub use app::{App, Effect, Message};
pub use cluster::{BlockRecords, Change, Source, SourceFailure};
pub use draw::draw;
pub use facts::{EventFact, NodeFact, PodFact};
pub use page::{Detail, DetailKind};
pub use row::Subject;
pub use run::{Details, Ended, MapSettings, TopSettings, run, run_map};
pub use terminal::TerminalError;
pub use theme::Theme;
pub use view::{UnknownView, View};

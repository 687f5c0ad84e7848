//! Custom resources: kinds that a CustomResourceDefinition declares at run time.
//!
//! [`validate_definition`] has the rules of definitions; [`CustomKind`] is a version of one, which
//! prunes, defaults and validates its objects, and gives their table, scale and types for patches.
//! Objects are JSON values. Messages are those of the reference, `apiextensions-apiserver`.
//!
//! This crate is pure: it does no I/O and reads no clock.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod columns;
mod definition;
mod formats;
mod kind;
mod metadata;
mod place;
mod prune;
mod publish;
mod rules;
mod scale;
mod schema;
mod schema_rules;
mod structural;
mod validate;

#[cfg(test)]
mod tests;

pub use columns::PrinterColumn;
pub use definition::validate_definition;
pub use kind::{CustomKind, KindError};
pub use metadata::MetadataError;
pub use scale::ScaleError;

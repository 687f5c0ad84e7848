//! Custom kinds: CustomResourceDefinitions, and the kinds that they declare
//! ([docs/custom-resources.md](../../docs/custom-resources.md), ADR 0056).
//!
//! A definition whose names are accepted is installed: its objects have one cache, each served
//! version a registry of its own over it, and a resource of the REST API. The schema's rules are
//! those of `podplane_custom_resources`.

mod conversion;
mod install;
mod kind;
mod lifecycle;
mod names;
mod resource;
mod rules;

pub(crate) use self::{install::CustomKinds, rules::DefinitionRules};

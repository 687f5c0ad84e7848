//! The domain types of podplane and their validation.
//!
//! Objects are Kubernetes' own: the types are re-exported from `k8s-openapi`, which is generated
//! from the published API definitions, so that every field of a manifest is kept (ADR 0002). This
//! crate adds what the published schema lacks: the kinds that podplane serves ([`Object`]), strict
//! decoding that names the path of an unknown field ([`strict`]), names, quantities, selectors and
//! validation.
//!
//! Of podplane's crates it depends only on `podplane-ipam`, which is as pure: it reads no clock and
//! does no I/O. Start reading at [`object`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod canonical;
mod duplicates;
pub mod event_view;
pub mod kinds;
pub mod names;
pub mod nesting;
pub mod networking;
pub mod node;
pub mod object;
pub mod patch;
pub mod pod_ips;
pub mod printable;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod strategy;
pub mod strict;
pub mod table;
pub mod taints;
pub mod validation;

pub use duplicates::duplicates;
pub use k8s_openapi::{
    ByteString,
    api::{
        apps::v1 as apps, authentication::v1 as authentication, authorization::v1 as authorization,
        autoscaling::v1 as autoscaling, certificates::v1 as certificates,
        coordination::v1 as coordination, core::v1 as core, events::v1 as events,
        policy::v1 as policy, rbac::v1 as rbac, scheduling::v1 as scheduling,
    },
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1 as meta, runtime::RawExtension,
        util::intstr::IntOrString,
    },
    jiff,
};
pub use object::{Object, ObjectKey, Scope};

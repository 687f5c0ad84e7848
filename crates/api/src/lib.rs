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

pub mod any;
pub mod canonical;
mod duplicates;
pub mod event_view;
pub mod kinds;
pub mod names;
pub mod nesting;
pub mod networking;
pub mod node;
pub mod object;
pub mod packed;
pub mod patch;
pub mod pod_exit;
pub mod pod_ips;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod strategy;
pub mod strict;
pub mod table;
pub mod taints;
pub mod trace;
pub mod validation;

pub use duplicates::duplicates;
pub use k8s_openapi::{
    ByteString, Resource,
    api::{
        admissionregistration::v1 as admissionregistration,
        apps::v1 as apps,
        authentication::v1 as authentication,
        authorization::v1 as authorization,
        autoscaling::{v1 as autoscaling, v2 as autoscaling_v2},
        batch::v1 as batch,
        certificates::v1 as certificates,
        coordination::v1 as coordination,
        core::v1 as core,
        discovery::v1 as discovery,
        events::v1 as events,
        node::v1 as node_api,
        policy::v1 as policy,
        rbac::v1 as rbac,
        resource::v1 as resource,
        scheduling::v1 as scheduling,
        storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    apimachinery::pkg::{
        api::resource::Quantity, apis::meta::v1 as meta, runtime::RawExtension,
        util::intstr::IntOrString,
    },
    jiff,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
};
pub use object::{Object, ObjectKey, Scope};
pub use podplane_printable as printable;

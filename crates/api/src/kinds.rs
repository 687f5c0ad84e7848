//! The kinds that podplane stores and serves: the list, and the declaration of each kind in its own
//! module.
//!
//! A declaration is the implementation of five traits: [`Object`](crate::Object) has the names,
//! [`FieldSelectable`](crate::selector::FieldSelectable) the fields of selectors,
//! [`Validate`](crate::validation::Validate) the rules, [`TableRow`](crate::table::TableRow) the
//! columns of its table, and [`Strategy`] the behaviour in the API server. All have defaults, so
//! that a module says only what is particular to its kind. From the list come the registries, the
//! REST paths and gRPC services of the API server, the kinds of the command line, the garbage
//! collector's watches, and the generated `.proto` files and OpenAPI definitions (ADR 0034).

mod api_service;
pub mod certificate_signing_request;
mod cluster_cidr;
mod cluster_role;
mod cluster_role_binding;
mod config_map;
mod controller_revision;
mod cron_job;
mod csi_driver;
mod csi_node;
mod csi_storage_capacity;
pub mod custom_resource_definition;
mod daemon_set;
mod deployment;
mod device_class;
mod endpoint_slice;
mod endpoints;
pub mod event;
mod horizontal_pod_autoscaler;
mod ingress;
mod ingress_class;
mod ip_address;
mod job;
mod lease;
mod limit_range;
mod mutating_webhook_configuration;
mod namespace;
mod network_policy;
pub mod node;
mod persistent_volume;
mod persistent_volume_claim;
pub mod pod;
pub mod pod_disruption_budget;
mod pod_template;
pub mod priority_class;
mod replica_set;
mod replication_controller;
mod resource_claim;
mod resource_claim_template;
mod resource_quota;
mod resource_slice;
mod role;
mod role_binding;
mod runtime_class;
mod secret;
pub mod service;
pub mod service_account;
mod service_cidr;
mod stateful_set;
mod storage_class;
mod validating_admission_policy;
mod validating_admission_policy_binding;
mod validating_webhook_configuration;
mod volume_attachment;
mod volume_attributes_class;

pub use namespace::SYSTEM_NAMESPACES;

use crate::strategy::Strategy;

/// The list of all kinds, in the order in which help texts name them: calls the macro `$with`, for
/// example to declare an enum that has a variant for each.
#[macro_export]
macro_rules! stored_kinds {
    ($with:ident!($($arguments:tt)*)) => {
        $with! {
            ($($arguments)*)
            Node: $crate::core::Node,
            Pod: $crate::core::Pod,
            Event: $crate::core::Event,
            Lease: $crate::coordination::Lease,
            Namespace: $crate::core::Namespace,
            Service: $crate::core::Service,
            Deployment: $crate::apps::Deployment,
            ReplicaSet: $crate::apps::ReplicaSet,
            ControllerRevision: $crate::apps::ControllerRevision,
            PodDisruptionBudget: $crate::policy::PodDisruptionBudget,
            PriorityClass: $crate::scheduling::PriorityClass,
            ServiceAccount: $crate::core::ServiceAccount,
            Role: $crate::rbac::Role,
            ClusterRole: $crate::rbac::ClusterRole,
            RoleBinding: $crate::rbac::RoleBinding,
            ClusterRoleBinding: $crate::rbac::ClusterRoleBinding,
            CertificateSigningRequest: $crate::certificates::CertificateSigningRequest,
            ClusterCIDR: $crate::networking::ClusterCIDR,
            PersistentVolume: $crate::core::PersistentVolume,
            PersistentVolumeClaim: $crate::core::PersistentVolumeClaim,
            ReplicationController: $crate::core::ReplicationController,
            PodTemplate: $crate::core::PodTemplate,
            ConfigMap: $crate::core::ConfigMap,
            Secret: $crate::core::Secret,
            Endpoints: $crate::core::Endpoints,
            ResourceQuota: $crate::core::ResourceQuota,
            LimitRange: $crate::core::LimitRange,
            StorageClass: $crate::storage::StorageClass,
            CSINode: $crate::storage::CSINode,
            CSIDriver: $crate::storage::CSIDriver,
            CSIStorageCapacity: $crate::storage::CSIStorageCapacity,
            VolumeAttachment: $crate::storage::VolumeAttachment,
            VolumeAttributesClass: $crate::storage::VolumeAttributesClass,
            ResourceClaim: $crate::resource::ResourceClaim,
            ResourceClaimTemplate: $crate::resource::ResourceClaimTemplate,
            ResourceSlice: $crate::resource::ResourceSlice,
            DeviceClass: $crate::resource::DeviceClass,
            StatefulSet: $crate::apps::StatefulSet,
            DaemonSet: $crate::apps::DaemonSet,
            Job: $crate::batch::Job,
            CronJob: $crate::batch::CronJob,
            RuntimeClass: $crate::node_api::RuntimeClass,
            EndpointSlice: $crate::discovery::EndpointSlice,
            Ingress: $crate::networking::Ingress,
            IngressClass: $crate::networking::IngressClass,
            NetworkPolicy: $crate::networking::NetworkPolicy,
            IPAddress: $crate::networking::IPAddress,
            ServiceCIDR: $crate::networking::ServiceCIDR,
            HorizontalPodAutoscaler: $crate::autoscaling_v2::HorizontalPodAutoscaler,
            MutatingWebhookConfiguration: $crate::admissionregistration::MutatingWebhookConfiguration,
            ValidatingWebhookConfiguration: $crate::admissionregistration::ValidatingWebhookConfiguration,
            ValidatingAdmissionPolicy: $crate::admissionregistration::ValidatingAdmissionPolicy,
            ValidatingAdmissionPolicyBinding: $crate::admissionregistration::ValidatingAdmissionPolicyBinding,
            APIService: $crate::apiregistration::APIService,
            CustomResourceDefinition: $crate::apiextensions::CustomResourceDefinition,
        }
    };
}

/// A generic function that is called for each kind.
pub trait KindVisitor {
    /// Visits a kind.
    fn visit<K: Strategy>(&mut self);
}

macro_rules! visit_each {
    (($visitor:expr) $($kind:ident: $type:ty,)*) => {
        $($visitor.visit::<$type>();)*
    };
}

/// Visits all kinds in the order of the list.
pub fn visit(visitor: &mut impl KindVisitor) {
    stored_kinds!(visit_each!(visitor));
}

//! The fields that are unknown to the kubectl that tests compare with.

/// The fields, by struct, that came after Kubernetes 1.33: this kubectl refuses or drops them.
pub(crate) const SINCE_1_34: &[(&str, &str)] = &[
    ("Container", "restartPolicyRules"),
    ("EnvVarSource", "fileKeyRef"),
    ("EphemeralContainer", "restartPolicyRules"),
    ("NodeStatus", "declaredFeatures"),
    ("PodSpec", "hostnameOverride"),
    ("PodSpec", "schedulingGroup"),
    ("PodStatus", "allocatedResources"),
    ("PodStatus", "extendedResourceClaimStatus"),
    ("PodStatus", "nodeAllocatableResourceClaimStatuses"),
    ("PodStatus", "resources"),
    ("ResourceHealth", "message"),
    ("VolumeMountStatus", "volumeStatus"),
    ("VolumeProjection", "podCertificate"),
];

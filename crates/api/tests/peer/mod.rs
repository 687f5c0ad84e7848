//! The kubectl that tests compare with.

use std::{env, fs, path::PathBuf};

use podplane_test_requirements::require;

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

/// The path of kubectl: `PODPLANE_KUBECTL`, else the newest up to 1.33 beside the one on the path,
/// if that is a dispatcher. `None` if the test must be skipped.
pub(crate) fn kubectl() -> Option<PathBuf> {
    let found = env::var_os("PODPLANE_KUBECTL")
        .map(PathBuf::from)
        .or_else(|| {
            let path = env::var_os("PATH")?;
            let found = env::split_paths(&path)
                .map(|directory| directory.join("kubectl"))
                .find(|file| file.is_file())?;
            let beside = fs::canonicalize(&found)
                .ok()?
                .with_file_name("kubectl.1.33");
            Some(if beside.is_file() { beside } else { found })
        });
    let install = "put version 1.29 or newer into a directory of PATH, or set PODPLANE_KUBECTL";
    require("kubectl", found.is_some(), install).then_some(found)?
}

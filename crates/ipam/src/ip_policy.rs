//! The limit that addresses put on pods.

/// The way in which the addresses of a node limit its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "kebab-case")
)]
pub enum IpPolicy {
    /// Count addresses as a resource: each pod without hostNetwork takes one that the node reports
    #[default]
    Resource,
    /// Limit pods, hostNetwork included, to min(2^(32-mask) - 3, allocatable); IPv6: allocatable
    PodCidr,
    /// Do not limit pods by addresses, as in Kubernetes
    Off,
}

//! Names in the traces of pods' journeys that both writers and readers know.

/// The attribute with the name of the CNI plugin of a step.
pub const CNI_PLUGIN: &str = "cni.plugin";

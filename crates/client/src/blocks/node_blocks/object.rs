//! The objects: their fields, and the calls for them.

use ipnet::IpNet;
use kube::{
    Api as KubeApi,
    core::{ApiResource, GroupVersionKind, Object as CustomObject},
};
use podplane_api::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::api::Client;

/// The desired state of a NodeBlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeBlockSpec {
    pub(super) cidr: String,
    pub(super) node_name: String,
    #[serde(rename = "nodeUID")]
    pub(super) node_uid: String,
    #[serde(default)]
    pub(super) state: NodeBlockState,
    /// The end of the quarantine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) quarantined_until: Option<Timestamp>,
}

/// The state of a block whose node exists, or the last step before its release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum NodeBlockState {
    #[default]
    Assigned,
    Foreign,
    Quarantined,
}

/// The last report of the node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeBlockStatus {
    /// The addresses of the block that are allocated on the node.
    #[serde(default)]
    pub(super) allocated_addresses: u32,
    /// By the clock of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reported_at: Option<Timestamp>,
}

pub(super) type NodeBlock = CustomObject<NodeBlockSpec, NodeBlockStatus>;

pub(super) fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("podplane.io", "v1alpha1", "NodeBlock");
    ApiResource::from_gvk_with_plural(&kind, "nodeblocks")
}

pub(super) fn objects(client: &Client) -> KubeApi<NodeBlock> {
    KubeApi::all_with(client.kube(), &resource())
}

/// The block; `None`, with a warning, for a record that somebody wrote by hand without one.
pub(super) fn net(record: &NodeBlock) -> Option<IpNet> {
    let net = record.spec.cidr.parse::<IpNet>().ok();
    if net.is_none() {
        let name = record.metadata.name.as_deref().unwrap_or_default();
        tracing::warn!(
            name,
            cidr = record.spec.cidr,
            "ignored a NodeBlock without a valid CIDR"
        );
    }
    net.map(|net| net.trunc())
}

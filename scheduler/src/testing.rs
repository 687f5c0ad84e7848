//! Pods and nodes for tests, and the scheduler's views of them.

use std::sync::Arc;

use podplane_api::pod_ips::PodIpResource;
pub(crate) use podplane_test_support::{NodeBuilder, PodBuilder};

use crate::{
    names::NodeSlot,
    node::{NodeInfo, NodePods},
    pod::PodInfo,
};

/// A fixture as the scheduler's cache has it.
pub(crate) trait AsInfo {
    type Info;

    fn info(&self) -> Self::Info;
}

impl AsInfo for PodBuilder {
    type Info = Arc<PodInfo>;

    fn info(&self) -> Arc<PodInfo> {
        Arc::new(PodInfo::new(&self.pod(), &PodIpResource::default()))
    }
}

impl AsInfo for NodeBuilder {
    type Info = NodeInfo;

    fn info(&self) -> NodeInfo {
        NodeInfo::new(
            Arc::new(self.node()),
            NodePods::default(),
            NodeSlot::default(),
            PodIpResource::default(),
        )
    }
}

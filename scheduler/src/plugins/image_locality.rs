//! The node that has large images of the pod is better, unless few nodes have them.

use super::node_resources_balanced::{float, truncated};
use crate::{
    framework::{CycleInput, MAX_SCORE, NodeScorer, Plugin, PluginEvent},
    images::ImageId,
    node::NodeInfo,
    pod::PodInfo,
};

/// The plugin `ImageLocality`.
#[derive(Debug)]
pub struct ImageLocality;

const MIB: i64 = 1 << 20;
/// The bytes below which it does not matter that an image is there.
const LEAST: i64 = 23 * MIB;
/// The bytes for each container beyond which more do not matter.
const MOST: i64 = 1000 * MIB;

/// The images of the pod that some node has.
#[derive(Debug)]
struct PresentImages {
    /// Each with the part of the nodes that have it, so that pods do not all gather on the few
    /// nodes that had a new image first.
    images: Vec<(ImageId, f64)>,
    /// The number of the pod's containers.
    containers: i64,
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    /// Skips a pod of whose images no node has any. In the reference all nodes then have 0.
    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        let CycleInput { pod, cluster } = input;
        let present = pod.needs.images.iter().filter_map(|image| {
            let nodes = cluster.images().nodes(*image);
            (nodes > 0).then(|| (*image, count(nodes) / count(cluster.len())))
        });
        let images: Vec<_> = present.collect();
        let containers = i64::try_from(pod.needs.images.len()).unwrap_or(i64::MAX / MOST);
        (!images.is_empty())
            .then(|| Box::new(PresentImages { images, containers }) as Box<dyn NodeScorer>)
    }

    fn weight(&self) -> i64 {
        1
    }

    fn heeds(&self, _pod: &PodInfo, _event: &PluginEvent<'_>) -> bool {
        false
    }
}

impl NodeScorer for PresentImages {
    /// The bytes of the images on the node, each times the part of the nodes that have it, from
    /// 0 at [`LEAST`] to [`MAX_SCORE`] at [`MOST`] for each container.
    fn score(&self, node: &NodeInfo) -> i64 {
        let bytes = self.images.iter().filter_map(|(image, part)| {
            let size = node.images().size(*image)?;
            Some(truncated(float(size) * part))
        });
        let most = MOST.saturating_mul(self.containers);
        let bytes = bytes.fold(0, i64::saturating_add).clamp(LEAST, most);
        MAX_SCORE * (bytes - LEAST) / (most - LEAST)
    }
}

/// A number of nodes in floating point.
fn count(nodes: usize) -> f64 {
    float(i64::try_from(nodes).unwrap_or(i64::MAX))
}

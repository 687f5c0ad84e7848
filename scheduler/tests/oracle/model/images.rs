//! `ImageLocality`.

use serde_json::Value;

use super::{
    Cluster, list,
    resources::{float, truncated},
    zip,
};

const MIB: i64 = 1024 * 1024;

/// The name by which an image is looked for: without a tag or a digest it is the `latest`. What
/// follows the last slash has a colon if there is one of both.
fn full_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or_default();
    match last.contains(':') {
        true => image.to_owned(),
        false => format!("{image}:latest"),
    }
}

/// The size of an image on a node: that of the first entry with the name. In the reference it is
/// the size on the node that reported the name first of all nodes.
fn size(node: &Value, image: &str) -> Option<i64> {
    let mut images = list(&node["status"]["images"]).iter();
    let found = images.find(|entry| list(&entry["names"]).iter().any(|name| name == image))?;
    Some(found["sizeBytes"].as_i64().unwrap_or(0))
}

/// The sum over init containers and containers of the size of the image if the node has it, times
/// the part of all nodes that have it, rounded down; from 23 MiB, which is 0, to 1000 MiB for each
/// container, which is 100. A pod is skipped if no node has any of its images.
pub(crate) fn scores(cluster: &Cluster<'_>, feasible: &[&Value]) -> Option<Vec<(i64, i64)>> {
    let spec = &cluster.pod["spec"];
    let containers = list(&spec["initContainers"]).iter();
    let containers = containers.chain(list(&spec["containers"]));
    let images = containers.map(|one| full_name(one["image"].as_str().unwrap_or_default()));
    let images: Vec<_> = images.collect();
    let having = |image: &str| {
        let nodes = cluster.nodes.iter();
        nodes.filter(|node| size(node, image).is_some()).count()
    };
    if images.iter().all(|image| having(image) == 0) {
        return None;
    }
    let mut scores = Vec::new();
    for node in feasible {
        let mut bytes = 0;
        for image in &images {
            if let Some(size) = size(node, image) {
                let having = i64::try_from(having(image)).unwrap();
                let all = i64::try_from(cluster.nodes.len()).unwrap();
                bytes += truncated(float(size) * (float(having) / float(all)));
            }
        }
        let (least, most) = (23 * MIB, 1000 * MIB * i64::try_from(images.len()).unwrap());
        let bytes = bytes.max(least).min(most);
        scores.push(100 * (bytes - least) / (most - least));
    }
    zip(scores.clone(), scores)
}

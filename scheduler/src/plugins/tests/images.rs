//! ImageLocality.

use std::sync::Arc;

use podplane_api::core::Node;
use serde_json::from_value;

use super::*;
use crate::{cache::NodeCache, images::NodeImages, testing::AsInfo as _};

const MIB: i64 = 1 << 20;
const NONE: [i64; 0] = [];

/// A node with images of these names and sizes in MiB.
fn node(name: &str, images: &[(&[&str], i64)]) -> Node {
    let images = images
        .iter()
        .map(|(names, size)| json!({"names": names, "sizeBytes": size * MIB}));
    let mut node = NodeBuilder::new(name).node();
    let status = node.status.get_or_insert_default();
    status.images = Some(images.map(|one| from_value(one).unwrap()).collect());
    node
}

fn pod(init: &[&str], containers: &[&str]) -> PodBuilder {
    let list = |images: &[&str]| {
        let images = images.iter();
        images
            .map(|image| json!({"name": "c", "image": image}))
            .collect::<Value>()
    };
    PodBuilder::new("p")
        .set("/spec/initContainers", list(init))
        .set("/spec/containers", list(containers))
}

/// The score of each node, if the plugin scores.
fn scores(nodes: &[Node], pod: &PodBuilder) -> Vec<i64> {
    let examined = examine_objects(nodes, &[], &[], IpPolicy::Off.into(), &pod.pod());
    let plugins = examined.scores().flat_map(|score| score.plugins.clone());
    let images = plugins.filter(|one| one.plugin == "ImageLocality");
    images
        .map(|one| {
            assert_eq!((one.raw, one.weight), (one.normalised, 1));
            one.raw
        })
        .collect()
}

#[test]
fn nodes_with_large_images_that_others_have_score_more() {
    let web: (&[&str], i64) = (&["web:latest", "web@sha256:00"], 600);
    let db: (&[&str], i64) = (&["db:1"], 60);
    let nodes = [node("a", &[web, db]), node("b", &[web]), node("c", &[])];
    // Two of three nodes have it: 100·(400 - 23)/(1000 - 23).
    assert_eq!(scores(&nodes, &pod(&[], &["web"])), [38, 38, 0]);
    assert_eq!(scores(&nodes, &pod(&[], &["web@sha256:00"])), [38, 38, 0]);
    // The size of 60 MiB times a third is below the least that matters.
    assert_eq!(scores(&nodes, &pod(&[], &["db:1"])), [0, 0, 0]);
    // The most grows with the containers: 100·(400 + 400 + 20 - 23)/(3000 - 23).
    let several = pod(&["web"], &["web", "db:1"]);
    assert_eq!(scores(&nodes, &several), [26, 26, 0]);
    // Nodes with the same name may have other sizes.
    let nodes = [
        node("a", &[(&["web:1"], 5000)]),
        node("b", &[(&["web:1"], 500)]),
    ];
    assert_eq!(scores(&nodes, &pod(&[], &["web:1", "none"])), [100, 24]);
}

#[test]
fn pods_without_known_images_are_skipped() {
    let nodes = [node("a", &[(&["web:1"], 600)])];
    assert_eq!(scores(&nodes, &pod(&[], &["web"])), NONE);
    assert_eq!(scores(&[node("a", &[])], &pod(&[], &["web:1"])), NONE);
    assert_eq!(scores(&nodes, &pod(&[], &["web:1"])), [59]);
}

#[test]
fn counts_of_images_follow_the_nodes() {
    let image: (&[&str], i64) = (&["web:1", "web:1"], 600);
    let id = pod(&[], &["web:1"]).info().needs.images[0];
    let mut cache = NodeCache::default();
    for name in ["a", "b"] {
        cache.apply_node(Arc::new(node(name, &[image, image])));
    }
    assert_eq!(cache.cluster().images().nodes(id), 2);
    cache.apply_node(Arc::new(node("a", &[])));
    assert_eq!(cache.cluster().images().nodes(id), 1);
    cache.apply_node(Arc::new(node("a", &[image])));
    cache.remove_node(&"b".into());
    assert_eq!(cache.cluster().images().nodes(id), 1);
    cache.remove_node(&"a".into());
    assert_eq!(cache.cluster().images().nodes(id), 0);
    let of_two = NodeImages::of(&node("a", &[(&["web:1"], 1), (&["web:1"], 2)]));
    assert_eq!(of_two.size(id), Some(MIB), "the first counts");
}

//! The layout of a node's network: complete, without overlaps, and connected.

use std::collections::BTreeMap;

use podplane_map::{
    BoxRole, NodeLink, NodeTopology, PodAttachment, PodInterface, Rect, TopologyLayout,
};

use crate::samples::topology;

/// A node with a bridge and many pods.
fn crowded(pods: usize) -> NodeTopology {
    let mut node = topology();
    for number in 0..pods {
        node.links.push(NodeLink {
            name: format!("veth{number}"),
            kind: "veth".into(),
            is_up: true,
            master: Some("cni0".into()),
            ..NodeLink::default()
        });
        node.pods.push(PodAttachment {
            pod: format!("default/a-rather-long-name-of-a-pod-{number}"),
            sandbox: format!("crowd-{number}"),
            interfaces: vec![PodInterface {
                name: "eth0".into(),
                link: Some(format!("veth{number}")),
                addresses: vec![
                    "10.244.1.2/24".parse().unwrap(),
                    "fd00::2/64".parse().unwrap(),
                ],
            }],
        });
    }
    node.sorted()
}

fn overlap(a: &Rect, b: &Rect) -> bool {
    let apart = |start: u16, length: u16, other: u16, other_length: u16| {
        start + length <= other || other + other_length <= start
    };
    !(apart(a.x, a.width, b.x, b.width) || apart(a.y, a.height, b.y, b.height))
}

fn contains(outer: &Rect, inner: &Rect) -> bool {
    outer.x <= inner.x
        && outer.y <= inner.y
        && inner.x + inner.width <= outer.x + outer.width
        && inner.y + inner.height <= outer.y + outer.height
}

#[test]
fn boxes_do_not_overlap_and_only_pods_are_outside_of_the_namespace() {
    for node in [NodeTopology::default(), topology(), crowded(300)] {
        let layout = TopologyLayout::new(&node);
        let (namespace, others) = layout.boxes.split_first().unwrap();
        assert_eq!(namespace.role, BoxRole::Namespace);
        for (index, each) in others.iter().enumerate() {
            let is_inside = contains(&namespace.rect, &each.rect);
            assert_eq!(is_inside, each.role != BoxRole::Pod, "{each:?}");
            for other in &others[index + 1..] {
                assert!(!overlap(&each.rect, &other.rect), "{each:?} {other:?}");
            }
        }
        for each in &layout.boxes {
            let all = Rect {
                x: 0,
                y: 0,
                width: layout.width,
                height: layout.height,
            };
            assert!(contains(&all, &each.rect), "{each:?}");
            let longest = each.lines.iter().map(|line| line.chars().count()).max();
            assert!(
                longest.unwrap_or(0) <= usize::from(each.rect.width - 4),
                "{each:?}"
            );
        }
    }
}

#[test]
fn each_pod_is_connected_to_its_bridge() {
    let layout = TopologyLayout::new(&crowded(30));
    let at_left: BTreeMap<(u16, u16), &str> = layout
        .boxes
        .iter()
        .map(|each| ((each.rect.x, each.rect.y + 1), each.lines[0].as_str()))
        .collect();
    let at_right: BTreeMap<(u16, u16), &str> = layout
        .boxes
        .iter()
        .map(|each| {
            (
                (each.rect.x + each.rect.width, each.rect.y + 1),
                each.lines[0].as_str(),
            )
        })
        .collect();
    let ends = layout
        .lines
        .iter()
        .map(|line| (at_left[&line.to], at_right[&line.from]));
    let ends: BTreeMap<&str, &str> = ends.collect();
    for number in 0..30 {
        let (pod, port) = (
            format!("pod default/a-rather-long-name-of-a-pod-{number}"),
            format!("veth{number}"),
        );
        assert_eq!(ends[pod.as_str()], port);
        assert_eq!(ends[port.as_str()], "cni0");
    }
    assert_eq!(ends["pod default/alone"], "vethptp");
    assert!(!ends.contains_key("vethptp"), "not a port of a bridge");
    assert!(!ends.contains_key("pod default/lost<script>"));
}

//! The boxes and lines of a node's network, in columns and rows of characters.
//!
//! From left to right: links without ports, bridges, the ports of bridges and other ends of pods,
//! then the pods. The namespace is a box around all but the pods; routes are at its bottom.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{NodeLink, NodeTopology, PodAttachment, kind_and_state};
use crate::curve::Rect;

/// The meaning of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum BoxRole {
    /// The network namespace of the node.
    Namespace,
    /// A link that is up.
    Link,
    /// A link that is down.
    DownLink,
    /// A pod.
    Pod,
    /// The routes of the namespace.
    Routes,
}

/// A box with lines of text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyBox {
    /// Its meaning.
    pub role: BoxRole,
    /// Its place, the frame included.
    pub rect: Rect,
    /// Its text. The first line is a heading.
    pub lines: Vec<String>,
}

/// A connection between two boxes: from the right edge of one to the left edge of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyLine {
    /// Column and row of its left end.
    pub from: (u16, u16),
    /// Column and row of its right end.
    pub to: (u16, u16),
}

/// The boxes and lines of a node's network. No two boxes overlap, but for the namespace, which
/// contains those of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopologyLayout {
    /// The boxes, outer ones first.
    pub boxes: Vec<TopologyBox>,
    /// The lines.
    pub lines: Vec<TopologyLine>,
    /// The number of columns.
    pub width: u16,
    /// The number of rows.
    pub height: u16,
}

/// The most characters of a line in a box; the end of a longer one is left out.
const MOST_CHARACTERS: usize = 44;
/// Columns between boxes, with room for lines.
const GAP: u16 = 6;
/// Columns and rows between the namespace and its boxes.
const PADDING: u16 = 2;
/// Rows of the heading of the namespace, its padding included.
const HEADING: u16 = 4;

/// A box without a place.
struct BoxText {
    role: BoxRole,
    lines: Vec<String>,
}

impl BoxText {
    fn new(role: BoxRole, lines: Vec<String>) -> Self {
        let lines = lines.iter().map(|line| shortened(line)).collect();
        Self { role, lines }
    }

    fn of_link(link: &NodeLink) -> Self {
        let role = match link.is_up {
            true => BoxRole::Link,
            false => BoxRole::DownLink,
        };
        let addresses = link.addresses.iter().map(ToString::to_string);
        let lines = [link.name.clone(), kind_and_state(link)];
        Self::new(role, lines.into_iter().chain(addresses).collect())
    }

    fn of_pod(pod: &PodAttachment) -> Self {
        let mut lines = vec![format!("pod {}", pod.pod)];
        for interface in &pod.interfaces {
            let addresses = interface.addresses.iter();
            let each = addresses.map(|address| format!("{} {address}", interface.name));
            lines.extend(each);
            if interface.addresses.is_empty() {
                lines.push(interface.name.clone());
            }
        }
        Self::new(BoxRole::Pod, lines)
    }

    fn width(&self) -> u16 {
        let longest = self.lines.iter().map(|line| line.chars().count()).max();
        // A frame and a space on both sides.
        small(longest.unwrap_or(0)).saturating_add(4)
    }

    fn height(&self) -> u16 {
        small(self.lines.len()).saturating_add(2)
    }

    fn at(self, x: u16, y: u16) -> TopologyBox {
        let rect = Rect {
            x,
            y,
            width: self.width(),
            height: self.height(),
        };
        TopologyBox {
            role: self.role,
            rect,
            lines: self.lines,
        }
    }
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    }
}

fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// A bridge and its ports; without a bridge, links that lead to pods by themselves.
struct PortGroup<'a> {
    bridge: Option<&'a NodeLink>,
    ports: Vec<&'a NodeLink>,
}

/// The links by column.
struct LinkGroups<'a> {
    /// The links that are no bridges and lead to no pod.
    alone: Vec<&'a NodeLink>,
    groups: Vec<PortGroup<'a>>,
}

impl<'a> LinkGroups<'a> {
    fn new(topology: &'a NodeTopology) -> Self {
        let (mut alone, mut groups, mut to_pods) = (Vec::new(), Vec::new(), Vec::new());
        for link in &topology.links {
            if topology.has_master(link) {
                continue;
            }
            let ports: Vec<_> = topology.ports_of(&link.name).collect();
            if !ports.is_empty() || link.kind == "bridge" {
                let bridge = Some(link);
                groups.push(PortGroup { bridge, ports });
            } else if topology.interfaces_at(&link.name).next().is_some() {
                to_pods.push(link);
            } else {
                alone.push(link);
            }
        }
        if !to_pods.is_empty() {
            groups.push(PortGroup {
                bridge: None,
                ports: to_pods,
            });
        }
        Self { alone, groups }
    }

    /// The columns at which bridges, ports, and what is right of them begin.
    fn columns(&self) -> [u16; 3] {
        let widest = |links: &mut dyn Iterator<Item = &NodeLink>| {
            let widths = links.map(|link| BoxText::of_link(link).width());
            widths.max().map_or(0, |width| width.saturating_add(GAP))
        };
        let groups = || self.groups.iter();
        let bridges = PADDING.saturating_add(widest(&mut self.alone.iter().copied()));
        let ports = bridges.saturating_add(widest(&mut groups().filter_map(|group| group.bridge)));
        let all_ports = groups().flat_map(|group| group.ports.iter().copied());
        let end = ports.saturating_add(widest(&mut all_ports.into_iter()));
        [bridges, ports, end]
    }
}

/// The boxes and lines that have a place.
struct Placement<'a> {
    topology: &'a NodeTopology,
    boxes: Vec<TopologyBox>,
    lines: Vec<TopologyLine>,
    /// The left ends of placed pods, by sandbox.
    placed_pods: BTreeMap<&'a str, (u16, u16)>,
    x_bridges: u16,
    x_ports: u16,
    x_pods: u16,
}

impl<'a> Placement<'a> {
    fn put(&mut self, text: BoxText, x: u16, y: u16) -> Rect {
        let placed = text.at(x, y);
        let rect = placed.rect;
        self.boxes.push(placed);
        rect
    }

    /// Places links below each other. Returns the row below them.
    fn column(&mut self, links: &[&NodeLink], mut row: u16) -> u16 {
        for link in links {
            row = below(&self.put(BoxText::of_link(link), PADDING, row));
        }
        row
    }

    /// Places a bridge, its ports and their pods. Returns the row below them.
    fn group(&mut self, group: &PortGroup<'a>, row: u16) -> u16 {
        let bridge = group
            .bridge
            .map(|bridge| self.put(BoxText::of_link(bridge), self.x_bridges, row));
        let mut next = row;
        for port in &group.ports {
            let rect = self.put(BoxText::of_link(port), self.x_ports, next);
            self.lines.extend(bridge.map(|bridge| TopologyLine {
                from: right(&bridge),
                to: left(&rect),
            }));
            next = self.pods(port, &rect).max(below(&rect));
        }
        bridge.map_or(next, |bridge| below(&bridge).max(next))
    }

    /// Connects a port to its pods. Returns the row below those that are placed here.
    fn pods(&mut self, port: &'a NodeLink, rect: &Rect) -> u16 {
        let mut row = rect.y;
        for (pod, _) in self.topology.interfaces_at(&port.name) {
            let to = match self.placed_pods.get(pod.sandbox.as_str()) {
                Some(to) => *to,
                None => {
                    let rect = self.pod(pod, row);
                    row = below(&rect);
                    left(&rect)
                }
            };
            let from = right(rect);
            self.lines.push(TopologyLine { from, to });
        }
        row
    }

    fn pod(&mut self, pod: &'a PodAttachment, row: u16) -> Rect {
        let rect = self.put(BoxText::of_pod(pod), self.x_pods, row);
        self.placed_pods.insert(&pod.sandbox, left(&rect));
        rect
    }

    /// Places the pods whose links are not in the namespace.
    fn pods_apart(&mut self, mut row: u16) {
        for pod in &self.topology.pods {
            if !self.placed_pods.contains_key(pod.sandbox.as_str()) {
                row = below(&self.pod(pod, row));
            }
        }
    }
}

impl TopologyLayout {
    /// Lays out a node's network.
    #[must_use]
    pub fn new(topology: &NodeTopology) -> Self {
        let links = LinkGroups::new(topology);
        let [x_bridges, x_ports, end] = links.columns();
        let routes = BoxText::new(BoxRole::Routes, route_lines(topology));
        let heading = format!("{}, network namespace", topology.node);
        let heading = [heading, topology.namespace.clone()];
        let heading = BoxText::new(BoxRole::Namespace, heading.into());
        let width = end
            .saturating_sub(GAP)
            .max(routes.width().saturating_add(PADDING))
            .max(heading.width())
            .saturating_add(PADDING);
        let mut placement = Placement {
            topology,
            boxes: Vec::new(),
            lines: Vec::new(),
            placed_pods: BTreeMap::new(),
            x_bridges,
            x_ports,
            x_pods: width.saturating_add(GAP),
        };
        let mut row = HEADING;
        for group in &links.groups {
            row = placement.group(group, row).saturating_add(1);
        }
        let bottom = placement.column(&links.alone, HEADING).saturating_add(1);
        placement.pods_apart(row);
        let routes = placement.put(routes, PADDING, bottom.max(row));
        let namespace = TopologyBox {
            role: BoxRole::Namespace,
            rect: Rect {
                x: 0,
                y: 0,
                width,
                height: below(&routes).saturating_add(1),
            },
            lines: heading.lines,
        };
        let Placement {
            mut boxes, lines, ..
        } = placement;
        boxes.insert(0, namespace);
        let rights = boxes
            .iter()
            .map(|each| each.rect.x.saturating_add(each.rect.width));
        Self {
            width: rights.max().unwrap_or(0),
            height: boxes
                .iter()
                .map(|each| below(&each.rect))
                .max()
                .unwrap_or(0),
            boxes,
            lines,
        }
    }
}

/// The row below a box.
const fn below(rect: &Rect) -> u16 {
    rect.y.saturating_add(rect.height)
}

fn route_lines(topology: &NodeTopology) -> Vec<String> {
    let heading = match topology.routes.is_empty() {
        true => "no routes",
        false => "routes",
    };
    let routes = topology.routes.iter().map(ToString::to_string);
    std::iter::once(heading.to_owned()).chain(routes).collect()
}

/// The end of a line at the right edge of a box.
const fn right(rect: &Rect) -> (u16, u16) {
    (rect.x.saturating_add(rect.width), rect.y.saturating_add(1))
}

/// The end of a line at the left edge of a box.
const fn left(rect: &Rect) -> (u16, u16) {
    (rect.x, rect.y.saturating_add(1))
}

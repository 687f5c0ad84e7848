//! The nodes with their blocks and the use of their addresses.

use std::{borrow::Cow, sync::Arc};

use podplane_api::table::NONE;
use podplane_ipam::{NodeAddresses, capacity::NodeCapacity, parse_cidr};
use podplane_summary::addresses_used;

use super::{ago, by_age};
use crate::{
    cluster::{AddressesInUse, Cluster, NodeLoad, Source},
    facts::NodeFact,
    row::{
        Cell, Column,
        ColumnWidth::{AtLeast, Fixed},
        Row, Subject, Target, Tone, bar, fill_tone,
    },
    scope::Scope,
};

/// The characters of the bar.
const BAR: u16 = 8;

/// A node.
pub(crate) struct NodeRow {
    node: Arc<NodeFact>,
    blocks: String,
    /// `None` if the pods are not known.
    load: Option<NodeLoad>,
    addresses: NodeAddresses,
    /// The addresses of its blocks that are in use, as the map counts them; where pods have
    /// addresses from elsewhere, the number of these pods.
    used: u64,
}

impl NodeRow {
    /// The addresses in use, and all, or `None` while the node waits for its block.
    fn usage(&self) -> Option<(u64, u64)> {
        match self.addresses.capacity {
            NodeCapacity::AwaitsBlock => None,
            NodeCapacity::Pods { count, .. } => Some((self.used, count)),
        }
    }

    /// The part in use, in millionths, for sorting.
    fn part(&self) -> u64 {
        match self.usage() {
            None | Some((_, 0)) => 0,
            Some((used, count)) => used.saturating_mul(1_000_000) / count,
        }
    }

    fn used(&self) -> Cell {
        match (self.usage(), self.load) {
            (None, _) => Cell::toned("no block", Tone::Warning),
            (Some((_, count)), None) => format!("?/{count}").into(),
            (Some((used, count)), Some(_)) => Cell::toned(
                format!("{used}/{count}"),
                fill_tone(self.addresses.taken().into(), count.into()),
            ),
        }
    }

    fn fill(&self) -> Cell {
        match (self.usage(), self.load) {
            (Some((used, count)), Some(_)) => {
                let (used, count) = (used.into(), count.into());
                let tone = fill_tone(self.addresses.taken().into(), count);
                Cell::toned(bar(used, count, BAR.into()), tone)
            }
            _ => Cell::default(),
        }
    }

    fn waiting(&self) -> Cell {
        match self.load.map(|load| load.waiting) {
            None => "?".into(),
            Some(0) => "0".into(),
            Some(waiting) => Cell::toned(waiting.to_string(), Tone::Warning),
        }
    }

    fn orphans(&self) -> Cell {
        match self.addresses.orphaned {
            0 => "0".into(),
            orphaned => Cell::toned(orphaned.to_string(), Tone::Warning),
        }
    }

    fn status(&self) -> Cell {
        let tone = match self.node.is_ready {
            true => Tone::Good,
            false => Tone::Bad,
        };
        Cell::toned(&*self.node.status, tone)
    }
}

impl Row for NodeRow {
    const NAME: &'static str = "nodes";
    const NOUN: &'static str = "node";
    const NOTHING: &'static str = "no nodes";
    const IS_NAMESPACED: bool = false;
    const SOURCES: &'static [Source] = &[Source::Nodes, Source::Pods];
    const SORTED_BY: (&'static str, bool) = ("NAME", false);
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            title: "NAME",
            sort_key: 'N',
            width: AtLeast(13),
            rank: 0,
            cell: |row, _| row.node.key.name.as_str().into(),
            order: |a, b| a.node.key.cmp(&b.node.key),
        },
        Column {
            title: "STATUS",
            sort_key: 'S',
            width: Fixed(8),
            rank: 0,
            cell: |row, _| row.status(),
            order: |a, b| a.node.status.cmp(&b.node.status),
        },
        Column {
            title: "BLOCKS",
            sort_key: 'B',
            width: AtLeast(16),
            rank: 1,
            cell: |row, _| match row.blocks.as_str() {
                "" => NONE.into(),
                blocks => blocks.into(),
            },
            order: |a, b| a.blocks.cmp(&b.blocks),
        },
        Column {
            title: "USED",
            sort_key: 'U',
            width: Fixed(9),
            rank: 0,
            cell: |row, _| row.used(),
            order: |a, b| a.used.cmp(&b.used),
        },
        Column {
            title: "FILL",
            sort_key: 'F',
            width: Fixed(BAR),
            rank: 4,
            cell: |row, _| row.fill(),
            order: |a, b| a.part().cmp(&b.part()),
        },
        Column {
            title: "ORPH",
            sort_key: 'O',
            width: Fixed(4),
            rank: 2,
            cell: |row, _| row.orphans(),
            order: |a, b| a.addresses.orphaned.cmp(&b.addresses.orphaned),
        },
        Column {
            title: "WAIT",
            sort_key: 'W',
            width: Fixed(4),
            rank: 1,
            cell: |row, _| row.waiting(),
            order: |a, b| {
                let waiting = |row: &Self| row.load.map(|load| load.waiting);
                waiting(a).cmp(&waiting(b))
            },
        },
        Column {
            title: "PODS",
            sort_key: 'P',
            width: Fixed(5),
            rank: 3,
            cell: |row, _| match row.load {
                None => "?".into(),
                Some(load) => load.pods.to_string().into(),
            },
            order: |a, b| {
                let pods = |row: &Self| row.load.map(|load| load.pods);
                pods(a).cmp(&pods(b))
            },
        },
        Column {
            title: "AGE",
            sort_key: 'A',
            width: Fixed(5),
            rank: 5,
            cell: |row, now| ago(row.node.created, now).into(),
            order: |a, b| by_age(a.node.created, b.node.created),
        },
    ];

    fn all(cluster: &Cluster, _: &Scope) -> Vec<Self> {
        let knows_pods = cluster.is_permitted(Source::Pods);
        let in_use = cluster.addresses_in_use();
        let row = |node: &Arc<NodeFact>| {
            let load = cluster.load(&node.key.name);
            Self {
                blocks: node.blocks.join(","),
                load: knows_pods.then_some(load),
                addresses: node.addresses(load.held),
                used: match cluster.has_node_blocks() {
                    true => used(node, &in_use, load),
                    false => load.addressed,
                },
                node: node.clone(),
            }
        };
        cluster.nodes.iter().map(row).collect()
    }

    fn key(&self) -> (&str, &str) {
        ("", &self.node.key.name)
    }

    fn texts(&self) -> Vec<Cow<'_, str>> {
        let texts = [&self.node.key.name, &self.node.status, &self.blocks];
        texts.map(Cow::from).into()
    }

    fn subject(&self) -> Option<Subject> {
        Some(Subject::Node(self.node.key.name.clone()))
    }

    fn target(&self) -> Option<Target> {
        let name = self.node.key.name.clone();
        Some(Target::Pods(Scope::Node(name)))
    }
}

fn used(node: &NodeFact, in_use: &AddressesInUse, load: NodeLoad) -> u64 {
    let blocks = node.blocks.iter();
    let blocks = blocks.filter_map(|block| parse_cidr(block).ok());
    addresses_used(blocks, |block| in_use.within(block), load.addressed)
}

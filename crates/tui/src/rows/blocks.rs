//! The blocks of nodes with the use of their addresses.

use std::{borrow::Cow, collections::BTreeSet};

use ipnet::IpNet;
use podplane_api::table::NONE;
use podplane_ipam::{figures::readable, parse_cidr};
use podplane_map::{BlockState, NodeBlock};

use crate::{
    cluster::{AddressesInUse, Cluster, Source},
    row::{
        Cell, Column,
        ColumnWidth::{AtLeast, Fixed},
        Row, Subject, Target, Tone, bar, fill_tone,
    },
    scope::Scope,
};

/// The characters of the bar.
const BAR: u16 = 8;

/// A block.
pub(crate) struct BlockRow {
    cidr: IpNet,
    name: String,
    state: BlockState,
    node: Option<String>,
    details: String,
    /// The addresses that pods have, or had when the hold of the block was last reported.
    used: u128,
    /// The addresses that pods can have.
    size: u128,
}

impl BlockRow {
    fn new(block: &NodeBlock, in_use: &AddressesInUse) -> Self {
        let cidr = block.cidr();
        Self {
            cidr,
            name: cidr.to_string(),
            state: block.state(),
            node: block.node().map(str::to_owned),
            details: block.details().to_owned(),
            used: in_use.within(&cidr),
            size: block.capacity(),
        }
    }

    /// Returns true if pods can get addresses of it.
    fn is_in_service(&self) -> bool {
        matches!(
            self.state,
            BlockState::Assigned | BlockState::Foreign | BlockState::Unowned
        )
    }

    fn fill(&self) -> Cell {
        match self.is_in_service() {
            true => {
                let tone = fill_tone(self.used, self.size);
                Cell::toned(bar(self.used, self.size, BAR.into()), tone)
            }
            false => Cell::default(),
        }
    }

    /// A number of addresses of pods, of which a reserved block has none.
    fn number(&self, count: u128) -> Cell {
        match self.state {
            BlockState::Reserved => Cell::default(),
            _ => readable(count).into(),
        }
    }

    fn state(&self) -> Cell {
        let tone = match self.state {
            BlockState::Assigned => Tone::Good,
            BlockState::Reserved => Tone::Plain,
            _ => Tone::Warning,
        };
        Cell::toned(self.state.as_str(), tone)
    }

    /// The part in use, in millionths, for sorting.
    fn part(&self) -> u128 {
        self.used.saturating_mul(1_000_000) / self.size.max(1)
    }
}

impl Row for BlockRow {
    const NAME: &'static str = "blocks";
    const NOUN: &'static str = "block";
    const NOTHING: &'static str = "no node has a block";
    const IS_NAMESPACED: bool = false;
    const SOURCES: &'static [Source] = &[Source::Blocks, Source::Nodes, Source::Pods];
    const SORTED_BY: (&'static str, bool) = ("BLOCK", false);
    const COLUMNS: &'static [Column<Self>] = &[
        Column {
            title: "BLOCK",
            sort_key: 'B',
            width: AtLeast(18),
            rank: 0,
            cell: |row, _| row.name.as_str().into(),
            order: |a, b| a.cidr.cmp(&b.cidr),
        },
        Column {
            title: "STATE",
            sort_key: 'S',
            width: Fixed(11),
            rank: 0,
            cell: |row, _| row.state(),
            order: |a, b| a.state.cmp(&b.state),
        },
        Column {
            title: "NODE",
            sort_key: 'N',
            width: AtLeast(14),
            rank: 0,
            cell: |row, _| row.node.as_deref().unwrap_or(NONE).into(),
            order: |a, b| a.node.cmp(&b.node),
        },
        Column {
            title: "USED",
            sort_key: 'U',
            width: Fixed(6),
            rank: 0,
            cell: |row, _| row.number(row.used),
            order: |a, b| a.used.cmp(&b.used),
        },
        Column {
            title: "SIZE",
            sort_key: 'Z',
            width: Fixed(7),
            rank: 1,
            cell: |row, _| row.number(row.size),
            order: |a, b| a.size.cmp(&b.size),
        },
        Column {
            title: "FILL",
            sort_key: 'F',
            width: Fixed(BAR),
            rank: 2,
            cell: |row, _| row.fill(),
            order: |a, b| a.part().cmp(&b.part()),
        },
        Column {
            title: "HOLD",
            sort_key: 'H',
            width: AtLeast(9),
            rank: 3,
            cell: |row, _| row.details.as_str().into(),
            order: |a, b| a.details.cmp(&b.details),
        },
    ];

    /// The records, or the blocks of nodes in a cluster that keeps none.
    fn all(cluster: &Cluster, _: &Scope) -> Vec<Self> {
        let in_use = cluster.addresses_in_use();
        let records = cluster.blocks.records.as_ref();
        let mut rows: Vec<_> = records
            .iter()
            .flat_map(|records| &records.blocks)
            .map(|block| BlockRow::new(block, &in_use))
            .collect();
        // Several nodes may have the same block by mistake: each is shown.
        let known = rows.iter();
        let known = known.filter_map(|row| Some((row.cidr, row.node.clone()?)));
        let known: BTreeSet<(IpNet, String)> = known.collect();
        let of_nodes = cluster.nodes.iter().flat_map(|node| {
            let blocks = node.blocks.iter();
            let cidrs = blocks.filter_map(|block| Some(parse_cidr(block).ok()?.trunc()));
            cidrs.map(|cidr| (cidr, node.key.name.clone()))
        });
        let unrecorded = of_nodes.filter(|block| !known.contains(block));
        let unrecorded = unrecorded.filter_map(|(cidr, node)| {
            NodeBlock::new(cidr, BlockState::Assigned, Some(&node)).ok()
        });
        rows.extend(unrecorded.map(|block| Self::new(&block, &in_use)));
        rows
    }

    fn key(&self) -> (&str, &str) {
        (self.node.as_deref().unwrap_or_default(), &self.name)
    }

    fn texts(&self) -> Vec<Cow<'_, str>> {
        let texts = [self.name.as_str(), self.state.as_str(), &self.details];
        let texts = texts.into_iter().chain(self.node.as_deref());
        texts.map(Cow::from).collect()
    }

    fn subject(&self) -> Option<Subject> {
        self.node.clone().map(Subject::Node)
    }

    fn target(&self) -> Option<Target> {
        Some(Target::Pods(Scope::Block(self.cidr)))
    }
}

//! A prefix of a network on a grid of cells.

mod used;

use ipnet::IpNet;
use podplane_ipam::Family;
use serde::Serialize;

use crate::{
    curve::{Curve, Rect},
    parts::{BlockState, Network, NetworkRole},
    prefix::{around, bounds, host_bits},
    space::AddressSpace,
    state::{AddressState, StateCounts},
};

/// The most columns and rows of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridLimit {
    columns: u16,
    rows: u16,
}

/// A grid that is empty or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid grid `{columns}x{rows}`: want 1 to {} columns and rows",
    GridLimit::MAX
)]
pub struct InvalidGridLimit {
    columns: u16,
    rows: u16,
}

impl GridLimit {
    /// The most columns, and the most rows.
    pub const MAX: u16 = 1024;

    /// A single cell.
    pub(crate) const ONE: Self = Self {
        columns: 1,
        rows: 1,
    };

    /// Creates a limit.
    ///
    /// # Errors
    ///
    /// [`InvalidGridLimit`] if one of them is 0 or more than [`GridLimit::MAX`].
    pub const fn new(columns: u16, rows: u16) -> Result<Self, InvalidGridLimit> {
        if columns == 0 || rows == 0 || columns > Self::MAX || rows > Self::MAX {
            return Err(InvalidGridLimit { columns, rows });
        }
        Ok(Self { columns, rows })
    }

    /// The most columns.
    #[must_use]
    pub const fn columns(self) -> u16 {
        self.columns
    }

    /// The most rows.
    #[must_use]
    pub const fn rows(self) -> u16 {
        self.rows
    }
}

/// A prefix that cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// The prefix is not in the network.
    #[error("invalid prefix `{prefix}`: it is not in the {role} {network}")]
    OutsideNetwork {
        /// The prefix.
        prefix: IpNet,
        /// The purpose of the network.
        role: NetworkRole,
        /// The network.
        network: IpNet,
    },
    /// The prefix has bits behind its length.
    #[error("invalid prefix `{prefix}`: it has host bits; did you mean {canonical}?")]
    HostBits {
        /// The prefix.
        prefix: IpNet,
        /// The prefix without them.
        canonical: IpNet,
    },
}

/// The arrangement of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Layout {
    /// Along a Hilbert curve. The cells are all prefixes of one length.
    Curve,
    /// By rows. The cells are the used prefixes, of any length; the others are left out.
    Used,
}

/// A prefix as a cell of the grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cell {
    /// The column.
    pub x: u16,
    /// The row.
    pub y: u16,
    /// The prefix.
    pub prefix: IpNet,
    /// The number of its addresses in each state.
    pub counts: StateCounts,
    /// The state that stands for all of them.
    pub dominant: AddressState,
    /// The narrowest block that contains all of it, as an index of [`AddressSpace::blocks`].
    pub block: Option<usize>,
    /// The number of blocks that are smaller than the cell and in it.
    pub blocks_inside: usize,
}

impl Cell {
    /// The part of its usable addresses that is in use, in eighths: 0 if none is, 8 if all are. The
    /// gateway and the reserved addresses of a block do not count, so that a full block is full.
    #[must_use]
    pub fn fill(&self) -> u8 {
        let (used, total) = (self.counts.in_use(), self.counts.usable());
        if used == 0 || total == 0 {
            return 0;
        }
        // Both shrink alike where the product would be too large.
        let shift = 8u32.saturating_sub(total.leading_zeros());
        let eighths = ((used >> shift) * 8) / (total >> shift).max(1);
        u8::try_from(eighths.clamp(1, 8)).unwrap_or(8)
    }
}

/// A block that is at least a cell, as a rectangle of cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockOutline {
    /// The block, as an index of [`AddressSpace::blocks`].
    pub block: usize,
    /// Its prefix.
    pub cidr: IpNet,
    /// Its state.
    pub state: BlockState,
    /// Its node, or its former one, if it is known.
    pub node: Option<String>,
    /// The other nodes that have it, of which there should be none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_nodes: Vec<String>,
    /// Its cells. A label goes to the [centre](Rect::centre).
    pub rect: Rect,
}

/// A prefix of a network on a grid of cells. Every address of the prefix is in at most one cell,
/// and in exactly one with [`Layout::Curve`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    network: Network,
    prefix: IpNet,
    layout: Layout,
    width: u16,
    height: u16,
    cells: Vec<Cell>,
    outlines: Vec<BlockOutline>,
    block: Option<usize>,
    counts: StateCounts,
    hidden: StateCounts,
    #[serde(skip)]
    curve: Curve,
}

/// IPv6 prefixes with more bits of hosts than this are shown by what is in use.
const MOST_CURVE_BITS_V6: u8 = 16;

impl View {
    /// Lays out `prefix`, a part of `network` or all of it, on the largest grid within `limit`.
    ///
    /// # Errors
    ///
    /// [`ViewError`].
    pub fn new(
        space: &AddressSpace,
        network: &Network,
        prefix: IpNet,
        limit: GridLimit,
    ) -> Result<Self, ViewError> {
        let canonical = prefix.trunc();
        if canonical != prefix {
            return Err(ViewError::HostBits { prefix, canonical });
        }
        if !network.cidr().contains(&prefix) {
            return Err(ViewError::OutsideNetwork {
                prefix,
                role: network.role(),
                network: network.cidr(),
            });
        }
        let is_huge = Family::of(&prefix) == Family::V6 && host_bits(&prefix) > MOST_CURVE_BITS_V6;
        let mut view = match is_huge {
            true => Self::by_use(space, network, prefix, limit),
            false => Self::on_curve(space, network, prefix, limit),
        };
        let shown = view
            .cells
            .iter()
            .fold(StateCounts::default(), |mut sum, cell| {
                sum.add(&cell.counts);
                sum
            });
        view.hidden = view.counts.without(&shown);
        Ok(view)
    }

    fn empty(space: &AddressSpace, network: &Network, prefix: IpNet, layout: Layout) -> Self {
        Self {
            network: network.clone(),
            prefix,
            layout,
            width: 1,
            height: 1,
            cells: Vec::new(),
            outlines: Vec::new(),
            block: space.block_around(&prefix),
            counts: space.counts(network.role(), &prefix),
            hidden: StateCounts::default(),
            curve: Curve::new(0),
        }
    }

    fn on_curve(space: &AddressSpace, network: &Network, prefix: IpNet, limit: GridLimit) -> Self {
        let bits = Curve::bits_within(limit.columns, limit.rows, host_bits(&prefix));
        let curve = Curve::new(bits);
        let mut view = Self::empty(space, network, prefix, Layout::Curve);
        view.curve = curve;
        (view.width, view.height) = (curve.width(), curve.height());
        let (first, _) = bounds(&prefix);
        let cell_bits = host_bits(&prefix) - bits;
        let length = prefix.prefix_len() + bits;
        let family = Family::of(&prefix);
        view.cells.reserve(curve.cells() as usize);
        for place in 0..curve.cells() {
            let (x, y) = curve.position(place);
            let start = first + (u128::from(place) << cell_bits);
            let cell = cell(space, network.role(), around(family, start, length));
            view.cells.push(Cell { x, y, ..cell });
        }
        for index in space.blocks_starting_within(&prefix) {
            let Some(block) = space.blocks().get(index) else {
                continue;
            };
            let cidr = block.cidr();
            if (prefix.prefix_len()..=length).contains(&cidr.prefix_len()) {
                let place = (bounds(&cidr).0 - first) >> cell_bits;
                let run_bits = length - cidr.prefix_len();
                let place = u32::try_from(place).unwrap_or(0);
                view.outline(space, index, curve.rect(place, run_bits));
            }
        }
        view
    }

    fn outline(&mut self, space: &AddressSpace, index: usize, rect: Rect) {
        self.outlines.extend(space.blocks().get(index).map(|block| {
            BlockOutline {
                block: index,
                cidr: block.cidr(),
                state: block.state(),
                node: block.node().map(str::to_owned),
                other_nodes: space
                    .other_nodes_of(block)
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
                rect,
            }
        }));
    }

    /// The network.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }

    /// The prefix.
    #[must_use]
    pub const fn prefix(&self) -> IpNet {
        self.prefix
    }

    /// The arrangement of the cells.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The number of columns.
    #[must_use]
    pub const fn width(&self) -> u16 {
        self.width
    }

    /// The number of rows.
    #[must_use]
    pub const fn height(&self) -> u16 {
        self.height
    }

    /// The cells by address.
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The blocks that are at least a cell and in the prefix, by address. Overlapping blocks
    /// overlap here, too.
    #[must_use]
    pub fn outlines(&self) -> &[BlockOutline] {
        &self.outlines
    }

    /// The narrowest block that contains the whole prefix, as an index of
    /// [`AddressSpace::blocks`].
    #[must_use]
    pub const fn block(&self) -> Option<usize> {
        self.block
    }

    /// The number of addresses of the prefix in each state.
    #[must_use]
    pub const fn counts(&self) -> &StateCounts {
        &self.counts
    }

    /// The number of addresses that are in no cell; none with [`Layout::Curve`].
    #[must_use]
    pub const fn hidden(&self) -> &StateCounts {
        &self.hidden
    }

    /// The cell at a column and row.
    #[must_use]
    pub fn at(&self, x: u16, y: u16) -> Option<&Cell> {
        let index = match self.layout {
            Layout::Curve => self.curve.place(x, y)? as usize,
            Layout::Used if x < self.width => {
                usize::from(y) * usize::from(self.width) + usize::from(x)
            }
            Layout::Used => return None,
        };
        self.cells.get(index)
    }

    /// The cell that contains an address.
    #[must_use]
    pub fn cell_of(&self, ip: std::net::IpAddr) -> Option<&Cell> {
        let after = self
            .cells
            .partition_point(|cell| cell.prefix.network() <= ip);
        let cell = self.cells.get(after.checked_sub(1)?)?;
        cell.prefix.contains(&ip).then_some(cell)
    }

    /// The cells of a prefix: those of the block, of all of the view, or the one that the prefix
    /// begins in. `None` if it is in no cell.
    pub(crate) fn place_of(&self, prefix: &IpNet) -> Option<Rect> {
        // Outlines are by address.
        let first = prefix.network();
        let from = self
            .outlines
            .partition_point(|each| each.cidr.network() < first);
        let here = self.outlines.iter().skip(from);
        let mut here = here.take_while(|each| each.cidr.network() == first);
        if let Some(outline) = here.find(|each| each.cidr == *prefix) {
            return Some(outline.rect);
        }
        if prefix.contains(&self.prefix) {
            return Some(Rect {
                x: 0,
                y: 0,
                width: self.width,
                height: self.height,
            });
        }
        let cell = self.cell_of(prefix.network())?;
        let length = cell.prefix.prefix_len();
        match self.layout {
            Layout::Curve if prefix.prefix_len() < length => {
                let place = self.curve.place(cell.x, cell.y)?;
                Some(self.curve.rect(place, length - prefix.prefix_len()))
            }
            Layout::Curve | Layout::Used => Some(Rect {
                x: cell.x,
                y: cell.y,
                width: 1,
                height: 1,
            }),
        }
    }

    /// The prefix to zoom in to at a column and row: `bits` longer than the prefix of the view, and
    /// at most as long as the cell's. With two bits it is a quarter of a square view.
    #[must_use]
    pub fn zoom_in(&self, x: u16, y: u16, bits: u8) -> Option<IpNet> {
        let cell = self.at(x, y)?;
        let length = self.prefix.prefix_len().saturating_add(bits);
        let length = length.min(cell.prefix.prefix_len());
        let (first, _) = bounds(&cell.prefix);
        Some(around(Family::of(&self.prefix), first, length))
    }

    /// The prefix to zoom out to: `bits` shorter than the prefix of the view, and at most the
    /// network.
    #[must_use]
    pub fn zoom_out(&self, bits: u8) -> IpNet {
        let length = self.prefix.prefix_len().saturating_sub(bits);
        let length = length.max(self.network.cidr().prefix_len());
        let (first, _) = bounds(&self.prefix);
        around(Family::of(&self.prefix), first, length)
    }
}

/// The cell of a prefix, at no position.
fn cell(space: &AddressSpace, role: NetworkRole, prefix: IpNet) -> Cell {
    let counts = space.counts(role, &prefix);
    let is_inside = |index: &usize| {
        let block = space.blocks().get(*index);
        block.is_some_and(|block| block.cidr().prefix_len() > prefix.prefix_len())
    };
    Cell {
        x: 0,
        y: 0,
        prefix,
        dominant: counts.dominant(),
        counts,
        block: space.block_around(&prefix),
        blocks_inside: space
            .blocks_starting_within(&prefix)
            .filter(is_inside)
            .count(),
    }
}

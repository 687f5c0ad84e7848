//! The map of a prefix as documents: whole, and as the cells that changed.

use std::collections::BTreeMap;

use ipnet::IpNet;
use podplane_map::{
    AddressSpace, BlockOutline, BlockState, Cell, Layout, Network, NodeBlock, StateCounts, View,
};
use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::query::{MapRequest, QueryError};

/// A block that the map refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockRef {
    /// The prefix.
    pub cidr: IpNet,
    /// Its node, or its former one.
    pub node: Option<String>,
    /// The other nodes that have it, of which there should be none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_nodes: Vec<String>,
    /// The state.
    pub state: BlockState,
    /// A line for people; may be empty.
    pub details: String,
}

impl BlockRef {
    fn of(space: &AddressSpace, block: &NodeBlock) -> Self {
        let others = space.other_nodes_of(block).into_iter();
        Self {
            cidr: block.cidr(),
            node: block.node().map(str::to_owned),
            other_nodes: others.map(str::to_owned).collect(),
            state: block.state(),
            details: block.details().to_owned(),
        }
    }
}

/// The map of a prefix.
#[derive(Clone, Debug, PartialEq)]
pub struct MapScene {
    revision: String,
    view: View,
    /// By the indexes that cells and outlines have.
    blocks: BTreeMap<usize, BlockRef>,
}

/// The cells that changed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CellChanges<'a> {
    /// The revision of the objects. Opaque.
    pub revision: &'a str,
    /// The changed cells.
    #[serde(serialize_with = "cells")]
    pub cells: Vec<&'a Cell>,
    /// The number of addresses of the prefix in each state.
    pub counts: &'a StateCounts,
}

/// The difference of two maps of the same prefix.
#[derive(Clone, Debug)]
pub enum MapChange<'a> {
    /// Some cells.
    Cells(CellChanges<'a>),
    /// More than cells: the blocks or the layout.
    Scene(&'a MapScene),
}

impl MapScene {
    /// Draws what is asked for.
    ///
    /// # Errors
    ///
    /// [`QueryError`] if the space has no such network or prefix.
    pub fn new(
        space: &AddressSpace,
        revision: &str,
        request: &MapRequest,
    ) -> Result<Self, QueryError> {
        let (network, prefix) = request.place(space)?;
        let view = View::new(space, network, prefix, request.limit)?;
        let of_cells = view.cells().iter().filter_map(|cell| cell.block);
        let of_outlines = view.outlines().iter().map(|outline| outline.block);
        let indexes = of_cells.chain(of_outlines).chain(view.block());
        let mut blocks = BTreeMap::new();
        for index in indexes {
            if let (false, Some(block)) = (blocks.contains_key(&index), space.blocks().get(index)) {
                blocks.insert(index, BlockRef::of(space, block));
            }
        }
        Ok(Self {
            revision: revision.to_owned(),
            view,
            blocks,
        })
    }

    /// The view.
    #[must_use]
    pub const fn view(&self) -> &View {
        &self.view
    }

    /// The difference to an earlier map; `None` if there is none but the revision.
    #[must_use]
    pub fn changes_since<'a>(&'a self, old: &Self) -> Option<MapChange<'a>> {
        let (new_view, old_view) = (&self.view, &old.view);
        let same_frame = self.blocks == old.blocks
            && frame(new_view) == frame(old_view)
            && new_view.cells().len() == old_view.cells().len();
        let pairs = || new_view.cells().iter().zip(old_view.cells());
        if !same_frame || pairs().any(|(new, old)| place(new) != place(old)) {
            return Some(MapChange::Scene(self));
        }
        let changed = pairs().filter(|(new, old)| new != old);
        let cells: Vec<&Cell> = changed.map(|(new, _)| new).collect();
        if cells.is_empty() && new_view.counts() == old_view.counts() {
            return None;
        }
        Some(MapChange::Cells(CellChanges {
            revision: &self.revision,
            cells,
            counts: new_view.counts(),
        }))
    }
}

/// Everything of a view but its cells and their sum.
fn frame(
    view: &View,
) -> (
    &Network,
    IpNet,
    Layout,
    [u16; 2],
    &[BlockOutline],
    Option<usize>,
    &StateCounts,
) {
    (
        view.network(),
        view.prefix(),
        view.layout(),
        [view.width(), view.height()],
        view.outlines(),
        view.block(),
        view.hidden(),
    )
}

fn place(cell: &Cell) -> (u16, u16, IpNet) {
    (cell.x, cell.y, cell.prefix)
}

impl Serialize for MapScene {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut scene = serializer.serialize_struct("MapScene", 3)?;
        scene.serialize_field("revision", &self.revision)?;
        scene.serialize_field("view", &ViewDocument::of(&self.view))?;
        scene.serialize_field("blocks", &self.blocks)?;
        scene.end()
    }
}

/// A view, whose cells have their fill.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ViewDocument<'a> {
    network: &'a Network,
    prefix: IpNet,
    layout: Layout,
    width: u16,
    height: u16,
    #[serde(serialize_with = "cells")]
    cells: Vec<&'a Cell>,
    outlines: &'a [BlockOutline],
    block: Option<usize>,
    counts: &'a StateCounts,
    hidden: &'a StateCounts,
}

impl<'a> ViewDocument<'a> {
    fn of(view: &'a View) -> Self {
        Self {
            network: view.network(),
            prefix: view.prefix(),
            layout: view.layout(),
            width: view.width(),
            height: view.height(),
            cells: view.cells().iter().collect(),
            outlines: view.outlines(),
            block: view.block(),
            counts: view.counts(),
            hidden: view.hidden(),
        }
    }
}

#[derive(Serialize)]
struct CellDocument<'a> {
    #[serde(flatten)]
    cell: &'a Cell,
    fill: u8,
}

fn cells<S: Serializer>(cells: &[&Cell], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(cells.iter().map(|cell| CellDocument {
        cell,
        fill: cell.fill(),
    }))
}

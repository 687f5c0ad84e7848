//! A picture of an address space: which prefix belongs to which node, and which address to which
//! pod.
//!
//! The crate turns facts about a cluster into geometry, and geometry into SVG or into a grid of
//! characters. It never reads a file or a clock, and it opens no connection: whoever knows a
//! cluster fills [`SpaceParts`] from it. Start reading there, then at [`View`].
//!
//! 1. [`AddressSpace`] checks and indexes the facts, and gives each address its [`AddressState`].
//! 2. [`View`] draws one prefix of a network on a grid, along a Hilbert curve, or as a list of the
//!    used prefixes where there are too many addresses for a picture. [`Scene`] adds the other
//!    networks beside it.
//! 3. [`svg::picture`] and [`TextGrid`] are the canvases. [`AddressDetail`] is all about one
//!    address.
//!
//! [`NodeTopology`] is another picture: the links, routes and pods of one node.
//!
//! Sources of facts:
//!
//! - *The dump of an audit, a recording, a simulation*: [`SpaceParts::of_world`] takes nodes,
//!   former blocks, pods, allocations and sandboxes. Networks come from flags, or
//!   [`SpaceParts::infer_pod_networks`].
//! - *A live API server*: records of blocks (`ListBlocks`) have state, node and hold, those of
//!   service ranges included; the last known addresses of a hold are [`Holder::Sandbox`].
//! - *An allocator*: `NodeBlock::try_from` takes its claims.
//! - *Networks with records of their own*, such as Calico: pools are networks of pods, with
//!   [`PodRule::Anywhere`] and [`BlockLayout::Whole`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod curve;
mod detail;
mod index;
mod name;
mod overlap;
mod palette;
mod parts;
mod prefix;
mod scene;
mod space;
mod state;
pub mod svg;
mod target;
mod text;
mod topology;
mod view;
mod words;
mod world;

pub use curve::Rect;
pub use detail::{AddressDetail, BlockDetail};
pub use name::Name;
pub use overlap::{Overlap, OverlapPart};
pub use palette::{Palette, Rgb};
pub use parts::{
    AddressClaim, BlockLayout, BlockState, Holder, Network, NetworkRole, NodeBlock, SpaceError,
};
pub use scene::{MarkSeverity, Scene, SceneLimits, SceneMark};
pub use space::{AddressRecord, AddressSpace, PodRule, SpaceParts};
pub use state::{AddressState, StateCounts};
pub use target::{MapTarget, ShownPart};
pub use text::{ColorMode, InvalidTextSize, TextCell, TextGrid, TextSize, TextStyle};
pub use topology::{
    BoxRole, NodeLink, NodeRoute, NodeTopology, PodAttachment, PodInterface, TopologyBox,
    TopologyLayout, TopologyLine,
};
pub use view::{BlockOutline, Cell, GridLimit, InvalidGridLimit, Layout, View, ViewError};
pub use words::cell_line;

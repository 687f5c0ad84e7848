//! The views and their names.

use std::str::FromStr;

use crate::{
    rows::{BlockRow, EventRow, NodeRow, PodRow, WaitingRow},
    scope::Scope,
    table::{RowTable, Table},
};

/// A view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// The nodes with their blocks and the use of their addresses.
    #[default]
    Nodes,
    /// The pods.
    Pods,
    /// The pods that wait for a node, by reason.
    Waiting,
    /// The blocks of nodes.
    Blocks,
    /// The events.
    Events,
    /// The map of the address space.
    Map,
}

/// A name that no view has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown view `{0}`: want nodes, pods, waiting, blocks, events or map")]
pub struct UnknownView(String);

impl View {
    /// All views, in the order of their number keys.
    pub const ALL: [Self; 6] = [
        Self::Nodes,
        Self::Pods,
        Self::Waiting,
        Self::Blocks,
        Self::Events,
        Self::Map,
    ];

    /// The name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nodes => "nodes",
            Self::Pods => "pods",
            Self::Waiting => "waiting",
            Self::Blocks => "blocks",
            Self::Events => "events",
            Self::Map => "map",
        }
    }

    /// The other names, as kubectl has them.
    const fn aliases(self) -> &'static [&'static str] {
        match self {
            Self::Nodes => &["node", "no"],
            Self::Pods => &["pod", "po"],
            Self::Waiting => &["wait", "pending"],
            Self::Blocks => &["block", "nodeblocks"],
            Self::Events => &["event", "ev"],
            Self::Map => &["space"],
        }
    }

    /// The table of the view; the map is none.
    pub(crate) fn table(self, scope: Scope) -> Option<Box<dyn Table + Send>> {
        Some(match self {
            Self::Nodes => Box::new(RowTable::<NodeRow>::new(scope)),
            Self::Pods => Box::new(RowTable::<PodRow>::new(scope)),
            Self::Waiting => Box::new(RowTable::<WaitingRow>::new(scope)),
            Self::Blocks => Box::new(RowTable::<BlockRow>::new(scope)),
            Self::Events => Box::new(RowTable::<EventRow>::new(scope)),
            Self::Map => return None,
        })
    }
}

impl FromStr for View {
    type Err = UnknownView;

    fn from_str(text: &str) -> Result<Self, UnknownView> {
        let name = text.to_lowercase();
        let is_it = |view: &Self| view.as_str() == name || view.aliases().contains(&name.as_str());
        let found = Self::ALL.into_iter().find(is_it);
        found.ok_or_else(|| UnknownView(text.to_owned()))
    }
}

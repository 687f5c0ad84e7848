//! The values of one label on all nodes, as small numbers.
//!
//! Constraints compare the same few labels of thousands of nodes for each pod. A column answers
//! from an array in place of a search in each node's labels. Columns are only a cache: a label
//! without one is looked up in the nodes.

use std::collections::HashMap;

use crate::{constraints::LabelMap, names::NodeSlot};

/// The number of cached columns. Beyond it the one that was not used for longest is dropped.
const MAX_COLUMNS: usize = 64;
/// Marks a node without the label.
const ABSENT: u32 = u32::MAX;

/// A value of a column's label, numbered from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueId(u32);

impl ValueId {
    /// The place of the value in an array of all values.
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The values of one label.
#[derive(Clone, Debug)]
pub struct LabelColumn {
    key: String,
    /// The number of each node's value, by slot.
    nodes: Vec<u32>,
    values: Vec<String>,
    ids: HashMap<String, u32>,
}

impl LabelColumn {
    /// Creates the column of the label `key` without nodes.
    pub fn new(key: &str) -> Self {
        Self {
            key: key.to_owned(),
            nodes: Vec::new(),
            values: Vec::new(),
            ids: HashMap::new(),
        }
    }

    /// The label's key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The node's value.
    pub fn value(&self, slot: NodeSlot) -> Option<ValueId> {
        let id = *self.nodes.get(slot.index())?;
        (id != ABSENT).then_some(ValueId(id))
    }

    /// All values, by number. Some may have no node any more.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// The number of a value, if some node has or had it.
    pub fn find(&self, value: &str) -> Option<ValueId> {
        self.ids.get(value).copied().map(ValueId)
    }

    /// Sets the node's value.
    pub fn set(&mut self, slot: NodeSlot, value: Option<&str>) {
        let id = value.map_or(ABSENT, |value| self.id(value));
        if self.nodes.len() <= slot.index() {
            self.nodes.resize(slot.index() + 1, ABSENT);
        }
        if let Some(known) = self.nodes.get_mut(slot.index()) {
            *known = id;
        }
    }

    fn id(&mut self, value: &str) -> u32 {
        if let Some(id) = self.ids.get(value) {
            return *id;
        }
        let id = u32::try_from(self.values.len()).unwrap_or(ABSENT);
        self.values.push(value.to_owned());
        self.ids.insert(value.to_owned(), id);
        id
    }

    /// Returns true if most values have no node any more.
    fn is_stale(&self) -> bool {
        self.values.len() > 2 * self.nodes.len() + 64
    }
}

/// The cached columns, the last used at the end.
#[derive(Clone, Debug, Default)]
pub struct LabelColumns(Vec<LabelColumn>);

impl LabelColumns {
    /// The column of the label.
    pub fn get(&self, key: &str) -> Option<&LabelColumn> {
        self.0.iter().find(|column| column.key == key)
    }

    /// Keeps the column of the label, which `fill` creates if it is missing.
    pub fn keep(&mut self, key: &str, fill: impl FnOnce() -> LabelColumn) {
        match self.0.iter().position(|column| column.key == key) {
            Some(at) if at + 1 == self.0.len() => {}
            Some(at) => {
                let column = self.0.remove(at);
                self.0.push(column);
            }
            None => {
                if self.0.len() >= MAX_COLUMNS {
                    self.0.remove(0);
                }
                self.0.push(fill());
            }
        }
    }

    /// Updates the columns after a change of the node; `None` if it was removed.
    pub fn update(&mut self, slot: NodeSlot, labels: Option<&LabelMap>) {
        for column in &mut self.0 {
            let value = labels.and_then(|labels| labels.get(&column.key));
            column.set(slot, value.map(String::as_str));
        }
        self.0.retain(|column| !column.is_stale());
    }
}

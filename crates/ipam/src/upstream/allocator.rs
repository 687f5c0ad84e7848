//! What each generation of the reference's range allocator does with what it is told.
//!
//! The order is the caller's: an event is handled when the informer tells it, and a worker asks [`RangeAllocator::sync`] (from the
//! work queue on), then [`RangeAllocator::before_patch`], patches up to [`RangeAllocator::PATCH_TRIES`] times, and says how that ended.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::cidr_set::{CidrSet, CidrSetError, OutOfRange};
use crate::compat::Generation;
use crate::net::{InvalidCidr, overlap, parse_cidr};

/// What of a Node matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: String,
    /// `spec.podCIDR`, which is only printed.
    pub pod_cidr: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
    /// It has a deletion timestamp.
    pub deleting: bool,
}

/// How the deletion of a node is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The watch told of it.
    Watched,
    /// A new list does not have it: client-go's DeletedFinalStateUnknown.
    Tombstone,
}

/// Blocks for a node, one of each range. They are marked as used, and not yet the node's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The node's name; the reference asks for no UID.
    pub node: String,
    /// In the order of `--cluster-cidr`.
    pub cidrs: Vec<IpNet>,
    /// Used blocks that were passed over, for each of them.
    pub tries: Vec<u64>,
}

/// What follows from an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handled {
    /// What comes next.
    pub then: Then,
    /// What went wrong; the reference logs it and goes on, unless it [`is_fatal`](AllocatorError::is_fatal).
    pub error: Option<AllocatorError>,
}

/// What comes after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Put it into the channel, and handle no other event before there is room.
    Send(Reservation),
    /// Put the node's name into the work queue.
    Enqueue,
}

/// What a worker is to do for a name from the work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing more.
    Done,
    /// Go on to [`RangeAllocator::before_patch`].
    Assign(Reservation),
}

/// Whether a reservation is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforePatch {
    /// It is.
    Patch,
    /// The node has this, or something else.
    Done,
}

/// What goes wrong. Texts are the reference's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// A range that is no set of blocks.
    #[error(transparent)]
    Set(CidrSetError),
    /// A node's block is no prefix; the text has the older field, whichever element is bad.
    #[error("failed to parse node {node}, CIDR {pod_cidr}")]
    Parse {
        /// The node.
        node: String,
        /// `spec.podCIDR`.
        pod_cidr: String,
    },
    /// The same, when it is to be released.
    #[error("failed to parse CIDR {} on Node {node}: {invalid}", .invalid.text)]
    ParseReleased {
        /// The node.
        node: String,
        /// What is wrong with it.
        invalid: InvalidCidr,
    },
    /// A node has more blocks than there are ranges.
    #[error(
        "node:{node} has an allocated cidr: {cidr} at index:{index} that does not exist in cluster cidrs configuration"
    )]
    NoSuchRange {
        /// The node.
        node: String,
        /// Its block.
        cidr: String,
        /// The block's place.
        index: usize,
    },
    /// A node's block is not of the range in its place.
    #[error("failed to mark cidr[{cidr}] at idx [{index}] as occupied for node: {node}: {source}")]
    Occupy {
        /// The node.
        node: String,
        /// Its block.
        cidr: IpNet,
        /// The block's place.
        index: usize,
        /// Why.
        source: OutOfRange,
    },
    /// The same, when it is to be released.
    #[error("error when releasing CIDR {cidr}: {source}")]
    Release {
        /// The block.
        cidr: String,
        /// Why.
        source: OutOfRange,
    },
    /// A range has no free block. What other ranges gave before is not given back.
    #[error("failed to allocate cidr from cluster cidr at idx:{index}: {source}")]
    Allocate {
        /// The range.
        index: usize,
        /// Why.
        source: CidrSetError,
    },
    /// The node is not there any more.
    #[error("node {0:?} not found")]
    NotFound(String),
    /// A type assertion of the second generation, which ends the process.
    #[error(
        "panic: interface conversion: interface {{}} is cache.DeletedFinalStateUnknown, not *v1.Node"
    )]
    Panic,
}

impl AllocatorError {
    /// The reason of the event that is written about the node.
    #[must_use]
    pub fn event(&self) -> Option<&'static str> {
        matches!(self, Self::Allocate { .. }).then_some("CIDRNotAvailable")
    }

    /// Whether the process ends.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        *self == Self::Panic
    }
}

/// The allocator of one generation.
#[derive(Clone, Debug)]
pub struct RangeAllocator {
    generation: Generation,
    sets: Vec<CidrSet>,
    /// Nodes between an event and the end of a worker's try; not of the generations with a work queue.
    in_processing: BTreeSet<String>,
}

impl RangeAllocator {
    /// Reservations that the channel of the first generation holds.
    pub const CHANNEL: usize = 5000;
    /// Workers.
    pub const WORKERS: usize = 30;
    /// How often a worker patches a node, at once, before it gives up.
    pub const PATCH_TRIES: usize = 3;
    /// The reason of the event about a node that could not be patched.
    pub const PATCH_FAILED: &'static str = "CIDRAssignmentFailed";

    /// The allocator at its start: service ranges and the blocks of all nodes are used. Duplicates, overlaps and blocks of another
    /// length pass.
    ///
    /// # Errors
    ///
    /// For a node's block that is unreadable or of no range. The reference's process ends with it, and with the same when it
    /// starts again.
    pub fn new(
        generation: Generation,
        mut sets: Vec<CidrSet>,
        service_ranges: &[IpNet],
        nodes: &[NodeView],
    ) -> Result<Self, AllocatorError> {
        for service in service_ranges {
            for set in &mut sets {
                if overlap(&set.cluster(), service) {
                    // Whatever fails here is only logged by the reference.
                    let _ = set.occupy(service);
                }
            }
        }
        let mut allocator = Self {
            generation,
            sets,
            in_processing: BTreeSet::new(),
        };
        nodes.iter().try_for_each(|node| allocator.occupy(node))?;
        Ok(allocator)
    }

    /// Which generation it is.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The sets, in the order of `--cluster-cidr`.
    #[must_use]
    pub fn sets(&self) -> &[CidrSet] {
        &self.sets
    }

    /// For tests of the reference that mark blocks behind the allocator's back.
    pub fn sets_mut(&mut self) -> &mut [CidrSet] {
        &mut self.sets
    }

    fn has_channel(&self) -> bool {
        matches!(self.generation, Generation::G1 | Generation::Gcp)
    }

    /// A node is there, at the start too.
    pub fn added(&mut self, node: &NodeView) -> Handled {
        if !self.has_channel() {
            return Handled::then(Then::Enqueue);
        }
        if !self.in_processing.insert(node.name.clone()) {
            return Handled::then(Then::Nothing);
        }
        if !node.pod_cidrs.is_empty() {
            let occupied = self.occupy(node);
            self.finished(&node.name);
            return Handled::after(occupied, Then::Nothing);
        }
        match self.reserve(&node.name) {
            Ok(reservation) => Handled::then(Then::Send(reservation)),
            Err(error) => {
                self.finished(&node.name);
                Handled::after(Err(error), Then::Nothing)
            }
        }
    }

    /// A node has changed.
    pub fn updated(&mut self, node: &NodeView) -> Handled {
        if self.has_channel() && !node.pod_cidrs.is_empty() {
            return Handled::then(Then::Nothing);
        }
        self.added(node)
    }

    /// A node is gone.
    pub fn deleted(&mut self, node: &NodeView, deletion: Deletion) -> Handled {
        match (self.generation, deletion) {
            // The fork's filter knows only nodes.
            (Generation::Gcp, Deletion::Tombstone) => Handled::then(Then::Nothing),
            (Generation::G2, Deletion::Tombstone) => {
                Handled::after(Err(AllocatorError::Panic), Then::Nothing)
            }
            (Generation::G1 | Generation::Gcp, _) => {
                Handled::after(self.release(node), Then::Nothing)
            }
            (Generation::G2 | Generation::G3, _) => {
                Handled::after(self.release(node), Then::Enqueue)
            }
        }
    }

    /// A worker takes a name from the work queue; `node` is what the cache has of it. After an error the name is put back.
    ///
    /// # Errors
    ///
    /// Those of marking and of reserving.
    pub fn sync(&mut self, node: Option<&NodeView>) -> Result<Work, AllocatorError> {
        let Some(node) = node else {
            return Ok(Work::Done);
        };
        if node.deleting {
            // The node is still there, and so are its pods.
            if self.generation == Generation::G2 {
                self.release(node)?;
            }
            return Ok(Work::Done);
        }
        if !node.pod_cidrs.is_empty() {
            self.occupy(node)?;
            return Ok(Work::Done);
        }
        self.reserve(&node.name).map(Work::Assign)
    }

    /// A worker looks at the cache again before it patches.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotFound`]; then the reservation stays as it is.
    pub fn before_patch(
        &mut self,
        reservation: &Reservation,
        node: Option<&NodeView>,
    ) -> Result<BeforePatch, AllocatorError> {
        let node = node.ok_or_else(|| AllocatorError::NotFound(reservation.node.clone()))?;
        let reserved = reservation.cidrs.iter().map(ToString::to_string);
        if reserved.eq(node.pod_cidrs.iter().cloned()) {
            return Ok(BeforePatch::Done);
        }
        if node.pod_cidrs.is_empty() {
            return Ok(BeforePatch::Patch);
        }
        self.give_back(reservation);
        Ok(BeforePatch::Done)
    }

    /// Every patch has failed, or so it was answered: a patch that was made and timed out counts the same, since the reference's
    /// test for a timeout never holds.
    pub fn patch_failed(&mut self, reservation: &Reservation) {
        self.give_back(reservation);
    }

    /// A worker is done with a reservation from the channel.
    pub fn finished(&mut self, node: &str) {
        self.in_processing.remove(node);
    }

    fn give_back(&mut self, reservation: &Reservation) {
        for (set, cidr) in self.sets.iter_mut().zip(&reservation.cidrs) {
            // It came from this set.
            let _ = set.release(cidr);
        }
    }

    fn reserve(&mut self, node: &str) -> Result<Reservation, AllocatorError> {
        let mut reservation = Reservation {
            node: node.to_owned(),
            cidrs: Vec::new(),
            tries: Vec::new(),
        };
        for (index, set) in self.sets.iter_mut().enumerate() {
            let given = set
                .allocate_next()
                .map_err(|source| AllocatorError::Allocate { index, source })?;
            reservation.cidrs.push(given.cidr);
            reservation.tries.push(given.tries);
        }
        Ok(reservation)
    }

    fn occupy(&mut self, node: &NodeView) -> Result<(), AllocatorError> {
        for (index, text) in node.pod_cidrs.iter().enumerate() {
            let cidr = self.parse(text).map_err(|_| AllocatorError::Parse {
                node: node.name.clone(),
                pod_cidr: node.pod_cidr.clone(),
            })?;
            let set = self.set(node, index, text)?;
            set.occupy(&cidr).map_err(|source| AllocatorError::Occupy {
                node: node.name.clone(),
                cidr,
                index,
                source,
            })?;
        }
        Ok(())
    }

    fn release(&mut self, node: &NodeView) -> Result<(), AllocatorError> {
        for (index, text) in node.pod_cidrs.iter().enumerate() {
            let parsed = self.parse(text);
            let cidr = parsed.map_err(|invalid| AllocatorError::ParseReleased {
                node: node.name.clone(),
                invalid,
            })?;
            let set = self.set(node, index, text)?;
            set.release(&cidr)
                .map_err(|source| AllocatorError::Release {
                    cidr: text.clone(),
                    source,
                })?;
        }
        Ok(())
    }

    fn set(
        &mut self,
        node: &NodeView,
        index: usize,
        cidr: &str,
    ) -> Result<&mut CidrSet, AllocatorError> {
        let set = self.sets.get_mut(index);
        set.ok_or_else(|| AllocatorError::NoSuchRange {
            node: node.name.clone(),
            cidr: cidr.to_owned(),
            index,
        })
    }

    fn parse(&self, text: &str) -> Result<IpNet, InvalidCidr> {
        self.generation.parse_cidr(text)
    }
}

impl Generation {
    /// Reads a prefix, without host bits, as this generation does: the fork does not take leading zeros.
    ///
    /// # Errors
    ///
    /// [`InvalidCidr`].
    pub fn parse_cidr(self, text: &str) -> Result<IpNet, InvalidCidr> {
        let address = text.split('/').next().unwrap_or_default();
        if self == Self::Gcp && address.parse::<IpAddr>().is_err() {
            let text = text.to_owned();
            return Err(InvalidCidr { text });
        }
        parse_cidr(text).map(|cidr| cidr.trunc())
    }
}

impl Handled {
    fn then(then: Then) -> Self {
        Self { then, error: None }
    }

    fn after(done: Result<(), AllocatorError>, then: Then) -> Self {
        Self {
            then,
            error: done.err(),
        }
    }
}

impl fmt::Display for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cidrs: Vec<String> = self.cidrs.iter().map(ToString::to_string).collect();
        f.write_str(&cidrs.join(","))
    }
}

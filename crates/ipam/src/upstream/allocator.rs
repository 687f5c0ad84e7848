//! The reactions of each generation of the reference's range allocator to events.
//!
//! The caller determines the order: an event is handled when the informer delivers it. A worker
//! calls [`RangeAllocator::sync`] (in generations with a work queue), then
//! [`RangeAllocator::before_patch`], patches up to [`RangeAllocator::PATCH_TRIES`] times, and
//! reports the result.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::IpNet;

use super::cidr_set::{CidrSet, CidrSetError, OutOfRange};
use crate::compat::Generation;
use crate::net::{InvalidCidr, overlap, parse_cidr};

/// The fields of a Node that matter here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: String,
    /// `spec.podCIDR`, which only appears in messages.
    pub pod_cidr: String,
    /// `spec.podCIDRs`.
    pub pod_cidrs: Vec<String>,
    /// True if the node has a deletion timestamp.
    pub deleting: bool,
}

/// The way in which the deletion of a node became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The watch delivered it.
    Watched,
    /// A new list lacks the node: client-go's DeletedFinalStateUnknown.
    Tombstone,
}

/// Blocks reserved for a node, one of each range. They are marked as used, but not assigned yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The name of the node; the reference does not compare UIDs.
    pub node: String,
    /// The blocks, in the order of `--cluster-cidr`.
    pub cidrs: Vec<IpNet>,
    /// For each block, the number of used blocks that were skipped.
    pub tries: Vec<u64>,
}

/// The result of handling an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventOutcome {
    /// The next action.
    pub then: NextAction,
    /// The error; the reference logs it and goes on, unless it
    /// [`is_fatal`](AllocatorError::is_fatal).
    pub error: Option<AllocatorError>,
}

/// The action after an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextAction {
    /// Nothing.
    Nothing,
    /// Put the reservation into the channel, and handle no other event before there is room.
    Send(Reservation),
    /// Put the node's name into the work queue.
    Enqueue,
}

/// The task of a worker for a name from the work queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// The node needs no patch.
    Done,
    /// Go on to [`RangeAllocator::before_patch`].
    Assign(Reservation),
}

/// The decision before a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeforePatch {
    /// The reservation must be written.
    Patch,
    /// The node has these blocks already, or others.
    Done,
}

/// An error of the allocator. The texts are those of the reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// A range cannot be divided into blocks.
    #[error(transparent)]
    Set(CidrSetError),
    /// A node's block is not a valid prefix. The text has the older field, whichever element is
    /// invalid.
    #[error("failed to parse node {node}, CIDR {pod_cidr}")]
    Parse {
        /// The node.
        node: String,
        /// `spec.podCIDR`.
        pod_cidr: String,
    },
    /// A block to be released is not a valid prefix.
    #[error("failed to parse CIDR {} on Node {node}: {invalid}", .invalid.text)]
    ParseReleased {
        /// The node.
        node: String,
        /// The invalid text.
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
        /// The index of the block.
        index: usize,
    },
    /// A node's block is not in the range of its index.
    #[error("failed to mark cidr[{cidr}] at idx [{index}] as occupied for node: {node}: {source}")]
    Occupy {
        /// The node.
        node: String,
        /// Its block.
        cidr: IpNet,
        /// The index of the block.
        index: usize,
        /// The cause.
        source: OutOfRange,
    },
    /// A block to be released is not in the range of its index.
    #[error("error when releasing CIDR {cidr}: {source}")]
    Release {
        /// The block.
        cidr: String,
        /// The cause.
        source: OutOfRange,
    },
    /// A range has no free block. Blocks that were reserved in other ranges are not released.
    #[error("failed to allocate cidr from cluster cidr at idx:{index}: {source}")]
    Allocate {
        /// The index of the range.
        index: usize,
        /// The cause.
        source: CidrSetError,
    },
    /// The node does not exist any more.
    #[error("node {0:?} not found")]
    NotFound(String),
    /// A type assertion of the second generation, which ends the process.
    #[error(
        "panic: interface conversion: interface {{}} is cache.DeletedFinalStateUnknown, not *v1.Node"
    )]
    Panic,
}

impl AllocatorError {
    /// The reason of the event that is recorded for the node.
    #[must_use]
    pub fn event(&self) -> Option<&'static str> {
        matches!(self, Self::Allocate { .. }).then_some("CIDRNotAvailable")
    }

    /// True if the error ends the process.
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
    /// Nodes between an event and the end of a worker's attempt; unused by the generations with a
    /// work queue.
    in_processing: BTreeSet<String>,
}

impl RangeAllocator {
    /// The capacity of the first generation's channel.
    pub const CHANNEL: usize = 5000;
    /// The number of workers.
    pub const WORKERS: usize = 30;
    /// The number of attempts of a worker to patch a node, without delay, before it gives up.
    pub const PATCH_TRIES: usize = 3;
    /// The reason of the event about a node that could not be patched.
    pub const PATCH_FAILED: &'static str = "CIDRAssignmentFailed";

    /// Creates the allocator at its start: service ranges and the blocks of all nodes are marked as
    /// used. Duplicates, overlaps and blocks of another length are accepted.
    ///
    /// # Errors
    ///
    /// For a node's block that is invalid or in no range. The reference's process ends with it,
    /// also after each restart.
    pub fn new(
        generation: Generation,
        mut sets: Vec<CidrSet>,
        service_ranges: &[IpNet],
        nodes: &[NodeView],
    ) -> Result<Self, AllocatorError> {
        for service in service_ranges {
            for set in &mut sets {
                if overlap(&set.cluster(), service) {
                    // The reference only logs this error.
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

    /// The generation of the allocator.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The sets, in the order of `--cluster-cidr`.
    #[must_use]
    pub fn sets(&self) -> &[CidrSet] {
        &self.sets
    }

    /// Mutable access for tests of the reference, which mark blocks behind the allocator's back.
    pub fn sets_mut(&mut self) -> &mut [CidrSet] {
        &mut self.sets
    }

    fn has_channel(&self) -> bool {
        matches!(self.generation, Generation::G1 | Generation::Gcp)
    }

    /// Handles a node that was added or exists at the start.
    pub fn added(&mut self, node: &NodeView) -> EventOutcome {
        if !self.has_channel() {
            return EventOutcome::then(NextAction::Enqueue);
        }
        if !self.in_processing.insert(node.name.clone()) {
            return EventOutcome::then(NextAction::Nothing);
        }
        if !node.pod_cidrs.is_empty() {
            let occupied = self.occupy(node);
            self.finished(&node.name);
            return EventOutcome::after(occupied, NextAction::Nothing);
        }
        match self.reserve(&node.name) {
            Ok(reservation) => EventOutcome::then(NextAction::Send(reservation)),
            Err(error) => {
                self.finished(&node.name);
                EventOutcome::after(Err(error), NextAction::Nothing)
            }
        }
    }

    /// Handles a change of a node.
    pub fn updated(&mut self, node: &NodeView) -> EventOutcome {
        if self.has_channel() && !node.pod_cidrs.is_empty() {
            return EventOutcome::then(NextAction::Nothing);
        }
        self.added(node)
    }

    /// Handles the deletion of a node.
    pub fn deleted(&mut self, node: &NodeView, deletion: Deletion) -> EventOutcome {
        match (self.generation, deletion) {
            // The fork's filter knows only nodes.
            (Generation::Gcp, Deletion::Tombstone) => EventOutcome::then(NextAction::Nothing),
            (Generation::G2, Deletion::Tombstone) => {
                EventOutcome::after(Err(AllocatorError::Panic), NextAction::Nothing)
            }
            (Generation::G1 | Generation::Gcp, _) => {
                EventOutcome::after(self.release(node), NextAction::Nothing)
            }
            (Generation::G2 | Generation::G3, _) => {
                EventOutcome::after(self.release(node), NextAction::Enqueue)
            }
        }
    }

    /// Processes a name from the work queue; `node` is its state in the cache. After an error the
    /// name is queued again.
    ///
    /// # Errors
    ///
    /// Those of marking and of reserving blocks.
    pub fn sync(&mut self, node: Option<&NodeView>) -> Result<SyncOutcome, AllocatorError> {
        let Some(node) = node else {
            return Ok(SyncOutcome::Done);
        };
        if node.deleting {
            // The node still exists, and so do its pods.
            if self.generation == Generation::G2 {
                self.release(node)?;
            }
            return Ok(SyncOutcome::Done);
        }
        if !node.pod_cidrs.is_empty() {
            self.occupy(node)?;
            return Ok(SyncOutcome::Done);
        }
        self.reserve(&node.name).map(SyncOutcome::Assign)
    }

    /// Checks the cache again before a worker patches.
    ///
    /// # Errors
    ///
    /// [`AllocatorError::NotFound`]; the reservation then stays marked as used.
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

    /// Releases a reservation after all patches failed. A patch that was applied and timed out
    /// counts as failed, since the reference's test for a timeout never matches.
    pub fn patch_failed(&mut self, reservation: &Reservation) {
        self.give_back(reservation);
    }

    /// Ends the processing of a reservation from the channel.
    pub fn finished(&mut self, node: &str) {
        self.in_processing.remove(node);
    }

    fn give_back(&mut self, reservation: &Reservation) {
        for (set, cidr) in self.sets.iter_mut().zip(&reservation.cidrs) {
            // Cannot fail: the block came from this set.
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
    /// Parses a prefix, without host bits, as this generation does: the fork does not accept
    /// leading zeros.
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

impl EventOutcome {
    fn then(then: NextAction) -> Self {
        Self { then, error: None }
    }

    fn after(done: Result<(), AllocatorError>, then: NextAction) -> Self {
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

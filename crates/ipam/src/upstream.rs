//! The reference's own node allocators, their faults included, for `--compat`.
//!
//! A [`CidrSet`] is a bitmap without owners; a [`RangeAllocator`] is the logic of each
//! [`Generation`](crate::Generation) of the reference on top of it. The only goal of this module is
//! to behave as the reference does: `docs/duplicates.md` lists its faults.

mod allocator;
mod bits;
mod cidr_set;
mod flags;

pub use allocator::{
    AllocatorError, BeforePatch, Deletion, EventOutcome, NextAction, NodeView, RangeAllocator,
    Reservation, SyncOutcome,
};
pub use cidr_set::{AllocatedBlock, CidrSet, CidrSetError, OutOfRange};
pub use flags::FlagError;

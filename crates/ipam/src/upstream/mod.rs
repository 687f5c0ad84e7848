//! The reference's own node allocators, their faults included: what `--compat` runs.
//!
//! A [`CidrSet`] is a map of bits without owners; a [`RangeAllocator`] is what each [`Generation`](crate::Generation) of the reference
//! does with it. Nothing here is right beyond being as the reference is: `docs/duplicates.md` lists what goes wrong.

mod allocator;
mod bits;
mod cidr_set;
mod flags;

pub use allocator::{
    AllocatorError, BeforePatch, Deletion, Handled, NodeView, RangeAllocator, Reservation, Then,
    Work,
};
pub use cidr_set::{Allocated, CidrSet, CidrSetError, OutOfRange};
pub use flags::FlagError;

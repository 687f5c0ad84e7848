//! Memory of the index of free blocks and of the ledger, as requested from the allocator.

#[path = "common/rows.rs"]
mod rows;

use std::process::ExitCode;

use peak_alloc::PeakAlloc;
use podplane_ipam::{FreeBlocks, NodeBlocks, RangeConfig};
use rows::{cluster, owner};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    rows::measure(&[
        ("memory-index", memory_index),
        ("memory-fragmented", memory_fragmented),
        ("memory-owner", memory_owner),
        ("memory-owner-dual", memory_owner_dual),
    ])
}

fn bytes<T>(make: impl FnOnce() -> T) -> (T, f64) {
    let before = ALLOCATOR.current_usage();
    let made = make();
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 bytes")]
    let bytes = (ALLOCATOR.current_usage() - before) as f64;
    (made, bytes)
}

const MANY: u32 = 1 << 24;

/// KiB of the index of 10.0.0.0/8 in /32, full.
fn memory_index() -> Vec<f64> {
    let (free, bytes) = bytes(|| {
        let mut free = FreeBlocks::new(MANY.into());
        while free.take_next().is_some() {}
        free
    });
    assert_eq!(free.free(), 0);
    vec![bytes / 1024.0]
}

/// The same range with every other block free again.
fn memory_fragmented() -> Vec<f64> {
    let (_free, bytes) = bytes(|| {
        let mut free = FreeBlocks::new(MANY.into());
        while free.take_next().is_some() {}
        for block in (0..u64::from(MANY)).step_by(2) {
            free.vacate(block, block);
        }
        free
    });
    vec![bytes / 1024.0]
}

fn memory_of(config: &RangeConfig, nodes: u32) -> Vec<f64> {
    let (blocks, bytes) = bytes(|| {
        let mut blocks = NodeBlocks::new(config);
        for number in 0..nodes {
            blocks.allocate(&owner(number)).expect("a free block");
        }
        blocks
    });
    let used: u64 = blocks.usage().map(|usage| usage.used).sum();
    #[expect(clippy::cast_precision_loss, reason = "less than 2^52 blocks")]
    let used = used as f64;
    vec![bytes / used]
}

/// Bytes for each block in use of 10.0.0.0/8 in /32, all of them: index, ledger, owners with their
/// UIDs and names.
fn memory_owner() -> Vec<f64> {
    memory_of(&cluster(&[("10.0.0.0/8", 32)]), MANY)
}

/// Bytes for each of 131,072 blocks of 65,536 nodes with one block of each family.
fn memory_owner_dual() -> Vec<f64> {
    memory_of(&cluster(&[("10.0.0.0/8", 24), ("fd00::/48", 64)]), 65_536)
}

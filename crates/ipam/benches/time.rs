//! Time of operations on the index of free blocks and on the ledger.

#[path = "common/rows.rs"]
mod rows;

use std::{hint::black_box, process::ExitCode, time::Instant};

use podplane_ipam::{FreeBlocks, NodeBlocks, Owner, parse_cidr};
use rows::{cluster, owner};

const BLOCKS: u32 = 65_536;

fn main() -> ExitCode {
    rows::measure(&[
        ("fill", fill),
        ("one-free", one_free),
        ("start-index", start_index),
        ("start", start),
        ("allocate", fill_owned),
    ])
}

/// Nanoseconds per operation.
fn each(count: u32, work: impl FnOnce()) -> f64 {
    let started = Instant::now();
    work();
    started.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

fn rounds(mut round: impl FnMut() -> f64) -> Vec<f64> {
    (0..30).map(|_| round()).collect()
}

fn fill() -> Vec<f64> {
    rounds(|| {
        let mut free = FreeBlocks::new(BLOCKS.into());
        let nanoseconds = each(BLOCKS, || while black_box(free.take_next()).is_some() {});
        assert_eq!(free.free(), 0);
        nanoseconds
    })
}

/// Frees and takes a different block each time, all over the range.
fn one_free() -> Vec<f64> {
    let mut free = FreeBlocks::new(BLOCKS.into());
    while free.take_next().is_some() {}
    let mut block = 0;
    rounds(|| {
        each(10_000, || {
            for _ in 0..10_000 {
                block = (block + 40_503) % BLOCKS;
                free.vacate(block.into(), block.into());
                assert_eq!(black_box(free.take_next()), Some(block.into()));
            }
        })
    })
}

fn owners(count: u32) -> Vec<Owner> {
    (0..count).map(owner).collect()
}

fn fill_owned() -> Vec<f64> {
    let owners = owners(BLOCKS);
    rounds(|| {
        let mut blocks = NodeBlocks::new(&cluster(&[("10.0.0.0/8", 24)]));
        each(BLOCKS, || {
            for owner in &owners {
                black_box(blocks.allocate(owner)).expect("a free block");
            }
        })
    })
}

/// Nodes in the order of a list, which is not that of their blocks.
fn spec(number: u32) -> (String, String, String) {
    let block = number.wrapping_mul(40_503) % BLOCKS;
    let owner = owner(number);
    let cidr = format!("10.{}.{}.0/24", block / 256, block % 256);
    (owner.uid().to_owned(), owner.name().to_owned(), cidr)
}

fn start_index() -> Vec<f64> {
    let nodes: Vec<_> = (0..BLOCKS).map(spec).collect();
    let range = cluster(&[("10.0.0.0/8", 24)]).ranges[0];
    rounds(|| {
        let mut free = FreeBlocks::new(range.blocks());
        let milliseconds = each(1_000_000, || {
            for (_, _, cidr) in &nodes {
                let net = parse_cidr(cidr).expect("a prefix");
                let (first, last) = range.indices(&net).expect("in the range");
                free.occupy(first, last);
            }
        });
        assert_eq!(free.free(), 0);
        milliseconds
    })
}

fn start() -> Vec<f64> {
    let nodes: Vec<_> = (0..BLOCKS).map(spec).collect();
    rounds(|| {
        let mut blocks = NodeBlocks::new(&cluster(&[("10.0.0.0/8", 24)]));
        let milliseconds = each(1_000_000, || {
            for (uid, name, cidr) in &nodes {
                let net = parse_cidr(cidr).expect("a prefix");
                black_box(blocks.adopt(&Owner::new(uid, name), net));
            }
        });
        assert!(blocks.usage().all(|usage| usage.free == 0));
        milliseconds
    })
}

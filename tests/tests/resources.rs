//! The API server takes memory and disk for what it holds and for a bounded history, however much
//! was written to it and removed again.
//!
//! The short forms lower the bound of history, so that it is soon reached. `PODPLANE_SOAK=1`
//! removes 24,000 objects of a kind, and changes a pod 6,000 times with the default bounds. Bytes
//! are compared, never seconds.

#![expect(clippy::print_stdout, reason = "the figures of a soak")]

use std::{env, fs, io, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Method;
use podplane_test_cluster::within;
use podplane_tests::apiserver::Apiserver;
use serde_json::{Value, json};

const MIB: u64 = 1 << 20;
const DEFAULT_NAMESPACE: &str = "/api/v1/namespaces/default";
/// Requests at once, so that they share syncs of the disk.
const AT_ONCE: usize = 64;
/// The time in which memory and files shrink after the last write.
const DEADLINE: Duration = Duration::from_secs(5 * 60);

/// The memory that the server may take besides objects, history, and its memory at the start. 113
/// MiB were seen after many small objects, and no more after seven times as many: sled's cache of
/// 16 MiB as nodes of a tree, its buffers of 8 MiB for each segment that is written, and the memory
/// that the allocator keeps between them.
const OVERHEAD: u64 = 128 * MIB;
/// The overhead with one object, whose records leave sled's tree as they came. 54 MiB were seen.
const OVERHEAD_OF_ONE: u64 = 80 * MIB;
/// The difference between two states that are the same: what sled has in its cache varies. 48 MiB
/// were seen, also from more to less.
const NOISE: u64 = 64 * MIB;
/// A version is in the store as bytes, in the cache as an object, and as the one before the next
/// version.
const COPIES: u64 = 4;

fn is_soak() -> bool {
    env::var_os("PODPLANE_SOAK").is_some()
}

fn pod(name: &str, padding: &str) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"padding": padding}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

fn event(name: &str, padding: &str) -> Value {
    json!({
        "metadata": {"name": name, "annotations": {"padding": padding}},
        "involvedObject": {"kind": "Pod", "name": "a", "namespace": "default"},
        "message": "it is there",
    })
}

/// Waits until the server takes at most this much memory.
async fn takes_at_most(server: &Apiserver, bytes: u64) -> Result<u64> {
    let what = format!("at most {} MiB of memory", bytes / MIB);
    let look = async || server.resident_bytes();
    let is_less = |found: &Result<u64>| found.as_ref().map_or(true, |found| *found <= bytes);
    within(DEADLINE, &what, look, is_less).await?
}

/// Objects of one kind, in the default namespace.
#[derive(Clone, Copy)]
struct Batch {
    resource: &'static str,
    object: fn(name: &str, padding: &str) -> Value,
    count: usize,
    object_bytes: usize,
}

impl Batch {
    fn path(&self) -> String {
        format!("{DEFAULT_NAMESPACE}/{}", self.resource)
    }

    async fn create(&self, server: &Apiserver) -> Result<()> {
        let (rest, path) = (server.rest(), self.path());
        let padding = "x".repeat(self.object_bytes);
        let create = async |number: usize| {
            let object = (self.object)(&format!("object-{number}"), &padding);
            let answer = rest.send_json(Method::POST, &path, &object).await?;
            anyhow::ensure!(answer.code == 201, "{}", answer.body);
            Ok(())
        };
        let creating = stream::iter(0..self.count).map(create);
        creating.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Deletes the objects by one request. Each request has a connection of its own, since the
    /// server closes connections that are idle for long.
    async fn delete(&self, server: &Apiserver) -> Result<()> {
        let path = self.path();
        let answer = server.rest().send(Method::DELETE, &path, None).await?;
        anyhow::ensure!(answer.code == 200, "{}", answer.body);
        let left = server.rest().get(&path).await?.body;
        anyhow::ensure!(left["items"] == json!([]), "some are left: {left}");
        Ok(())
    }
}

/// Removes the same number of objects twice. In the long form, one kept copy of each would be more
/// than the allowed growth from one half to the other: 96 MiB.
async fn removals_leave_memory_as_it_was(
    resource: &'static str,
    object: fn(&str, &str) -> Value,
) -> Result<()> {
    let (batches, count, object_bytes) = match is_soak() {
        true => (1, 12_000, 8 << 10),
        false => (5, 100, 60_000),
    };
    let batch = Batch {
        resource,
        object,
        count,
        object_bytes,
    };
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start_with(dir.path(), &["--history-bytes", "1Mi"]).await?;
    let bound = server.resident_bytes()? + OVERHEAD;
    let half = async || -> Result<()> {
        for _ in 0..batches {
            batch.create(&server).await?;
            batch.delete(&server).await?;
        }
        Ok(())
    };
    half().await?;
    let first = takes_at_most(&server, bound).await?;
    half().await?;
    let second = takes_at_most(&server, bound.min(first + NOISE)).await?;
    println!("{resource}: {} MiB, then {} MiB", first / MIB, second / MIB);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_pods_leave_memory_as_it_was() -> Result<()> {
    removals_leave_memory_as_it_was("pods", pod).await
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_events_leave_memory_as_it_was() -> Result<()> {
    removals_leave_memory_as_it_was("events", event).await
}

/// Large answers take much memory while they are made, and nothing is written afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn large_answers_leave_memory_as_it_was() -> Result<()> {
    let lists = 8;
    let batch = Batch {
        resource: "pods",
        object: pod,
        count: 200,
        object_bytes: 60_000,
    };
    let objects = u64::try_from(batch.count * batch.object_bytes)?;
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start_with(dir.path(), &["--history-bytes", "1Mi"]).await?;
    let bound = server.resident_bytes()? + OVERHEAD_OF_ONE + COPIES * objects;
    batch.create(&server).await?;
    let path = batch.path();
    let list = async |_: usize| {
        let list = server.rest().get(&path).await?.body;
        let items = list["items"].as_array().map_or(0, Vec::len);
        anyhow::ensure!(items == batch.count, "{items} of {} pods", batch.count);
        server.resident_bytes()
    };
    let listing = stream::iter(0..lists).map(list).buffer_unordered(lists);
    let most = listing.try_fold(0, async |most, found| Ok(found.max(most)));
    let most = most.await?;
    let least = takes_at_most(&server, bound).await?;
    println!("lists: {} MiB, then {} MiB", most / MIB, least / MIB);
    Ok(())
}

/// The bytes that the files of a directory take.
fn disk_bytes(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let found = match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            metadata => metadata.map(|metadata| metadata.blocks() * 512),
        };
        match found {
            Ok(found) => bytes += found,
            // A rewrite replaces files at any time.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Without the bound, memory would be three times what was written, and the files would be larger
/// than it.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_pod_that_is_changed_again_and_again_takes_bounded_memory_and_disk() -> Result<()> {
    let (changes, history, flags): (usize, u64, &[&str]) = match is_soak() {
        true => (6_000, 64 * MIB, &[]),
        false => (800, MIB, &["--history-bytes", "1Mi"]),
    };
    let dir = tempfile::tempdir()?;
    let store = dir.path().join("store");
    let server = Apiserver::start_with(dir.path(), flags).await?;
    let most = server.resident_bytes()? + OVERHEAD_OF_ONE + COPIES * history;
    let rest = server.rest();
    let path = format!("{DEFAULT_NAMESPACE}/pods");
    let created = rest
        .send_json(Method::POST, &path, &pod("large", ""))
        .await?;
    assert_eq!(created.code, 201, "{}", created.body);
    let path = format!("{path}/large");
    for number in 1..=changes {
        let patch = json!({"metadata": {"annotations": {"padding": format!("{number:060000}")}}});
        let patch = ("application/merge-patch+json", &patch);
        let answer = rest.send(Method::PATCH, &path, Some(patch)).await?;
        assert_eq!(answer.code, 200, "{}", answer.body);
        let found = server.resident_bytes()?;
        assert!(found <= most, "{} MiB after {number} changes", found / MIB);
    }
    let large = disk_bytes(&store)?;
    let files = (32 * MIB).max(4 * (60_000 + history));
    let what = format!("at most {} MiB of files", files / MIB);
    let look = async || disk_bytes(&store);
    let is_less = |found: &io::Result<u64>| found.as_ref().map_or(true, |found| *found <= files);
    let small = within(DEADLINE, &what, look, is_less).await??;

    // A restart reads these files, and what it keeps of them is bounded, too.
    server.kill()?;
    let server = Apiserver::start_with(dir.path(), flags).await?;
    let pod = server.rest().get(&path).await?.body;
    let padding = format!("{changes:060000}");
    assert_eq!(pod["metadata"]["annotations"]["padding"], padding);
    let started = server.resident_bytes()?;
    assert!(started <= most, "{} MiB after a restart", started / MIB);
    println!(
        "files of {} MiB became {} MiB; a restart took {} MiB",
        large / MIB,
        small / MIB,
        started / MIB
    );
    Ok(())
}

//! A few writers, and many watchers.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::Result;
use futures::future::{join, try_join_all};
use podplane_api::core::Pod;

use crate::{
    BenchParameters, TableLine,
    call::{Answers, Connection},
    load::LoadTarget,
    pods,
    server::ServerProcess,
};

const WATCHERS: usize = 1_000;
const CONNECTIONS: usize = 50;
const EVENTS: u32 = 4_000;
const WRITERS: usize = 16;
/// The receive window of a watcher that reads nothing.
const SMALL_WINDOW: u32 = 65_535;

/// Measures deliveries per second: without stalled watchers, and with a tenth as many more that
/// never read.
pub(crate) async fn watch(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir("watch")?;
    let server = ServerProcess::podplane(bench, &dir).await?;
    let pod = pods::create()?;
    let writers = server.connections(WRITERS).await?;
    let create = LoadTarget::new(writers, pods::create_path::<Pod>(), move |n| pod.with(n));

    let mut connections = server.connections(CONNECTIONS).await?;
    let mut watches = open(&mut connections, WATCHERS).await?;
    let events = bench.many(EVENTS);
    let mut free = Vec::new();
    for _ in 0..bench.rounds(5) {
        free.push(deliveries(&create, &mut watches, events).await?);
    }
    let mut deaf = Vec::new();
    for _ in 0..CONNECTIONS {
        deaf.push(Connection::with_window(server.address, SMALL_WINDOW).await?);
    }
    let stalled = open(&mut deaf, WATCHERS / 10).await?;
    // They receive the existing objects, and then nothing reads from them.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut beside = Vec::new();
    for _ in 0..bench.rounds(5) {
        beside.push(deliveries(&create, &mut watches, events).await?);
    }
    drop(stalled);
    Ok(vec![
        TableLine::new("watch", free.clone(), Vec::new()),
        TableLine::new("watch-stalled", beside, free),
    ])
}

async fn open(connections: &mut [Connection], count: usize) -> Result<Vec<Answers>> {
    let mut watches = Vec::new();
    for number in 0..count {
        let connection = &mut connections[number % CONNECTIONS];
        watches.push(
            connection
                .stream(&pods::watch_path(), pods::watch()?)
                .await?,
        );
    }
    Ok(watches)
}

/// Writes pods as fast as a few writers can, until every watch has received all of them.
async fn deliveries(create: &LoadTarget, watches: &mut [Answers], events: u32) -> Result<f64> {
    let delivered = AtomicU64::new(0);
    let begun = Instant::now();
    let read = try_join_all(watches.iter_mut().map(|watch| async {
        let mut seen = 0;
        while seen < u64::from(events) {
            seen += watch.next().await?;
        }
        delivered.fetch_add(seen, Ordering::Relaxed);
        anyhow::Ok(())
    }));
    let (written, read) = join(create.exactly(WRITERS, events), read).await;
    written?;
    read?;
    #[expect(clippy::cast_precision_loss, reason = "a few million")]
    let delivered = delivered.into_inner() as f64;
    Ok(delivered / begun.elapsed().as_secs_f64())
}

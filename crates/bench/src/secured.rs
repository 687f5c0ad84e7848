//! The API server with and without TLS and access control, by turns.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::Result;
use podplane_api::core::Pod;

use crate::{
    BenchParameters, TableLine, load::LoadTarget, pods, server::ServerProcess, tls::Certificates,
};

const LASTING: Duration = Duration::from_secs(1);

/// The pods that are read.
const PODS: u32 = 1_000;

/// The number of new connections of a round.
const CONNECTS: u32 = 20;

/// The servers that are compared with the plain one: with TLS and client certificates, where
/// everybody may do everything; and with authorization too.
const GUARDS: [&str; 2] = ["tls", "rbac"];

async fn creates(server: &ServerProcess, callers: usize) -> Result<LoadTarget> {
    let pod = pods::create()?;
    let open = server.connections(callers).await?;
    let path = pods::create_path::<Pod>();
    Ok(LoadTarget::new(open, path, move |n| pod.with(n)))
}

async fn gets(server: &ServerProcess, callers: usize) -> Result<LoadTarget> {
    let get = pods::get()?;
    let open = server.connections(callers).await?;
    Ok(LoadTarget::new(open, pods::get_path(), move |n| {
        get.with(n % PODS)
    }))
}

/// Measures calls per second, the processor time of the server for each, and the time of a new
/// connection with one call.
pub(crate) async fn secured(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir("secured")?;
    let sides = sides(bench, &dir).await?;
    for side in &sides {
        // Their numbers are those of the gets.
        creates(side, 64).await?.exactly(64, PODS).await?;
    }
    let mut lines = connects(bench, &sides).await?;
    for callers in [1, 256] {
        let mut targets = Vec::new();
        for side in &sides {
            targets.push(gets(side, callers).await?);
        }
        let what = format!("get-{callers}");
        lines.extend(rates(bench, &sides, &targets, callers, &what).await?);
    }
    for (callers, first) in [(16, 1_000_000), (256, 5_000_000)] {
        let mut targets = Vec::new();
        for side in &sides {
            let creates = creates(side, callers).await?;
            creates.skip(first);
            targets.push(creates);
        }
        let what = format!("create-{callers}");
        lines.extend(rates(bench, &sides, &targets, callers, &what).await?);
    }
    Ok(lines)
}

/// Starts the plain server, and one for each of [`GUARDS`].
async fn sides(bench: &BenchParameters, dir: &Path) -> Result<Vec<ServerProcess>> {
    let certificates = Certificates::make(bench, dir)?;
    let mut sides = vec![ServerProcess::podplane(bench, dir).await?];
    for guard in GUARDS {
        let mode = match guard {
            "rbac" => "--authorization-mode=Node,RBAC",
            _ => "--authorization-mode=AlwaysAllow",
        };
        let mut flags = certificates.apiserver_flags();
        flags.push(mode.into());
        let client = certificates.apiserver_client()?;
        sides.push(ServerProcess::podplane_with(bench, dir, guard, &flags, Some(client)).await?);
    }
    Ok(sides)
}

/// The milliseconds of a new connection with one get.
async fn connects(bench: &BenchParameters, sides: &[ServerProcess]) -> Result<Vec<TableLine>> {
    let get = pods::get()?;
    let mut times = vec![Vec::new(); sides.len()];
    for round in 0..bench.rounds(10) {
        for turn in 0..sides.len() {
            let who = (round + turn) % sides.len();
            let begun = Instant::now();
            for number in 0..CONNECTS {
                let mut connection = sides[who].connect().await?;
                connection
                    .unary(&pods::get_path(), get.with(number))
                    .await?;
            }
            times[who].push(begun.elapsed().as_secs_f64() * 1e3 / f64::from(CONNECTS));
        }
    }
    Ok(beside_plain("connect", times))
}

/// The calls per second, and the microseconds of the server's processor time for each.
async fn rates(
    bench: &BenchParameters,
    sides: &[ServerProcess],
    targets: &[LoadTarget],
    callers: usize,
    what: &str,
) -> Result<Vec<TableLine>> {
    let mut rates = vec![Vec::new(); sides.len()];
    let mut processor = vec![Vec::new(); sides.len()];
    for round in 0..bench.rounds(7) {
        for turn in 0..sides.len() {
            let who = (round + turn) % sides.len();
            let (server, target) = (&sides[who], &targets[who]);
            let (used, calls) = (server.cpu_seconds()?, target.call_count());
            rates[who].push(target.rate(callers, LASTING).await?);
            let calls = f64::from(target.call_count().saturating_sub(calls).max(1));
            processor[who].push((server.cpu_seconds()? - used) * 1e6 / calls);
        }
    }
    let mut lines = beside_plain(what, rates);
    lines.extend(beside_plain(&format!("{what}-processor"), processor));
    Ok(lines)
}

/// A line for each guarded server, with the plain one as its peer.
fn beside_plain(what: &str, measured: Vec<Vec<f64>>) -> Vec<TableLine> {
    let mut measured = measured.into_iter();
    let plain = measured.next().unwrap_or_default();
    let guarded = GUARDS.iter().zip(measured);
    guarded
        .map(|(guard, own)| TableLine::new(format!("{what}-{guard}"), own, plain.clone()))
        .collect()
}

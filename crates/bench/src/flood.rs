//! One user's flood of lists, and another user's calls meanwhile.

use std::{
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podplane_api::core::Pod;
use podplane_pki::tls;
use rustix::process::setpriority_process;
use rustls::ClientConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};
use tokio_rustls::TlsConnector;

use crate::{
    BenchParameters, TableLine, call::Connection, load::LoadTarget, pods, server::ServerProcess,
};

/// The name of the server's directory.
const SERVER: &str = "podplane";
const PODS: u32 = 20_000;
const WRITERS: usize = 64;
/// The clients of the flood, each of which lists again and again.
const CLIENTS: usize = 50;
const LASTING: Duration = Duration::from_secs(10);
/// The time in which the flood reaches its level before anything is measured.
const RISE: Duration = Duration::from_secs(2);
/// The wait of a client whose list is refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The users, each with its token.
const TOKENS: &str = "fill,filler,1,system:masters\nflood,mallory,2,\ncalm,ada,3,\n";

/// Measures gets and creates of one user, alone and beside another user's flood, in milliseconds.
pub(crate) async fn flood(bench: &BenchParameters) -> Result<Vec<TableLine>> {
    let dir = bench.row_dir("flood")?;
    let server = start(bench, &dir).await?;
    let authority = dir.join(SERVER).join("pki/ca.crt");
    let config = client(&authority, tls::HTTP2)?;
    let mut filling = Vec::new();
    for _ in 0..WRITERS {
        let one = Connection::secured(server.address, &config).await?;
        filling.push(one.by("fill"));
    }
    let create = pods::create()?;
    let fill = LoadTarget::new(filling, pods::create_path::<Pod>(), move |n| create.with(n));
    fill.exactly(WRITERS, bench.many(PODS)).await?;
    let mut calm = CalmUser {
        connection: Connection::secured(server.address, &config)
            .await?
            .by("calm"),
        next: PODS,
    };
    let (mut busy, mut quiet) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds(5) {
        quiet.push(calm.calls(LASTING).await?);
        let mut flood = start_flood(server.address, &authority)?;
        tokio::time::sleep(RISE).await;
        busy.push(calm.calls(LASTING).await?);
        ensure!(flood.wait()?.success(), "the flood has failed");
    }
    let lines = [
        ("flood-get-p50", false, 0.5),
        ("flood-get-p99", false, 0.99),
        ("flood-create-p50", true, 0.5),
        ("flood-create-p99", true, 0.99),
    ];
    let of = |rounds: &[CallTimes], creates: bool, share: f64| -> Vec<f64> {
        let each = rounds.iter().map(|round| match creates {
            true => quantile(&round.creates, share),
            false => quantile(&round.gets, share),
        });
        each.collect()
    };
    Ok(lines
        .into_iter()
        .map(|(name, creates, share)| {
            TableLine::new(name, of(&busy, creates, share), of(&quiet, creates, share))
        })
        .collect())
}

/// The times of calls, in milliseconds.
#[derive(Debug, Default)]
struct CallTimes {
    gets: Vec<f64>,
    creates: Vec<f64>,
}

/// A user who makes one call after the other.
struct CalmUser {
    connection: Connection,
    next: u32,
}

impl CalmUser {
    async fn calls(&mut self, lasting: Duration) -> Result<CallTimes> {
        let (get, create) = (pods::get()?, pods::create()?);
        let (get_path, create_path) = (pods::get_path(), pods::create_path::<Pod>());
        let mut times = CallTimes::default();
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            self.next += 1;
            let one = Instant::now();
            self.connection
                .unary(&create_path, create.with(self.next))
                .await?;
            times.creates.push(one.elapsed().as_secs_f64() * 1e3);
            for _ in 0..4 {
                let one = Instant::now();
                self.connection
                    .unary(&get_path, get.with(self.next))
                    .await?;
                times.gets.push(one.elapsed().as_secs_f64() * 1e3);
            }
            // As a person or a controller calls, and not as fast as possible.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(times)
    }
}

/// The value below which the share of the values lies.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "an index of a few thousand values"
    )]
    let at = (share * sorted.len() as f64) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

async fn start(bench: &BenchParameters, dir: &Path) -> Result<ServerProcess> {
    let tokens = dir.join("tokens.csv");
    std::fs::write(&tokens, TOKENS)?;
    let tokens = format!("--token-auth-file={}", tokens.display());
    let flags = [tokens.into(), "--authorization-mode=AlwaysAllow".into()];
    ServerProcess::podplane_with(bench, dir, SERVER, &flags, None).await
}

/// The TLS of a client that has a token and no certificate.
fn client(authority: &Path, protocol: &[u8]) -> Result<Arc<ClientConfig>> {
    let mut config = tls::client(&tls::read_trust(authority)?).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

/// Starts the flood as a process of its own. It has a lower priority, since its clients would have
/// machines of their own.
fn start_flood(address: SocketAddr, authority: &Path) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--flood", &address.to_string(), "--authority"]);
    command.arg(authority);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().context("failed to start the flood")
}

/// Lists all pods by many clients, for as long as a round lasts. Each client is a task of its own:
/// within one task those that have something to read keep the others from sending their requests,
/// and the server ends a connection that is silent for ten seconds.
pub(crate) async fn list_again_and_again(address: SocketAddr, authority: &Path) -> Result<()> {
    setpriority_process(None, 10)?;
    let tls = TlsConnector::from(client(authority, tls::HTTP1)?);
    let end = Instant::now() + RISE + LASTING;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(list_until(end, address, tls.clone()));
    }
    let (mut listed, mut refused) = (0, 0);
    while let Some(counts) = clients.join_next().await {
        let (more_listed, more_refused) = counts??;
        listed += more_listed;
        refused += more_refused;
    }
    note(&format!("flood: {listed} lists, {refused} refused"));
    Ok(())
}

/// Lists all pods again and again; returns how many lists were complete, and how many refused.
async fn list_until(end: Instant, address: SocketAddr, tls: TlsConnector) -> Result<(u32, u32)> {
    let (mut listed, mut refused) = (0, 0);
    while let Ok(complete) = tokio::time::timeout_at(end.into(), list(address, &tls)).await {
        if complete? {
            listed += 1;
        } else {
            refused += 1;
            tokio::time::sleep(RETRY_AFTER).await;
        }
    }
    Ok((listed, refused))
}

#[expect(clippy::print_stderr, reason = "progress of a tool")]
fn note(text: &str) {
    eprintln!("bench: {text}");
}

/// Lists all pods as JSON, over a connection of its own. False if that is refused for now.
async fn list(address: SocketAddr, tls: &TlsConnector) -> Result<bool> {
    let stream = TcpStream::connect(address).await?;
    let mut stream = tls.connect(address.ip().into(), stream).await?;
    let request = format!(
        "GET /api/v1/pods HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer flood\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut start = [0; 12];
    stream.read_exact(&mut start).await?;
    let mut buffer = vec![0; 256 << 10];
    while stream.read(&mut buffer).await? > 0 {}
    match &start[9..] {
        b"200" => Ok(true),
        b"429" => Ok(false),
        code => anyhow::bail!("listing was answered with {}", code.escape_ascii()),
    }
}

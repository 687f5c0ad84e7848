//! The servers under load, as child processes that are killed when dropped.

use std::{
    ffi::OsString,
    fs::{self, File},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, kill_process},
};
use rustls::ClientConfig;

use crate::{BenchParameters, call::Connection, tls::Certificates};

/// The time in which a server must accept connections.
const PATIENCE: Duration = Duration::from_secs(120);

const MAX_CONNECTIONS: usize = 64;

/// A running server.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The client's side of TLS, if the server has that.
    tls: Option<Arc<ClientConfig>>,
}

impl ServerProcess {
    /// Starts podplane's API server with sled, in `dir`, for anyone and without TLS.
    pub(crate) async fn podplane(bench: &BenchParameters, dir: &Path) -> Result<Self> {
        let open = ["--authentication=none".into()];
        Self::podplane_with(bench, dir, "podplane", &open, None).await
    }

    /// Starts podplane's API server with sled, in `dir`, with TLS and clients that are known by
    /// their certificates and may do everything.
    pub(crate) async fn podplane_secured(
        bench: &BenchParameters,
        dir: &Path,
        certificates: &Certificates,
    ) -> Result<Self> {
        let mut flags = certificates.apiserver_flags();
        flags.push("--authorization-mode=AlwaysAllow".into());
        let client = certificates.apiserver_client()?;
        Self::podplane_with(bench, dir, "podplane", &flags, Some(client)).await
    }

    /// Starts podplane's API server on an etcd, for anyone and without TLS.
    pub(crate) async fn podplane_on(
        bench: &BenchParameters,
        dir: &Path,
        etcd: &Self,
    ) -> Result<Self> {
        let endpoint = format!("--etcd-endpoints=http://{}", etcd.address);
        let flags = ["--authentication=none", "--store=etcd", &endpoint].map(Into::into);
        Self::podplane_with(bench, dir, "podplane", &flags, None).await
    }

    /// Starts podplane's API server, with sled unless a flag says otherwise, in the directory `name`
    /// of `dir`, with more flags; with TLS if there is a client for it.
    pub(crate) async fn podplane_with(
        bench: &BenchParameters,
        dir: &Path,
        name: &str,
        flags: &[OsString],
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(bench.podplane());
        command
            .args(["apiserver", "--listen", &address.to_string(), "--data-dir"])
            .arg(dir.join(name))
            .args(flags);
        Self::start(command, address, dir, name, tls).await
    }

    /// Starts podplane's scheduler for the API server at that address.
    pub(crate) async fn scheduler(
        bench: &BenchParameters,
        dir: &Path,
        apiserver: SocketAddr,
    ) -> Result<Self> {
        let address = free_address()?;
        let mut command = Command::new(bench.podplane());
        command.args(["scheduler", "--listen", &address.to_string()]);
        command.args(["--server", &apiserver.to_string()]);
        // A killed leader's successor would wait for its Lease.
        command.arg("--leader-elect=false");
        Self::start(command, address, dir, "scheduler", None).await
    }

    /// Starts etcd in its default configuration, in `dir`.
    pub(crate) async fn etcd(dir: &Path) -> Result<Self> {
        Self::etcd_with(dir, "http", &[], None).await
    }

    /// The same with TLS and certificates of clients.
    pub(crate) async fn etcd_secured(dir: &Path, certificates: &Certificates) -> Result<Self> {
        let client = certificates.etcd_client()?;
        Self::etcd_with(dir, "https", &certificates.etcd_flags(), Some(client)).await
    }

    async fn etcd_with(
        dir: &Path,
        scheme: &str,
        flags: &[OsString],
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self> {
        let (address, peers) = (free_address()?, free_address()?);
        let mut command = Command::new("etcd");
        let (url, peer_url) = (format!("{scheme}://{address}"), format!("http://{peers}"));
        command
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args([
                "--listen-peer-urls",
                &peer_url,
                "--initial-advertise-peer-urls",
                &peer_url,
            ])
            .args(["--initial-cluster", &format!("default={peer_url}")])
            // etcd's own limit of 2 GiB must not affect the measurement.
            .args(["--quota-backend-bytes", "8589934592", "--data-dir"])
            .arg(dir.join("etcd"))
            .args(flags);
        Self::start(command, address, dir, "etcd", tls).await
    }

    async fn start(
        mut command: Command,
        address: SocketAddr,
        dir: &Path,
        name: &str,
        tls: Option<Arc<ClientConfig>>,
    ) -> Result<Self> {
        let log = File::create(dir.join(format!("{name}.log")))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("failed to start {name}"))?;
        let mut server = Self {
            child,
            address,
            tls,
        };
        server.listening().await.with_context(|| {
            let log = fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default();
            format!("{name} failed to start: {log}")
        })?;
        Ok(server)
    }

    async fn listening(&mut self) -> Result<()> {
        let begun = Instant::now();
        while self.connect().await.is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("process exited: {status}");
            }
            if begun.elapsed() > PATIENCE {
                bail!("nothing listens at {}", self.address);
            }
            tokio::time::sleep(Duration::from_micros(500)).await;
        }
        Ok(())
    }

    /// Opens a connection.
    pub(crate) async fn connect(&self) -> Result<Connection> {
        match &self.tls {
            None => Connection::open(self.address).await,
            Some(config) => Connection::secured(self.address, config).await,
        }
    }

    /// Opens the connections that this many callers share.
    pub(crate) async fn connections(&self, callers: usize) -> Result<Vec<Connection>> {
        let mut connections = Vec::new();
        for _ in 0..callers.min(MAX_CONNECTIONS) {
            connections.push(self.connect().await?);
        }
        Ok(connections)
    }

    /// The resident memory in KiB.
    pub(crate) fn memory(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number
            .context("VmRSS is missing in /proc/PID/status")?
            .parse()?)
    }

    /// The processor time that the process has used, in seconds: utime and stime of proc_pid_stat(5).
    pub(crate) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name of the program, in parentheses, may contain spaces.
        let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
        let fields = fields.into_iter().flat_map(str::split_whitespace);
        let ticks: Vec<f64> = fields
            .skip(11)
            .take(2)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let ticks_per_second = f64::from(u32::try_from(clock_ticks_per_second())?);
        Ok(ticks.iter().sum::<f64>() / ticks_per_second)
    }

    /// Stops the process until [`go_on`](Self::go_on).
    pub(crate) fn pause(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Lets the stopped process continue.
    pub(crate) fn go_on(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Kills the process, without a graceful shutdown.
    pub(crate) fn end(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // It may have exited already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn free_address() -> Result<SocketAddr> {
    let listener =
        std::net::TcpListener::bind("127.0.0.1:0").context("failed to find a free port")?;
    Ok(listener.local_addr()?)
}

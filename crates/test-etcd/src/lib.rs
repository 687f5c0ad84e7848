//! Debian's etcd, for tests: one member with its data in a directory of its own, ended when it is
//! dropped.

use std::{
    env, fs,
    io::Write as _,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tempfile::TempDir;

/// The limit of a start.
const START: Duration = Duration::from_secs(30);

/// A running etcd.
#[derive(Debug)]
pub struct Etcd {
    process: Child,
    program: PathBuf,
    flags: Vec<String>,
    client: SocketAddr,
    peer: SocketAddr,
    dir: TempDir,
}

impl Etcd {
    /// Starts an etcd with these additional flags. `None`, with a visible line, if `PODPLANE_SKIP`
    /// names etcd.
    ///
    /// # Panics
    ///
    /// If there is no etcd, or it does not start.
    pub fn start(flags: &[&str]) -> Option<Self> {
        let program = program()?;
        let flags: Vec<String> = flags.iter().map(|&flag| flag.to_owned()).collect();
        // Another process may take a port before etcd does.
        let mut attempts = (0..5).map(|_| Self::attempt(&program, &flags));
        let started = attempts.find_map(Result::ok);
        let started = started.map_or_else(|| Self::attempt(&program, &flags), Ok);
        Some(started.unwrap_or_else(|error| panic!("failed to start etcd: {error:#}")))
    }

    fn attempt(program: &Path, flags: &[String]) -> Result<Self> {
        let dir = tempfile::tempdir().context("failed to create a directory")?;
        let (client, peer) = (free_port()?, free_port()?);
        let mut etcd = Self {
            process: spawn(program, flags, (client, peer), &dir)?,
            program: program.to_owned(),
            flags: flags.to_owned(),
            client,
            peer,
            dir,
        };
        etcd.wait()?;
        Ok(etcd)
    }

    /// The URL for clients.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    /// The program etcdctl, of the package etcd-client.
    ///
    /// # Panics
    ///
    /// If it is missing.
    pub fn etcdctl(&self) -> PathBuf {
        let found = find("etcdctl", "etcd-client");
        found.unwrap_or_else(|| panic!("{}", remedy("etcdctl", "etcd-client")))
    }

    /// The id of the process, for signals.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills the process, as a power cut of the machine does.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill().context("failed to kill etcd")?;
        self.process.wait().context("failed to wait for etcd")?;
        Ok(())
    }

    /// Starts it again on the same data and ports.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start_again(&mut self) -> Result<()> {
        let places = (self.client, self.peer);
        self.process = spawn(&self.program, &self.flags, places, &self.dir)?;
        self.wait()
    }

    /// Waits until clients can connect.
    fn wait(&mut self) -> Result<()> {
        let begun = Instant::now();
        while TcpStream::connect(self.client).is_err() {
            if let Some(status) = self.process.try_wait().context("failed to wait for etcd")? {
                let log = fs::read_to_string(log(&self.dir)).unwrap_or_default();
                bail!("etcd ended with {status}:\n{log}");
            }
            ensure!(begun.elapsed() < START, "etcd does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            // A panic in a destructor would hide the test's own.
            _ = writeln!(std::io::stderr(), "{error:#}");
        }
    }
}

fn spawn(
    program: &Path,
    flags: &[String],
    (client, peer): (SocketAddr, SocketAddr),
    dir: &TempDir,
) -> Result<Child> {
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(log(dir))
        .context("failed to create the log of etcd")?;
    let mut command = Command::new(program);
    command
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .args(["--name", "test", "--logger", "zap"])
        .args(["--listen-client-urls", &format!("http://{client}")])
        .args(["--advertise-client-urls", &format!("http://{client}")])
        .args(["--listen-peer-urls", &format!("http://{peer}")])
        .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
        .args(["--initial-cluster", &format!("test=http://{peer}")])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command.spawn().context("failed to start etcd")
}

fn log(dir: &TempDir) -> PathBuf {
    dir.path().join("log")
}

fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("failed to find a port")?;
    listener.local_addr().context("failed to find a port")
}

/// The program: of `PATH`, or the one that `cargo xtask test` unpacks.
fn program() -> Option<PathBuf> {
    let skipped = env::var("PODPLANE_SKIP").unwrap_or_default();
    if skipped.split(',').any(|skip| skip == "etcd") {
        _ = writeln!(std::io::stderr(), "SKIPPED: PODPLANE_SKIP names etcd");
        return None;
    }
    let found = find("etcd", "etcd-server");
    assert!(found.is_some(), "{}", remedy("etcd", "etcd-server"));
    found
}

/// A program of `PATH`, or of the package that `cargo xtask test` unpacks.
fn find(program: &str, package: &str) -> Option<PathBuf> {
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/peers");
    let unpacked = Path::new(unpacked).join(package).join("usr/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let mut files = env::split_paths(&path)
        .chain([unpacked])
        .map(|dir| dir.join(program));
    files.find(|file| file.is_file())
}

fn remedy(program: &str, package: &str) -> String {
    format!(
        "this test needs {program}: run cargo xtask test, which unpacks Debian's package {package}, or put it into a directory of PATH; or set PODPLANE_SKIP=etcd"
    )
}

//! Debian's etcd, for tests: members with their data in directories of their own, ended when they
//! are dropped.

use std::{
    env, fs,
    io::Write as _,
    net::{SocketAddr, TcpListener},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use podplane_test_requirements::require;
use tempfile::TempDir;

/// The limit of a start.
const START: Duration = Duration::from_secs(30);
/// The message of etcd that it serves clients.
const SERVES: &str = "serving client traffic";

/// A running etcd: the only member of its cluster, or one of several.
#[derive(Debug)]
pub struct Etcd {
    process: Child,
    program: PathBuf,
    flags: Vec<String>,
    places: Places,
    dir: TempDir,
    /// The user of a member that can be [cut off](Self::cut_off).
    user: Option<u32>,
}

/// The addresses of a member.
#[derive(Clone, Copy, Debug)]
struct Places {
    client: SocketAddr,
    peer: SocketAddr,
    /// `http` or `https`, for clients.
    scheme: &'static str,
}

/// The files of a member with TLS, in PEM.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The authority of the certificates of the member and of its clients.
    pub authority: PathBuf,
    /// The member's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Places {
    fn free(scheme: &'static str) -> Result<Self> {
        Ok(Self {
            client: free_port()?,
            peer: free_port()?,
            scheme,
        })
    }

    fn client_url(self) -> String {
        format!("{}://{}", self.scheme, self.client)
    }

    /// The name of the member.
    fn name(self) -> String {
        format!("test-{}", self.peer.port())
    }
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
        Some(Self::one(&program, &flags, "http"))
    }

    /// Starts an etcd that takes clients with certificates alone. `None` as for
    /// [`start`](Self::start).
    ///
    /// # Panics
    ///
    /// If there is no etcd, or it does not start.
    pub fn start_secured(files: &EtcdTls) -> Option<Self> {
        let program = program()?;
        let file = |file: &Path| file.display().to_string();
        let flags = [
            "--client-cert-auth".to_owned(),
            "--trusted-ca-file".to_owned(),
            file(&files.authority),
            "--cert-file".to_owned(),
            file(&files.certificate),
            "--key-file".to_owned(),
            file(&files.key),
        ];
        Some(Self::one(&program, &flags, "https"))
    }

    /// Starts a cluster of so many members. `None` as for [`start`](Self::start).
    ///
    /// # Panics
    ///
    /// If there is no etcd, or it does not start.
    pub fn start_members(count: usize) -> Option<Vec<Self>> {
        let program = program()?;
        Some(started(|| {
            Self::attempt(&program, &[], "http", &vec![None; count])
        }))
    }

    /// Starts a cluster of so many members, each with a disk and a user of its own. `None` as for
    /// [`start`](Self::start).
    ///
    /// # Panics
    ///
    /// If there is no etcd, or it does not start; if the caller is not root, or has not network and
    /// mounts of its own ([`apart`]).
    pub fn start_members_apart(count: u32) -> Option<Vec<Self>> {
        let program = program()?;
        let nftables = "table inet cut { chain out { type filter hook output priority 0; }; }";
        tool("nft", &[nftables]).expect("a table of its own");
        let users: Vec<_> = (1..=count).map(|number| Some(20_000 + number)).collect();
        Some(started(|| Self::attempt(&program, &[], "http", &users)))
    }

    fn one(program: &Path, flags: &[String], scheme: &'static str) -> Self {
        started(|| {
            let mut members = Self::attempt(program, flags, scheme, &[None])?;
            members.pop().context("no member")
        })
    }

    fn attempt(
        program: &Path,
        flags: &[String],
        scheme: &'static str,
        users: &[Option<u32>],
    ) -> Result<Vec<Self>> {
        let places = users.iter().map(|_| Places::free(scheme));
        Self::at(program, flags, &places.collect::<Result<Vec<_>>>()?, users)
    }

    fn at(
        program: &Path,
        flags: &[String],
        places: &[Places],
        users: &[Option<u32>],
    ) -> Result<Vec<Self>> {
        let cluster = places
            .iter()
            .map(|member| format!("{}=http://{}", member.name(), member.peer));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        let mut flags = flags.to_owned();
        flags.extend(["--initial-cluster".to_owned(), cluster]);
        let mut members = Vec::new();
        for (&places, &user) in places.iter().zip(users) {
            let dir = match user {
                None => tempfile::tempdir().context("failed to create a directory")?,
                Some(user) => disk_of(user)?,
            };
            members.push(Self {
                process: spawn(program, &flags, places, &dir, user)?,
                program: program.to_owned(),
                flags: flags.clone(),
                places,
                dir,
                user,
            });
        }
        for member in &mut members {
            member.wait(0)?;
        }
        Ok(members)
    }

    /// The URL for clients.
    pub fn endpoint(&self) -> String {
        self.places.client_url()
    }

    /// Runs etcdctl, of the package etcd-client, against this member; returns its output.
    ///
    /// # Errors
    ///
    /// If it fails.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn etcdctl(&self, arguments: &[&str]) -> Result<String> {
        let found = find("etcdctl", "etcd-client");
        let program = found.unwrap_or_else(|| panic!("{}", install("etcdctl", "etcd-client")));
        let mut etcdctl = Command::new(program);
        etcdctl.env("ETCDCTL_API", "3");
        etcdctl
            .args(["--endpoints", &self.endpoint()])
            .args(arguments);
        let ended = etcdctl.output().context("failed to start etcdctl")?;
        let stderr = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "etcdctl {arguments:?}: {stderr}");
        String::from_utf8(ended.stdout).context("invalid UTF-8 of etcdctl")
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

    /// Starts it again on the same data and ports. It serves clients once most members run.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start_again(&mut self) -> Result<()> {
        Self::start_all_again(std::slice::from_mut(self))
    }

    /// Starts members again on the same data and ports, and waits for all of them.
    ///
    /// # Errors
    ///
    /// If one does not start.
    pub fn start_all_again(members: &mut [Self]) -> Result<()> {
        let mut logged = Vec::new();
        for member in &mut *members {
            logged.push(member.log()?.len());
            member.process = spawn(
                &member.program,
                &member.flags,
                member.places,
                &member.dir,
                member.user,
            )?;
        }
        let mut started = members.iter_mut().zip(logged);
        started.try_for_each(|(member, logged)| member.wait(logged))
    }

    /// Drops each packet that the member sends, so that it is alone.
    ///
    /// # Errors
    ///
    /// If it has no user of its own, or nft fails.
    pub fn cut_off(&self) -> Result<()> {
        let user = self.user.context("the member has no user of its own")?;
        tool(
            "nft",
            &[&format!("add rule inet cut out meta skuid {user} drop")],
        )
    }

    /// Ends [`cut_off`](Self::cut_off) of all members.
    ///
    /// # Errors
    ///
    /// If nft fails.
    pub fn connect_all() -> Result<()> {
        tool("nft", &["flush chain inet cut out"])
    }

    /// Takes all space of the member's disk, and waits until it has ended for that.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn fill_disk(&mut self) -> Result<()> {
        let mut ballast = fs::File::create(self.ballast()).context("failed to fill the disk")?;
        while ballast.write_all(&[7; 65536]).is_ok() {}
        self.process.wait().context("failed to wait for etcd")?;
        Ok(())
    }

    /// Ends [`fill_disk`](Self::fill_disk).
    ///
    /// # Errors
    ///
    /// If the file cannot be removed.
    pub fn empty_disk(&self) -> Result<()> {
        fs::remove_file(self.ballast()).context("failed to empty the disk")
    }

    fn ballast(&self) -> PathBuf {
        self.dir.path().join("ballast")
    }

    /// Waits until it logs, after so many bytes, that it serves clients. That its port takes a
    /// connection is not enough: it may be another process's, which took the port first.
    fn wait(&mut self, logged: usize) -> Result<()> {
        let begun = Instant::now();
        loop {
            let ended = self.process.try_wait().context("failed to wait for etcd")?;
            let log = self.log()?;
            if let Some(status) = ended {
                bail!("etcd ended with {status}:\n{log}");
            }
            let log = log.get(logged..).unwrap_or_default();
            if log.contains(SERVES) {
                return Ok(());
            }
            ensure!(begun.elapsed() < START, "etcd does not serve:\n{log}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn log(&self) -> Result<String> {
        fs::read_to_string(log(&self.dir)).context("failed to read the log of etcd")
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let ended = self.kill().and_then(|()| match self.user {
            // The directory of a disk cannot be removed.
            Some(_) => tool("umount", &[&self.dir.path().display().to_string()]),
            None => Ok(()),
        });
        if let Err(error) = ended {
            // A panic in a destructor would hide the test's own.
            _ = writeln!(std::io::stderr(), "{error:#}");
        }
    }
}

/// The first start that succeeds: another process may take a port before etcd does.
fn started<T>(start: impl Fn() -> Result<T>) -> T {
    let mut attempts = (0..5).map(|_| start());
    let started = attempts.find_map(Result::ok).map_or_else(start, Ok);
    started.unwrap_or_else(|error| panic!("failed to start etcd: {error:#}"))
}

/// A directory that is a small disk of this user.
fn disk_of(user: u32) -> Result<TempDir> {
    let dir = tempfile::tempdir().context("failed to create a directory")?;
    let path = dir.path().display().to_string();
    // etcd reserves 64 MB for its log, and as much for the next one.
    let options = format!("size=160m,mode=700,uid={user}");
    tool("mount", &["-t", "tmpfs", "-o", &options, "tmpfs", &path])?;
    Ok(dir)
}

/// Runs a tool that must succeed.
fn tool(name: &str, arguments: &[&str]) -> Result<()> {
    let ended = Command::new(name).args(arguments).output();
    let ended = ended.with_context(|| format!("failed to start {name}"))?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{name} {arguments:?}: {stderr}");
    Ok(())
}

/// Runs the body of a test of this program in a process with a network and mounts of its own, which
/// the kernel removes with the process. `test` is the name of the test that calls this.
///
/// # Panics
///
/// If the body fails, or the namespaces cannot be made.
pub fn apart(test: &str, body: impl FnOnce() -> Result<()>) {
    const CHILD: &str = "PODPLANE_TEST_APART";
    if env::var_os(CHILD).is_some() {
        tool("ip", &["link", "set", "lo", "up"]).expect("a loopback interface");
        return body().expect("the body of the test succeeds");
    }
    let this = env::current_exe().expect("the path of this program");
    let ended = Command::new("unshare")
        .args([
            "--net",
            "--mount",
            "--propagation",
            "private",
            "--kill-child",
        ])
        .arg("--fork")
        .arg(this)
        .args([test, "--exact", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("unshare, of util-linux");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr),
    );
    assert!(
        ended.status.success() && stdout.contains("1 passed"),
        "{stdout}\n{stderr}"
    );
}

fn spawn(
    program: &Path,
    flags: &[String],
    places: Places,
    dir: &TempDir,
    user: Option<u32>,
) -> Result<Child> {
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(log(dir))
        .context("failed to create the log of etcd")?;
    let (client, peer) = (places.client_url(), places.peer);
    let mut command = Command::new(program);
    command
        .arg("--data-dir")
        .arg(dir.path().join("data"))
        .args(["--name", &places.name(), "--logger", "zap"])
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &format!("http://{peer}")])
        .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    if let Some(user) = user {
        command.uid(user);
    }
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
    let found = find("etcd", "etcd-server");
    let install = install("etcd", "etcd-server");
    require("etcd", found.is_some(), &install).then_some(found)?
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

fn install(program: &str, package: &str) -> String {
    format!(
        "run cargo xtask test, which unpacks Debian's package {package}, or put {program} into a directory of PATH"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etcd_whose_port_another_took_does_not_start() {
        let Some(other) = Etcd::start(&[]) else {
            return;
        };
        let places = Places {
            peer: free_port().unwrap(),
            ..other.places
        };
        let started = Etcd::at(&other.program, &[], &[places], &[None]);
        let message = format!("{:#}", started.unwrap_err());
        assert!(message.contains("address already in use"), "{message}");
    }
}

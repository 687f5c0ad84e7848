//! A Docker daemon of the test's own, in namespaces that end with it: its bridges, rules, mounts
//! and containers exist there alone, and nothing of them is left.

use std::{
    ffi::OsStr,
    fs,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_test_cluster::eventually;
use podplane_tests::{
    console::Session,
    programs::{ProgramOutput, finish},
};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::LinkNameSpaceType,
};
use tempfile::TempDir;

const DOCKERD: &str = "/usr/sbin/dockerd";
/// The last release in Python.
const COMPOSE_1: &str = "/usr/bin/docker-compose";

/// Mounts a /sys and a /run of the daemon's own, with the machine's control groups, and becomes the
/// daemon.
const START: &str = r#"
mount --rbind /sys/fs/cgroup "$1/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$1/cgroup" /sys/fs/cgroup
mount -t tmpfs tmpfs /run
ip link set lo up
exec dockerd --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root /run/docker --pidfile /run/docker.pid --cgroup-parent "/$2"
"#;

/// Returns true if Debian's docker.io and docker-compose are installed.
pub(crate) fn is_there() -> bool {
    Path::new(DOCKERD).exists() && Path::new(COMPOSE_1).exists()
}

/// The two programs that read a compose file.
#[derive(Clone, Debug)]
pub(crate) enum Compose {
    /// `docker-compose` 1.29.
    One,
    /// The program that runs as `docker compose`.
    Two(PathBuf),
}

impl Compose {
    fn program(&self) -> &Path {
        match self {
            Self::One => Path::new(COMPOSE_1),
            Self::Two(program) => program,
        }
    }
}

/// The running daemon; ended, with all its containers, when it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    process: Child,
    dir: TempDir,
    /// The name of its control groups.
    group: String,
}

impl Daemon {
    /// Starts the daemon, and moves the calling thread into its network namespace, where published
    /// ports are.
    pub(crate) async fn start() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("pp-").tempdir()?;
        fs::create_dir(dir.path().join("cgroup"))?;
        let group = dir.path().file_name().context("a name")?;
        let group = group.to_string_lossy().into_owned();
        let log = fs::File::create(dir.path().join("dockerd.log"))?;
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--net"])
            .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-ec", START, "dockerd"])
            .arg(dir.path())
            .arg(&group)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("start dockerd")?;
        let daemon = Self {
            process,
            dir,
            group,
        };
        let answers = || async { daemon.docker("version").code };
        eventually("dockerd answers", answers, |code| *code == Some(0)).await?;
        let network = fs::File::open(format!("/proc/{}/ns/net", daemon.init()?.as_raw_nonzero()))?;
        rustix::thread::move_into_link_name_space(
            network.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?;
        Ok(daemon)
    }

    /// The daemon itself, the first process of its namespace.
    fn init(&self) -> Result<Pid> {
        let id = self.process.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let first = children.split_whitespace().next().context("dockerd")?;
        Pid::from_raw(first.parse()?).context("its process")
    }

    /// A directory that is removed with the daemon.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Runs `docker` with arguments that are separated by blanks.
    pub(crate) fn docker(&self, args: &str) -> ProgramOutput {
        finish(self.command("docker").args(args.split_whitespace()))
    }

    /// Runs compose on the project in `dir`, with these variables.
    pub(crate) fn compose(
        &self,
        compose: &Compose,
        dir: &Path,
        variables: &[(&str, &str)],
        args: &str,
    ) -> ProgramOutput {
        let mut compose = self.command(compose.program());
        compose.current_dir(dir).args(args.split_whitespace());
        finish(
            compose
                .env("COMPOSE_PROJECT_NAME", "podplane")
                .envs(variables.iter().copied()),
        )
    }

    /// A command line of a client of the daemon.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let socket = self.dir().join("docker.sock");
        let mut command = Command::new(program);
        command
            .stdin(Stdio::null())
            .env("DOCKER_HOST", format!("unix://{}", socket.display()));
        command
    }

    /// A shell in `dir` for `docker` and what is in `path`.
    pub(crate) fn session(&self, dir: &Path, path: &str) -> Result<Session> {
        let mut session = Session::start(dir, path)?;
        let socket = self.dir().join("docker.sock");
        session.run(&format!("export DOCKER_HOST=unix://{}", socket.display()))?;
        Ok(session)
    }

    /// A command line of a page, as it runs here: ids of processes are those of the daemon's
    /// namespace, and `docker compose` is this program.
    pub(crate) fn typed(&self, compose: &Compose, line: &str) -> Result<String> {
        let program = compose.program().display();
        // A reader has a terminal, and the test has none: what reads standard input would take the
        // next lines from the shell.
        let mut line = line.replace("run --rm -T", "run --rm");
        for command in ["exec", "run --rm"] {
            line = line.replace(
                &format!("docker compose {command}"),
                &format!("</dev/null {program} {command} -T"),
            );
        }
        let line = line.replace("docker compose", &program.to_string());
        let enter = format!("nsenter --pid --target {} ", self.init()?.as_raw_nonzero());
        Ok(line.replace("sudo ", &enter))
    }

    /// The directory of a volume.
    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        let volumes = self.dir().join("data/volumes");
        volumes.join(name).join("_data")
    }

    /// Kills a process of a container by its id in the daemon's namespace: as in a crash, and not
    /// as with `docker kill`, after which a container is meant to be down.
    pub(crate) fn crash(&self, pid: u64) -> Result<()> {
        let mut enter = Command::new("nsenter");
        enter.args([
            "--pid",
            "--target",
            &self.init()?.as_raw_nonzero().to_string(),
        ]);
        finish(enter.args(["kill", "-KILL", &pid.to_string()])).ok();
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        // The first process of a namespace takes all others with it, and is gone only after them.
        match self.init() {
            Ok(init) => kill_process(init, Signal::KILL)?,
            Err(_) => self.process.kill()?,
        }
        self.process.wait()?;
        let hierarchies = fs::read_dir("/sys/fs/cgroup")?.flatten();
        for hierarchy in hierarchies.map(|entry| entry.path()) {
            remove_groups(&hierarchy.join(&self.group));
        }
        remove_groups(&Path::new("/sys/fs/cgroup").join(&self.group));
        Ok(())
    }
}

impl Drop for Daemon {
    #[expect(clippy::print_stderr, reason = "a test")]
    fn drop(&mut self) {
        let log = self.dir().join("dockerd.log");
        if std::thread::panicking() {
            let text = fs::read_to_string(log).unwrap_or_default();
            let last: Vec<_> = text.lines().rev().take(20).collect();
            eprintln!("dockerd's last words, backwards: {last:#?}");
        }
        if let Err(error) = self.end() {
            eprintln!("end dockerd: {error}");
        }
    }
}

/// Removes control groups, the leaves first. Only directories can be removed there, and only empty
/// groups.
fn remove_groups(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    _ = fs::remove_dir(dir);
}

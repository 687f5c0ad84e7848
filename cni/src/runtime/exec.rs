//! One execution of a plugin program: pipes, deadline, and the meaning of its exit.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use backon::{BlockingRetryable as _, ConstantBuilder};
use podplane_host::{clock::Instant, fs, process};
use podplane_netlink::KernelLimit;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, PidfdFlags, Signal, WaitOptions, waitpid},
};

use super::PluginError;
use crate::{
    sys::{self, SpawnParams},
    trace,
    types::{CniError, json},
};

/// The number of bytes kept of each output of a plugin; the rest is read and dropped.
const KEPT: usize = 1 << 20;
/// The number of reads between two looks at the clock, so that a plugin that never stops printing
/// is still killed in time.
const READS: usize = 256;

/// The output of a plugin that succeeded.
#[derive(Debug)]
pub struct Output {
    /// The result, or nothing.
    pub stdout: Vec<u8>,
    /// The plugin's log.
    pub stderr: Vec<u8>,
}

/// Finds the program of a plugin: the first directory with a regular file of that name.
///
/// # Errors
/// [`PluginError::NotFound`] and [`PluginError::InvalidName`].
pub(crate) fn find_plugin(name: &str, dirs: &[PathBuf]) -> Result<PathBuf, PluginError> {
    if name.is_empty() || name.contains('/') {
        return Err(PluginError::InvalidName(name.to_owned()));
    }
    let mut candidates = dirs.iter().map(|dir| dir.join(name));
    let found = candidates.find(|path| fs::metadata(path).is_ok_and(|meta| meta.is_file()));
    found.ok_or_else(|| PluginError::NotFound {
        name: name.to_owned(),
        path: dirs.to_owned(),
    })
}

/// Runs a plugin with `stdin`, and with `env` added to this process's environment, in the network
/// namespace of the calling thread.
///
/// With a `timeout` the plugin leads a process group of its own, and the whole group is killed when
/// the time is up.
///
/// # Errors
/// [`PluginError`].
pub fn execute(
    program: &Path,
    stdin: &[u8],
    env: &[(&'static str, OsString)],
    timeout: Option<Duration>,
) -> Result<Output, PluginError> {
    RunningPlugin::start(
        program,
        stdin,
        env,
        Surroundings {
            timeout,
            netns: None,
        },
    )?
    .finish(&mut Vec::new())
}

/// The conditions under which a plugin runs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Surroundings<'a> {
    /// The time after which the plugin is killed with its process group.
    pub(crate) timeout: Option<Duration>,
    /// The network namespace that the plugin starts in; the calling thread's if `None`.
    pub(crate) netns: Option<BorrowedFd<'a>>,
}

/// A running plugin. It is killed when the thread that started it ends; that thread must
/// [finish](Self::finish) it.
#[derive(Debug)]
#[must_use]
pub(crate) struct RunningPlugin<'a> {
    program: PathBuf,
    process: Pid,
    talk: Conversation<'a>,
    timeout: Option<Duration>,
    deadline: Option<Instant>,
}

impl<'a> RunningPlugin<'a> {
    /// Starts a plugin as [`execute`] does.
    ///
    /// # Errors
    /// [`PluginError::Run`].
    pub(crate) fn start(
        program: &Path,
        stdin: &'a [u8],
        extra: &[(&'static str, OsString)],
        Surroundings { timeout, netns }: Surroundings<'_>,
    ) -> Result<Self, PluginError> {
        let failed = |source: io::Error| PluginError::Run {
            path: program.to_owned(),
            source,
        };
        let mut whole: BTreeMap<_, _> = env::vars_os().collect();
        let given = extra.iter();
        whole.extend(given.map(|(key, value)| (OsString::from(*key), value.clone())));
        let whole: Vec<_> = whole.into_iter().collect();
        let start = || -> io::Result<_> {
            let (input, stdin) = io::pipe()?;
            let (stdout, output) = io::pipe()?;
            let (stderr, log) = io::pipe()?;
            let plan = SpawnParams {
                program,
                env: &whole,
                streams: [input.as_fd(), output.as_fd(), log.as_fd()],
                leads_group: timeout.is_some(),
                netns,
            };
            let process = when_written(|| sys::spawn(&plan))?;
            Ok((
                process,
                [stdin.into(), stdout.into(), stderr.into()].map(Some),
            ))
        };
        let started = start().map_err(|error| KernelLimit::Processes.explain(error));
        let (process, pipes) = started.map_err(failed)?;
        Self::talk(program.to_owned(), process, pipes, stdin, timeout, KEPT)
    }

    /// Starts any command as [`execute`] starts a plugin. The first `kept` bytes of each output are
    /// kept.
    ///
    /// # Errors
    /// [`PluginError::Run`].
    pub(crate) fn start_command(
        mut command: Command,
        stdin: &'a [u8],
        timeout: Option<Duration>,
        kept: usize,
    ) -> Result<Self, PluginError> {
        let program = PathBuf::from(command.get_program());
        let failed = |source: io::Error| PluginError::Run {
            path: program.clone(),
            source,
        };
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if timeout.is_some() {
            // A child with a timeout gets a process group of its own, to be killed as a whole.
            // Without a timeout (a plugin that runs its IPAM plugin) the child stays in the group
            // that the caller's own runtime would kill.
            command.process_group(0);
        }
        let mut child = spawn(&mut command).map_err(failed)?;
        let (process, pipes) = (Pid::from_child(&child), pipes(&mut child));
        Self::talk(program, process, pipes, stdin, timeout, kept)
    }

    /// Starts to serve the pipes of a started program.
    fn talk(
        program: PathBuf,
        process: Pid,
        pipes: Pipes,
        stdin: &'a [u8],
        timeout: Option<Duration>,
        kept: usize,
    ) -> Result<Self, PluginError> {
        match Conversation::new(process, pipes, stdin) {
            Ok(mut talk) => {
                talk.kept = kept;
                talk.feed();
                Ok(Self {
                    program,
                    process,
                    talk,
                    timeout,
                    deadline: timeout.map(|timeout| Instant::now() + timeout),
                })
            }
            Err(source) => {
                kill(process, timeout);
                _ = wait(process);
                Err(PluginError::Run {
                    path: program,
                    source,
                })
            }
        }
    }

    /// Waits for the plugin's end. Lines with steps, which our plugins print, are moved from
    /// standard error to `steps`.
    ///
    /// # Errors
    /// [`PluginError`].
    pub(crate) fn finish(self, steps: &mut Vec<u8>) -> Result<Output, PluginError> {
        let Self {
            program,
            process,
            mut talk,
            timeout,
            deadline,
        } = self;
        let failed = |source: io::Error| PluginError::Run {
            path: program.clone(),
            source,
        };
        let ended = talk.run_until(deadline);
        if !matches!(ended, Ok(ConversationEnd::Exited)) {
            kill(process, timeout);
        }
        let status = wait(process).map_err(failed)?;
        let Conversation {
            stdout, mut stderr, ..
        } = talk;
        *steps = trace::split(&mut stderr);
        match ended.map_err(failed)? {
            ConversationEnd::TimedOut => Err(PluginError::TimedOut {
                path: program,
                after: timeout.unwrap_or_default(),
                stderr: String::from_utf8_lossy(&stderr).into_owned(),
            }),
            ConversationEnd::Exited if status.success() => Ok(Output { stdout, stderr }),
            ConversationEnd::Exited => Err(failure(status, &stdout, &stderr)),
        }
    }
}

/// Kills a plugin. It is not reaped yet, so its id cannot belong to another process. Errors mean
/// that all its processes have ended.
fn kill(process: Pid, timeout: Option<Duration>) {
    _ = match timeout {
        Some(_) => rustix::process::kill_process_group(process, Signal::KILL),
        None => rustix::process::kill_process(process, Signal::KILL),
    };
}

/// Waits until a child has ended.
fn wait(process: Pid) -> io::Result<ExitStatus> {
    let waited = rustix::io::retry_on_intr(|| waitpid(Some(process), WaitOptions::empty()))?;
    // Without flags, waitpid(2) never returns without a child.
    let (_, status) = waited.ok_or(io::ErrorKind::InvalidData)?;
    Ok(ExitStatus::from_raw(status.as_raw()))
}

/// Starts the program, which is killed when the calling thread ends. If it is being written
/// (`ETXTBSY`: an upgrade in place), tries again as libcni does: up to 6 attempts, a second apart.
///
/// # Errors
/// The operating system's.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    sys::die_with_this_thread(command);
    when_written(|| process::spawn(command))
}

fn when_written<T>(start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let attempts = ConstantBuilder::new()
        .with_delay(Duration::from_secs(1))
        .with_max_times(5);
    let is_busy = |error: &io::Error| error.kind() == io::ErrorKind::ExecutableFileBusy;
    start.retry(attempts).when(is_busy).call()
}

fn failure(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> PluginError {
    if stdout.is_empty() {
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(9)) => "signal: killed".to_owned(),
            (None, Some(signal)) => format!("signal: {signal}"),
            (None, None) => status.to_string(),
        };
        return PluginError::Silent {
            status,
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        };
    }
    let parsed = json::parse_folded(stdout).and_then(serde_json::from_value::<CniError>);
    match parsed {
        Ok(error) => PluginError::Refused {
            error,
            stderr: String::from_utf8_lossy(stderr).into_owned(),
        },
        Err(error) => PluginError::Unreadable {
            stdout: String::from_utf8_lossy(stdout).into_owned(),
            reason: json::go_error(&error),
        },
    }
}

/// Our ends of a program's standard streams.
pub type Pipes = [Option<OwnedFd>; 3];

/// Takes the pipes from a child.
pub fn pipes(child: &mut Child) -> Pipes {
    [
        child.stdin.take().map(OwnedFd::from),
        child.stdout.take().map(OwnedFd::from),
        child.stderr.take().map(OwnedFd::from),
    ]
}

/// The end of a [`Conversation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConversationEnd {
    /// The program has ended.
    Exited,
    /// The time was up first.
    TimedOut,
}

/// The pipes of a running plugin. One thread serves them all, so that neither a full pipe nor a
/// grandchild that keeps one open can block it.
#[derive(Debug)]
pub struct Conversation<'a> {
    process: OwnedFd,
    stdin: Option<(OwnedFd, &'a [u8])>,
    out: Option<OwnedFd>,
    err: Option<OwnedFd>,
    kept: usize,
    /// The program's output, as far as it is kept.
    pub stdout: Vec<u8>,
    /// Its standard error, as far as it is kept.
    pub stderr: Vec<u8>,
}

impl<'a> Conversation<'a> {
    /// Begins to serve the pipes of a child, with `input` for its standard input.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(process: Pid, pipes: Pipes, input: &'a [u8]) -> io::Result<Self> {
        let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
        for pipe in pipes.iter().flatten() {
            rustix::io::ioctl_fionbio(pipe, true)?;
        }
        let [stdin, out, err] = pipes;
        let stdin = stdin.map(|pipe| (pipe, input));
        Ok(Self {
            process,
            stdin,
            out,
            err,
            kept: KEPT,
            stdout: Vec::new(),
            stderr: Vec::new(),
        })
    }

    /// Serves the pipes until the process has ended, even if other processes still hold them, or
    /// until the deadline.
    ///
    /// # Errors
    /// The operating system's.
    pub fn run_until(&mut self, deadline: Option<Instant>) -> io::Result<ConversationEnd> {
        loop {
            self.feed();
            drain(&mut self.out, &mut self.stdout, self.kept)?;
            drain(&mut self.err, &mut self.stderr, self.kept)?;
            match self.wait(deadline)? {
                Some(ConversationEnd::Exited) => {
                    drain(&mut self.out, &mut self.stdout, self.kept)?;
                    drain(&mut self.err, &mut self.stderr, self.kept)?;
                    return Ok(ConversationEnd::Exited);
                }
                Some(ConversationEnd::TimedOut) => return Ok(ConversationEnd::TimedOut),
                None => {}
            }
        }
    }

    /// Waits until a pipe is ready (`None`), the process has ended, or the time is up.
    fn wait(&self, deadline: Option<Instant>) -> io::Result<Option<ConversationEnd>> {
        let mut fds = vec![PollFd::new(&self.process, PollFlags::IN)];
        fds.extend(
            self.stdin
                .as_ref()
                .map(|(pipe, _)| PollFd::new(pipe, PollFlags::OUT)),
        );
        fds.extend(
            self.out
                .as_ref()
                .map(|pipe| PollFd::new(pipe, PollFlags::IN)),
        );
        fds.extend(
            self.err
                .as_ref()
                .map(|pipe| PollFd::new(pipe, PollFlags::IN)),
        );
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // A time too long for the kernel's clock means no limit.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Ok(0) => Ok(Some(ConversationEnd::TimedOut)),
            Ok(_) if !fds[0].revents().is_empty() => Ok(Some(ConversationEnd::Exited)),
            Ok(_) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                Ok(Some(ConversationEnd::TimedOut))
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn feed(&mut self) {
        while let Some((pipe, left)) = &mut self.stdin {
            match rustix::io::write(&*pipe, left) {
                Ok(n) => *left = &left[n..],
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => continue,
                // A plugin may end without reading its input: for VERSION, or after an early
                // failure.
                Err(_) => *left = &[],
            }
            if left.is_empty() {
                self.stdin = None;
            }
        }
    }
}

/// Reads the available output, within bounds, and closes the pipe at its end.
fn drain(pipe: &mut Option<OwnedFd>, into: &mut Vec<u8>, kept: usize) -> io::Result<()> {
    let mut buffer = [0; 4096];
    for _ in 0..READS {
        let Some(open) = pipe else { break };
        match rustix::io::read(&*open, &mut buffer) {
            Ok(0) => *pipe = None,
            Ok(n) => into.extend_from_slice(&buffer[..n.min(kept - into.len())]),
            Err(rustix::io::Errno::AGAIN) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

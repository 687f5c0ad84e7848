//! One run of the plugin: what it is given, what it answers, and how it can be interrupted.

use std::{
    ffi::{CStr, OsStr},
    fmt, fs, io,
    mem::MaybeUninit,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt as _,
            process::{CommandExt as _, ExitStatusExt as _},
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::inotify,
    process::{Pid, Resource, Rlimit, Signal},
};

use crate::{
    runtime::{Conversation, Ended, spawn},
    sys,
};

/// How long a call may go on when the verification is stopped, before it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How often a call looks whether the verification is stopped.
const LOOK: Duration = Duration::from_millis(50);

/// What the plugin is given.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    /// The number of its network; `None` for VERSION.
    pub(super) network: Option<u32>,
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) stdin: Vec<u8>,
    /// The network's configuration, if the call is as a runtime makes it.
    pub(super) plain: Option<PlainCall>,
    /// Whether the configuration is nonsense, so that the form of a result says nothing.
    pub(super) is_junk: bool,
}

/// The input of a call that a runtime makes, in its parts.
#[derive(Debug, Clone)]
pub(super) struct PlainCall {
    pub(super) config: String,
    /// Whether the result of the ADD is given as `prevResult`.
    pub(super) has_result: bool,
}

impl Call {
    /// The same call with a variable set to another value, or removed.
    pub(super) fn with_env(mut self, name: &'static str, value: Option<&str>) -> Self {
        self.plain = None;
        self.env.retain(|(key, _)| *key != name);
        self.env.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    /// The same call with another input.
    pub(super) fn with_stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.plain = None;
        self.stdin = stdin.into();
        self
    }

    /// The same call with an input that is nonsense.
    pub(super) fn with_junk(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.is_junk = true;
        self.with_stdin(stdin)
    }

    /// The value of a variable; empty if it is not set.
    pub(super) fn env(&self, name: &str) -> &str {
        let found = self.env.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    /// `CNI_COMMAND`.
    pub(super) fn command(&self) -> &str {
        self.env("CNI_COMMAND")
    }
}

/// How the plugin is kept from ending by itself.
#[derive(Debug, Clone)]
pub(super) enum Interruption {
    /// Not at all.
    None,
    /// SIGKILL so long after it was started.
    After(Duration),
    /// SIGKILL as soon as it has made the nth change to the files of a directory. This hits the short time
    /// between two system calls far more often than a clock does.
    OnChange { dir: PathBuf, nth: u32 },
    /// It can make no file longer than so many bytes, and SIGKILL as soon as one of a directory is:
    /// a file that is written in place is left half written, and there is no time to take that back.
    HalfWritten { dir: PathBuf, bytes: u64 },
    /// It can make no file longer than so many bytes, as on a full disk.
    FileSize(u64),
}

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::After(time) => write!(f, "SIGKILL after {time:.1?}"),
            Self::OnChange { dir, nth } => {
                write!(f, "SIGKILL at its change no. {nth} in {}", dir.display())
            }
            Self::HalfWritten { dir, bytes } => {
                write!(
                    f,
                    "SIGKILL when a file in {} has its first {bytes} bytes",
                    dir.display()
                )
            }
            Self::FileSize(bytes) => write!(f, "files limited to {bytes} bytes (RLIMIT_FSIZE)"),
        }
    }
}

/// How the plugin ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By itself.
    Exit(i32),
    /// By a signal that was not ours.
    Signal(i32),
    /// By the [`Interruption`].
    Interrupted,
    /// Not at all within the time, so that it was killed.
    Hung,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exit(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "died of signal {signal}"),
            Self::Interrupted => f.write_str("killed as intended"),
            Self::Hung => f.write_str("did not end in time and was killed"),
        }
    }
}

/// A call and its answer.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) call: Call,
    pub(super) interruption: Interruption,
    pub(super) end: End,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) took: Duration,
}

impl Exchange {
    /// Runs the plugin and waits for its end, at most `timeout`. `None` if it was killed because
    /// `is_stopped` has become true.
    ///
    /// # Errors
    /// When the program could not be run; nothing that the plugin does is an error.
    pub(super) fn run(
        program: &Path,
        call: &Call,
        interruption: Interruption,
        timeout: Duration,
        is_stopped: &dyn Fn() -> bool,
    ) -> io::Result<Option<Self>> {
        let mut command = Command::new(program);
        // The rest of the environment stays: a plugin may need it to find its store.
        for name in [
            "CNI_COMMAND",
            "CNI_CONTAINERID",
            "CNI_NETNS",
            "CNI_IFNAME",
            "CNI_ARGS",
            "CNI_PATH",
            "CNI_NETNS_OVERRIDE",
        ] {
            command.env_remove(name);
        }
        command
            .envs(call.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        sys::die_with_this_thread(&mut command);
        let watch = match &interruption {
            Interruption::OnChange { dir, .. } | Interruption::HalfWritten { dir, .. } => {
                Some(changes_of(dir)?)
            }
            _ => None,
        };
        let mut child = spawn(&mut command)?;
        let started = Instant::now();
        let pid = Pid::from_child(&child);
        if let Interruption::FileSize(bytes) | Interruption::HalfWritten { bytes, .. } =
            interruption
        {
            // In time, because an ADD has nothing to write before it has read its input.
            let limit = Rlimit {
                current: Some(bytes),
                maximum: Some(bytes),
            };
            _ = rustix::process::prlimit(Some(pid), Resource::Fsize, limit);
        }
        let mut deadline = match interruption {
            Interruption::After(time) => started + time.min(timeout),
            _ => started + timeout,
        };
        let mut stopped = None;
        let talked = Conversation::new(&mut child, &call.stdin).and_then(|mut talk| {
            let over = AtomicBool::new(false);
            let ended = thread::scope(|scope| {
                if let Some(changes) = &watch {
                    scope.spawn(|| kill_at_change(changes, &interruption, pid, &over));
                }
                let ended = loop {
                    let now = Instant::now();
                    match talk.run_until(Some(deadline.min(now + LOOK))) {
                        Ok(Ended::TimedOut) if Instant::now() < deadline => {}
                        ended => break ended,
                    }
                    if stopped.is_none() && is_stopped() {
                        let last = now + GRACE;
                        stopped = (last < deadline).then_some(last);
                        deadline = deadline.min(last);
                    }
                };
                over.store(true, Ordering::Relaxed);
                ended
            })?;
            let in_time = matches!(ended, Ended::Exited);
            if !in_time {
                // Not reaped yet, so the id is still its own. An error means that all have ended.
                _ = rustix::process::kill_process_group(pid, Signal::KILL);
                // It may have ended well just before that; what it printed is still to be read.
                talk.run_until(None)?;
            }
            Ok((in_time, talk.stdout, talk.stderr))
        });
        let took = started.elapsed();
        if talked.is_err() {
            _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        let status = child.wait()?;
        let (in_time, stdout, stderr) = talked?;
        if !in_time && stopped.is_some() {
            return Ok(None);
        }
        Ok(Some(Self {
            end: end_of(status, &interruption, in_time),
            call: call.clone(),
            interruption,
            stdout,
            stderr,
            took,
        }))
    }

    /// Whether it ended by itself and with success.
    pub(super) fn succeeded(&self) -> bool {
        self.end == End::Exit(0)
    }

    /// The error object's code and message, as far as they can be read.
    pub(super) fn error(&self) -> (u64, String) {
        let value: serde_json::Value = serde_json::from_slice(&self.stdout).unwrap_or_default();
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        let (msg, details) = (text("msg"), text("details"));
        let msg = if details.is_empty() {
            msg
        } else {
            format!("{msg}; {details}")
        };
        (value["code"].as_u64().unwrap_or(0), msg)
    }

    /// What the plugin answered, in a few words.
    pub(super) fn summary(&self) -> String {
        if let End::Exit(code) = self.end
            && code != 0
            && !self.stdout.is_empty()
        {
            let (code, msg) = self.error();
            return format!("error {code} \"{msg}\"");
        }
        let stdout = String::from_utf8_lossy(&self.stdout);
        let stdout: Vec<_> = stdout.split_whitespace().collect();
        match (self.end, stdout.is_empty()) {
            (End::Exit(0), true) => "success".to_owned(),
            (End::Exit(0), false) => stdout.join(" "),
            (end, _) => end.to_string(),
        }
    }
}

fn end_of(status: ExitStatus, interruption: &Interruption, in_time: bool) -> End {
    const SIGXFSZ: i32 = 25;
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Exit(code),
        (None, Some(9)) => match interruption {
            Interruption::After(_)
            | Interruption::OnChange { .. }
            | Interruption::HalfWritten { .. } => End::Interrupted,
            _ if !in_time => End::Hung,
            _ => End::Signal(9),
        },
        (None, Some(SIGXFSZ))
            if matches!(
                interruption,
                Interruption::FileSize(_) | Interruption::HalfWritten { .. }
            ) =>
        {
            End::Interrupted
        }
        (None, signal) => End::Signal(signal.unwrap_or(0)),
    }
}

/// Tells of changes to the files of a directory from now on.
fn changes_of(dir: &Path) -> io::Result<OwnedFd> {
    use inotify::{CreateFlags, WatchFlags};
    let changes = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let kinds = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE;
    inotify::add_watch(&changes, dir, kinds)?;
    Ok(changes)
}

/// Spins until the moment of the interruption, because a thread that sleeps wakes up too late to be
/// of use.
fn kill_at_change(changes: &OwnedFd, at: &Interruption, pid: Pid, over: &AtomicBool) {
    let mut buffer = [MaybeUninit::uninit(); 1024];
    let mut reader = inotify::Reader::new(changes, &mut buffer);
    let mut seen = 0;
    while !over.load(Ordering::Relaxed) {
        let Ok(event) = reader.next() else { continue };
        seen += 1;
        let is_moment = match at {
            Interruption::OnChange { nth, .. } => seen == *nth,
            Interruption::HalfWritten { dir, bytes } => {
                let name = event.file_name().map(CStr::to_bytes);
                let path = name.map(|name| dir.join(OsStr::from_bytes(name)));
                let file = path.and_then(|path| fs::symlink_metadata(path).ok());
                file.is_some_and(|file| file.is_file() && file.len() == *bytes)
            }
            _ => false,
        };
        if is_moment {
            _ = rustix::process::kill_process_group(pid, Signal::KILL);
            return;
        }
    }
}

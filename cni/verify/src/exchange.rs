//! One run of the plugin: its input, its answer, and its interruption.

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

use podplane_cni::runtime::{Conversation, ConversationEnd, pipes, spawn};
use rustix::{
    fs::inotify,
    process::{Pid, Resource, Rlimit, Signal},
};

/// The time that a call may go on after the verification is stopped, before it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// The interval at which a call checks for a stop of the verification.
const LOOK: Duration = Duration::from_millis(50);

/// The input of the plugin.
#[derive(Debug, Clone, Default)]
pub(super) struct PluginInput {
    /// The number of its network; `None` for VERSION.
    pub(super) network: Option<u32>,
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) stdin: Vec<u8>,
    /// The network's configuration, if the call is as a runtime makes it.
    pub(super) plain: Option<PlainCall>,
    /// Set if the configuration is junk, so that the format of a result is not judged.
    pub(super) is_junk: bool,
}

/// The input of a call that a runtime makes, in its parts.
#[derive(Debug, Clone)]
pub(super) struct PlainCall {
    pub(super) config: String,
    /// Set if the result of the ADD is passed as `prevResult`.
    pub(super) has_result: bool,
}

impl PluginInput {
    /// Sets a variable to another value, or removes it.
    pub(super) fn with_env(mut self, name: &'static str, value: Option<&str>) -> Self {
        self.plain = None;
        self.env.retain(|(key, _)| *key != name);
        self.env.extend(value.map(|value| (name, value.to_owned())));
        self
    }

    /// Replaces the input.
    pub(super) fn with_stdin(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.plain = None;
        self.stdin = stdin.into();
        self
    }

    /// Replaces the input by junk.
    pub(super) fn with_junk(mut self, stdin: impl Into<Vec<u8>>) -> Self {
        self.is_junk = true;
        self.with_stdin(stdin)
    }

    /// The value of a variable; empty if it is not set.
    pub(super) fn env(&self, name: &str) -> &str {
        let found = self.env.iter().find(|(key, _)| *key == name);
        found.map_or("", |(_, value)| value)
    }

    /// The value of `CNI_COMMAND`.
    pub(super) fn command(&self) -> &str {
        self.env("CNI_COMMAND")
    }
}

/// The means by which the plugin is kept from ending by itself.
#[derive(Debug, Clone)]
pub(super) enum Interruption {
    /// No interruption.
    None,
    /// SIGKILL after this time.
    After(Duration),
    /// SIGKILL as soon as the plugin has made the nth change to the files of a directory. This hits
    /// the short time between two system calls far more often than a clock does.
    OnChange { dir: PathBuf, nth: u32 },
    /// Files are limited to this length, and SIGKILL follows as soon as a file of the directory has
    /// it. A file that is written in place is left half written, and the plugin has no time to undo
    /// that.
    HalfWritten { dir: PathBuf, bytes: u64 },
    /// Files are limited to this length in bytes, as on a full disk.
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

/// The way in which the plugin ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PluginEnd {
    /// It exited, with this code.
    Exit(i32),
    /// It died of a signal that was not ours.
    Signal(i32),
    /// The [`Interruption`] ended it.
    Interrupted,
    /// It did not end in time, and was killed.
    Hung,
}

impl fmt::Display for PluginEnd {
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
    pub(super) call: PluginInput,
    pub(super) interruption: Interruption,
    pub(super) end: PluginEnd,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) took: Duration,
}

impl Exchange {
    /// Runs the plugin and waits for its end, at most `timeout`. Returns `None` if it was killed
    /// because `is_stopped` has become true.
    ///
    /// # Errors
    /// If the program could not be run; nothing that the plugin does is an error.
    pub(super) fn run(
        program: &Path,
        call: &PluginInput,
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
            // This is early enough: an ADD has nothing to write before it has read its input.
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
        let pipes = pipes(&mut child);
        let talked = Conversation::new(pid, pipes, &call.stdin).and_then(|mut talk| {
            let over = AtomicBool::new(false);
            let ended = thread::scope(|scope| {
                if let Some(changes) = &watch {
                    scope.spawn(|| kill_at_change(changes, &interruption, pid, &over));
                }
                let ended = loop {
                    let now = Instant::now();
                    match talk.run_until(Some(deadline.min(now + LOOK).into())) {
                        Ok(ConversationEnd::TimedOut) if Instant::now() < deadline => {}
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
            let in_time = matches!(ended, ConversationEnd::Exited);
            if !in_time {
                // It is not reaped yet, so the id is still its own. An error means that all its
                // processes have ended.
                _ = rustix::process::kill_process_group(pid, Signal::KILL);
                // It may have ended regularly just before the kill; its output is still to be read.
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

    /// Returns true if the plugin ended by itself and succeeded.
    pub(super) fn succeeded(&self) -> bool {
        self.end == PluginEnd::Exit(0)
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

    /// The plugin's answer in a few words.
    pub(super) fn summary(&self) -> String {
        if let PluginEnd::Exit(code) = self.end
            && code != 0
            && !self.stdout.is_empty()
        {
            let (code, msg) = self.error();
            return format!("error {code} \"{msg}\"");
        }
        let stdout = String::from_utf8_lossy(&self.stdout);
        let stdout: Vec<_> = stdout.split_whitespace().collect();
        match (self.end, stdout.is_empty()) {
            (PluginEnd::Exit(0), true) => "success".to_owned(),
            (PluginEnd::Exit(0), false) => stdout.join(" "),
            (end, _) => end.to_string(),
        }
    }
}

fn end_of(status: ExitStatus, interruption: &Interruption, in_time: bool) -> PluginEnd {
    const SIGXFSZ: i32 = 25;
    match (status.code(), status.signal()) {
        (Some(code), _) => PluginEnd::Exit(code),
        (None, Some(9)) => match interruption {
            Interruption::After(_)
            | Interruption::OnChange { .. }
            | Interruption::HalfWritten { .. } => PluginEnd::Interrupted,
            _ if !in_time => PluginEnd::Hung,
            _ => PluginEnd::Signal(9),
        },
        (None, Some(SIGXFSZ))
            if matches!(
                interruption,
                Interruption::FileSize(_) | Interruption::HalfWritten { .. }
            ) =>
        {
            PluginEnd::Interrupted
        }
        (None, signal) => PluginEnd::Signal(signal.unwrap_or(0)),
    }
}

/// Watches the files of a directory for changes.
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

/// Kills the plugin at the moment of the interruption. Spins until then, because a sleeping thread
/// would wake up too late.
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

//! Commands that a scenario runs.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    pin::pin,
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_test_cluster::ProgramOutput;
use procfs::process::{Process, StatFlags};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, Command},
    time::{Instant, sleep, timeout},
};

use crate::{plan::PlannedCommand, stage::ScenarioCluster};

/// The time between two looks at the processes that a command started.
const LOOK: Duration = Duration::from_millis(20);

/// The time that processes may outlive the command which started them: they may be about to end.
const GRACE: Duration = Duration::from_secs(1);

/// The environment variable that identifies the processes which a command started.
const MARK: &str = "SCRATCH";

type Environ = HashMap<OsString, OsString>;

/// The end of a command, and the processes that outlived it.
#[derive(Debug)]
pub(crate) struct CommandEnd {
    /// `None` if it did not end in time.
    pub(crate) finished: Option<ProgramOutput>,
    /// The processes that it started and that outlived it: command lines and pids.
    left: Vec<String>,
}

/// A command and all processes that it started. They are killed when this is dropped.
struct ProcessTree {
    group: Option<Pid>,
    scratch: PathBuf,
}

impl ProcessTree {
    /// Lists the running processes: those of its group, and daemons that have left the group.
    fn processes(&self) -> Vec<Process> {
        let is_meant = |process: &Process| {
            let stat = process.stat().ok()?;
            // Zombies and dead processes cannot be killed any more.
            let is_live = !['Z', 'X'].contains(&stat.state);
            let is_grouped = self.group.map(Pid::as_raw_pid) == Some(stat.pgrp);
            let is_marked = || {
                let environ = settled_environ(|| {
                    let environ = process.environ().ok()?;
                    let stat = process.stat().ok()?;
                    let is_kernel = stat.flags & StatFlags::PF_KTHREAD.bits() != 0;
                    let is_set = is_kernel || stat.env_end.is_some_and(|end| end > 0);
                    Some((environ, is_set))
                })?;
                Some(environ.get(OsStr::new(MARK))? == self.scratch.as_os_str())
            };
            Some(is_live && (is_grouped || is_marked().unwrap_or_default()))
        };
        let all = procfs::process::all_processes().into_iter().flatten();
        all.flatten()
            .filter(|process| is_meant(process).unwrap_or_default())
            .collect()
    }

    /// Waits up to `GRACE` for all processes to end. Returns the command lines of those that still
    /// run.
    async fn outlasting(&self) -> Vec<String> {
        let begun = Instant::now();
        let mut left = self.processes();
        while !left.is_empty() && begun.elapsed() < GRACE {
            sleep(LOOK).await;
            left = self.processes();
        }
        left.iter().map(line).collect()
    }
}

impl Drop for ProcessTree {
    fn drop(&mut self) {
        // A process that is gone already needs no signal.
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        for process in self.processes() {
            if let Some(pid) = Pid::from_raw(process.pid()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// Returns the environment of a process that may be within `execve`, where it has none until the
/// kernel has set up the new program's stack. `look` returns the environment and, read after it,
/// true if the kernel has done so. `None` if the process is gone or cannot be read, or does not
/// come out of `execve`.
fn settled_environ(mut look: impl FnMut() -> Option<(Environ, bool)>) -> Option<Environ> {
    let begun = Instant::now();
    let mut was_set = false;
    while begun.elapsed() < GRACE {
        let (environ, is_set) = look()?;
        if was_set || !environ.is_empty() {
            return Some(environ);
        }
        was_set = is_set;
        if !is_set {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    None
}

fn line(process: &Process) -> String {
    let words = process.cmdline().unwrap_or_default();
    format!("{} (pid {}, killed)", words.join(" "), process.pid())
}

/// Runs a command in the directory of the scenario's file, and kills the processes that outlive it.
pub(crate) async fn execute(stage: &ScenarioCluster, run: &PlannedCommand) -> Result<CommandEnd> {
    let (program, args) = run.words.split_first().context("want a program")?;
    let dir = stage.case.dir();
    let program = match program.contains('/') && Path::new(program).is_relative() {
        true => dir.join(program).display().to_string(),
        false => program.clone(),
    };
    let mut command = Command::from(stage.cluster.command(&program, args));
    command
        .current_dir(&dir)
        .envs(&run.env)
        .env(MARK, &stage.scratch)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command
        .spawn()
        .with_context(|| format!("failed to run {program}"))?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let started = ProcessTree {
        group: id.and_then(Pid::from_raw),
        scratch: stage.scratch.clone(),
    };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (status, mut left, is_read) = {
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = run.stdin.clone().unwrap_or_default();
        let mut pipe = pin!(async {
            tokio::join!(
                write(pipes.0, input),
                read(pipes.1, &mut stdout),
                read(pipes.2, &mut stderr)
            )
        });
        let mut wait = pin!(async {
            let status = match timeout(run.within, child.wait()).await {
                Ok(status) => Some(status.with_context(|| format!("failed to run {program}"))?),
                Err(_) => None,
            };
            let left = match status {
                Some(_) => started.outlasting().await,
                None => started.processes().iter().map(line).collect(),
            };
            drop(started);
            anyhow::Ok((status, left))
        });
        let mut is_read = false;
        let waited = loop {
            // Neither future is dropped by the other: both are polled again where they were.
            tokio::select! {
                waited = &mut wait => break waited,
                _ = &mut pipe, if !is_read => is_read = true,
            }
        };
        let (status, left) = waited?;
        // The pipes are closed by now, unless another process has them open.
        is_read = is_read || timeout(GRACE, pipe).await.is_ok();
        (status, left, is_read)
    };
    if !is_read {
        left.push("a process that has its output open (not found, not killed)".into());
    }
    let finished = status.map(|status| {
        let output = Output {
            status,
            stdout,
            stderr,
        };
        output.into()
    });
    Ok(CommandEnd { finished, left })
}

async fn write(stdin: Option<ChildStdin>, input: String) {
    if let Some(mut stdin) = stdin {
        // A command may end without reading its input.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, to: &mut Vec<u8>) {
    if let Some(mut pipe) = pipe {
        // Bytes that were read before an error stay.
        let _ = pipe.read_to_end(to).await;
    }
}

/// Compares the end of a command with the expected one. The error has the expected and the actual
/// state, as texts.
pub(crate) fn judge(run: &PlannedCommand, ended: &CommandEnd) -> Result<(), (String, String)> {
    let CommandEnd { finished, left } = ended;
    let Some(ProgramOutput {
        code,
        stdout,
        stderr,
    }) = finished
    else {
        return Err((
            format!("to end within {:?}", run.within),
            format!("went on: {}", left.join(", ")),
        ));
    };
    let said = || {
        let shown = |name: &str, text: &str| match text.trim_end() {
            "" => String::new(),
            text => format!("\n{name}: {}", tail(text)),
        };
        format!("{}{}", shown("stdout", stdout), shown("stderr", stderr))
    };
    if *code != Some(run.exit_code) {
        let ended = code.map_or_else(
            || "ended by a signal".into(),
            |code| format!("exit code {code}"),
        );
        return Err((
            format!("exit code {}", run.exit_code),
            format!("{ended}{}", said()),
        ));
    }
    if !left.is_empty() {
        return Err((
            "no process that outlives the command: wait for it or end it there".into(),
            format!("went on: {}", left.join(", ")),
        ));
    }
    for (name, rule, text) in [
        ("stdout", &run.stdout, stdout),
        ("stderr", &run.stderr, stderr),
    ] {
        if !rule.allows(text) {
            return Err((
                format!("{name}: {}", rule.describe()),
                said().trim_start().to_owned(),
            ));
        }
    }
    Ok(())
}

/// Returns the last 20 lines of a text, and the number of those before.
pub(crate) fn tail(text: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<_> = text.lines().collect();
    match lines.len().checked_sub(LINES) {
        None | Some(0) => text.to_owned(),
        Some(more) => format!("({more} lines before)\n{}", lines[more..].join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `settled_environ` on a process that shows these environments, the last one for ever.
    /// Returns the number of variables, and of looks.
    fn settle(looks: &[(&str, bool)]) -> (Option<usize>, usize) {
        let mut count = 0;
        let environ = settled_environ(|| {
            let (name, is_set) = looks[count.min(looks.len() - 1)];
            count += 1;
            let environ = (!name.is_empty()).then(|| (name.into(), "value".into()));
            Some((environ.into_iter().collect(), is_set))
        });
        (environ.map(|environ| environ.len()), count)
    }

    #[test]
    fn waits_for_the_environment_of_a_process_within_exec() {
        assert_eq!(settle(&[("MARK", true)]), (Some(1), 1));
        assert_eq!(
            settle(&[("", false), ("", false), ("MARK", true)]),
            (Some(1), 3)
        );
        // Set between the two reads of one look.
        assert_eq!(settle(&[("", true), ("MARK", true)]), (Some(1), 2));
        assert_eq!(settle(&[("", true)]), (Some(0), 2));
    }
}

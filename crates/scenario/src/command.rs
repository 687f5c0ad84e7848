//! Commands that a scenario runs.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    pin::pin,
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result};
use podplane_testkit::Finished;
use procfs::process::Process;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{ChildStdin, Command},
    time::{Instant, sleep, timeout},
};

use crate::{plan::Run, stage::Stage};

/// Time between two looks at the processes that a command started.
const LOOK: Duration = Duration::from_millis(20);

/// Time that processes may outlive the command which started them: they may be about to end.
const GRACE: Duration = Duration::from_secs(1);

/// The variable by which the processes that a command started are found among all.
const MARK: &str = "SCRATCH";

/// The end of a command.
#[derive(Debug)]
pub(crate) struct CommandEnd {
    /// `None` if it did not end in time.
    finished: Option<Finished>,
    /// The processes that it started and that went on: command lines, and what became of them.
    left: Vec<String>,
}

/// A command and all that it started, which are killed when this is dropped.
struct ProcessTree {
    group: Option<Pid>,
    scratch: PathBuf,
}

impl ProcessTree {
    /// The processes that run: those of its group, and daemons that have left it.
    fn processes(&self) -> Vec<Process> {
        let is_meant = |process: &Process| {
            let stat = process.stat().ok()?;
            // They cannot be killed any more.
            let is_live = !['Z', 'X'].contains(&stat.state);
            let is_grouped = self.group.map(Pid::as_raw_pid) == Some(stat.pgrp);
            let is_marked = || {
                let environ = process.environ().ok()?;
                Some(environ.get(OsStr::new(MARK))? == self.scratch.as_os_str())
            };
            Some(is_live && (is_grouped || is_marked().unwrap_or_default()))
        };
        let all = procfs::process::all_processes().into_iter().flatten();
        all.flatten()
            .filter(|process| is_meant(process).unwrap_or_default())
            .collect()
    }

    /// Waits for a while until none runs. Returns the command lines of those that do.
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

fn line(process: &Process) -> String {
    let words = process.cmdline().unwrap_or_default();
    format!("{} (pid {}, killed)", words.join(" "), process.pid())
}

/// Runs a command beside the scenario's file, with all that it starts.
pub(crate) async fn execute(stage: &Stage, run: &Run) -> Result<CommandEnd> {
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
    let mut child = command.spawn().with_context(|| format!("run {program}"))?;
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
                Ok(status) => Some(status.with_context(|| format!("run {program}"))?),
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
            // Both go on where they were.
            tokio::select! {
                waited = &mut wait => break waited,
                _ = &mut pipe, if !is_read => is_read = true,
            }
        };
        let (status, left) = waited?;
        // They have an end now, unless somebody else has them.
        is_read = is_read || timeout(GRACE, pipe).await.is_ok();
        (status, left, is_read)
    };
    if !is_read {
        left.push("one that has its output open (not found, and not killed)".into());
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
        // A command need not read.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, to: &mut Vec<u8>) {
    if let Some(mut pipe) = pipe {
        // Bytes that were read before an error stay.
        let _ = pipe.read_to_end(to).await;
    }
}

/// What is wrong with how it ended, in what was expected and what was there.
pub(crate) fn judge(run: &Run, ended: &CommandEnd) -> Result<(), (String, String)> {
    let CommandEnd { finished, left } = ended;
    let Some(Finished {
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

/// The last lines of what may be long.
fn tail(text: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<_> = text.lines().collect();
    match lines.len().checked_sub(LINES) {
        None | Some(0) => text.to_owned(),
        Some(more) => format!("({more} lines before)\n{}", lines[more..].join("\n")),
    }
}

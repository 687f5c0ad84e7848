//! Commands that a scenario runs.

use std::{path::Path, process::Stdio};

use anyhow::{Context as _, Result};
use podplane_testkit::Finished;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{io::AsyncWriteExt as _, process::Command, time::timeout};

use crate::{plan::Run, stage::Stage};

/// Ends all that a command started, should it not have ended by itself.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Nobody may be left in it.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a command beside the scenario's file. `None` if it did not end in time.
pub(crate) async fn execute(stage: &Stage, run: &Run) -> Result<Option<Finished>> {
    let (program, args) = run.words.split_first().context("want a program")?;
    let dir = stage.case.dir();
    let program = match program.contains('/') && Path::new(program).is_relative() {
        true => dir.join(program).display().to_string(),
        false => program.clone(),
    };
    let mut command = Command::from(stage.cluster.command(&program, args));
    command
        .current_dir(&dir)
        .env("SCRATCH", &stage.scratch)
        .envs(&run.env)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("run {program}"))?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let group = Group(id.and_then(Pid::from_raw));
    let input = run.stdin.clone().unwrap_or_default();
    let stdin = child.stdin.take();
    let write = async move {
        if let Some(mut stdin) = stdin {
            // A command need not read.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ended = timeout(run.within, async {
        let (output, ()) = tokio::join!(child.wait_with_output(), write);
        output
    });
    let output = ended.await;
    drop(group);
    match output {
        Ok(output) => Ok(Some(
            output.with_context(|| format!("run {program}"))?.into(),
        )),
        Err(_) => Ok(None),
    }
}

/// What is wrong with how it ended, in what was expected and what was there.
pub(crate) fn judge(run: &Run, finished: Option<&Finished>) -> Result<(), (String, String)> {
    let Some(Finished {
        code,
        stdout,
        stderr,
    }) = finished
    else {
        return Err((
            format!("to end within {:?}", run.within),
            "it went on, and was killed".into(),
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

//! Further processes in containers: `ExecSync` and `Exec`.

use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

use podplane_container_init::{Channel, LaunchRequest};
use podplane_host::clock;
use rustix::termios::{Winsize, tcsetwinsize};
use serde::Deserialize;
use tokio::{io::AsyncReadExt as _, net::unix::pipe, process::Child};

use super::{
    ContainerProcess, LOST, ProcessError, Processes,
    io::{self, StreamChoice, is_end_of_terminal},
    launch,
};

/// The output of `ExecSync` that is kept of each stream, as with containerd. CRI's messages have a
/// limit.
const MAX_OUTPUT: usize = 16 << 20;

/// A size of a terminal, as clients send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TerminalSize {
    /// In characters.
    width: u16,
    /// In lines.
    height: u16,
}

impl TerminalSize {
    pub(super) fn apply(self, terminal: &OwnedFd) {
        let size = Winsize {
            ws_row: self.height,
            ws_col: self.width,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // A terminal that is gone has no size.
        _ = tcsetwinsize(terminal, size);
    }
}

/// A command, and its streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCommand {
    /// The program and its arguments.
    pub args: Vec<String>,
    /// With an open standard input.
    pub stdin: bool,
    /// With a terminal as its streams.
    pub tty: bool,
}

/// A process in a container. It is killed if this is dropped.
#[derive(Debug)]
pub struct ExecProcess {
    /// `None` without.
    pub stdin: Option<pipe::Sender>,
    /// Standard output, or the terminal.
    pub stdout: Option<pipe::Receiver>,
    /// `None` with a terminal.
    pub stderr: Option<pipe::Receiver>,
    terminal: Option<OwnedFd>,
    helper: Child,
    /// Closed, the process is killed.
    control: Channel,
}

/// The end of a process of `ExecSync`.
#[derive(Debug)]
pub struct ExecOutput {
    /// Its exit code.
    pub code: i32,
    /// Its standard output, up to 16 MiB.
    pub stdout: Vec<u8>,
    /// Its standard error, up to 16 MiB.
    pub stderr: Vec<u8>,
}

impl Processes {
    /// Executes a command in a container. Blocks until the program is executed.
    ///
    /// # Errors
    ///
    /// [`ProcessError`].
    pub fn exec(
        &self,
        container: &Arc<ContainerProcess>,
        command: ExecCommand,
    ) -> Result<ExecProcess, ProcessError> {
        let ExecCommand { args, stdin, tty } = command;
        let mut process = container.spec.clone();
        process.args = args;
        process.terminal = tty;
        if tty && !process.env.iter().any(|(key, _)| key == "TERM") {
            process.env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        let choice = StreamChoice {
            stdin,
            terminal: tty,
        };
        let step = "make the standard streams";
        let (of_program, own) = io::streams(choice).map_err(ProcessError::io(step))?;
        let place = container
            .pidfd
            .try_clone()
            .map_err(ProcessError::io(step))?;
        let request = LaunchRequest::Enter(process);
        let launched = launch::launch(&self.config.init, &request, &of_program, &place)?;
        drop(of_program);
        let own = own.with_terminal(&launched, choice);
        let mut own = own.map_err(ProcessError::io(step))?;
        let stdin = own.take_input().map_err(ProcessError::io(step))?;
        let [stdout, stderr] = own.take_readers().map_err(ProcessError::io(step))?;
        Ok(ExecProcess {
            stdin,
            stdout,
            stderr,
            terminal: launched.terminal,
            helper: launched.helper,
            control: launched.control,
        })
    }
}

impl ExecProcess {
    /// Waits for its end, and returns its exit code.
    ///
    /// # Cancel safety
    ///
    /// It can be called again.
    pub async fn ended(&mut self) -> i32 {
        let status = self.helper.wait().await;
        status.ok().and_then(|status| status.code()).unwrap_or(LOST)
    }

    /// Sets the size of its terminal, if it has one.
    pub fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            size.apply(terminal);
        }
    }

    /// Waits for its end and for that of its output; `None` after `timeout`, when it has been
    /// killed.
    pub async fn output(mut self, timeout: Option<Duration>) -> Option<ExecOutput> {
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        let all = async {
            let (code, stdout, stderr) =
                tokio::join!(self.ended(), read_all(stdout), read_all(stderr));
            ExecOutput {
                code,
                stdout,
                stderr,
            }
        };
        let output = match timeout {
            Some(timeout) => clock::timeout(timeout, all).await.ok(),
            None => Some(all.await),
        };
        if output.is_none() {
            self.kill().await;
        }
        output
    }

    /// Kills it, and waits for its end.
    async fn kill(self) {
        let Self {
            mut helper,
            control,
            ..
        } = self;
        drop(control);
        _ = helper.wait().await;
    }
}

/// Reads to the end, and keeps the beginning.
async fn read_all(reader: Option<pipe::Receiver>) -> Vec<u8> {
    let mut kept = Vec::new();
    let Some(mut reader) = reader else {
        return kept;
    };
    let mut piece = vec![0; 32 << 10];
    loop {
        match reader.read(&mut piece).await {
            Ok(0) => return kept,
            Ok(length) => {
                let room = MAX_OUTPUT - kept.len();
                kept.extend_from_slice(&piece[..length.min(room)]);
            }
            Err(error) => {
                if !is_end_of_terminal(&error) {
                    tracing::debug!(%error, "failed to read the output of a command");
                }
                return kept;
            }
        }
    }
}

//! Another user of the machine, with nothing but the programs that everyone has.

use std::{
    ffi::OsStr,
    io::Write as _,
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result};

use crate::programs::ProgramOutput;

/// A user by number, who needs no entry in a file of users. Only root can be this user.
#[derive(Clone, Copy, Debug)]
pub struct Stranger(pub u32);

impl Stranger {
    /// A command line of this user, with an environment of its own.
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        // Without supplementary groups, too: the standard library drops them.
        command.uid(self.0).gid(self.0);
        command.env_clear().current_dir("/").env("HOME", "/");
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Runs a script of bash with this text as standard input.
    ///
    /// # Errors
    ///
    /// If it cannot be run.
    pub fn shell(self, script: &str, input: String) -> Result<ProgramOutput> {
        let mut bash = self.command("bash");
        run(bash.args(["-c", script]), input)
    }
}

/// Runs a command with this text as standard input.
///
/// # Errors
///
/// If it cannot be run.
pub fn run(command: &mut Command, input: String) -> Result<ProgramOutput> {
    let piped = command.stdin(Stdio::piped());
    let mut child = piped
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    // It may write before it has read everything.
    let writer = thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    // One that ended early says why by its output.
    _ = writer.join();
    Ok(output.into())
}

//! The programs under test.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

/// The directory of `podplane` and the plugins.
///
/// # Panics
///
/// If they have not been built.
pub fn bin_dir() -> PathBuf {
    let dir = env::var_os("PODPLANE_BIN_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release"),
        PathBuf::from,
    );
    assert!(
        dir.join("podplane").exists(),
        "no podplane in {}: run cargo xtask build",
        dir.display()
    );
    dir
}

/// A command line of `podplane`, without any setting of the caller's environment.
pub fn podplane<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(bin_dir().join("podplane"));
    for (name, _) in
        env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("PODPLANE_"))
    {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null());
    command
}

/// What a finished program left.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said beside.
    pub stderr: String,
}

impl Finished {
    /// Its standard output, if it succeeded.
    ///
    /// # Panics
    ///
    /// If it did not, showing all it said.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(
            self.code,
            Some(0),
            "stdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
        self.stdout
    }

    /// Its standard error, if it failed with this code.
    ///
    /// # Panics
    ///
    /// If it did not, showing all it said.
    #[track_caller]
    pub fn failed(self, code: i32) -> String {
        assert_eq!(
            self.code,
            Some(code),
            "stdout:\n{}\nstderr:\n{}",
            self.stdout,
            self.stderr
        );
        self.stderr
    }
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a command to its end.
///
/// # Panics
///
/// If it cannot be started.
pub fn finish(command: &mut Command) -> Finished {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
        .into()
}

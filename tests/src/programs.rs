//! The programs under test.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::Result;
use podplane_ipam::audit;
use tempfile::TempDir;

use crate::{
    eventually,
    world::{self, Limit},
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

/// A data directory that no cluster runs on when it is dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// An empty one.
    ///
    /// # Panics
    ///
    /// If there is no room for temporary files.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self::within(&env::temp_dir())
    }

    /// An empty one on the file system of `dir`.
    ///
    /// # Panics
    ///
    /// If there is no room.
    pub fn within(dir: &Path) -> Self {
        let made = tempfile::Builder::new().prefix("pp-").tempdir_in(dir);
        Self(made.expect("a temporary directory"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs `podplane` on it, with arguments that may have blanks.
    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Finished {
        finish(podplane(args).env("PODPLANE_DATA_DIR", self.path()))
    }

    /// Fails if an invariant is broken in the cluster that runs on it.
    ///
    /// # Errors
    ///
    /// With what is broken, or if nothing runs on it.
    pub async fn check(&self) -> Result<()> {
        let client = crate::cluster::connect(self.path())?;
        let violations = || async {
            let world = world::observe(&client, self.path(), Limit::Addresses).await?;
            anyhow::Ok(audit::check(&world))
        };
        eventually("no violation", violations, |seen| {
            seen.as_ref().is_ok_and(Vec::is_empty)
        })
        .await?;
        Ok(())
    }

    /// Runs `podplane` on it.
    pub fn podplane(&self, args: &str) -> Finished {
        self.run(args.split_whitespace())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.podplane("down");
    }
}

//! The programs under test.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use podplane_client::Client;
use podplane_ipam::invariants;
use podplane_test_cluster::{Program, world};
use tempfile::TempDir;

pub use podplane_test_cluster::ProgramOutput;

use crate::eventually;

/// The program under test.
///
/// # Panics
///
/// If it has not been built.
fn program() -> Program {
    Program::find().unwrap_or_else(|error| panic!("{error}"))
}

/// The directory of `podplane` and the plugins.
pub fn bin_dir() -> PathBuf {
    program().dir().to_owned()
}

/// A command line of `podplane`, without any setting of the caller's environment.
pub fn podplane<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    program().command(args)
}

/// Runs a command to its end.
///
/// # Panics
///
/// If it cannot be started.
pub fn finish(command: &mut Command) -> ProgramOutput {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
        .into()
}

/// A data directory. A cluster that runs on it ends when it is dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Creates an empty one.
    ///
    /// # Panics
    ///
    /// If there is no room for temporary files.
    #[expect(clippy::new_without_default, reason = "it makes a directory")]
    pub fn new() -> Self {
        Self::within(&env::temp_dir())
    }

    /// Creates an empty one on the file system of `dir`.
    ///
    /// # Panics
    ///
    /// If there is no room.
    pub fn within(dir: &Path) -> Self {
        let made = tempfile::Builder::new().prefix("pp-").tempdir_in(dir);
        Self(made.expect("a temporary directory"))
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs `podplane` on it, with arguments that may have blanks.
    pub fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> ProgramOutput {
        finish(podplane(args).env("PODPLANE_DATA_DIR", self.path()))
    }

    /// Fails if an invariant is broken in the cluster that runs on it.
    ///
    /// # Errors
    ///
    /// With the broken invariants, or if no cluster runs on it.
    pub async fn check(&self) -> Result<()> {
        let server = format!("unix:{}", self.path().join("apiserver.sock").display());
        let client = Client::connect(&server.parse()?)?;
        let violations = || async {
            let world = world::observe(&client, self.path()).await?;
            anyhow::Ok(invariants::check(&world))
        };
        eventually("no violation", violations, |seen| {
            seen.as_ref().is_ok_and(Vec::is_empty)
        })
        .await?;
        Ok(())
    }

    /// Runs `podplane` on it.
    pub fn podplane(&self, args: &str) -> ProgramOutput {
        self.run(args.split_whitespace())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.podplane("down");
    }
}

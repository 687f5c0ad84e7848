//! The program `podplane`, and programs that run to their end.

use std::{
    env,
    ffi::OsStr,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use crate::{ClusterError, Result};

/// The path of `podplane`, which has the CNI plugins beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(PathBuf);

impl Program {
    /// Returns the program at that path.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoProgram`] if there is no such file.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self> {
        let path = std::path::absolute(path.into()).map_err(ClusterError::io("find podplane"))?;
        if path.is_file() {
            return Ok(Self(path));
        }
        let dir = path.parent().map(Path::to_owned).unwrap_or_default();
        Err(ClusterError::NoProgram { looked: vec![dir] })
    }

    /// Finds the program in `PODPLANE_BIN_DIR`, if that is set; else in the target directory of
    /// this test, in the test's own profile or in `release`; else in `PATH`.
    ///
    /// # Errors
    ///
    /// [`ClusterError::NoProgram`] if it is in none of them.
    pub fn find() -> Result<Self> {
        let looked = match env::var_os("PODPLANE_BIN_DIR") {
            Some(dir) => vec![dir.into()],
            None => beside_the_test().into_iter().chain(in_path()).collect(),
        };
        let found = looked
            .iter()
            .map(|dir: &PathBuf| dir.join("podplane"))
            .find(|file| file.is_file());
        found.map_or(Err(ClusterError::NoProgram { looked }), Self::at)
    }

    /// The path of the program.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory of the program.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.0.parent().unwrap_or(Path::new("/"))
    }

    /// Returns a command of the program. Settings of podplane in the test's environment are
    /// removed.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.0);
        command.args(args).stdin(Stdio::null());
        without_settings(&mut command);
        command
    }
}

/// Removes the variables that are settings of `podplane` from a command's environment.
pub(crate) fn without_settings(command: &mut Command) {
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PODPLANE_") {
            command.env_remove(name);
        }
    }
}

/// Returns `target/debug` for a test at `target/debug/deps/NAME`, and `target/release` beside it.
fn beside_the_test() -> Vec<PathBuf> {
    let test = env::current_exe().unwrap_or_default();
    let is_deps = |dir: &&Path| dir.ends_with("deps") || dir.ends_with("examples");
    let profile = test.ancestors().find(is_deps).and_then(Path::parent);
    let profiles = profile
        .into_iter()
        .flat_map(|profile| [profile.to_owned(), profile.with_file_name("release")]);
    profiles.collect()
}

fn in_path() -> Vec<PathBuf> {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect()
}

/// The end of a program: its exit code and its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramOutput {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl ProgramOutput {
    /// Returns the standard output of a program that succeeded.
    ///
    /// # Panics
    ///
    /// If it failed, with its output.
    #[track_caller]
    pub fn ok(self) -> String {
        let Self {
            code,
            stdout,
            stderr,
        } = self;
        assert_eq!(code, Some(0), "stdout:\n{stdout}\nstderr:\n{stderr}");
        stdout
    }

    /// Returns the standard error of a program that failed with this code.
    ///
    /// # Panics
    ///
    /// If it ended with any other code, with its output.
    #[track_caller]
    pub fn failed(self, expected: i32) -> String {
        let Self {
            code,
            stdout,
            stderr,
        } = self;
        assert_eq!(code, Some(expected), "stdout:\n{stdout}\nstderr:\n{stderr}");
        stderr
    }
}

impl From<Output> for ProgramOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Runs a command to its end, whatever its exit code. The process is killed if this future is
/// dropped.
///
/// # Errors
///
/// [`ClusterError::Io`] if it cannot be started.
pub async fn run(command: Command) -> Result<ProgramOutput> {
    let failed = ClusterError::io(format!("run {}", line(&command)));
    let mut command = tokio::process::Command::from(command);
    let output = command.kill_on_drop(true).output().await;
    output.map(ProgramOutput::from).map_err(failed)
}

/// Returns `text` as a standard input. It is a file and not a pipe, so that no writer is needed
/// while the program reads.
pub(crate) fn input(text: &str) -> Result<Stdio> {
    use std::io::Seek as _;
    let file = tempfile::tempfile().and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok(file)
    });
    Ok(file
        .map_err(ClusterError::io("write a temporary file"))?
        .into())
}

/// The command line as a user would type it.
pub(crate) fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

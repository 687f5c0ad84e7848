//! A cluster of a user, whose data directory is in a place that everyone reaches.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    os::unix::{
        fs::{PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use podplane_tests::{
    processes_of,
    programs::{ProgramOutput, bin_dir, finish},
};
use tempfile::TempDir;

/// The bearer token of a user of the cluster.
pub(crate) const TOKEN: &str = "bW9zdC1zZWNyZXQtdG9rZW4-of-the-cluster";

/// The command lines of processes, by their ids.
pub(crate) type Processes = BTreeMap<u32, String>;

/// A cluster that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedCluster {
    place: TempDir,
    data_dir: PathBuf,
    owner: u32,
}

impl OwnedCluster {
    /// Starts one with two nodes and network devices.
    pub(crate) fn start(owner: u32) -> Result<Self> {
        let place = tempfile::Builder::new().prefix("pp-").tempdir()?;
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        open(place.path())?;
        for name in ["bin", "tmp", "home", "runtime", "etc"] {
            let dir = place.path().join(name);
            fs::create_dir(&dir)?;
            open(&dir)?;
            if name != "bin" {
                chown(&dir, Some(owner), Some(owner))?;
            }
        }
        chown(place.path(), Some(owner), Some(owner))?;
        // Perhaps only its owner may enter the build's directory.
        for entry in fs::read_dir(bin_dir())? {
            let path = entry?.path();
            if path.is_file() && path.extension().is_none() {
                let name = path.file_name().context("a name")?;
                fs::copy(&path, place.path().join("bin").join(name))?;
            }
        }
        let tokens = place.path().join("etc/tokens.csv");
        fs::write(&tokens, format!("{TOKEN},ada,1,system:masters\n"))?;
        fs::set_permissions(&tokens, fs::Permissions::from_mode(0o600))?;
        chown(&tokens, Some(owner), Some(owner))?;
        let cluster = Self {
            data_dir: place.path().join("d"),
            place,
            owner,
        };
        let tokens = tokens.display();
        let flags = "--detach --wait --nodes 2 --network kernel --extra-config";
        let up = format!("up {flags} apiserver.token-auth-file={tokens}");
        cluster.podplane(&up).ok();
        Ok(cluster)
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The directory of the programs, which everyone may run.
    pub(crate) fn bin_dir(&self) -> PathBuf {
        self.place.path().join("bin")
    }

    /// The directories in which the cluster makes files.
    pub(crate) fn dirs(&self) -> Vec<PathBuf> {
        let each = ["d", "tmp", "home", "runtime", "etc"];
        each.map(|name| self.place.path().join(name)).into()
    }

    /// A command line of the owner.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let place = self.place.path();
        command
            .uid(self.owner)
            .gid(self.owner)
            .current_dir("/")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("PODPLANE_DATA_DIR", &self.data_dir)
            .env("TMPDIR", place.join("tmp"))
            .env("HOME", place.join("home"))
            .env("XDG_RUNTIME_DIR", place.join("runtime"));
        command
    }

    /// Runs `podplane` as the owner.
    pub(crate) fn podplane(&self, args: &str) -> ProgramOutput {
        let mut command = self.command(self.bin_dir().join("podplane"));
        finish(command.args(args.split_whitespace()))
    }

    /// The processes of the cluster.
    pub(crate) fn processes(&self) -> Result<Processes> {
        let dir = self.data_dir.display().to_string();
        Ok(processes_of(&dir)?.into_iter().collect())
    }

    /// Ends the cluster, and checks that it has left nothing.
    pub(crate) fn purge(self) -> Result<()> {
        self.podplane("down --purge").ok();
        ensure!(self.processes()?.is_empty(), "{:?}", self.processes());
        for dir in self.dirs() {
            let left = fs::read_dir(&dir).into_iter().flatten();
            let left: Vec<_> = left.flatten().map(|left| left.file_name()).collect();
            let is_clean = left.is_empty() || dir.ends_with("etc");
            ensure!(is_clean, "{}: {left:?}", dir.display());
        }
        Ok(())
    }
}

impl Drop for OwnedCluster {
    fn drop(&mut self) {
        self.podplane("down");
    }
}

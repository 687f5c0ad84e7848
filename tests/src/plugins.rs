//! A directory of CNI plugins.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use anyhow::Result;
use tempfile::TempDir;

use crate::programs::bin_dir;

/// A directory of plugins in which the one that gives addresses can be replaced.
#[derive(Debug)]
pub struct Plugins(TempDir);

impl Plugins {
    /// Creates the directory, with links to all plugins that a node needs.
    ///
    /// # Errors
    ///
    /// If the directory cannot be written.
    pub fn new() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        for plugin in ["bridge", "loopback", "host-local"] {
            symlink(
                bin_dir().canonicalize()?.join(plugin),
                dir.path().join(plugin),
            )?;
        }
        Ok(Self(dir))
    }

    /// The directory, for `--cni-bin-dir`.
    pub fn dir(&self) -> &Path {
        self.0.path()
    }

    fn host_local(&self) -> PathBuf {
        self.0.path().join("host-local")
    }

    /// Replaces the plugin that gives addresses by a shell script.
    ///
    /// # Errors
    ///
    /// If the directory cannot be written.
    pub fn replace(&self, script: &str) -> Result<()> {
        let new = self.0.path().join("new");
        fs::write(&new, format!("#!/bin/sh\n{script}\n"))?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, self.host_local())?)
    }

    /// Puts the plugin that gives addresses back.
    ///
    /// # Errors
    ///
    /// If the directory cannot be written.
    pub fn repair(&self) -> Result<()> {
        fs::remove_file(self.host_local())?;
        Ok(symlink(
            bin_dir().canonicalize()?.join("host-local"),
            self.host_local(),
        )?)
    }
}

//! An apiserver alone.

use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_client::Client;

use crate::{eventually, programs::podplane, rest::Rest};

/// A running apiserver on a data directory; killed when it is dropped.
#[derive(Debug)]
pub struct Apiserver {
    child: Child,
    address: String,
}

impl Apiserver {
    /// Starts one on a data directory, where its log goes too, and waits until it serves.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_at("127.0.0.1:0", dir).await
    }

    /// The same where another one listened, so that its clients come back.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start_at(address: &str, dir: &Path) -> Result<Self> {
        let file: PathBuf = dir.join("address");
        let _ = std::fs::remove_file(&file);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(dir.join("log"))?;
        let mut command = podplane(["apiserver", "--listen", address, "--address-file"]);
        let command = command.arg(&file).arg("--data-dir").arg(dir);
        let child = command.stdout(Stdio::null()).stderr(log).spawn()?;
        let mut server = Self {
            child,
            address: String::new(),
        };
        let read = || async { std::fs::read_to_string(&file).ok() };
        let address = eventually("the apiserver tells its address", read, Option::is_some).await;
        address
            .context("an address")?
            .trim()
            .clone_into(&mut server.address);
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A client with a connection of its own.
    ///
    /// # Errors
    ///
    /// If the address is none.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.address.parse()?)?)
    }

    /// A client of its REST API, with connections of its own.
    pub fn rest(&self) -> Rest {
        Rest::new(self.address.as_str())
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Apiserver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

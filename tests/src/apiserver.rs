//! An API server alone.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_client::Client;
use podplane_http_client::HttpClient;

use crate::service::Service;

/// A running API server on a data directory; killed when it is dropped. Unless its flags say
/// otherwise, everyone may do everything at its address.
#[derive(Debug)]
pub struct Apiserver(Service);

impl Apiserver {
    /// Starts one on a data directory, which also gets its log, and waits until it serves.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start(dir: &Path) -> Result<Self> {
        Self::start_at("127.0.0.1:0", dir).await
    }

    /// Starts one at the address of an earlier one, so that the clients of that one come back.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start_at(address: &str, dir: &Path) -> Result<Self> {
        Self::run(address, dir, &[]).await
    }

    /// Starts one with more flags.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start_with(dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::run("127.0.0.1:0", dir, flags).await
    }

    async fn run(address: &str, dir: &Path, flags: &[&str]) -> Result<Self> {
        let data = dir.to_str().context("a directory in UTF-8")?;
        let is_secure = flags
            .iter()
            .any(|flag| flag.starts_with("--authentication"));
        let open: &[&str] = match is_secure {
            true => &[],
            false => &["--authentication=none"],
        };
        let args = [&["--data-dir", data], open, flags].concat();
        Ok(Self(
            Service::start("apiserver", address, dir, &args).await?,
        ))
    }

    /// The bytes of memory that its process has now: `RssAnon` of proc(5).
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.0.pid());
        let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib
            .with_context(|| format!("no RssAnon in {file}"))?
            .parse()?;
        Ok(kib * 1024)
    }

    /// The address at which it listens.
    pub fn address(&self) -> &str {
        self.0.address()
    }

    /// A client with a connection of its own.
    ///
    /// # Errors
    ///
    /// If the address is invalid.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.address().parse()?)?)
    }

    /// A client of its REST API, with connections of its own.
    pub fn rest(&self) -> HttpClient {
        HttpClient::new(self.address())
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(self) -> Result<()> {
        self.0.kill()
    }
}

//! An API server alone.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use podplane_client::Client;
use podplane_http_client::HttpClient;
use rustix::process::Signal;

use crate::service::Service;

/// A running API server on a data directory; killed when it is dropped. Unless its flags say
/// otherwise, everyone may do everything at its address.
#[derive(Debug)]
pub struct Apiserver {
    service: Service,
    /// Its socket, if its address has TLS, else its address.
    local: String,
}

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
        Self::start_at_with(address, dir, &[]).await
    }

    /// Starts one with more flags.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start_with(dir: &Path, flags: &[&str]) -> Result<Self> {
        Self::start_at_with("127.0.0.1:0", dir, flags).await
    }

    /// Starts one at an address, with more flags.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub async fn start_at_with(address: &str, dir: &Path, flags: &[&str]) -> Result<Self> {
        let data = dir.to_str().context("a directory in UTF-8")?;
        let is_secure = flags
            .iter()
            .any(|flag| flag.starts_with("--authentication"));
        let open: &[&str] = match is_secure {
            true => &[],
            false => &["--authentication=none"],
        };
        let args = [&["--data-dir", data], open, flags].concat();
        let service = Service::start("apiserver", address, dir, &args).await?;
        let local = match service.address().starts_with("https://") {
            true => format!("unix:{data}/apiserver.sock"),
            false => service.address().to_owned(),
        };
        Ok(Self { service, local })
    }

    /// The bytes of memory that its process has now: `RssAnon` of proc(5).
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn resident_bytes(&self) -> Result<u64> {
        let file = format!("/proc/{}/status", self.service.pid());
        let text = fs::read_to_string(&file).with_context(|| format!("read {file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib
            .with_context(|| format!("no RssAnon in {file}"))?
            .parse()?;
        Ok(kib * 1024)
    }

    /// Tells it to end, and waits until it has. Returns true if it succeeded.
    ///
    /// # Errors
    ///
    /// If it cannot be told.
    pub async fn terminated(self) -> Result<bool> {
        self.service.signal(Signal::TERM)?;
        Ok(self.service.ended().await)
    }

    /// The address at which it listens.
    pub fn address(&self) -> &str {
        self.service.address()
    }

    /// Its address for clients that need no credentials: the socket in its data directory if the
    /// address has TLS.
    pub fn local(&self) -> &str {
        &self.local
    }

    /// A client with a connection of its own.
    ///
    /// # Errors
    ///
    /// If the address is invalid.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.local.parse()?)?)
    }

    /// A client of its REST API, with connections of its own.
    pub fn rest(&self) -> HttpClient {
        HttpClient::new(&*self.local)
    }

    /// Kills it and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(self) -> Result<()> {
        self.service.kill()
    }
}

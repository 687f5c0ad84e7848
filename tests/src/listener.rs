//! The listener of `podplane ui` and `podplane replay --ui`.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};

/// A command that serves the page; it is killed when this is dropped.
#[derive(Debug)]
pub struct PageListener {
    child: Child,
    /// `NAME.localhost:PORT`
    pub host: String,
    /// The token that logs in once.
    pub token: String,
}

impl Drop for PageListener {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl PageListener {
    /// Starts a command that prints the address of its page.
    ///
    /// # Errors
    ///
    /// If it does not start, or prints anything else.
    pub fn start(mut command: Command) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("its output")?;
        BufReader::new(stdout).read_line(&mut line)?;
        let rest = line.trim().strip_prefix("http://").context(line.clone())?;
        let (host, token) = rest.split_once("/ui/#token=").context(line.clone())?;
        let (name, _) = host.split_once(':').context(line.clone())?;
        ensure!(name.ends_with(".localhost"), "{line}");
        Ok(Self {
            child,
            host: host.to_owned(),
            token: token.to_owned(),
        })
    }

    /// The port of 127.0.0.1.
    pub fn port(&self) -> &str {
        self.host.rsplit_once(':').map_or("", |(_, port)| port)
    }

    /// The address that logs in, and opens a view, such as `#/nodes`.
    pub fn login(&self, view: &str) -> String {
        format!("http://{}/ui/#token={}&to={view}", self.host, self.token)
    }

    /// The address of a view.
    pub fn view(&self, view: &str) -> String {
        format!("http://{}/ui/{view}", self.host)
    }
}

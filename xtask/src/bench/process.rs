//! One run of a plugin, timed as a runtime sees it: from before the fork until its exit is known.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// A program and the way to call it.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// The arguments; plugins have none.
    pub(super) args: Vec<PathBuf>,
    /// The directory of other plugins.
    pub(super) plugins: PathBuf,
    /// The network configuration.
    pub(super) config: Vec<u8>,
}

impl Program {
    pub(super) fn plugin(plugins: &Path, name: &str, config: &Value) -> Self {
        Self {
            path: plugins.join(name),
            args: Vec::new(),
            plugins: plugins.to_owned(),
            config: config.to_string().into_bytes(),
        }
    }

    /// Times one call, which must succeed; in milliseconds.
    pub(super) fn time(&self, command: &str, id: &str, netns: &Path) -> Result<f64> {
        let (milliseconds, output) = self.run(&self.path, &self.args, command, id, netns)?;
        if !output.status.success() {
            bail!("{}", self.failure(command, &output));
        }
        Ok(milliseconds)
    }

    /// Times one call, which must fail with this text; in milliseconds.
    pub(super) fn time_failure(&self, command: &str, id: &str, text: &str) -> Result<f64> {
        let (milliseconds, output) =
            self.run(&self.path, &self.args, command, id, Path::new(NO_NETNS))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        if output.status.success() || !stdout.contains(text) {
            bail!("instead of \"{text}\": {}", self.failure(command, &output));
        }
        Ok(milliseconds)
    }

    /// The peak memory of one successful call, in KiB, as reported by the program `peak`.
    pub(super) fn peak(&self, peak: &Path, command: &str, id: &str, netns: &Path) -> Result<f64> {
        let (_, output) = self.run(peak, std::slice::from_ref(&self.path), command, id, netns)?;
        if !output.status.success() {
            bail!("{}", self.failure(command, &output));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        text.parse()
            .with_context(|| format!("peak memory: {text:?} is not a number"))
    }

    fn run(
        &self,
        path: &Path,
        args: &[PathBuf],
        command: &str,
        id: &str,
        netns: &Path,
    ) -> Result<(f64, Output)> {
        let mut process = Command::new(path);
        process
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs([
                ("CNI_COMMAND", command),
                ("CNI_CONTAINERID", id),
                ("CNI_IFNAME", "eth0"),
            ])
            .env("CNI_NETNS", netns)
            .env("CNI_PATH", &self.plugins)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = process
            .spawn()
            .with_context(|| format!("failed to start {}", path.display()))?;
        let mut stdin = child
            .stdin
            .take()
            .context("missing standard input of a plugin")?;
        stdin
            .write_all(&self.config)
            .context("failed to write to a plugin")?;
        drop(stdin);
        let output = child
            .wait_with_output()
            .context("failed to wait for a plugin")?;
        Ok((started.elapsed().as_secs_f64() * 1e3, output))
    }

    fn failure(&self, command: &str, output: &Output) -> String {
        let text = [&output.stdout, &output.stderr].map(|text| {
            let text = String::from_utf8_lossy(text);
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        });
        format!(
            "{} {command}: {}: {}",
            self.path.display(),
            output.status,
            text.join(" ")
        )
    }
}

/// The CNI_NETNS of IPAM plugins, which never use it.
pub(super) const NO_NETNS: &str = "/does/not/exist";

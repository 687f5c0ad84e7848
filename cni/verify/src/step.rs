//! Calls that show a finding.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    exchange::{Exchange, Interruption, PluginEnd, PluginInput},
    shell::{Octal, QuotedWord},
};

/// A call of a finding. `Display` is a line for a shell.
#[derive(Debug, Clone)]
pub struct CallLine {
    program: PathBuf,
    exchange: Box<Exchange>,
}

impl CallLine {
    pub(super) fn new(program: &Path, exchange: &Exchange) -> Self {
        Self {
            program: program.to_owned(),
            exchange: Box::new(exchange.clone()),
        }
    }

    /// A call without an answer.
    pub(super) fn of(program: &Path, call: &PluginInput) -> Self {
        let exchange = Exchange {
            call: call.clone(),
            interruption: Interruption::None,
            end: PluginEnd::Interrupted,
            stdout: Vec::new(),
            stderr: Vec::new(),
            took: Duration::ZERO,
        };
        Self::new(program, &exchange)
    }

    pub(super) fn network(&self) -> Option<u32> {
        self.exchange.call.network
    }

    /// The call as `ADD CONTAINERID/IFNAME`, or the command alone if it is about no attachment.
    #[must_use]
    pub fn title(&self) -> String {
        let call = &self.exchange.call;
        let attachment = match (call.env("CNI_CONTAINERID"), call.env("CNI_IFNAME")) {
            ("", "") => String::new(),
            (id, ifname) => format!(" {id}/{ifname}"),
        };
        format!("{}{attachment}", call.command())
    }

    /// The last lines that the plugin printed on standard error.
    #[must_use]
    pub fn last_stderr(&self, lines: usize) -> Vec<String> {
        let stderr = self.stderr();
        let all: Vec<_> = stderr.lines().collect();
        let last = &all[all.len().saturating_sub(lines)..];
        last.iter().map(|line| (*line).to_owned()).collect()
    }

    /// The plugin's answer, on one line.
    #[must_use]
    pub fn answer(&self) -> String {
        self.exchange.summary()
    }

    /// The interruption of the plugin; empty if there was none.
    #[must_use]
    pub fn interruption(&self) -> String {
        self.exchange.interruption.to_string()
    }

    /// The plugin's standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.exchange.stderr).into_owned()
    }
}

impl fmt::Display for CallLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = &self.exchange.call;
        match std::str::from_utf8(&call.stdin) {
            Ok(text) if !text.contains(char::is_control) => {
                write!(f, "printf %s {}", QuotedWord(text))?
            }
            _ => write!(f, "printf '{}'", Octal(&call.stdin))?,
        }
        f.write_str(" | env")?;
        for (key, value) in &call.env {
            write!(f, " {key}={}", QuotedWord(value))?;
        }
        write!(f, " {}", QuotedWord(&self.program.to_string_lossy()))
    }
}

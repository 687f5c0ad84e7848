//! Delegation to the IPAM plugin.

use std::{ffi::OsString, fmt, io::Write as _, iter};

use super::Call;
use crate::{
    runtime::{PluginError, RunningPlugin, Surroundings, find_plugin},
    trace::StartedStep,
    types::{CniError, CniResult},
};

/// The IPAM plugin of a configuration. It gets the same environment and input as the calling
/// plugin.
#[derive(Debug, Clone, Copy)]
pub struct IpamPlugin<'a> {
    call: &'a Call,
    program: &'a str,
}

impl<'a> IpamPlugin<'a> {
    /// The delegate for `program`; `None` for an empty name: the network then has no addresses.
    #[must_use]
    pub fn new(call: &'a Call, program: &'a str) -> Option<Self> {
        (!program.is_empty()).then_some(Self { call, program })
    }

    /// Returns true if the IPAM plugin may use the container's interface, as dhcp does to send its
    /// requests. The interface must then be up before the ADD, and exist until after the DEL. Only
    /// `host-local` and `static` are known not to use it.
    #[must_use]
    pub fn needs_interface(self) -> bool {
        !["host-local", "static"].contains(&self.program)
    }

    /// Gets addresses for an attachment that `attach` makes, and releases them if it fails. The
    /// plugin runs while `attach` does the work that needs no addresses.
    ///
    /// # Errors
    /// Those of `attach`, and those of finding and starting the IPAM plugin.
    pub fn add_for(
        self,
        attach: impl FnOnce(&mut Addresses<'a>) -> Result<CniResult, CniError>,
    ) -> Result<CniResult, CniError> {
        let program = find_plugin(self.program, &self.call.path).map_err(refused)?;
        let (telling, env) = self.begin("ADD");
        let running =
            RunningPlugin::start(&program, &self.call.stdin, &env, Surroundings::default());
        let mut addresses = Addresses {
            ipam: self,
            running: Some((running.map_err(refused)?, telling)),
            are_given: false,
        };
        attach(&mut addresses).map_err(|error| addresses.give_back(error))
    }

    /// Releases the addresses.
    ///
    /// # Errors
    /// The IPAM plugin's own; code 999 if it had none.
    pub fn del(self) -> Result<(), CniError> {
        self.run("DEL").map(drop)
    }

    /// Runs CHECK, GC or STATUS.
    ///
    /// # Errors
    /// The IPAM plugin's own; code 999 if it had none.
    pub fn forward(self, command: &'static str) -> Result<(), CniError> {
        self.run(command).map(drop)
    }

    fn run(self, command: &'static str) -> Result<Vec<u8>, CniError> {
        let program = find_plugin(self.program, &self.call.path).map_err(refused)?;
        let (telling, env) = self.begin(command);
        let running =
            RunningPlugin::start(&program, &self.call.stdin, &env, Surroundings::default());
        answer(running.map_err(refused)?, telling)
    }

    /// Starts a step of the trace. Returns the additional environment of the plugin.
    fn begin(self, command: &'static str) -> (StartedStep, Vec<(&'static str, OsString)>) {
        let telling = self.call.tell.begin(&format!("{command} {}", self.program));
        let env = iter::once(("CNI_COMMAND", command.into())).chain(telling.environment());
        let env = env.collect();
        (telling, env)
    }
}

/// Addresses that the IPAM plugin has been asked for.
#[derive(Debug)]
pub struct Addresses<'a> {
    ipam: IpamPlugin<'a>,
    running: Option<(RunningPlugin<'a>, StartedStep)>,
    are_given: bool,
}

impl Addresses<'_> {
    /// Waits for the addresses. Works once.
    ///
    /// # Errors
    /// The IPAM plugin's own error; code 999 if it had none, or gave no address.
    pub fn wait(&mut self) -> Result<CniResult, CniError> {
        let running = self.running.take();
        let (running, telling) =
            running.ok_or_else(|| CniError::internal("the IPAM plugin has been asked already"))?;
        let output = answer(running, telling)?;
        // The plugin has succeeded as far as it knows, so its addresses must be released even if
        // its result is unusable.
        self.are_given = true;
        let version = self.ipam.call.version.as_str();
        let result = CniResult::parse(&output, version).map_err(CniError::internal)?;
        if result.ips.is_empty() {
            return Err(CniError::internal("IPAM plugin returned missing IP config"));
        }
        Ok(result)
    }

    /// Releases the addresses after a failure. Returns the failure, with that of the release if
    /// there is one.
    fn give_back(&mut self, error: CniError) -> CniError {
        if self.running.is_some() {
            _ = self.wait(); // Find out whether it gave addresses.
        }
        if !self.are_given {
            return error;
        }
        match self.ipam.del() {
            Ok(()) => error,
            Err(leak) => CniError {
                msg: format!(
                    "{}; giving its addresses back failed too: {leak}",
                    error.msg
                ),
                ..error
            },
        }
    }
}

/// Waits for the plugin's output. Its standard error is passed on.
fn answer(running: RunningPlugin<'_>, telling: StartedStep) -> Result<Vec<u8>, CniError> {
    let mut steps = Vec::new();
    let ran = running.finish(&mut steps);
    _ = std::io::stderr().write_all(&steps);
    let failed = ran.as_ref().err().map(|error| error as &dyn fmt::Display);
    telling.end(failed);
    let output = ran.map_err(refused)?;
    _ = std::io::stderr().write_all(&output.stderr);
    Ok(output.stdout)
}

fn refused(error: PluginError) -> CniError {
    match error {
        PluginError::Refused { error, stderr } => {
            _ = std::io::stderr().write_all(stderr.as_bytes());
            error
        }
        PluginError::Run { path, source } => {
            CniError::internal(format!("failed to run {}: {source}", path.display()))
        }
        error => CniError::internal(error),
    }
}

//! Passing work on to the IPAM plugin.

use std::{ffi::OsString, fmt, io::Write as _, iter};

use super::Call;
use crate::{
    runtime::{PluginError, Running, find_plugin},
    trace::Telling,
    types::{CniError, CniResult},
};

/// The IPAM plugin that a plugin's configuration names. It gets the same environment and input.
#[derive(Debug, Clone, Copy)]
pub struct Ipam<'a> {
    call: &'a Call,
    program: &'a str,
}

impl<'a> Ipam<'a> {
    /// Without a name there is none, and the network has no addresses.
    #[must_use]
    pub fn new(call: &'a Call, program: &'a str) -> Option<Self> {
        (!program.is_empty()).then_some(Self { call, program })
    }

    /// Whether it may look at the container's interface, as dhcp does, which asks over it: then the interface has to be up before ADD, and there
    /// until after DEL. Only of two it is known that they do not.
    #[must_use]
    pub fn needs_interface(self) -> bool {
        !["host-local", "static"].contains(&self.program)
    }

    /// Gets addresses for an attachment that `attach` makes, and gives them back if it fails. The plugin runs while `attach` does what needs no
    /// address yet.
    ///
    /// # Errors
    /// Those of `attach`, and the IPAM plugin's own if it was not asked for them; code 999 if that had none.
    pub fn add_for(
        self,
        attach: impl FnOnce(&mut Addresses<'a>) -> Result<CniResult, CniError>,
    ) -> Result<CniResult, CniError> {
        let program = find_plugin(self.program, &self.call.path).map_err(refused)?;
        let (telling, env) = self.begin("ADD");
        let running = Running::start(&program, &self.call.stdin, &env, None);
        let mut addresses = Addresses {
            ipam: self,
            running: Some((running.map_err(refused)?, telling)),
            are_given: false,
        };
        attach(&mut addresses).map_err(|error| addresses.give_back(error))
    }

    /// Gives them back.
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
        let running = Running::start(&program, &self.call.stdin, &env, None);
        answer(running.map_err(refused)?, telling)
    }

    /// What the plugin finds in its environment besides what this one found.
    fn begin(self, command: &'static str) -> (Telling, Vec<(&'static str, OsString)>) {
        let telling = self.call.tell.begin(&format!("{command} {}", self.program));
        let env = iter::once(("CNI_COMMAND", command.into())).chain(telling.environment());
        let env = env.collect();
        (telling, env)
    }
}

/// The addresses that an IPAM plugin is asked for.
#[derive(Debug)]
pub struct Addresses<'a> {
    ipam: Ipam<'a>,
    running: Option<(Running<'a>, Telling)>,
    are_given: bool,
}

impl Addresses<'_> {
    /// Waits for them. They are there once.
    ///
    /// # Errors
    /// The IPAM plugin's own error; code 999 if it had none, or gave no address.
    pub fn wait(&mut self) -> Result<CniResult, CniError> {
        let running = self.running.take();
        let (running, telling) =
            running.ok_or_else(|| CniError::internal("the IPAM plugin has been asked already"))?;
        let output = answer(running, telling)?;
        // It has succeeded as far as it knows, so whatever it gave must be given back.
        self.are_given = true;
        let version = self.ipam.call.version.as_str();
        let result = CniResult::parse(&output, version).map_err(CniError::internal)?;
        if result.ips.is_empty() {
            return Err(CniError::internal("IPAM plugin returned missing IP config"));
        }
        Ok(result)
    }

    /// After a failure, which is returned, with the one that follows from it if there is one.
    fn give_back(&mut self, error: CniError) -> CniError {
        if self.running.is_some() {
            _ = self.wait(); // Nobody has asked yet what has become of it.
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

/// What the plugin prints. What it tells on standard error is passed on.
fn answer(running: Running<'_>, telling: Telling) -> Result<Vec<u8>, CniError> {
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

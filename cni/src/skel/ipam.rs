//! Passing work on to the IPAM plugin.

use std::{ffi::OsString, io::Write as _};

use super::Call;
use crate::{
    runtime::{PluginError, execute, find_plugin},
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
    /// until after DEL. Only of two it is known that they do not, and a full range costs no device.
    #[must_use]
    pub fn needs_interface(self) -> bool {
        !["host-local", "static"].contains(&self.program)
    }

    /// Gets addresses.
    ///
    /// # Errors
    /// The IPAM plugin's own error; code 999 if it had none.
    pub fn add(self) -> Result<CniResult, CniError> {
        let output = self.run("ADD")?;
        let parsed = CniResult::parse(&output, self.call.version.as_str());
        parsed.map_err(|error| {
            // It has succeeded as far as it knows, so what it gave must be given back.
            _ = self.del();
            CniError::internal(error)
        })
    }

    /// Gets addresses for an attachment that `attach` makes, and gives them back if it fails.
    ///
    /// # Errors
    /// As [`Self::add`], when there are none, and those of `attach`.
    pub fn add_for(
        self,
        attach: impl FnOnce(CniResult) -> Result<CniResult, CniError>,
    ) -> Result<CniResult, CniError> {
        let addresses = self.add()?;
        let attached = if addresses.ips.is_empty() {
            Err(CniError::internal("IPAM plugin returned missing IP config"))
        } else {
            attach(addresses)
        };
        attached.map_err(|error| match self.del() {
            Ok(()) => error,
            Err(leak) => CniError {
                msg: format!(
                    "{}; giving its addresses back failed too: {leak}",
                    error.msg
                ),
                ..error
            },
        })
    }

    /// Gives them back.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn del(self) -> Result<(), CniError> {
        self.run("DEL").map(drop)
    }

    /// Runs CHECK, GC or STATUS.
    ///
    /// # Errors
    /// As [`Self::add`].
    pub fn forward(self, command: &'static str) -> Result<(), CniError> {
        self.run(command).map(drop)
    }

    fn run(self, command: &'static str) -> Result<Vec<u8>, CniError> {
        let run = || {
            let program = find_plugin(self.program, &self.call.path)?;
            execute(
                &program,
                &self.call.stdin,
                &[("CNI_COMMAND", OsString::from(command))],
                None,
            )
        };
        match run() {
            Ok(output) => {
                _ = std::io::stderr().write_all(&output.stderr);
                Ok(output.stdout)
            }
            Err(PluginError::Refused { error, stderr }) => {
                _ = std::io::stderr().write_all(stderr.as_bytes());
                Err(error)
            }
            Err(PluginError::Run { path, source }) => Err(CniError::internal(format!(
                "failed to run {}: {source}",
                path.display()
            ))),
            Err(error) => Err(CniError::internal(error)),
        }
    }
}

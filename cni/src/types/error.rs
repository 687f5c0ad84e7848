//! The error object that plugins print.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Error codes of the specification (CNI 1.1 §Error), and the code that the reference uses for
/// other errors.
pub mod code {
    /// The `cniVersion` of the configuration is not supported.
    pub const INCOMPATIBLE_VERSION: u32 = 1;
    /// A field of the network configuration is not supported.
    pub const UNSUPPORTED_FIELD: u32 = 2;
    /// The container is unknown or does not exist.
    pub const UNKNOWN_CONTAINER: u32 = 3;
    /// A `CNI_…` environment variable is missing or invalid.
    pub const INVALID_ENVIRONMENT: u32 = 4;
    /// Reading or writing failed.
    pub const IO_FAILURE: u32 = 5;
    /// Standard input could not be decoded.
    pub const DECODING_FAILURE: u32 = 6;
    /// The network configuration is invalid.
    pub const INVALID_CONFIG: u32 = 7;
    /// `CNI_NETNS` names the plugin's own namespace.
    pub const INVALID_NETNS: u32 = 8;
    /// A temporary condition: the caller should try again later.
    pub const TRY_AGAIN_LATER: u32 = 11;
    /// STATUS: the plugin cannot serve ADD now.
    pub const NOT_AVAILABLE: u32 = 50;
    /// STATUS: as 50, and connectivity of existing containers may be limited.
    pub const LIMITED_CONNECTIVITY: u32 = 51;
    /// The reference's code for every error without a code of its own.
    pub const INTERNAL: u32 = 999;
}

/// The error object of CNI, which a failing plugin prints on standard output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CniError {
    /// One of [`code`]'s, or one of the plugin's own from 100 on.
    #[serde(default)]
    pub code: u32,
    /// A sentence that describes the error.
    #[serde(default)]
    pub msg: String,
    /// More information; omitted from the JSON if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub details: String,
}

impl CniError {
    /// An error without details.
    pub fn new(code: u32, msg: impl Into<String>) -> Self {
        Self {
            code,
            msg: msg.into(),
            details: String::new(),
        }
    }

    /// An error with code 999.
    pub fn internal(msg: impl fmt::Display) -> Self {
        Self::new(code::INTERNAL, msg.to_string())
    }

    /// Sets the details.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = details.into();
        self
    }

    /// The object as a plugin prints it.
    #[must_use]
    pub fn to_json(&self) -> String {
        super::json::pretty(self)
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.msg)?;
        if !self.details.is_empty() {
            write!(f, "; {}", self.details)?;
        }
        Ok(())
    }
}

impl std::error::Error for CniError {}

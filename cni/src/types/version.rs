//! Versions of the CNI specification.

use std::{fmt, num::IntErrorKind, str::FromStr};

use super::json;

/// A version of the CNI specification that this package supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// The version of a configuration without `cniVersion`.
    #[default]
    V0_1_0,
    /// Same result as 0.1.0; adds the VERSION command.
    V0_2_0,
    /// Results with several addresses and interfaces.
    V0_3_0,
    /// Changes of wording only.
    V0_3_1,
    /// Adds CHECK, and prevResult for DEL.
    V0_4_0,
    /// Results without the `version` of each address.
    V1_0_0,
    /// Adds GC, STATUS and more properties of routes and interfaces.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// The newest version.
    pub const LATEST: Self = Self::V1_1_0;

    /// The text in `cniVersion`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }
}

impl Version {
    /// Major, minor and micro, for comparison with versions outside of [`Self::ALL`].
    pub(crate) fn triple(self) -> [i64; 3] {
        triple(self.as_str()).unwrap_or_default()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A `cniVersion` that is not one of [`Version::ALL`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported CNI version {0:?}")]
pub struct UnknownVersion(pub String);

impl FromStr for Version {
    type Err = UnknownVersion;

    /// Parses exactly: `1.0` is not `1.0.0`. The empty string is 0.1.0, as in the reference.
    fn from_str(text: &str) -> Result<Self, UnknownVersion> {
        if text.is_empty() {
            return Ok(Self::V0_1_0);
        }
        let found = Self::ALL.into_iter().find(|v| v.as_str() == text);
        found.ok_or_else(|| UnknownVersion(text.to_owned()))
    }
}

/// Parses `major[.minor[.micro]]`, with the reference's texts.
pub(crate) fn triple(version: &str) -> Result<[i64; 3], String> {
    let parts: Vec<_> = version.split('.').collect();
    if parts.len() > 3 {
        return Err(format!(
            "invalid version {}: too many parts",
            json::go_quote(version)
        ));
    }
    let mut triple = [0; 3];
    for ((part, number), name) in parts
        .iter()
        .zip(&mut triple)
        .zip(["major", "minor", "micro"])
    {
        *number = part.parse().map_err(|error: std::num::ParseIntError| {
            let part = json::go_quote(part);
            let why = match error.kind() {
                IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
                _ => "invalid syntax",
            };
            format!(
                "failed to convert {name} version part {part}: strconv.Atoi: parsing {part}: {why}"
            )
        })?;
    }
    Ok(triple)
}

//! The choice between our own behaviour and that of other systems.

use std::{fmt, str::FromStr};

/// Another system whose handling of node blocks is imitated, its faults included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "schema",
    derive(serde::Serialize, serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum Compat {
    /// Our own behaviour.
    #[default]
    None,
    /// The newest generation of Kubernetes.
    Upstream,
    /// Kubernetes up to 1.30.
    #[cfg_attr(feature = "schema", serde(rename = "upstream-1.30"))]
    Upstream130,
    /// Kubernetes from 1.31.0 to 1.31.3.
    #[cfg_attr(feature = "schema", serde(rename = "upstream-1.31"))]
    Upstream131,
    /// Kubernetes from 1.31.4 on.
    #[cfg_attr(feature = "schema", serde(rename = "upstream-1.32"))]
    Upstream132,
    /// The fork in cloud-provider-gcp.
    Gcp,
}

/// A generation of the reference's range allocator, which changed twice and was forked once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Generation {
    /// Allocates when an event arrives, and writes from a channel of 5000.
    G1,
    /// Allocates from a work queue; releases when a node begins to be deleted.
    G2,
    /// Allocates from a work queue; releases when a node is gone.
    G3,
    /// Like [`Generation::G1`], and misses deletions that its watch missed.
    Gcp,
}

impl Compat {
    /// Every value, in the order in which help lists them.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Upstream,
        Self::Upstream130,
        Self::Upstream131,
        Self::Upstream132,
        Self::Gcp,
    ];

    /// The name on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Upstream => "upstream",
            Self::Upstream130 => "upstream-1.30",
            Self::Upstream131 => "upstream-1.31",
            Self::Upstream132 => "upstream-1.32",
            Self::Gcp => "gcp",
        }
    }

    /// The generation of the reference's controller; `None` for ours.
    #[must_use]
    pub const fn generation(self) -> Option<Generation> {
        match self {
            Self::None => None,
            Self::Upstream130 => Some(Generation::G1),
            Self::Upstream131 => Some(Generation::G2),
            Self::Upstream | Self::Upstream132 => Some(Generation::G3),
            Self::Gcp => Some(Generation::Gcp),
        }
    }

    /// True if a node may have a block that overlaps another one or the service range.
    #[must_use]
    pub const fn is_lenient(self) -> bool {
        self.generation().is_some()
    }
}

impl fmt::Display for Compat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An invalid value of `--compat`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not one of {}", Compat::ALL.map(Compat::name).join(", "))]
pub struct UnknownCompat {
    /// The text as given.
    pub given: String,
}

impl FromStr for Compat {
    type Err = UnknownCompat;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let given = || UnknownCompat {
            given: text.to_owned(),
        };
        let mut all = Self::ALL.into_iter();
        all.find(|compat| compat.name() == text).ok_or_else(given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for compat in Compat::ALL {
            assert_eq!(compat.to_string().parse(), Ok(compat));
        }
        assert_eq!(
            "upstream-1.29".parse::<Compat>().unwrap_err().to_string(),
            r#""upstream-1.29" is not one of none, upstream, upstream-1.30, upstream-1.31, upstream-1.32, gcp"#
        );
    }

    #[test]
    fn every_mode_but_none_is_lenient() {
        let lenient = Compat::ALL.map(Compat::is_lenient);
        assert_eq!(lenient, [false, true, true, true, true, true]);
    }
}

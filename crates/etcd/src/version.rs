//! The versions of etcd, as far as they differ for a client.

use std::fmt;

/// The version of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EtcdVersion {
    major: u32,
    minor: u32,
    patch: u32,
}

impl EtcdVersion {
    /// Parses a version such as `3.5.13`, or `3.6.0-rc.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let (numbers, _) = text.split_once(['-', '+']).unwrap_or((text, ""));
        let mut parts = numbers.split('.').map(str::parse);
        let mut part = || parts.next()?.ok();
        let version = Self {
            major: part()?,
            minor: part()?,
            patch: part()?,
        };
        parts.next().is_none().then_some(version)
    }

    /// True if the answer to a progress request comes after all events up to its revision. Earlier
    /// members may send it before them (etcd's issue 15220), by which a reader would miss a write.
    pub fn has_safe_progress_requests(self) -> bool {
        let Self {
            major,
            minor,
            patch,
        } = self;
        match (major, minor) {
            (3, 4) => patch >= 31,
            (3, 5) => patch >= 13,
            newer => newer > (3, 5),
        }
    }
}

impl fmt::Display for EtcdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            major,
            minor,
            patch,
        } = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_requests_are_safe_from_the_versions_that_kubernetes_names() {
        let safe = |text| {
            EtcdVersion::parse(text)
                .expect("a version")
                .has_safe_progress_requests()
        };
        for text in ["3.4.31", "3.5.13", "3.6.0", "3.6.0-rc.1", "4.0.0"] {
            assert!(safe(text), "{text}");
        }
        for text in ["3.3.40", "3.4.23", "3.4.30", "3.5.0", "3.5.12"] {
            assert!(!safe(text), "{text}");
        }
    }

    #[test]
    fn parses_no_other_text() {
        for text in ["", "3", "3.5", "3.5.x", "3.5.1.2", "v3.5.1"] {
            assert_eq!(EtcdVersion::parse(text), None, "{text}");
        }
    }
}

//! The fence of a leader, which prevents a replaced leader from writing.
//!
//! An election is a Lease. When its holder changes, or the same holder acquires it again, the API
//! server raises the fence of that election in the same commit; the epoch is the resourceVersion of
//! that write of the Lease. A leader sends the fence with its writes, which are applied only while
//! it is current. Of two processes that both believe to lead, at most one can therefore write.

use std::{fmt, str::FromStr};

/// The gRPC metadata key, and the HTTP header, of the fence.
pub const METADATA: &str = "podplane-fence";

/// An election and its epoch: `kube-system/podplane-ipam-controller/123`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The resourceVersion of the Lease when its holder acquired it.
    pub epoch: u64,
}

/// An invalid fence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata {METADATA}: invalid value {0:?}: must be NAMESPACE/LEASE/EPOCH")]
pub struct InvalidFence(String);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.namespace, self.name, self.epoch)
    }
}

impl FromStr for Fence {
    type Err = InvalidFence;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let fence = (|| {
            let (namespace, name) = (parts.next()?, parts.next()?);
            let epoch = parts.next()?.parse().ok()?;
            let whole = parts.next().is_none() && !namespace.is_empty() && !name.is_empty();
            whole.then(|| Self {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                epoch,
            })
        })();
        fence.ok_or_else(|| InvalidFence(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fences_round_trip() {
        let text = "kube-system/podplane-ipam-controller/123";
        assert_eq!(text.parse::<Fence>().unwrap().to_string(), text);
        for text in ["", "a/b", "a/b/c", "a//1", "a/b/1/2", "/b/1"] {
            let error = text.parse::<Fence>().unwrap_err().to_string();
            assert!(error.contains("NAMESPACE/LEASE/EPOCH"), "{error}");
        }
    }
}

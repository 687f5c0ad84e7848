//! The hold of a block, for as long as sandboxes may have addresses of it.
//!
//! A hold belongs to an instance of a node: the one that knows the secret whose hash is stored
//! here. The instance takes it before it makes its first sandbox. The instance or an operator ends
//! it; time ends it only with `--release-after` (ADR 0020).

use std::{net::IpAddr, num::NonZeroUsize, time::Duration};

use podplane_api::jiff::Timestamp;
use podplane_proto::ipam::{self as wire, PodAddress};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::admission::addresses::AddressHolder;

/// The maximum number of addresses in a record, which is meant for people.
pub(super) const MAX_ADDRESSES: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// A hold as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockHold {
    /// SHA-256 of the instance's secret, in hexadecimal digits. `None` if a version without secrets
    /// wrote the record: any instance may take over the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret_hash: Option<String>,
    /// The instance's id, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) instance: String,
    pub(crate) since: Timestamp,
    /// The time of the last renewal or of the deletion of its node: `--release-after` counts from
    /// here.
    renewed: Timestamp,
    /// The time at which the node was last heard of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) heard: Option<Timestamp>,
    /// The last known addresses in use, for a block whose node is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<HeldAddress>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeldAddress {
    address: IpAddr,
    namespace: String,
    name: String,
}

/// The instance of a node that makes a request.
#[derive(Clone)]
pub(crate) struct Claimant {
    instance: String,
    secret_hash: String,
}

impl std::fmt::Debug for Claimant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Claimant({})", self.instance)
    }
}

impl Claimant {
    pub(crate) fn new(instance: &str, secret: &str) -> Self {
        let digest = Sha256::digest(secret.as_bytes());
        Self {
            instance: instance.to_owned(),
            secret_hash: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

impl BlockHold {
    /// The hold of a version that recorded no secrets.
    pub(super) fn of_nobody(now: Timestamp) -> Self {
        Self {
            secret_hash: None,
            instance: String::new(),
            since: whole_seconds(now),
            renewed: now,
            heard: None,
            addresses: Vec::new(),
        }
    }

    /// A new hold of the instance.
    pub(super) fn by(claimant: &Claimant, now: Timestamp) -> Self {
        Self {
            secret_hash: Some(claimant.secret_hash.clone()),
            instance: claimant.instance.clone(),
            ..Self::of_nobody(now)
        }
    }

    /// Returns true if the instance may renew or end it. Hashes are compared, so the time taken
    /// says nothing about the secret.
    pub(super) fn is_of(&self, claimant: &Claimant) -> bool {
        let hash = self.secret_hash.as_ref();
        hash.is_none_or(|hash| *hash == claimant.secret_hash)
    }

    /// The same hold, owned by the instance.
    pub(super) fn owned_by(self, claimant: &Claimant) -> Self {
        Self {
            secret_hash: Some(claimant.secret_hash.clone()),
            instance: claimant.instance.clone(),
            ..self
        }
    }

    /// Renews the hold for its instance; `addresses` replace the known ones unless empty.
    pub(super) fn renewed(self, addresses: &[PodAddress], now: Timestamp) -> Self {
        let said = addresses.iter().take(MAX_ADDRESSES.get());
        let said: Vec<_> = said
            .filter_map(|said| {
                Some(HeldAddress {
                    address: said.address.parse().ok()?,
                    namespace: said.namespace.clone(),
                    name: said.name.clone(),
                })
            })
            .collect();
        Self {
            renewed: now,
            heard: Some(whole_seconds(now)),
            addresses: match said.is_empty() {
                true => self.addresses,
                false => said,
            },
            ..self
        }
    }

    /// The hold after the deletion of its node.
    pub(super) fn after_deletion(
        self,
        heard: Option<Timestamp>,
        holders: Vec<AddressHolder>,
        now: Timestamp,
    ) -> Self {
        let addresses = holders
            .into_iter()
            .map(|AddressHolder { address, pod }| HeldAddress {
                address,
                namespace: pod.namespace,
                name: pod.name,
            });
        Self {
            renewed: now,
            heard: heard.map(whole_seconds).or(self.heard),
            addresses: addresses.collect(),
            ..self
        }
    }

    /// The hold of a node that is back, or still there.
    pub(super) fn resumed(self) -> Self {
        Self {
            addresses: Vec::new(),
            ..self
        }
    }

    /// The time at which it ends by itself; `None` if only the instance or an operator ends it.
    pub(crate) fn until(&self, release_after: Option<Duration>) -> Option<Timestamp> {
        let after = release_after?;
        Some(self.renewed.saturating_add(after).unwrap_or(Timestamp::MAX))
    }

    /// Returns true if time has ended it.
    pub(super) fn is_over(&self, release_after: Option<Duration>, now: Timestamp) -> bool {
        self.until(release_after).is_some_and(|until| until <= now)
    }

    /// The holder, for people.
    pub(super) fn holder(&self) -> String {
        match self.instance.as_str() {
            "" => "an instance of the node that is not known".to_owned(),
            instance => format!("instance {instance} of the node"),
        }
    }

    /// Its form on the wire, without the hash.
    pub(crate) fn to_wire(&self) -> wire::Hold {
        let address = |held: &HeldAddress| PodAddress {
            address: held.address.to_string(),
            namespace: held.namespace.clone(),
            name: held.name.clone(),
            ..PodAddress::default()
        };
        wire::Hold {
            instance: self.instance.clone(),
            since: self.since.to_string(),
            heard: self
                .heard
                .map(|heard| heard.to_string())
                .unwrap_or_default(),
            addresses: self.addresses.iter().map(address).collect(),
        }
    }
}

/// The time in whole seconds, as people read it.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_neither_stored_nor_shown() {
        let claimant = Claimant::new("one", "correct horse");
        let hold = BlockHold::by(&claimant, Timestamp::UNIX_EPOCH);
        let stored = serde_json::to_string(&hold).unwrap();
        let shown = format!("{stored} {hold:?} {claimant:?} {:?}", hold.to_wire());
        assert!(!shown.contains("correct horse"), "{shown}");
        assert!(!format!("{:?}", hold.to_wire()).contains(&claimant.secret_hash));
        assert!(hold.is_of(&claimant));
        assert!(!hold.is_of(&Claimant::new("one", "wrong horse")));
    }

    #[test]
    fn hold_expires_only_with_a_configured_delay() {
        let hold = BlockHold::by(&Claimant::new("one", "s"), Timestamp::UNIX_EPOCH);
        assert_eq!(hold.until(None), None);
        let until = hold.until(Some(Duration::from_secs(40))).unwrap();
        assert_eq!(until.as_second(), 40);
        assert_eq!(hold.until(Some(Duration::MAX)), Some(Timestamp::MAX));
    }
}

//! The hold of a block, for as long as sandboxes may have addresses of it.
//!
//! A hold belongs to an instance of a node, which takes it before it makes its first sandbox. The
//! instance or an operator ends it; time ends it only with `--release-after` (ADR 0020). That the
//! sender of a request is the node, or an operator, the gate has judged before (ADR 0054).

use std::{net::IpAddr, num::NonZeroUsize, time::Duration};

use podplane_api::jiff::Timestamp;
use podplane_proto::ipam::{self as wire, PodAddress};
use serde::{Deserialize, Serialize};

use crate::admission::addresses::AddressHolder;

/// The maximum number of addresses in a record, which is meant for people.
pub(super) const MAX_ADDRESSES: NonZeroUsize = NonZeroUsize::new(256).expect("not zero");

/// A hold as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BlockHold {
    /// The instance's id. Empty if a version without instances wrote the record: any instance may
    /// take over the hold.
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
#[derive(Clone, Debug)]
pub(crate) struct Claimant(String);

impl Claimant {
    /// The instance with this id; `None` for the empty one.
    pub(crate) fn new(instance: String) -> Option<Self> {
        Some(Self(instance)).filter(|claimant| !claimant.0.is_empty())
    }
}

impl BlockHold {
    /// The hold of a version that recorded no instances.
    pub(super) fn of_nobody(now: Timestamp) -> Self {
        Self {
            instance: String::new(),
            since: whole_seconds(now),
            renewed: now,
            heard: None,
            addresses: Vec::new(),
        }
    }

    /// A new hold of the instance.
    pub(super) fn by(claimant: &Claimant, now: Timestamp) -> Self {
        Self::of_nobody(now).owned_by(claimant)
    }

    /// Returns true if the instance may renew or end it.
    pub(super) fn is_of(&self, claimant: &Claimant) -> bool {
        self.instance.is_empty() || self.instance == claimant.0
    }

    /// The same hold, owned by the instance.
    pub(super) fn owned_by(self, claimant: &Claimant) -> Self {
        Self {
            instance: claimant.0.clone(),
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

    /// Its form on the wire.
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

    fn claimant(instance: &str) -> Claimant {
        Claimant::new(instance.to_owned()).unwrap()
    }

    #[test]
    fn a_hold_is_of_its_instance_and_one_without_of_any() {
        let hold = BlockHold::by(&claimant("one"), Timestamp::UNIX_EPOCH);
        assert!(hold.is_of(&claimant("one")));
        assert!(!hold.is_of(&claimant("two")));
        assert!(BlockHold::of_nobody(Timestamp::UNIX_EPOCH).is_of(&claimant("two")));
        assert!(Claimant::new(String::new()).is_none());
    }

    /// Earlier versions recorded the hash of a secret.
    #[test]
    fn records_of_earlier_versions_are_read() {
        let hold = BlockHold::by(&claimant("one"), Timestamp::UNIX_EPOCH);
        let mut stored = serde_json::to_value(&hold).unwrap();
        stored["secretHash"] = "00ff".into();
        let read: BlockHold = serde_json::from_value(stored).unwrap();
        assert_eq!(read, hold);
    }

    #[test]
    fn hold_expires_only_with_a_configured_delay() {
        let hold = BlockHold::by(&claimant("one"), Timestamp::UNIX_EPOCH);
        assert_eq!(hold.until(None), None);
        let until = hold.until(Some(Duration::from_secs(40))).unwrap();
        assert_eq!(until.as_second(), 40);
        assert_eq!(hold.until(Some(Duration::MAX)), Some(Timestamp::MAX));
    }
}

//! ClusterCIDR objects: each has a finalizer as long as nodes have blocks of it.

use std::{convert::Infallible, time::Duration};

use ipnet::IpNet;
use podplane_api::{
    Object as _,
    meta::ObjectMeta,
    networking::{ClusterCIDR, ClusterCIDRSpec},
    selector::NodeSelector,
};
use podplane_client::{
    ApiError, CacheChange, Reason, answered, events::EventType, leader::LeadershipLost,
};
use podplane_host::clock;
use podplane_ipam::{BlockSet, ClusterRange, Family, RangeConfig, parse_cidr};

use super::SyncedController;
use crate::plan::SetView;

/// The finalizer that the reference sets.
const FINALIZER: &str = "networking.x-k8s.io/cluster-cidr-finalizer";
/// The name of the object that `--cluster-cidr` becomes.
const DEFAULT: &str = "default-cluster-cidr";

impl SyncedController {
    /// Creates the ClusterCIDR of the flags unless it exists, and returns it if it was created; an
    /// existing one is not changed.
    pub(super) async fn make_default(
        &self,
        config: &RangeConfig,
    ) -> Result<Option<ClusterCIDR>, LeadershipLost> {
        let Some(object) = default_object(config) else {
            return Ok(None);
        };
        loop {
            let objects = self.parts.client.all::<ClusterCIDR>();
            match answered(objects.create(&object)).await {
                Ok(made) => {
                    tracing::info!(cluster_cidr = DEFAULT, "created ClusterCIDR of the flags");
                    return Ok(Some(made));
                }
                Err(error) if error.is_fence_lost() => return Err(LeadershipLost(error)),
                Err(error) if error.is_already_exists() => {}
                // A retry would not help; existing ClusterCIDRs work without it.
                Err(error) if error.reason == Reason::Invalid => {
                    tracing::error!(%error, "--cluster-cidr cannot become a ClusterCIDR");
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to create ClusterCIDR of the flags; trying again");
                    clock::sleep(Duration::from_secs(1)).await;
                    continue;
                }
            }
            return Ok(None);
        }
    }

    /// Reconciles the finalizers of ClusterCIDRs.
    pub(super) async fn keep_sets(&self) -> Result<Infallible, LeadershipLost> {
        loop {
            let name = self.sets.get().await;
            let ended = self.reconcile_set(&name).await;
            self.sets.done(&name);
            match ended {
                Ok(()) => self.sets.forget(&name),
                Err(error) if error.is_fence_lost() => return Err(LeadershipLost(error)),
                Err(error) => {
                    tracing::debug!(cluster_cidr = name, %error, "failed to write finalizer of ClusterCIDR; trying again");
                    self.sets.add_rate_limited(name);
                }
            }
        }
    }

    async fn reconcile_set(&self, name: &str) -> Result<(), ApiError> {
        let objects = self.parts.client.all::<ClusterCIDR>();
        let mut object = match answered(objects.get(name)).await {
            Ok(object) => object,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        let (guarded, is_deleting) = (is_guarded(&object), object.is_deleting());
        let finalizers = object.metadata.finalizers.get_or_insert_default();
        if !is_deleting {
            if guarded {
                return Ok(());
            }
            finalizers.push(FINALIZER.to_owned());
        } else {
            if !guarded {
                return Ok(());
            }
            if !self.decide(|allocator| allocator.terminate(name)) {
                // The reference's words.
                let message = format!(
                    "ClusterCIDRSet {name} marked as terminating, won't be deleted until all associated nodes are deleted"
                );
                tracing::info!(cluster_cidr = name, "{message}");
                let set = (name, object.uid());
                self.set_event(set, EventType::Warning, "ClusterCIDRInUse", message);
                return Ok(());
            }
            finalizers.retain(|finalizer| finalizer != FINALIZER);
        }
        // The update is guarded by the revision that was read.
        match answered(objects.update(&object)).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

pub(super) fn observed(change: CacheChange<ClusterCIDR>) -> (String, Option<SetView>) {
    match change {
        CacheChange::Applied { old: _, new } => (new.name().to_owned(), Some(view(&new))),
        CacheChange::Deleted(old) => (old.name().to_owned(), None),
    }
}

fn is_guarded(object: &ClusterCIDR) -> bool {
    let mut finalizers = object.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == FINALIZER)
}

pub(super) fn view(object: &ClusterCIDR) -> SetView {
    let spec = object.spec.clone().unwrap_or_default();
    let created = object.metadata.creation_timestamp.as_ref();
    let created = created.map_or(0, |time| time.0.as_second());
    SetView {
        uid: object.uid().to_owned(),
        created: u64::try_from(created).unwrap_or_default(),
        selector: spec.node_selector.as_ref().map(NodeSelector::from),
        ranges: ranges(&spec),
        guarded: is_guarded(object),
        deleting: object.is_deleting(),
    }
}

fn ranges(spec: &ClusterCIDRSpec) -> Result<Vec<ClusterRange>, String> {
    let parsed = |text: &Option<String>| -> Result<Option<IpNet>, String> {
        let given = text.as_deref().filter(|text| !text.is_empty());
        let net = given.map(parse_cidr).transpose();
        net.map_err(|error| error.to_string())
    };
    let host_bits = u8::try_from(spec.per_node_host_bits);
    let host_bits = host_bits.map_err(|_| {
        let bits = spec.per_node_host_bits;
        format!("perNodeHostBits: Invalid value: {bits}: must be between 0 and 128")
    })?;
    let ranges = BlockSet::ranges(host_bits, parsed(&spec.ipv4)?, parsed(&spec.ipv6)?);
    ranges.map_err(|error| error.to_string())
}

/// The blocks of both families are as large as those of the smaller one.
fn default_object(config: &RangeConfig) -> Option<ClusterCIDR> {
    let bits = config.ranges.iter();
    let bits = bits
        .map(|range| range.family().bits() - range.node_mask())
        .min()?;
    let of_family = |family| {
        let mut ranges = config.ranges.iter();
        let range = ranges.find(|range| range.family() == family)?;
        Some(range.cidr().to_string())
    };
    Some(ClusterCIDR {
        metadata: ObjectMeta {
            name: Some(DEFAULT.to_owned()),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..ObjectMeta::default()
        },
        spec: Some(ClusterCIDRSpec {
            ipv4: of_family(Family::V4),
            ipv6: of_family(Family::V6),
            node_selector: None,
            per_node_host_bits: bits.into(),
        }),
    })
}

#[cfg(test)]
mod tests {
    use podplane_ipam::RangeFlags;

    use super::*;

    #[test]
    fn converts_flags_to_a_cluster_cidr() {
        for (cidr, want) in [
            ("10.0.0.0/8", (Some("10.0.0.0/8"), None, 8)),
            (
                "fd00::/104,10.1.2.3/16",
                (Some("10.1.0.0/16"), Some("fd00::/104"), 8),
            ),
        ] {
            let flags = RangeFlags {
                cluster_cidr: cidr.to_owned(),
                node_cidr_mask_size_ipv6: cidr.contains(':').then_some(116),
                ..RangeFlags::default()
            };
            let object = default_object(&flags.validate_optional().unwrap()).unwrap();
            let spec = object.spec.clone().unwrap();
            let got = (
                spec.ipv4.as_deref(),
                spec.ipv6.as_deref(),
                spec.per_node_host_bits,
            );
            assert_eq!(got, want);
            assert!(is_guarded(&object));
            assert!(view(&object).ranges.is_ok());
        }
        let none = RangeFlags::default().validate_optional().unwrap();
        assert_eq!(default_object(&none), None);
    }
}

//! The address space of the map, which is measured outside.

use std::sync::Arc;

use podplane_api::jiff::{SignedDuration, Timestamp};
use podplane_map::AddressSpace;

use crate::cluster::{Cluster, Health, Source};

/// The least time between two measurements.
const INTERVAL: SignedDuration = SignedDuration::from_secs(2);

/// The address space of the map.
#[derive(Debug, Default)]
pub(crate) struct SpaceState {
    space: Option<Arc<AddressSpace>>,
    /// The version of the objects that was asked for last, and the time of the request.
    asked: Option<(u64, Timestamp)>,
    is_under_way: bool,
}

impl SpaceState {
    /// The sources that it is made of.
    pub(crate) const SOURCES: &'static [Source] = &[
        Source::Nodes,
        Source::Pods,
        Source::Blocks,
        Source::Networks,
    ];

    pub(crate) fn get(&self) -> Option<&Arc<AddressSpace>> {
        self.space.as_ref()
    }

    pub(crate) fn set(&mut self, space: Arc<AddressSpace>, now: Timestamp) {
        self.space = Some(space);
        self.is_under_way = false;
        // The interval begins when a measurement ends: a large space takes long.
        if let Some((_, at)) = &mut self.asked {
            *at = now;
        }
    }

    /// Returns true, once, if the space has to be measured again.
    pub(crate) fn wants(&mut self, cluster: &Cluster, now: Timestamp) -> bool {
        let mut healths = Self::SOURCES.iter().map(|source| cluster.health(*source));
        // Without one of them it would show as free, or as nobody's, what is not.
        if healths.any(|health| *health == Health::Loading) {
            return false;
        }
        let version = cluster.version(Self::SOURCES);
        let is_due = self
            .asked
            .is_none_or(|(asked, at)| asked != version && now.duration_since(at) >= INTERVAL);
        if self.is_under_way || !is_due {
            return false;
        }
        self.asked = Some((version, now));
        self.is_under_way = true;
        true
    }
}

//! Whereabouts: addresses of further interfaces, in its own pools and reservations.

use super::{AddressOwner, AllocationRecord, Records, System, entries, nth, pod_key};
use crate::item::RawObject;

/// The scope of reservations. Pools have the scope of their network's name.
pub(crate) const RESERVATION: &str = "reservation";

impl Records {
    /// Reads a pool, whose allocations are by offset from its first address.
    pub(super) fn whereabouts_pool(&mut self, item: &RawObject<'_>) {
        let name = item.metadata.0.name.as_str();
        let object = format!("IPPool/{name}");
        let text = item.spec.0.range.as_str();
        let Some(range) = self.cidr(&object, text) else {
            return;
        };
        self.secondary_ranges.push(range);
        // A pool of a named network is called NETWORK-RANGE; such networks are apart.
        let of_range = text.replace([':', '/'], "-");
        let network = name.strip_suffix(&of_range).unwrap_or_default();
        let network = network.trim_end_matches('-');
        for (offset, allocation) in entries(&item.spec.0.allocations) {
            let ip = offset.parse().ok().and_then(|offset| nth(range, offset));
            let Some(ip) = ip else {
                self.invalid
                    .insert((object.clone(), format!("offset {offset}")));
                continue;
            };
            let podref = allocation["podref"].as_str().unwrap_or_default();
            self.allocations.push(AllocationRecord {
                system: System::Whereabouts,
                scope: format!("network {network}"),
                ip,
                owner: owner(podref),
                object: object.clone(),
                is_primary: false,
            });
        }
    }

    /// Reads a reservation across pools; its name is the address.
    pub(super) fn whereabouts_reservation(&mut self, item: &RawObject<'_>) {
        let name = item.metadata.0.name.as_str();
        let object = format!("OverlappingRangeIPReservation/{name}");
        // A named network comes before the address, and colons are not allowed in names.
        let last = name.rsplit('-').next().unwrap_or(name);
        let candidates = [name.to_owned(), name.replace('-', ":"), last.to_owned()];
        let ip = candidates.iter().find_map(|text| text.parse().ok());
        let Some(ip) = ip else {
            self.invalid.insert((object, name.to_owned()));
            return;
        };
        self.allocations.push(AllocationRecord {
            system: System::Whereabouts,
            scope: RESERVATION.into(),
            ip,
            owner: owner(item.spec.0.podref.as_str()),
            object,
            is_primary: false,
        });
    }
}

fn owner(podref: &str) -> AddressOwner {
    pod_key(podref).map_or_else(|| AddressOwner::Other(podref.to_owned()), AddressOwner::Pod)
}

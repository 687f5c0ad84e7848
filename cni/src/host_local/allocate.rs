//! Which address is given next.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{
    config::Config,
    range::{Range, RangeSet},
    store::Locked,
};
use crate::types::{IpConfig, next_ip};

/// The candidates of a set, each once, from the one after `last` on; the reference's order.
#[derive(Debug)]
pub(super) struct Candidates<'a> {
    ranges: &'a [Range],
    range: usize,
    current: Option<IpAddr>,
    first: Option<IpAddr>,
}

impl<'a> Candidates<'a> {
    pub(super) fn new(set: &'a RangeSet, last: Option<IpAddr>) -> Self {
        let ranges = set.ranges();
        let found = last.and_then(|last| ranges.iter().position(|range| range.contains(last)));
        Self {
            ranges,
            range: found.unwrap_or(0),
            current: found.and(last),
            first: None,
        }
    }
}

impl<'a> Iterator for Candidates<'a> {
    type Item = (IpAddr, &'a Range);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let next = match self.current {
                None => self.ranges.first()?.start(),
                Some(current) if current == self.ranges[self.range].end() => {
                    self.range = (self.range + 1) % self.ranges.len();
                    self.ranges[self.range].start()
                }
                Some(current) => next_ip(current),
            };
            if self.first == Some(next) {
                return None;
            }
            self.first.get_or_insert(next);
            self.current = Some(next);
            let range = &self.ranges[self.range];
            if next != range.gateway() {
                return Some((next, range));
            }
        }
    }
}

/// Gives one address of each set to a container's interface: all, or none.
pub(super) fn allocate(
    locked: &mut Locked<'_>,
    config: &Config,
    container_id: &str,
    ifname: &str,
) -> Result<Vec<IpConfig>, String> {
    let mut allocation = Allocation {
        locked,
        container_id,
        ifname,
        given: Vec::new(),
    };
    let outcome = allocation.run(config);
    if outcome.is_err() {
        allocation.take_back();
    }
    outcome.map(|()| allocation.given)
}

struct Allocation<'a, 'b> {
    locked: &'a mut Locked<'b>,
    container_id: &'a str,
    ifname: &'a str,
    given: Vec<IpConfig>,
}

impl Allocation<'_, '_> {
    fn run(&mut self, config: &Config) -> Result<(), String> {
        let mut requested = config.requested.clone();
        for (index, set) in config.sets.iter().enumerate() {
            let wish = requested.iter().position(|ip| set.range_of(*ip).is_some());
            let wish = wish.map(|position| requested.remove(position));
            self.give(index, set, wish)
                .map_err(|error| format!("failed to allocate for range {index}: {error}"))?;
        }
        if requested.is_empty() {
            return Ok(());
        }
        let rest: Vec<_> = requested.iter().map(IpAddr::to_string).collect();
        Err(format!(
            "failed to allocate all requested IPs: {}",
            rest.join(" ")
        ))
    }

    fn give(&mut self, index: usize, set: &RangeSet, wish: Option<IpAddr>) -> Result<(), String> {
        let (ip, range) = match wish {
            Some(ip) => self.check_wish(set, ip)?,
            None => self.find(index, set)?,
        };
        self.locked
            .reserve(ip, self.container_id, self.ifname)
            .map_err(|error| error.to_string())?;
        let address =
            IpNet::new(ip, range.subnet().prefix_len()).map_err(|error| error.to_string())?;
        // From here on the address is taken back if anything fails, the cursor included.
        self.given.push(IpConfig {
            interface: None,
            address,
            gateway: Some(range.gateway()),
        });
        self.locked
            .set_cursor(index, ip)
            .map_err(|error| error.to_string())
    }

    fn check_wish<'s>(&self, set: &'s RangeSet, ip: IpAddr) -> Result<(IpAddr, &'s Range), String> {
        let unavailable =
            || format!("requested IP address {ip} is not available in range set {set}");
        let range = set.range_of(ip).ok_or_else(unavailable)?;
        if ip == range.gateway() {
            return Err(format!("requested ip {ip} is subnet's gateway"));
        }
        if self.locked.is_taken(ip) {
            Err(unavailable())
        } else {
            Ok((ip, range))
        }
    }

    fn find<'s>(&self, index: usize, set: &'s RangeSet) -> Result<(IpAddr, &'s Range), String> {
        let own = |lease: &&super::Lease| {
            lease.is_of(self.container_id, self.ifname) || lease.is_legacy_of(self.container_id)
        };
        let mut held = self.locked.leases().filter(own).map(|lease| lease.ip);
        if let Some(ip) = held.find(|ip| set.range_of(*ip).is_some()) {
            let id = self.container_id;
            return Err(format!(
                "{ip} has been allocated to {id}, duplicate allocation is not allowed"
            ));
        }
        let mut candidates = Candidates::new(set, self.locked.cursor(index));
        // Ends after as many steps as there are leases, however large the range.
        let free = candidates.find(|(ip, _)| !self.locked.is_taken(*ip));
        free.ok_or_else(|| format!("no IP addresses available in range set: {set}"))
    }

    /// Removes what this ADD has made, and nothing that was there before. As in the reference, cursors
    /// stay where they are: the addresses are given out again when their turn comes.
    fn take_back(&mut self) {
        for ip in self.given.drain(..) {
            // A lease that cannot be deleted stays until the DEL that follows a failed ADD.
            _ = self.locked.unreserve(ip.address.addr());
        }
    }
}

#[cfg(test)]
#[path = "allocate_tests.rs"]
mod tests;

//! Allocation: the choice of the next address, and its reservation.

use std::{io, net::IpAddr};

use ipnet::IpNet;
use podplane_cni::types::{IpConfig, next_ip};

use super::{
    config::Config,
    lease::LeaseOwner,
    range::{Range, RangeSet},
    store::LockedStore,
};

/// The addresses of a set in the order in which they are tried: each once, starting after `last`,
/// as in the reference.
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

/// The reason why an ADD gives no address.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Every address of a set is taken.
    Exhausted(String),
    /// Any other failure, with the reference's text.
    Other(String),
}

impl Refusal {
    fn of(error: &io::Error) -> Self {
        Self::Other(error.to_string())
    }

    /// Adds the index of the range set to the text.
    fn of_set(self, index: usize) -> Self {
        let text = |error| format!("failed to allocate for range {index}: {error}");
        match self {
            Self::Exhausted(error) => Self::Exhausted(text(error)),
            Self::Other(error) => Self::Other(text(error)),
        }
    }
}

/// Reserves one address of each set for the owner: all, or none on failure. `container_id` is for
/// the text of the error that the owner has an address already.
pub(super) fn allocate(
    locked: &mut LockedStore<'_>,
    config: &Config,
    container_id: &str,
    owner: &LeaseOwner,
) -> Result<Vec<IpConfig>, Refusal> {
    let mut allocation = Allocation {
        locked,
        container_id,
        owner,
        given: Vec::with_capacity(config.sets.len()),
    };
    let outcome = allocation.run(config);
    if outcome.is_err() {
        allocation.take_back();
    }
    outcome.map(|()| allocation.given)
}

struct Allocation<'a, 'b> {
    locked: &'a mut LockedStore<'b>,
    container_id: &'a str,
    owner: &'a LeaseOwner,
    given: Vec<IpConfig>,
}

impl Allocation<'_, '_> {
    fn run(&mut self, config: &Config) -> Result<(), Refusal> {
        let mut requested = config.requested.clone();
        for (index, set) in config.sets.iter().enumerate() {
            let wish = requested.iter().position(|ip| set.range_of(*ip).is_some());
            let wish = wish.map(|position| requested.remove(position));
            self.give(index, set, wish)
                .map_err(|refusal| refusal.of_set(index))?;
        }
        if requested.is_empty() {
            return Ok(());
        }
        let rest: Vec<_> = requested.iter().map(IpAddr::to_string).collect();
        Err(Refusal::Other(format!(
            "failed to allocate all requested IPs: {}",
            rest.join(" ")
        )))
    }

    fn give(&mut self, index: usize, set: &RangeSet, wish: Option<IpAddr>) -> Result<(), Refusal> {
        let (ip, range) = match wish {
            Some(ip) => self.reserve_wish(set, ip)?,
            None => self.reserve_next(index, set)?,
        };
        let address = IpNet::new(ip, range.subnet().prefix_len());
        // From here on a failure releases this address, also a failure to write the cursor.
        self.given.push(IpConfig {
            interface: None,
            address: address.unwrap_or_else(|_| ip.into()),
            gateway: Some(range.gateway()),
        });
        let noted = self.locked.set_cursor(index, ip);
        noted.map_err(|error| Refusal::of(&error))
    }

    fn reserve(&mut self, ip: IpAddr) -> Result<bool, Refusal> {
        let reserved = self.locked.reserve(ip, self.owner);
        reserved.map_err(|error| Refusal::of(&error))
    }

    fn reserve_wish<'s>(
        &mut self,
        set: &'s RangeSet,
        ip: IpAddr,
    ) -> Result<(IpAddr, &'s Range), Refusal> {
        let taken = format!("requested IP address {ip} is not available in range set {set}");
        let Some(range) = set.range_of(ip) else {
            return Err(Refusal::Other(taken));
        };
        if ip == range.gateway() {
            let error = format!("requested ip {ip} is subnet's gateway");
            return Err(Refusal::Other(error));
        }
        // After a failed reservation the directory was read: the file may have been half-written,
        // and be gone now.
        if self.reserve(ip)? || (!self.locked.is_taken(ip) && self.reserve(ip)?) {
            Ok((ip, range))
        } else {
            Err(Refusal::Other(taken))
        }
    }

    fn reserve_next<'s>(
        &mut self,
        index: usize,
        set: &'s RangeSet,
    ) -> Result<(IpAddr, &'s Range), Refusal> {
        let last = self.locked.cursor(index);
        loop {
            if let Some(ip) = self.locked.held().find(|ip| set.range_of(*ip).is_some()) {
                let id = self.container_id;
                return Err(Refusal::Other(format!(
                    "{ip} has been allocated to {id}, duplicate allocation is not allowed"
                )));
            }
            // Takes at most one step more than there are leases, however large the range.
            let free = Candidates::new(set, last).find(|(ip, _)| !self.locked.is_taken(*ip));
            if let Some((ip, range)) = free {
                if self.reserve(ip)? {
                    return Ok((ip, range));
                }
                continue; // It is now known to be taken.
            }
            let is_news = self.locked.make_sure_of_names();
            if !is_news.map_err(|error| Refusal::of(&error))? {
                return Err(Refusal::Exhausted(format!(
                    "no IP addresses available in range set: {set}"
                )));
            }
        }
    }

    /// Releases the addresses that this ADD has reserved, and nothing else. As in the reference,
    /// cursors stay where they are: the addresses are given out again when their turn comes.
    fn take_back(&mut self) {
        for ip in self.given.drain(..) {
            // A lease that cannot be deleted stays until the DEL that follows a failed ADD.
            _ = self.locked.unreserve(ip.address.addr());
        }
    }
}

#[cfg(test)]
mod tests;

//! The account of a node's addresses: how many there are, who holds them, and the amount to publish.
//!
//! # The invariant
//!
//! A scheduler that knows nothing of addresses adds up requests: it binds a pod if the requests of
//! the pods of the node, which have not ended, and its own are at most allocatable. So that this
//! means what it should, the published amount is
//!
//! ```text
//! published = max(total − orphaned − ending − unrequested, requested)
//! ```
//!
//! where `unrequested` is the sum, over the pods that hold addresses, of what they hold beyond what
//! the scheduler counts for them. From this follows, as long as the facts have not changed since:
//!
//! ```text
//! published − requested ≤ free      whatever the scheduler binds has an address
//! published − requested = free      it binds all that have one, if free ≥ 0
//! ```
//!
//! The amount is never below `requested`: a kubelet that restarts admits its pods again, and would
//! end running pods that no longer fit its allocatable.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use podplane_api::{
    Object as _, ObjectKey,
    core::Pod,
    pod_ips::{self, PodIpResource},
};
use podplane_host::clock::Instant;

use crate::sources::{AllocatedAddress, NodeIpam};

/// A pod that is bound to the node and is not on the node's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUse {
    /// The pod's namespace and name.
    pub key: ObjectKey,
    /// The pod's addresses, as its status has them.
    pub ips: Vec<IpAddr>,
    /// False if the pod has ended. Schedulers do not count such a pod.
    pub is_live: bool,
    /// True if the pod may still have a sandbox with an address (ADR 0019).
    pub may_hold: bool,
    /// The number of addresses that the pod needs.
    pub needed: u64,
    /// Its request for the resource.
    pub requested: u64,
}

impl PodUse {
    /// The use of a pod; `None` if it is on its node's network.
    pub fn of(pod: &Pod, resource: &PodIpResource) -> Option<Self> {
        if pod_ips::is_host_network(pod) {
            return None;
        }
        let status = pod.status.as_ref();
        let listed = status.and_then(|status| status.pod_ips.as_ref());
        let listed = listed.into_iter().flatten();
        let listed = listed.filter_map(|each| each.ip.parse().ok());
        let first = status.and_then(|status| status.pod_ip.as_deref()?.parse().ok());
        let ips: BTreeSet<IpAddr> = listed.chain(first).collect();
        Some(Self {
            key: pod.key(),
            ips: ips.into_iter().collect(),
            is_live: !pod_ips::is_terminal(pod),
            may_hold: pod_ips::holds_address(pod),
            needed: resource.addresses_needed(pod),
            requested: resource.requested(pod),
        })
    }

    /// Returns true if the allocated address is the pod's, by its owner's name or by the address.
    fn owns(&self, allocated: &AllocatedAddress) -> bool {
        match &allocated.pod {
            Some(pod) => *pod == self.key,
            None => self.ips.contains(&allocated.address),
        }
    }
}

/// The account of a node's addresses. A number counts pods: of two families, the fuller one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeAccount {
    /// The pods that could have an address of every family if none were in use.
    pub total: u64,
    /// The sum of what the pods of the node hold.
    pub held: u64,
    /// The addresses that no pod bound to the node has owned for the grace time.
    pub orphaned: u64,
    /// The addresses that no pod owns since a shorter time, beyond those that waiting pods explain.
    pub ending: u64,
    /// The sum of what pods hold beyond what the scheduler counts for them.
    pub unrequested: u64,
    /// The sum of the requests of pods that have not ended.
    pub requested: u64,
}

impl NodeAccount {
    /// The account of the node's addresses with these pods. `first_seen` has the addresses without
    /// an owner, and is updated.
    pub fn of(
        ipam: &NodeIpam,
        pods: &[PodUse],
        first_seen: &mut UnownedAddresses,
        now: Instant,
    ) -> Self {
        let allocated = ipam.allocated.as_ref();
        let owners = allocated.map(|allocated| Owners::of(ipam, allocated, pods));
        let [orphaned, ending] = owners.as_ref().map_or([0, 0], |owners| {
            first_seen.update(&owners.unowned, now);
            owners.without_pod(&first_seen.orphaned(now))
        });
        let mut account = Self {
            total: ipam.capacity.pods(),
            orphaned,
            ending,
            ..Self::default()
        };
        for (index, pod) in pods.iter().enumerate() {
            let counted = match pod.is_live {
                true => pod.requested,
                false => 0,
            };
            let has_address = owners.as_ref().is_none_or(|owners| owners.has(index));
            let is_holder = pod.is_live || (pod.may_hold && has_address);
            let held = if is_holder { pod.needed } else { 0 };
            account.held = account.held.saturating_add(held);
            account.requested = account.requested.saturating_add(counted);
            let beyond = held.saturating_sub(counted);
            account.unrequested = account.unrequested.saturating_add(beyond);
        }
        account
    }

    /// The amount of the resource to publish, as the module says.
    pub fn published(&self) -> u64 {
        let not_counted = self
            .orphaned
            .saturating_add(self.ending)
            .saturating_add(self.unrequested);
        self.total.saturating_sub(not_counted).max(self.requested)
    }

    /// The total for schedulers that know of orphaned addresses, and of pods without a request.
    /// They do not know of addresses that are ending.
    pub fn published_total(&self) -> u64 {
        self.total.saturating_sub(self.ending)
    }
}

/// The owners of the allocated addresses.
struct Owners<'a> {
    /// The pods that own at least one, by their index.
    owners: BTreeSet<usize>,
    unowned: Vec<&'a AllocatedAddress>,
    /// The live pods that own none yet. Each may own one without an owner of each family: its
    /// address is allocated before the kubelet writes it to the pod's status.
    waiting: u64,
}

impl<'a> Owners<'a> {
    /// Addresses outside of the present ranges, such as those of an earlier block, take none of the
    /// node's addresses. A pod that has ended owns only what no live pod does: its status keeps the
    /// address, which may be another pod's by now.
    fn of(ipam: &NodeIpam, allocated: &'a [AllocatedAddress], pods: &[PodUse]) -> Self {
        let mut owners = BTreeSet::new();
        let mut unowned = Vec::new();
        for address in allocated.iter().filter(|each| ipam.gives(each.address)) {
            let find = |accepts: fn(&PodUse) -> bool| {
                let mut candidates = pods.iter().enumerate();
                candidates.find(|(_, pod)| accepts(pod) && pod.owns(address))
            };
            let owner = find(|pod| pod.is_live).or_else(|| find(|pod| pod.may_hold));
            match owner {
                Some((index, _)) => _ = owners.insert(index),
                None => unowned.push(address),
            }
        }
        let has_none = |(index, pod): &(usize, &PodUse)| pod.is_live && !owners.contains(index);
        let waiting = pods.iter().enumerate().filter(has_none).count();
        Self {
            waiting: u64::try_from(waiting).unwrap_or(u64::MAX),
            owners,
            unowned,
        }
    }

    fn has(&self, pod: usize) -> bool {
        self.owners.contains(&pod)
    }

    /// The numbers of orphaned and of ending addresses, given the orphaned ones.
    fn without_pod(&self, orphaned: &BTreeSet<IpAddr>) -> [u64; 2] {
        let of_family = |is_ipv4: bool| {
            let members = self.unowned.iter().map(|each| each.address);
            let members: BTreeSet<_> = members.filter(|ip| ip.is_ipv4() == is_ipv4).collect();
            let orphaned = members.intersection(orphaned).count() as u64;
            let others = members.len() as u64 - orphaned;
            [orphaned, others.saturating_sub(self.waiting)]
        };
        let (v4, v6) = (of_family(true), of_family(false));
        let orphaned = v4[0].max(v6[0]);
        let both = (v4[0] + v4[1]).max(v6[0] + v6[1]);
        [orphaned, both - orphaned]
    }
}

/// The addresses without an owner, with the time since which they have none.
#[derive(Clone, Debug)]
pub struct UnownedAddresses {
    grace: Duration,
    since: BTreeMap<(IpAddr, String), Instant>,
}

impl UnownedAddresses {
    /// None, with the time after which an address without an owner is orphaned.
    pub fn new(grace: Duration) -> Self {
        Self {
            grace,
            since: BTreeMap::new(),
        }
    }

    fn update(&mut self, unowned: &[&AllocatedAddress], now: Instant) {
        let present = unowned.iter();
        let present = present.map(|each| ((each.address, each.allocation.clone()), now));
        let mut present: BTreeMap<_, _> = present.collect();
        for (address, since) in &mut present {
            if let Some(earlier) = self.since.get(address) {
                *since = *earlier;
            }
        }
        self.since = present;
    }

    fn orphaned(&self, now: Instant) -> BTreeSet<IpAddr> {
        let is_old = |since: &Instant| now.saturating_duration_since(*since) >= self.grace;
        let old = self.since.iter().filter(|(_, since)| is_old(since));
        old.map(|((address, _), _)| *address).collect()
    }

    /// The time until the next address is orphaned; `None` if no address waits for that.
    pub fn next(&self, now: Instant) -> Option<Duration> {
        let ages = self.since.values();
        let ages = ages.map(|since| now.saturating_duration_since(*since));
        let left = ages.filter_map(|age| self.grace.checked_sub(age));
        left.filter(|left| !left.is_zero()).min()
    }
}

#[cfg(test)]
mod tests;

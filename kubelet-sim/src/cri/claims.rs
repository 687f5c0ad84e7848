//! The addresses that sandboxes claim: no other sandbox of the node gets a claimed address (ADR
//! 0019).
//!
//! An IPAM plugin's own files may be damaged while a sandbox lives. The claims come from the
//! plugins' results for the sandbox, which its record keeps. Allocation files of host-local are
//! restored from them before each ADD. With every plugin, the addresses in the result of an ADD are
//! compared with the claims of other sandboxes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_cni::types::NetworkConfigList;
use podplane_host_local::{Lease, LockError};

use super::{
    network::IFNAME,
    record::{PodNetwork, SandboxId, SandboxRecord},
};
use crate::ipam::NetworkAddresses;

/// The longest wait for host-local's lock; after that a damaged file is left for the next restore.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait for a sandbox that is being torn down and has an address that was given again.
const TEARDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// An address that was given to a second sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The address.
    pub ip: IpAddr,
    /// The sandbox that has it.
    pub holder: SandboxId,
}

/// The claims of a node's sandboxes.
#[derive(Debug, Default)]
pub struct Claims {
    claims: Mutex<BTreeMap<SandboxId, SandboxClaim>>,
    /// Notified when a sandbox was torn down, or could not be.
    teardown_ended: Condvar,
}

#[derive(Debug)]
struct SandboxClaim {
    ips: Vec<IpAddr>,
    leases: Option<ClaimedLeases>,
    /// True while the sandbox is being torn down: its files are removed, and not restored.
    in_teardown: bool,
}

/// A sandbox's allocation files in a directory of host-local.
#[derive(Debug)]
struct ClaimedLeases {
    dir: PathBuf,
    options: podplane_host_local::Options,
    leases: Vec<Lease>,
}

/// The outcome of restoring the damaged leases of one directory.
#[derive(Debug)]
pub struct LeaseRestoration {
    /// The directory.
    pub dir: PathBuf,
    /// The restored leases, or the reason why they could not be restored.
    pub outcome: Result<Vec<Lease>, LockError>,
}

impl Claims {
    /// The claims of existing sandboxes. If two have the same address, the older one keeps its
    /// file.
    pub fn of(records: &[SandboxRecord]) -> Self {
        let mut oldest_first: Vec<_> = records.iter().collect();
        oldest_first.sort_by_key(|record| record.created_at);
        let (mut claims, mut known) = (BTreeMap::new(), BTreeSet::new());
        for record in oldest_first {
            let Some(network) = record.attached().filter(|n| !n.ips.is_empty()) else {
                continue;
            };
            let mut claim = SandboxClaim::of(&record.id, network);
            let mut is_first = |ip: IpAddr| {
                let is_first = known.insert(ip);
                if !is_first {
                    tracing::warn!(%ip, sandbox = %record.id, "address is recorded for two sandboxes");
                }
                is_first
            };
            if let Some(leases) = &mut claim.leases {
                leases.leases.retain(|lease| is_first(lease.ip));
            }
            claims.insert(record.id.clone(), claim);
        }
        Self {
            claims: Mutex::new(claims),
            teardown_ended: Condvar::new(),
        }
    }

    /// Claims the addresses of a sandbox that has just been attached. Waits for a sandbox that has
    /// one of them and is being torn down, at most half a minute.
    ///
    /// # Errors
    ///
    /// [`Conflict`] if another sandbox has one of them; nothing is claimed then.
    pub fn claim(&self, id: &SandboxId, network: &PodNetwork) -> Result<(), Conflict> {
        let claim = SandboxClaim::of(id, network);
        let is_free = |claims: &mut BTreeMap<_, SandboxClaim>| {
            holder(claims, id, &claim.ips).is_none_or(|(_, _, in_teardown)| !in_teardown)
        };
        let waited =
            self.teardown_ended
                .wait_timeout_while(self.lock(), TEARDOWN_TIMEOUT, |claims| !is_free(claims));
        let (mut claims, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match holder(&claims, id, &claim.ips) {
            Some((ip, holder, _)) => Err(Conflict { ip, holder }),
            None => {
                claims.insert(id.clone(), claim);
                Ok(())
            }
        }
    }

    /// Marks the sandbox as being torn down.
    pub fn begin_teardown(&self, id: &SandboxId) {
        self.set_in_teardown(id, true);
    }

    /// Clears the mark of a sandbox that could not be torn down: it keeps its claim.
    pub fn cancel_teardown(&self, id: &SandboxId) {
        self.set_in_teardown(id, false);
        self.teardown_ended.notify_all();
    }

    fn set_in_teardown(&self, id: &SandboxId, in_teardown: bool) {
        if let Some(claim) = self.lock().get_mut(id) {
            claim.in_teardown = in_teardown;
        }
    }

    /// Drops the claim of a sandbox that was torn down: its addresses are free.
    pub fn release(&self, id: &SandboxId) {
        self.lock().remove(id);
        self.teardown_ended.notify_all();
    }

    /// Restores missing and damaged allocation files of host-local. The claims stay locked, so that
    /// no teardown begins in the meantime.
    pub fn restore(&self) -> Vec<LeaseRestoration> {
        let claims = self.lock();
        let live = claims.values().filter(|claim| !claim.in_teardown);
        let mut damaged = BTreeMap::<_, (podplane_host_local::Options, Vec<Lease>)>::new();
        for ClaimedLeases {
            dir,
            options,
            leases,
        } in live.filter_map(|claim| claim.leases.as_ref())
        {
            for lease in leases {
                if !podplane_host_local::is_whole(dir, lease) {
                    let of_dir = damaged.entry(dir).or_insert((*options, Vec::new()));
                    of_dir.1.push(lease.clone());
                }
            }
        }
        let restore =
            |(dir, (options, leases)): (&PathBuf, (podplane_host_local::Options, Vec<Lease>))| {
                let options = podplane_host_local::Options {
                    lock_timeout: Some(LOCK_TIMEOUT),
                    ..options
                };
                LeaseRestoration {
                    dir: dir.clone(),
                    outcome: podplane_host_local::restore(dir, options, &leases),
                }
            };
        damaged.into_iter().map(restore).collect()
    }

    /// Locks the claims. They are consistent between any two statements, so a panic elsewhere does
    /// no harm.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, SandboxClaim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first of `ips` that a sandbox other than `id` has, that sandbox, and whether it is being
/// torn down.
fn holder(
    claims: &BTreeMap<SandboxId, SandboxClaim>,
    id: &SandboxId,
    ips: &[IpAddr],
) -> Option<(IpAddr, SandboxId, bool)> {
    claims
        .iter()
        .filter(|(other, _)| *other != id)
        .find_map(|(other, claim)| {
            let ip = ips.iter().find(|ip| claim.ips.contains(ip))?;
            Some((*ip, other.clone(), claim.in_teardown))
        })
}

impl SandboxClaim {
    fn of(id: &SandboxId, network: &PodNetwork) -> Self {
        Self {
            ips: network.ips.clone(),
            leases: ClaimedLeases::of(id, network),
            in_teardown: false,
        }
    }
}

impl ClaimedLeases {
    /// The allocation files of the sandbox: those of addresses in host-local's ranges, and those
    /// that exist.
    fn of(id: &SandboxId, network: &PodNetwork) -> Option<Self> {
        let list = NetworkConfigList::from_list(network.config.to_string().as_bytes()).ok()?;
        let ipam = NetworkAddresses::of(&list).ok().flatten()?;
        let (dir, options) = ipam.files()?;
        let lease = |ip: &IpAddr| Lease {
            ip: *ip,
            container_id: id.as_str().to_owned(),
            ifname: Some(IFNAME.to_owned()),
        };
        let leases = network.ips.iter().map(lease);
        let is_ours =
            |lease: &Lease| ipam.gives(lease.ip) || podplane_host_local::is_whole(dir, lease);
        Some(Self {
            leases: leases.filter(is_ours).collect(),
            options,
            dir: dir.to_owned(),
        })
    }
}

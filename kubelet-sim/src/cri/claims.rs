//! The addresses that sandboxes have, which no other sandbox of the node is given (ADR 0019).
//!
//! An IPAM plugin's own files may be damaged while a sandbox lives. What counts is what the plugins answered when the sandbox was made, which its
//! record keeps. The files of host-local are put right before each ADD; for every plugin, what an ADD answers is compared with
//! what others have.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use podplane_cni::{
    host_local::{self, Lease, LockError},
    types::NetworkConfigList,
};

use super::{
    network::IFNAME,
    record::{PodNetwork, Record, SandboxId},
};
use crate::ipam::Ipam;

/// How long host-local's lock may be taken by others before a damaged file is left for the next look.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a sandbox that is being taken down may keep the address that another was given.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

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
    claims: Mutex<BTreeMap<SandboxId, Claim>>,
    /// A sandbox was taken down, or could not be.
    left: Condvar,
}

#[derive(Debug)]
struct Claim {
    ips: Vec<IpAddr>,
    leases: Option<Leases>,
    /// The sandbox is being taken down: its files go, and are not put back.
    is_leaving: bool,
}

/// Files of host-local.
#[derive(Debug)]
struct Leases {
    dir: PathBuf,
    options: host_local::Options,
    leases: Vec<Lease>,
}

/// Leases of one directory that were put right, or could not be.
#[derive(Debug)]
pub struct Restored {
    /// The directory.
    pub dir: PathBuf,
    /// Those that were, or why they were not.
    pub outcome: Result<Vec<Lease>, LockError>,
}

impl Claims {
    /// The claims of sandboxes that were made before. Of two that have one address the older one keeps its file.
    pub fn of(records: &[Record]) -> Self {
        let mut oldest_first: Vec<_> = records.iter().collect();
        oldest_first.sort_by_key(|record| record.created_at);
        let (mut claims, mut known) = (BTreeMap::new(), BTreeSet::new());
        for record in oldest_first {
            let Some(network) = record.attached().filter(|n| !n.ips.is_empty()) else {
                continue;
            };
            let mut claim = Claim::of(&record.id, network);
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
            left: Condvar::new(),
        }
    }

    /// Claims the addresses of a sandbox that has just been attached. One that is just being given up is waited for.
    ///
    /// # Errors
    ///
    /// [`Conflict`]: another sandbox has one of them, and nothing is claimed.
    pub fn claim(&self, id: &SandboxId, network: &PodNetwork) -> Result<(), Conflict> {
        let claim = Claim::of(id, network);
        let is_free = |claims: &mut BTreeMap<_, Claim>| {
            holder(claims, id, &claim.ips).is_none_or(|(_, _, is_leaving)| !is_leaving)
        };
        let waited = self
            .left
            .wait_timeout_while(self.lock(), LEAVE_TIMEOUT, |claims| !is_free(claims));
        let (mut claims, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match holder(&claims, id, &claim.ips) {
            Some((ip, holder, _)) => Err(Conflict { ip, holder }),
            None => {
                claims.insert(id.clone(), claim);
                Ok(())
            }
        }
    }

    /// The sandbox is about to be taken down.
    pub fn leave(&self, id: &SandboxId) {
        self.set_leaving(id, true);
    }

    /// The sandbox could not be taken down.
    pub fn stay(&self, id: &SandboxId) {
        self.set_leaving(id, false);
        self.left.notify_all();
    }

    fn set_leaving(&self, id: &SandboxId, is_leaving: bool) {
        if let Some(claim) = self.lock().get_mut(id) {
            claim.is_leaving = is_leaving;
        }
    }

    /// The sandbox was taken down: its addresses are free.
    pub fn release(&self, id: &SandboxId) {
        self.lock().remove(id);
        self.left.notify_all();
    }

    /// Puts the files of host-local right that do not say what the sandboxes have. No sandbox begins to leave meanwhile.
    pub fn restore(&self) -> Vec<Restored> {
        let claims = self.lock();
        let live = claims.values().filter(|claim| !claim.is_leaving);
        let mut damaged = BTreeMap::<_, (host_local::Options, Vec<Lease>)>::new();
        for Leases {
            dir,
            options,
            leases,
        } in live.filter_map(|claim| claim.leases.as_ref())
        {
            for lease in leases {
                if !host_local::is_whole(dir, lease) {
                    let of_dir = damaged.entry(dir).or_insert((*options, Vec::new()));
                    of_dir.1.push(lease.clone());
                }
            }
        }
        let restore = |(dir, (options, leases)): (&PathBuf, (host_local::Options, Vec<Lease>))| {
            let options = host_local::Options {
                lock_timeout: Some(LOCK_TIMEOUT),
                ..options
            };
            Restored {
                dir: dir.clone(),
                outcome: host_local::restore(dir, options, &leases),
            }
        };
        damaged.into_iter().map(restore).collect()
    }

    /// What the mutex guards is whole between any two statements, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Claim>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The first of `ips` that a sandbox other than `id` has, that sandbox, and whether it is leaving.
fn holder(
    claims: &BTreeMap<SandboxId, Claim>,
    id: &SandboxId,
    ips: &[IpAddr],
) -> Option<(IpAddr, SandboxId, bool)> {
    claims
        .iter()
        .filter(|(other, _)| *other != id)
        .find_map(|(other, claim)| {
            let ip = ips.iter().find(|ip| claim.ips.contains(ip))?;
            Some((*ip, other.clone(), claim.is_leaving))
        })
}

impl Claim {
    fn of(id: &SandboxId, network: &PodNetwork) -> Self {
        Self {
            ips: network.ips.clone(),
            leases: Leases::of(id, network),
            is_leaving: false,
        }
    }
}

impl Leases {
    /// The files that host-local has written for the sandbox: those of its ranges, and those that are there.
    fn of(id: &SandboxId, network: &PodNetwork) -> Option<Self> {
        let list = NetworkConfigList::from_list(network.config.to_string().as_bytes()).ok()?;
        let ipam = Ipam::of(&list).ok().flatten()?;
        let (dir, options) = ipam.files()?;
        let lease = |ip: &IpAddr| Lease {
            ip: *ip,
            container_id: id.as_str().to_owned(),
            ifname: Some(IFNAME.to_owned()),
        };
        let leases = network.ips.iter().map(lease);
        let is_ours = |lease: &Lease| ipam.gives(lease.ip) || host_local::is_whole(dir, lease);
        Some(Self {
            leases: leases.filter(is_ours).collect(),
            options,
            dir: dir.to_owned(),
        })
    }
}

//! The IPAM plugin `host-local`: addresses of ranges, kept as files of this machine.
//!
//! The contract is the reference plugin of that name: configuration, error texts, order of
//! addresses, and the files, which both programs can use in turn or at once. It never gives an
//! address twice. Everything it leaves behind is cleared by a DEL for the same container, a GC, or
//! the next ADD.
//!
//! The plugin is [`HostLocal`]. The rest is for programs that read its files or mend them: start at
//! [`usage()`], [`reclaim()`] and [`restore()`].
#![warn(missing_docs)]
#![cfg_attr(
    test,
    expect(clippy::disallowed_methods, reason = "tests are outside of the seam")
)]

mod allocate;
mod boot;
mod config;
mod index;
mod lease;
mod lock;
mod path_error;
mod range;
mod records;
mod resolv_conf;
mod restore;
mod scan;
mod schema;
mod store;

use std::{
    cmp::Reverse,
    collections::BTreeSet,
    fmt::{self, Write as _},
    io::{self, Write as _},
    path::Path,
};

use allocate::Refusal;
pub use config::{Capacity, Config, capacity};
pub use index::forget_below;
pub use lease::Lease;
use lease::{LeaseOwner, OwnerMatch};
pub use lock::LockError;
use podplane_cni::{
    skel::{Call, Plugin, valid_attachments},
    types::{CniError, CniResult, Dns, code},
};
use podplane_host::fs;
pub use range::{Range, RangeSet};
pub use restore::{is_whole, restore};
use rustix::fs::Access;
use store::LockedStore;
pub use store::{Options, Store, reclaim, usage};

/// The plugin `host-local`.
#[derive(Debug, Clone, Copy)]
pub struct HostLocal;

impl Plugin for HostLocal {
    fn name(&self) -> &'static str {
        "host-local"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let dns = config
            .resolv_conf
            .as_deref()
            .map_or(Ok(Dns::default()), resolv_conf::read);
        let dns = dns.map_err(CniError::internal)?;
        let store = Store::open(&config.dir(), config.options).map_err(CniError::internal)?;
        let owner = LeaseOwner::new(&call.container_id, &call.ifname);
        let mut locked = lock(call, &store, &owner)?;
        let mut telling = call.tell.begin("allocate");
        let ips = allocate::allocate(&mut locked, &config, &call.container_id, &owner);
        let ips = ips.map_err(|refusal| match refusal {
            Refusal::Exhausted(error) => {
                explain_exhaustion(&locked, &config);
                CniError::internal(error)
            }
            Refusal::Other(error) => CniError::internal(error),
        });
        drop(locked);
        telling.ips(ips.iter().flatten().map(|ip| ip.address.addr()));
        telling.end(ips.as_ref().err().map(|error| error as &dyn fmt::Display));
        let ips = ips?;
        Ok(CniResult {
            version: call.version,
            interfaces: Vec::new(),
            ips,
            routes: config.routes,
            dns,
        })
    }

    /// Releases the leases of exactly this container and interface or, if there are none, those
    /// that an old release wrote for the container.
    ///
    /// Leases outside the configured ranges count too, even if the configured ranges are invalid.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let wrong = match Config::parse(&call.stdin, &call.args) {
            Ok(config) => return release(call, &config.dir(), config.options, config.sets.len()),
            Err(wrong) => wrong,
        };
        match Config::place(&call.stdin) {
            Ok((dir, _)) if !fs::is_dir(&dir) => Ok(()), // Nothing was given out yet.
            Ok((dir, options)) => release(call, &dir, options, 1).map_err(|_| wrong),
            Err(_) => Err(wrong),
        }
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let store = Store::open(&config.dir(), config.options).map_err(CniError::internal)?;
        let id = &call.container_id;
        let owner = LeaseOwner::new(id, &call.ifname);
        let mut locked = store.lock(Some(&owner)).map_err(lock_error)?;
        if locked.held().next().is_none() {
            locked.make_sure().map_err(CniError::internal)?;
        }
        if locked.held().next().is_some() {
            return Ok(());
        }
        let msg = format!("host-local: Failed to find address added by container {id}");
        Err(CniError::internal(msg))
    }

    /// Releases the leases of attachments that are not valid. Without a list of valid ones nothing
    /// is released.
    fn gc(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let Some(valid) = valid_attachments(&call.stdin)? else {
            return Ok(());
        };
        let ids: BTreeSet<_> = valid.iter().map(|v| v.container_id.as_str()).collect();
        let exact: BTreeSet<_> = valid
            .iter()
            .map(|v| (v.container_id.as_str(), v.ifname.as_str()))
            .collect();
        let keep = |lease: &Lease| match &lease.ifname {
            Some(ifname) => exact.contains(&(lease.container_id.as_str(), ifname.as_str())),
            None => ids.contains(lease.container_id.as_str()),
        };
        let dir = config.dir();
        if !fs::is_dir(&dir) {
            return Ok(()); // Nothing was given out yet.
        }
        let store = Store::open(&dir, config.options).map_err(CniError::internal)?;
        store.retain(keep).map(drop).map_err(lock_error)
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let dir = config.dir();
        if let Some(why) = unwritable(&dir) {
            let msg = format!("no address can be given: {} {why}", dir.display());
            return Err(CniError::new(code::NOT_AVAILABLE, msg));
        }
        if !fs::is_dir(&dir) {
            return Ok(()); // Nothing was given out yet.
        }
        let store = Store::open(&dir, config.options).map_err(CniError::internal)?;
        let mut locked = store.lock(None).map_err(lock_error)?;
        loop {
            let is_full = |set: &&RangeSet| used(&locked, set) >= set.capacity();
            let Some(full) = config.sets.iter().find(is_full) else {
                return Ok(());
            };
            let is_news = locked.make_sure_of_names().map_err(CniError::internal)?;
            if !is_news {
                let msg = format!("no IP addresses available in range set: {full}");
                return Err(CniError::new(code::NOT_AVAILABLE, msg));
            }
        }
    }
}

/// Releases the leases of the call's container and interface in a directory.
fn release(call: &Call, dir: &Path, options: Options, sets: usize) -> Result<(), CniError> {
    let store = Store::open(dir, options).map_err(CniError::internal)?;
    let owner = LeaseOwner::new(&call.container_id, &call.ifname);
    let mut locked = lock(call, &store, &owner)?;
    let telling = call.tell.begin("release");
    let mut release = || -> io::Result<()> {
        if !locked.holds(OwnerMatch::Exact) {
            // Only the directory can tell that there is no such lease, or that one of an old
            // release counts.
            locked.make_sure()?;
        }
        // The reference does this once for each set: after a round that released exact leases, the
        // next one releases those that an old release wrote.
        for _ in 0..sets {
            if locked.release(OwnerMatch::Exact)? == 0 {
                locked.release(OwnerMatch::Legacy)?;
            }
        }
        Ok(())
    };
    let released = release().map_err(CniError::internal);
    telling.end(
        released
            .as_ref()
            .err()
            .map(|error| error as &dyn fmt::Display),
    );
    released
}

/// The reason why no lease can be written into a directory, which may not exist yet.
fn unwritable(dir: &Path) -> Option<String> {
    let there = dir.ancestors().find(|path| fs::exists(path))?;
    if let Err(error) = rustix::fs::access(there, Access::WRITE_OK) {
        return Some(format!("cannot be written: {}", io::Error::from(error)));
    }
    let space = rustix::fs::statvfs(there).ok()?;
    if space.f_bfree == 0 {
        return Some("is on a full disk".to_owned());
    }
    // A file system without a limit on inodes reports none.
    (space.f_files > 0 && space.f_ffree == 0)
        .then(|| "is on a file system without a free inode".to_owned())
}

/// Takes the directory's lock. The wait is a step of its own in the trace, since all pods of a
/// network queue here.
fn lock<'a>(
    call: &Call,
    store: &'a Store,
    owner: &'a LeaseOwner,
) -> Result<LockedStore<'a>, CniError> {
    let telling = call.tell.begin("lock");
    let locked = store.lock(Some(owner)).map_err(lock_error);
    telling.end(
        locked
            .as_ref()
            .err()
            .map(|error| error as &dyn fmt::Display),
    );
    locked
}

fn lock_error(error: LockError) -> CniError {
    match error {
        LockError::Timeout { .. } => CniError::new(code::TRY_AGAIN_LATER, error.to_string()),
        LockError::Io(error) => CniError::internal(error),
    }
}

/// The number of taken addresses among those that the set can give.
fn used(locked: &LockedStore<'_>, set: &RangeSet) -> u128 {
    let can_be_given = |ip| set.range_of(ip).is_some_and(|range| ip != range.gateway());
    let used = locked.taken().filter(|(ip, _)| can_be_given(*ip)).count();
    used as u128
}

/// Prints on standard error which attachments fill an exhausted range. The error itself keeps the
/// reference's words, which people and programs search for.
fn explain_exhaustion(locked: &LockedStore<'_>, config: &Config) {
    const SHOWN: usize = 5;
    let mut taken: Vec<_> = locked.taken().map(|(ip, hash)| (hash, ip)).collect();
    taken.sort_unstable();
    let owners = taken.chunk_by(|(a, _), (b, _)| a == b);
    let mut most: Vec<_> = owners.map(|of| (Reverse(of.len()), of[0].1)).collect();
    let (attachments, mut text) = (most.len(), String::new());
    if attachments > SHOWN {
        // There may be tens of thousands; only the first few need an order.
        most.select_nth_unstable(SHOWN);
        most.truncate(SHOWN);
    }
    most.sort_unstable();
    for set in &config.sets {
        let (used, all) = (used(locked, set), set.capacity());
        _ = writeln!(
            text,
            "host-local: {set}: {used} of {all} addresses are taken"
        );
    }
    let dir = config.dir();
    _ = writeln!(
        text,
        "host-local: {} has leases of {attachments} attachments; those with most:",
        dir.display()
    );
    for (Reverse(count), ip) in most {
        let lease = locked.read(ip);
        let (id, ifname) =
            lease.map_or_else(Default::default, |lease| (lease.container_id, lease.ifname));
        let ifname = ifname.unwrap_or_default();
        _ = writeln!(
            text,
            "host-local:   {count} of container {id:?} interface {ifname:?}, such as {ip}"
        );
    }
    _ = std::io::stderr().write_all(text.as_bytes());
}

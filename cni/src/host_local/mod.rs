//! The IPAM plugin `host-local`: addresses of ranges, kept as files of this machine.
//!
//! The contract is the reference plugin of that name: configuration, texts, order of addresses, and the
//! files, which both can use in turn or at once. It never gives an address twice, and leaves nothing
//! behind that a DEL for the same container, a GC, or the next ADD does not clear.

mod allocate;
mod config;
mod range;
mod resolv_conf;
mod schema;
mod store;

use std::{collections::BTreeSet, io::Write as _};

pub use config::{Capacity, Config, capacity};
pub use range::{Range, RangeSet};
pub use store::{Lease, Locked, Store, reclaim, usage};

use crate::{
    skel::{Call, Plugin, valid_attachments},
    types::{CniError, CniResult, Dns, code},
};

/// The plugin.
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
        let store = Store::open(&config.dir()).map_err(CniError::internal)?;
        let mut locked = store.lock().map_err(CniError::internal)?;
        let ips = allocate::allocate(&mut locked, &config, &call.container_id, &call.ifname);
        let ips = ips.map_err(|error| {
            explain_exhaustion(&locked, &config, &error);
            CniError::internal(error)
        })?;
        Ok(CniResult {
            version: call.version,
            interfaces: Vec::new(),
            ips,
            routes: config.routes,
            dns,
        })
    }

    /// Releases what is leased to exactly this container and interface, or, if nothing is, what an old
    /// release leased to the container. A lease of another configuration's range counts too.
    fn del(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let store = Store::open(&config.dir()).map_err(CniError::internal)?;
        let mut locked = store.lock().map_err(CniError::internal)?;
        // The reference does this once for each set, and so finds what an old release wrote with the
        // second, if not with the first.
        for _ in &config.sets {
            let released = locked.retain(|lease| !lease.is_of(&call.container_id, &call.ifname));
            if released.map_err(CniError::internal)?.is_empty() {
                let released = locked.retain(|lease| !lease.is_legacy_of(&call.container_id));
                released.map_err(CniError::internal)?;
            }
        }
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let store = Store::open(&config.dir()).map_err(CniError::internal)?;
        let locked = store.lock().map_err(CniError::internal)?;
        let id = &call.container_id;
        let found = locked
            .leases()
            .any(|lease| lease.is_of(id, &call.ifname) || lease.is_legacy_of(id));
        if found {
            return Ok(());
        }
        let msg = format!("host-local: Failed to find address added by container {id}");
        Err(CniError::internal(msg))
    }

    /// Releases what is not valid. Without a list nothing is known to be invalid, and nothing is released.
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
        reclaim(&config.dir(), keep)
            .map(drop)
            .map_err(CniError::internal)
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        let config = Config::parse(&call.stdin, &call.args)?;
        let dir = config.dir();
        if !dir.is_dir() {
            return Ok(()); // Nothing was given out yet.
        }
        let store = Store::open(&dir).map_err(CniError::internal)?;
        let locked = store.lock().map_err(CniError::internal)?;
        for set in &config.sets {
            if allocate::Candidates::new(set, None).all(|(ip, _)| locked.is_taken(ip)) {
                let msg = format!("no IP addresses available in range set: {set}");
                return Err(CniError::new(code::NOT_AVAILABLE, msg));
            }
        }
        Ok(())
    }
}

/// Says on standard error what an exhausted range is filled with; the error itself keeps the
/// reference's words, which people and programs look for.
fn explain_exhaustion(locked: &Locked<'_>, config: &Config, error: &str) {
    if error.contains("no IP addresses available in range set") {
        let owners: BTreeSet<_> = locked
            .leases()
            .map(|lease| lease.container_id.as_str())
            .collect();
        let (dir, taken) = (config.dir(), locked.taken());
        let text = format!(
            "host-local: {}: {taken} addresses leased to {} containers",
            dir.display(),
            owners.len()
        );
        _ = writeln!(std::io::stderr(), "{text}");
    }
}

//! The rights that a program does not have.

use std::io;

use rustix::{
    fs::{Gid, Uid},
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
        set_thread_res_gid, set_thread_res_uid,
    },
};

use crate::{LaunchError, ProcessSpec, error::Step as _};

/// The largest number of processes and threads of a user, over all its containers.
const MAX_PROCESSES: u64 = 1024;
/// The number of files that a process may have open, unless it raises that.
const OPEN_FILES: u64 = 1024;
/// Capabilities are bits of 64.
const CAPABILITIES: u32 = 64;

/// Refuses users and groups with rights, before anything is done with their numbers.
pub(crate) fn check(process: &ProcessSpec) -> Result<(), LaunchError> {
    let ProcessSpec {
        uid, gid, groups, ..
    } = process;
    // The kernel takes the largest number for "as it is".
    let is_refused = |id: &u32| matches!(*id, 0 | u32::MAX);
    if [uid, gid].into_iter().chain(groups).any(is_refused) {
        return Err(io::Error::from(io::ErrorKind::PermissionDenied))
            .step(|| "run as user or group 0 or 4294967295".into());
    }
    Ok(())
}

/// Becomes the process's user, and gives up every right for good.
pub(crate) fn give_up(process: &ProcessSpec) -> Result<(), LaunchError> {
    let ProcessSpec {
        uid, gid, groups, ..
    } = process;
    limit().step(|| "set resource limits".into())?;
    drop_bounding_set().step(|| "drop the bounding set of capabilities".into())?;
    clear_ambient_capability_set().step(|| "clear ambient capabilities".into())?;
    let all: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&all).step(|| format!("join the groups {groups:?}"))?;
    let (user, group) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
    set_thread_res_gid(group, group, group).step(|| format!("become group {gid}"))?;
    set_thread_res_uid(user, user, user).step(|| format!("become user {uid}"))?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none).step(|| "drop capabilities".into())?;
    set_no_new_privs(true).step(|| "set no_new_privs".into())
}

fn limit() -> io::Result<()> {
    let lower = |resource, soft: u64, hard: u64| {
        let highest = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limits = Rlimit {
            current: Some(soft.min(highest)),
            maximum: Some(hard.min(highest)),
        };
        setrlimit(resource, limits)
    };
    lower(Resource::Nproc, MAX_PROCESSES, MAX_PROCESSES)?;
    lower(Resource::Core, 0, 0)?;
    lower(Resource::Nofile, OPEN_FILES, 1 << 20)?;
    Ok(())
}

fn drop_bounding_set() -> io::Result<()> {
    for number in 0..CAPABILITIES {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The kernel has no more.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

//! The filter of system calls that every process of a container has. What is not in the list fails
//! with EPERM.

use std::{collections::BTreeMap, env, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use crate::{LaunchError, error::Step as _, syscalls};

/// The flags of clone(2) that make namespaces.
const NAMESPACES: u64 = 0x7e02_0000;
/// The personalities that programs ask for: Linux, with and without the addresses of older kernels,
/// and the question for the present one.
const PERSONALITIES: [u64; 5] = [0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff];
/// Families of sockets that reach around the network namespace, or far into the kernel.
const FORBIDDEN_FAMILIES: [libc::c_int; 2] = [libc::AF_ALG, libc::AF_VSOCK];

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Restricts the calling thread, and all that it starts.
pub(crate) fn restrict() -> Result<(), LaunchError> {
    let applied = || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let arch = TargetArch::try_from(env::consts::ARCH)?;
        let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
        let list = SeccompFilter::new(allowed()?, denied, SeccompAction::Allow, arch)?;
        // clone3(2) has its flags in memory, where no filter can see them. C libraries fall back to
        // clone(2) if there is no such call.
        let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
        let clone3 = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
        let clone3 = SeccompFilter::new(clone3, SeccompAction::Allow, absent, arch)?;
        let (list, clone3) = (BpfProgram::try_from(list)?, BpfProgram::try_from(clone3)?);
        // The last filter that denies a call says with which error, and the first has to allow
        // installing another.
        apply_filter(&list)?;
        apply_filter(&clone3)?;
        Ok(())
    };
    applied()
        .map_err(io::Error::other)
        .step(|| "restrict system calls".into())
}

fn allowed() -> Result<Rules, seccompiler::BackendError> {
    let is =
        |argument, op, value| SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value);
    let lists = [syscalls::ALLOWED, syscalls::OF_ARCHITECTURE];
    let mut rules: Rules = lists
        .into_iter()
        .flatten()
        .map(|number| (*number, Vec::new()))
        .collect();
    rules.insert(libc::SYS_clone3, Vec::new());
    let no_namespaces = is(0, SeccompCmpOp::MaskedEq(NAMESPACES), 0)?;
    rules.insert(
        libc::SYS_clone,
        vec![SeccompRule::new(vec![no_namespaces])?],
    );
    let personalities = PERSONALITIES
        .into_iter()
        .map(|value| SeccompRule::new(vec![is(0, SeccompCmpOp::Eq, value)?]))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_personality, personalities);
    let families = FORBIDDEN_FAMILIES
        .into_iter()
        .map(|family| is(0, SeccompCmpOp::Ne, u64::from(family.unsigned_abs())))
        .collect::<Result<_, _>>()?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(families)?]);
    Ok(rules)
}

//! `ipam.bootID`: a reboot ends every container, so the leases of before are nobody's.

use std::{
    io,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fd::BorrowedFd,
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags},
    io::Errno,
    time::ClockId,
};

use super::{index, scan};

/// Deletes the leases of earlier boots, at the first call of a boot; the directory's lock is held.
///
/// A lease is of an earlier boot if its file was last changed before this one began. The stamp only says that this was looked
/// at already: without it, or with one of another boot, a lease that was written since, by whomever, stays.
pub(super) fn forget_earlier(dir: BorrowedFd<'_>, path: &Path, index_dir: &Path) -> io::Result<()> {
    let Some(boot) = index::boot_id() else {
        return Ok(()); // Which boot this is cannot be told, so nothing is known to be of another one.
    };
    let stamp = index::state_path(path, index_dir).map(|mut path| {
        path.as_mut_os_string().push(index::BOOT_SUFFIX);
        path
    });
    if let Some(stamp) = &stamp
        && scan::read_small(CWD, stamp).is_ok_and(|text| text.as_bytes() == boot)
    {
        return Ok(());
    }
    let began = began();
    scan::remove_leases(dir, |name| {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(u64::try_from(stat.st_ctime).is_ok_and(|changed| changed < began.as_secs()))
    })?;
    // A stamp that cannot be written costs the next call the same look, and nothing else.
    let write = || -> io::Result<()> {
        let stamp = stamp.ok_or(Errno::NAMETOOLONG)?;
        index::make_private_dir(index_dir)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&stamp, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        rustix::io::write(file, &boot)?;
        Ok(())
    };
    _ = write();
    Ok(())
}

/// When this boot began, since 1970, by the clock of files. If the clock was set forward since, files of this boot may be
/// older than the uptime says; /run was mounted by that clock too.
fn began() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let up = rustix::time::clock_gettime(ClockId::Boottime);
    let up = Duration::from_secs(u64::try_from(up.tv_sec).unwrap_or(u64::MAX));
    let by_uptime = now.unwrap_or_default().saturating_sub(up);
    let run = rustix::fs::statx(CWD, "/run", AtFlags::empty(), StatxFlags::BTIME);
    let mounted = run.ok().filter(|_| index::is_tmpfs(Path::new("/run")));
    let mounted = mounted.and_then(|run| u64::try_from(run.stx_btime.tv_sec).ok());
    let mounted = mounted.filter(|seconds| *seconds > 0);
    // A second for the roundings.
    by_uptime
        .min(mounted.map_or(Duration::MAX, Duration::from_secs))
        .saturating_sub(Duration::from_secs(1))
}

//! `ipam.bootID`: a reboot ends every container, so leases of earlier boots have no owner.

use std::{
    io,
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use podplane_host::clock;
use rustix::{
    fd::BorrowedFd,
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags},
    io::Errno,
    time::ClockId,
};

use super::{index, scan};

/// Deletes the leases of earlier boots, at the first call of a boot. The caller holds the
/// directory's lock.
///
/// A lease is of an earlier boot if its file was last changed before this boot began. The stamp
/// records only that this boot has looked already. Without a stamp of this boot the leases are
/// examined again, and those written since it began stay.
pub(super) fn forget_earlier(dir: BorrowedFd<'_>, path: &Path, index_dir: &Path) -> io::Result<()> {
    let Some(boot) = index::boot_id() else {
        return Ok(()); // Without this boot's id no lease is known to be of another boot.
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
    // Without a stamp the next call examines the leases again; nothing else is lost.
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

/// The start of this boot since 1970, by the clock of files. If the clock was set forward since,
/// files of this boot may be older than the uptime says; /run was mounted by that clock too, so the
/// earlier of both counts.
fn began() -> Duration {
    let now = clock::system_time().duration_since(UNIX_EPOCH);
    let up = rustix::time::clock_gettime(ClockId::Boottime);
    let up = Duration::from_secs(u64::try_from(up.tv_sec).unwrap_or(u64::MAX));
    let by_uptime = now.unwrap_or_default().saturating_sub(up);
    let run = rustix::fs::statx(CWD, "/run", AtFlags::empty(), StatxFlags::BTIME);
    let mounted = run.ok().filter(|_| index::is_tmpfs(Path::new("/run")));
    let mounted = mounted.and_then(|run| u64::try_from(run.stx_btime.tv_sec).ok());
    let mounted = mounted.filter(|seconds| *seconds > 0);
    // One second for rounding.
    by_uptime
        .min(mounted.map_or(Duration::MAX, Duration::from_secs))
        .saturating_sub(Duration::from_secs(1))
}

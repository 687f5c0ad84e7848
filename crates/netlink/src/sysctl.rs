//! Kernel settings of a network namespace.
//!
//! `/proc/sys/net` shows the namespace of the *thread* that opens the file, so a write from a
//! thread inside a namespace changes that namespace, whichever one the rest of the process is in.

use std::{
    fs,
    io::{self, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, StatVfsMountFlags},
    mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags},
};

use crate::netns::{self, NetnsError};

/// A failed access to a setting.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysctlError {
    /// The key could not be read or written.
    #[error("failed to {action} sysctl {key}")]
    Access {
        /// `read` or `write`.
        action: &'static str,
        /// The key, as given.
        key: String,
        /// The cause.
        source: io::Error,
    },
    /// The namespace could not be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

/// Writes a setting of the calling thread's namespace. `key` has slashes: `net/ipv4/ip_forward`.
///
/// # Errors
/// [`SysctlError::Access`].
pub fn write(key: &str, value: &str) -> Result<(), SysctlError> {
    fs::write(path(key), value).map_err(|source| access("write", key, source))
}

/// Reads a setting of the calling thread's namespace, without the newline.
///
/// # Errors
/// [`SysctlError::Access`].
pub fn read(key: &str) -> Result<String, SysctlError> {
    let text = fs::read_to_string(path(key)).map_err(|source| access("read", key, source))?;
    Ok(text.trim_end().to_owned())
}

/// Writes settings of another namespace, in order.
///
/// # Errors
/// [`SysctlError`]; the settings before the one that failed are written.
pub fn write_in(netns: &Path, settings: &[(&str, &str)]) -> Result<(), SysctlError> {
    netns::in_netns(netns, || {
        settings
            .iter()
            .try_for_each(|(key, value)| write(key, value))
    })?
}

/// Reads a setting of another namespace.
///
/// # Errors
/// [`SysctlError`].
pub fn read_in(netns: &Path, key: &str) -> Result<String, SysctlError> {
    netns::in_netns(netns, || read(key))?
}

/// A private mount of `/proc`, for writing settings.
///
/// For each name below `/proc/sys/net`, the kernel keeps the entries of all network namespaces in
/// one chain, and searches it for each path: for the thousandth namespace this takes half a
/// millisecond. A mount has chains of its own, so a process that sets up many namespaces opens a
/// new mount now and then.
#[derive(Debug)]
pub struct OwnMount(OwnedFd);

impl OwnMount {
    /// Mounts `/proc` without attaching it to a path.
    ///
    /// # Errors
    /// The operating system's; it takes `CAP_SYS_ADMIN`, and in a container a `/proc` without
    /// masked paths.
    pub fn open() -> io::Result<Self> {
        let context = mount::fsopen(c"proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_create(context.as_fd())?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let mount = mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        Ok(Self(mount))
    }

    /// Writes a setting like [`write`](fn@write), through this mount.
    ///
    /// # Errors
    /// [`SysctlError::Access`].
    pub fn write(&self, key: &str, value: &str) -> Result<(), SysctlError> {
        let write = || -> io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let path = Path::new("sys").join(key);
            let file = rustix::fs::openat(&self.0, &path, flags, Mode::empty())?;
            fs::File::from(file).write_all(value.as_bytes())
        };
        write().map_err(|source| access("write", key, source))
    }
}

/// Makes the settings of network namespaces writable where `/proc/sys/net` is mounted read-only, as
/// in a container.
///
/// It affects this process's whole mount namespace; the rest of `/proc/sys` stays as it is.
///
/// # Errors
/// The operating system's; it takes `CAP_SYS_ADMIN`.
pub fn make_writable() -> io::Result<()> {
    let net = path("net");
    let is_read_only = || -> io::Result<bool> {
        let flags = rustix::fs::statvfs(&net)?.f_flag;
        Ok(flags.contains(StatVfsMountFlags::RDONLY))
    };
    if is_read_only()? {
        rustix::mount::mount_bind(&net, &net)?;
        rustix::mount::mount_remount(&net, MountFlags::BIND, c"")?;
    }
    Ok(())
}

fn path(key: &str) -> PathBuf {
    Path::new("/proc/sys").join(key)
}

fn access(action: &'static str, key: &str, source: io::Error) -> SysctlError {
    SysctlError::Access {
        action,
        key: key.to_owned(),
        source,
    }
}

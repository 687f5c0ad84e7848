//! Kernel settings of a network namespace.
//!
//! `/proc/sys/net` shows the namespace of the *thread* that opens the file, so a write from a thread
//! inside hits that namespace whatever the rest of the process is in.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{fs::StatVfsMountFlags, mount::MountFlags};

use crate::netns::{self, NetnsError};

/// What failed.
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
        /// Why.
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
/// [`SysctlError`]; settings before the failing one are written.
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

/// Lets the settings of network namespaces be written where they are mounted to be read alone, as in a container. Only where this process's mount namespace is meant:
/// the rest of `/proc/sys` stays as it is.
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

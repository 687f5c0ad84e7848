//! Named network namespaces: files on which a namespace is bind-mounted.
//!
//! A thread enters a namespace and then ends, so that no error or panic can strand the caller in
//! it. A program that has one thread and little time enters with its only thread and returns
//! instead.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    thread,
};

use rustix::{fs::StatFs, io::Errno, mount::UnmountFlags, thread::LinkNameSpaceType};

use crate::limit::KernelLimit;

/// The namespace of the calling thread. `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

/// `NSFS_MAGIC` of `linux/magic.h`: the file system that namespaces live in.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// A failed step on the file of a namespace.
#[derive(Debug, thiserror::Error)]
#[error("failed to {step} network namespace {}", path.display())]
pub struct NetnsError {
    /// The step: `open`, `enter`, `create`, `initialise`, `mount`, `unmount`, `remove`, `list`.
    pub step: &'static str,
    /// The file of the namespace.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

impl NetnsError {
    fn new(step: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self {
            step,
            path: path.to_owned(),
            source: KernelLimit::OpenFiles.explain(source.into()),
        }
    }

    /// Returns true if the file does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }
}

/// Opens a namespace.
///
/// # Errors
/// [`NetnsError`].
pub fn open(path: &Path) -> Result<File, NetnsError> {
    File::open(path).map_err(|error| NetnsError::new("open", path, error))
}

/// Opens a namespace in order to enter it.
///
/// # Errors
/// [`NetnsError`], also if the file is not that of a namespace.
pub fn open_mounted(path: &Path) -> Result<File, NetnsError> {
    let file = open(path)?;
    let failed = |error: Errno| NetnsError::new("enter", path, error);
    match is_nsfs(&rustix::fs::fstatfs(&file).map_err(failed)?) {
        true => Ok(file),
        false => Err(failed(Errno::INVAL)),
    }
}

/// The calling thread's namespace.
///
/// # Errors
/// [`NetnsError`], when `/proc` is not mounted.
pub fn current() -> Result<File, NetnsError> {
    open(Path::new(OWN))
}

/// Returns true if both files refer to the same namespace.
///
/// # Errors
/// Those of fstat(2).
pub fn is_same(a: impl AsFd, b: impl AsFd) -> io::Result<bool> {
    let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Makes a namespace and binds it to `path`. Makes missing parents of `path` too.
///
/// # Errors
/// [`NetnsError`]; `path` is then not left behind. `AlreadyExists` if the file exists.
pub fn create(path: &Path) -> Result<(), NetnsError> {
    create_with(path, || Ok(()))
}

/// Makes a namespace like [`create`], and runs `init` inside before it gets its name: the place for
/// sysctls that must be set before the first interface comes up.
///
/// # Errors
/// [`NetnsError`], with `init`'s error as its source if that failed.
pub fn create_with(
    path: &Path,
    init: impl FnOnce() -> io::Result<()> + Send,
) -> Result<(), NetnsError> {
    let failed = |step, error: io::Error| NetnsError::new(step, path, error);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| failed("create", error))?;
    }
    File::create_new(path).map_err(|error| failed("create", error))?;
    let made = on_own_thread(|| {
        crate::sys::unshare_network().map_err(|error| {
            let error = KernelLimit::NetworkNamespaces.explain(error.into());
            failed("create", error)
        })?;
        init().map_err(|error| failed("initialise", error))?;
        rustix::mount::mount_bind(OWN, path)
            .map_err(|error| failed("mount", KernelLimit::Mounts.explain(error.into())))
    });
    let made = made.map_err(|error| failed("create", error)).flatten();
    if made.is_err() {
        // The mount is the last step, so only the file is left to remove.
        _ = fs::remove_file(path);
    }
    made
}

/// Gives the namespace of the calling thread a name. Makes missing parents of `path` too.
///
/// # Errors
/// [`NetnsError`]; `path` is then not left behind. `AlreadyExists` if the file exists.
pub fn bind_own(path: &Path) -> Result<(), NetnsError> {
    let failed = |step, error: io::Error| NetnsError::new(step, path, error);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|error| failed("create", error))?;
    }
    File::create_new(path).map_err(|error| failed("create", error))?;
    rustix::mount::mount_bind(OWN, path).map_err(|error| {
        _ = fs::remove_file(path);
        failed("mount", error.into())
    })
}

/// Removes the name; the namespace ends with its last user. A missing file counts as success.
///
/// # Errors
/// [`NetnsError`].
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    loop {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // The loop removes further mounts underneath, until EINVAL.
            Ok(()) => {}
            // EINVAL: not a mount point, as after a crash between unmount and unlink.
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(NetnsError::new("unmount", path, error)),
        }
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(NetnsError::new("remove", path, error))
        }
        _ => Ok(()),
    }
}

/// The namespaces bound to files of a directory, in lexical order. A missing directory has none.
///
/// # Errors
/// [`NetnsError`].
pub fn list(dir: &Path) -> Result<Vec<PathBuf>, NetnsError> {
    let failed = |error| NetnsError::new("list", dir, error);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if is_netns(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns true if a namespace is bound to the file.
#[must_use]
pub fn is_netns(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| is_nsfs(&stat))
}

fn is_nsfs(stat: &StatFs) -> bool {
    u64::try_from(stat.f_type) == Ok(NSFS_MAGIC)
}

/// Runs `f` inside the namespace, on a thread of its own.
///
/// # Errors
/// [`NetnsError`] if the namespace cannot be opened or entered; `f` has not run then.
pub fn in_netns<T: Send>(path: &Path, f: impl FnOnce() -> T + Send) -> Result<T, NetnsError> {
    let netns = open(path)?;
    let entered = on_own_thread(|| {
        let kind = Some(LinkNameSpaceType::Network);
        rustix::thread::move_into_link_name_space(netns.as_fd(), kind)?;
        Ok(f())
    });
    entered
        .flatten()
        .map_err(|error| NetnsError::new("enter", path, error))
}

/// Runs `f` inside the namespace on the calling thread, and returns to the thread's own.
///
/// A thread would cost more than all that a plugin does inside. The process aborts if it cannot
/// return, since it would go on in the wrong namespace; so this is for programs that do one thing,
/// not for servers.
///
/// # Errors
/// Those of setns(2); `f` has not run then.
pub fn visit<T>(netns: BorrowedFd<'_>, f: impl FnOnce() -> T) -> io::Result<T> {
    struct HomeNamespace(File);
    impl Drop for HomeNamespace {
        fn drop(&mut self) {
            let network = Some(LinkNameSpaceType::Network);
            if rustix::thread::move_into_link_name_space(self.0.as_fd(), network).is_err() {
                std::process::abort();
            }
        }
    }
    let home = File::open(OWN)?;
    rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
    // The guard starts only now: a thread that was refused entry has not left, and could not return
    // either.
    let home = HomeNamespace(home);
    let result = f();
    drop(home);
    Ok(result)
}

fn on_own_thread<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, f);
        let thread = started.map_err(|error| KernelLimit::Processes.explain(error))?;
        Ok(thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

#[cfg(test)]
mod tests {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn a_visit_that_is_not_allowed_is_an_error() {
        let refused = on_own_thread(|| {
            let mut sets = capabilities(None).unwrap();
            sets.effective.remove(CapabilitySet::SYS_ADMIN);
            set_capabilities(None, sets).unwrap();
            let own = File::open(OWN).unwrap();
            visit(own.as_fd(), || ())
        });
        let error = refused.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
}

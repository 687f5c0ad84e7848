//! Named network namespaces: files on which a namespace is bind-mounted.
//!
//! A namespace is entered by a thread that then ends, so that no error or panic can strand the caller in it. A plugin program, which is one
//! thread and short of time, visits it instead.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    thread,
};

use rustix::{io::Errno, mount::UnmountFlags, thread::LinkNameSpaceType};

/// The namespace of the calling thread. `/proc/self` would be the main thread's.
const OWN: &str = "/proc/thread-self/ns/net";

/// `NSFS_MAGIC` of `linux/magic.h`: the file system that namespaces live in.
const NSFS_MAGIC: u64 = 0x6e73_6673;

/// What failed, and on which file.
#[derive(Debug, thiserror::Error)]
#[error("failed to {step} network namespace {}", path.display())]
pub struct NetnsError {
    /// The step: `open`, `enter`, `create`, `mount`, `unmount`, `remove`, `list`.
    pub step: &'static str,
    /// The file of the namespace.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

impl NetnsError {
    fn new(step: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self {
            step,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Whether there is no such file.
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

/// The calling thread's namespace.
///
/// # Errors
/// [`NetnsError`], when `/proc` is not mounted.
pub fn current() -> Result<File, NetnsError> {
    open(Path::new(OWN))
}

/// Whether two namespace files are the same namespace.
///
/// # Errors
/// What fstat(2) says.
pub fn is_same(a: impl AsFd, b: impl AsFd) -> io::Result<bool> {
    let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// Makes a namespace and binds it to `path`. Parents of `path` are made too.
///
/// # Errors
/// [`NetnsError`]; `path` is then not left behind. `AlreadyExists` when there is such a file.
pub fn create(path: &Path) -> Result<(), NetnsError> {
    create_with(path, || Ok(()))
}

/// [`create`], and runs `init` inside before the namespace gets its name: the place for sysctls that
/// must be set before the first interface comes up.
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
        crate::sys::unshare_network().map_err(|error| failed("create", error.into()))?;
        init().map_err(|error| failed("initialise", error))?;
        rustix::mount::mount_bind(OWN, path).map_err(|error| failed("mount", error.into()))
    });
    let made = made.map_err(|error| failed("create", error)).flatten();
    if made.is_err() {
        // The mount is the last step, so there is only the file to take back.
        _ = fs::remove_file(path);
    }
    made
}

/// Gives the namespace of the calling thread a name. Parents of `path` are made too.
///
/// # Errors
/// [`NetnsError`]; `path` is then not left behind. `AlreadyExists` when there is such a file.
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

/// Takes the name away; the namespace ends with its last user. Already gone is success.
///
/// # Errors
/// [`NetnsError`].
pub fn remove(path: &Path) -> Result<(), NetnsError> {
    loop {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // Mounted once more underneath, if somebody did that; EINVAL ends the loop.
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

/// The namespaces bound to files of a directory, in lexical order. A directory that is missing has none.
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

/// Whether the file has a namespace bound to it.
#[must_use]
pub fn is_netns(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(NSFS_MAGIC))
}

/// Runs `f` inside the namespace, on a thread of its own.
///
/// # Errors
/// [`NetnsError`] when the namespace cannot be opened or entered; `f` has not run then.
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

/// Runs `f` inside the namespace on the calling thread, and comes back.
///
/// A thread costs more than all that a plugin does inside. The process ends if it cannot come back, since it would go on with its work in the wrong
/// place; so this is for programs that do one thing, not for servers.
///
/// # Errors
/// What setns(2) says; `f` has not run then.
pub(crate) fn visit<T>(netns: BorrowedFd<'_>, f: impl FnOnce() -> T) -> io::Result<T> {
    struct Home(File);
    impl Drop for Home {
        fn drop(&mut self) {
            let network = Some(LinkNameSpaceType::Network);
            if rustix::thread::move_into_link_name_space(self.0.as_fd(), network).is_err() {
                std::process::abort();
            }
        }
    }
    let home = File::open(OWN)?;
    rustix::thread::move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?;
    // Only now: whoever may not enter may not come back either, but has not left.
    let home = Home(home);
    let result = f();
    drop(home);
    Ok(result)
}

fn on_own_thread<T: Send>(f: impl FnOnce() -> T + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().spawn_scoped(scope, f)?;
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

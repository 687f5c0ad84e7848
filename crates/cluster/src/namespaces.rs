//! The namespaces of a cluster, because of which nothing of it is left on the machine when its
//! processes are gone.
//!
//! The supervisor creates a mount namespace and, without privileges, a user namespace in which it
//! has them. On a tmpfs in this mount namespace, network namespaces are bound to names; the kernel
//! frees them all with the last process. Only a process with one thread can enter or leave such
//! namespaces, so both come before any runtime.

#![expect(
    unsafe_code,
    reason = "unshare(2) can take file descriptors from under other threads; only mount, user and host name namespaces are unshared here"
)]

use std::{io, os::fd::AsFd as _, path::Path};

use anyhow::Context as _;
use podplane_host::fs::{self, File};
use podplane_netlink::netns;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, UnmountFlags},
    process::{getegid, geteuid},
    thread::{LinkNameSpaceType, UnshareFlags},
};

/// Moves the process into a new mount namespace, with a tmpfs on `run`; without the privilege for
/// that, through a user namespace.
pub fn isolate(run: &Path) -> anyhow::Result<()> {
    if unshare(UnshareFlags::NEWNS).is_err() {
        enter_new_user_namespace()?;
    }
    // Later mounts and unmounts of the machine are still seen here; mounts made here are seen
    // nowhere else.
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    )
    .context("failed to detach the mount namespace from the machine's")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", run, "tmpfs", flags, c"mode=0700")
        .with_context(|| format!("failed to mount a tmpfs on {}", run.display()))
}

/// Moves the process into new user and mount namespaces, in which its user is root.
fn enter_new_user_namespace() -> anyhow::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
        .context("unprivileged user namespaces are restricted (unshare)")?;
    // The kernel requires setgroups to be denied before an unprivileged process may map its group.
    let map = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).with_context(|| {
            format!(
                "this system lets unprivileged users make no user namespace of use (write {file})"
            )
        })
    };
    map("setgroups", "deny".into())?;
    map("uid_map", format!("0 {user} 1"))?;
    map("gid_map", format!("0 {group} 1"))
}

fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the hazard of unshare(2) is CLONE_FILES, which leaves threads with different tables
    // of descriptors. No caller passes it.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Moves the calling process, which must have one thread, into the namespaces of the supervisor
/// `pid`.
pub fn join(pid: i32) -> anyhow::Result<()> {
    let open = |kind: &str| -> io::Result<File> { fs::open(format!("/proc/{pid}/ns/{kind}")) };
    let join = || -> io::Result<()> {
        let (user, mount) = (open("user")?, open("mnt")?);
        let directory = std::env::current_dir();
        // The kernel refuses to enter the present user namespace again.
        if !netns::is_same(&user, fs::open("/proc/self/ns/user")?)? {
            rustix::thread::move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        // A single node has no mount namespace of its own, and a container may not even enter the
        // one that it is in.
        if netns::is_same(&mount, fs::open("/proc/self/ns/mnt")?)? {
            return Ok(());
        }
        rustix::thread::move_into_link_name_space(mount.as_fd(), Some(LinkNameSpaceType::Mount))?;
        // Entering a mount namespace changes the working directory to its root.
        directory.and_then(std::env::set_current_dir)
    };
    join().with_context(|| {
        format!(
            "failed to enter the namespaces of the cluster (process {pid}), which its user and root can do"
        )
    })
}

/// Gives the process, which must have one thread, its own host name and mount namespaces, with this
/// host name, unless it is empty, and these files in place of the machine's. `scratch` is an empty
/// directory, and is empty again afterwards. Returns the files that the machine does
/// not have, and the process neither.
pub fn assume_identity<'a>(
    hostname: &str,
    files: &[(&'a str, String)],
    scratch: &Path,
) -> anyhow::Result<Vec<&'a str>> {
    unshare(UnshareFlags::NEWUTS | UnshareFlags::NEWNS)
        .context("failed to make host name and mount namespaces (unshare)")?;
    rustix::mount::mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )
    .context("failed to detach the mount namespace from the cluster's")?;
    if !hostname.is_empty() {
        rustix::system::sethostname(hostname.as_bytes())
            .with_context(|| format!("failed to set the host name {hostname}"))?;
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("tmpfs", scratch, "tmpfs", flags, c"mode=0755")
        .with_context(|| format!("failed to mount a tmpfs on {}", scratch.display()))?;
    let mut missing = Vec::new();
    for (index, (target, text)) in files.iter().enumerate() {
        let file = scratch.join(index.to_string());
        let place = || -> io::Result<()> {
            fs::write(&file, text)?;
            Ok(rustix::mount::mount_bind(&file, *target)?)
        };
        match place() {
            // There is no file to mount it on, and none is created on the machine for this.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(*target);
            }
            placed => {
                placed.with_context(|| format!("failed to put the pod's {target} in place"))?
            }
        }
    }
    // The bound files stay.
    rustix::mount::unmount(scratch, UnmountFlags::DETACH)
        .with_context(|| format!("failed to unmount {}", scratch.display()))?;
    Ok(missing)
}

/// Moves the calling thread into a pod's network namespace.
pub fn enter_netns(path: &Path) -> anyhow::Result<()> {
    let enter = || -> io::Result<()> {
        let netns = fs::open(path)?;
        Ok(rustix::thread::move_into_link_name_space(
            netns.as_fd(),
            Some(LinkNameSpaceType::Network),
        )?)
    };
    enter().with_context(|| format!("failed to enter the network namespace {}", path.display()))
}

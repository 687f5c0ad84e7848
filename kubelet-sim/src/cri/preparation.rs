//! Settings of a sandbox's network namespace, made before it has an interface.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use podplane_cni::loopback;
use podplane_netlink::sysctl::{self, OwnMount, SysctlError};

/// The number of namespaces that are set up by one mount of `/proc`. The cost of a path grows with
/// it, and a mount costs as much as the paths of some hundred namespaces.
const NAMESPACES_PER_MOUNT: u32 = 32;

/// Prepares the namespaces of a node's sandboxes.
#[derive(Debug, Default)]
pub(super) struct Preparation {
    current: Mutex<CurrentMount>,
}

#[derive(Debug, Default)]
struct CurrentMount {
    mount: Option<Arc<OwnMount>>,
    left: u32,
}

impl Preparation {
    /// Prepares the namespace of the calling thread, which is a new one.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(super) fn run(&self) -> io::Result<()> {
        let mount = self.mount();
        let write = |key: &str, value: &str| match &mount {
            Some(mount) => mount.write(key, value),
            None => sysctl::write(key, value),
        };
        // As with containerd, processes in a pod may ping without CAP_NET_RAW. Nothing else depends
        // on it, and in a user namespace the range is refused.
        _ = write("net/ipv4/ping_group_range", "0 2147483647");
        // Router solicitations and duplicate address detection cost more than all else of a pod's
        // set-up. Plugins switch IPv6 on again for an interface that gets such an address.
        unless_missing(write("net/ipv6/conf/all/disable_ipv6", "1"))?;
        unless_missing(write("net/ipv6/conf/default/disable_ipv6", "1"))?;
        // Plugins set the same for their own interface, and find it set already.
        unless_missing(write("net/ipv6/conf/default/accept_dad", "0"))?;
        loopback::bring_up().map_err(io::Error::other)?;
        Ok(())
    }

    /// The mount for setting up one namespace; `None` if none can be opened.
    fn mount(&self) -> Option<Arc<OwnMount>> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.left == 0 {
            *current = CurrentMount {
                mount: OwnMount::open().ok().map(Arc::new),
                left: NAMESPACES_PER_MOUNT,
            };
        }
        current.left -= 1;
        current.mount.clone()
    }
}

/// Accepts a missing setting: a kernel without IPv6 does not have it.
fn unless_missing(written: Result<(), SysctlError>) -> io::Result<()> {
    match written {
        Err(SysctlError::Access { source, .. }) if source.kind() != io::ErrorKind::NotFound => {
            Err(source)
        }
        _ => Ok(()),
    }
}

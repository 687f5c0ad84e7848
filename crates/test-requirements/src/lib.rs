//! The needs of a test on its machine: root, or a program that podplane's authors did not write.
//!
//! A test without it fails and says what to install. `PODPLANE_SKIP`, a list of names with commas,
//! skips tests by the name of what they need, with a visible line.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::{
    env, fs,
    io::{self, Write as _},
    path::PathBuf,
};

/// Returns true if the test can run, and false, with a visible line, if `PODPLANE_SKIP` has `name`.
///
/// # Panics
///
/// If what the test needs is not `present`, and not in `PODPLANE_SKIP`. `install` says what to do.
#[must_use]
pub fn require(name: &str, present: bool, install: &str) -> bool {
    let skipped = env::var("PODPLANE_SKIP").unwrap_or_default();
    if skipped.split(',').any(|skipped| skipped == name) {
        // Not by the macro, whose output the test harness hides.
        let line = format!("SKIPPED: PODPLANE_SKIP has {name}\n");
        _ = io::stderr().write_all(line.as_bytes());
        return false;
    }
    assert!(
        present,
        "this test needs {name}: {install}; or set PODPLANE_SKIP={name}"
    );
    true
}

/// Root, for mounts, network namespaces and other users.
///
/// # Panics
///
/// See [`require`].
#[must_use]
pub fn root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    require("root", is_root, "run it as root")
}

/// The path of kubectl: `PODPLANE_KUBECTL`, else the newest up to 1.33 beside the one on the path,
/// if that is a dispatcher. `None` if the test must be skipped.
///
/// # Panics
///
/// See [`require`].
#[must_use]
pub fn kubectl() -> Option<PathBuf> {
    let found = env::var_os("PODPLANE_KUBECTL")
        .map(PathBuf::from)
        .or_else(|| {
            let path = env::var_os("PATH")?;
            let found = env::split_paths(&path)
                .map(|directory| directory.join("kubectl"))
                .find(|file| file.is_file())?;
            let beside = fs::canonicalize(&found)
                .ok()?
                .with_file_name("kubectl.1.33");
            Some(if beside.is_file() { beside } else { found })
        });
    let install = "put version 1.29 or newer into a directory of PATH, or set PODPLANE_KUBECTL";
    require("kubectl", found.is_some(), install).then_some(found)?
}

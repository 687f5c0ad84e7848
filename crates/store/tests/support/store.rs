//! Helpers for the tests of the sled engine's directory.

use std::{
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use podplane_store::{Key, OpenError, SledStore};

/// Tells a child process in which directory to write; see [`child`].
pub(crate) const CHILD_DIR: &str = "STORE_TEST_CHILD_DIR";
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn key(text: &str) -> Key {
    Key::try_from(text).unwrap()
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Opens a store, or returns the refusal. Fails when that takes forever: sled could also wait for a
/// thread that has panicked.
pub(crate) fn open(dir: &Path) -> Result<SledStore, OpenError> {
    let (done, opened) = mpsc::channel();
    let dir = dir.to_owned();
    thread::spawn(move || done.send(SledStore::open(dir)));
    opened.recv_timeout(DEADLINE).expect("opening hangs")
}

/// A command that runs one of this program's ignored tests on a directory.
pub(crate) fn child(mut program: Command, what: &str, dir: &Path) -> Command {
    program
        .args([what, "--exact", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir)
        .stdin(Stdio::null());
    program
}

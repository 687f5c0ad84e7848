//! Runs the inputs of a target's corpus through its body, for tests on the stable toolchain.

use std::{env, fs, panic, path::Path};

/// Runs every input in `fuzz/corpus/TARGET`, in the order of their names. A failure names the
/// input.
pub(crate) fn corpus(target: &str, body: fn(&[u8])) {
    let package = env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the test");
    let root = Path::new(&package)
        .ancestors()
        .find(|dir| dir.join("fuzz/corpus").is_dir());
    let corpus = root
        .expect("a package of the workspace")
        .join("fuzz/corpus");
    let entries = fs::read_dir(corpus.join(target)).expect("the target's corpus");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an input").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 10, "the corpus of {target} is there");
    for path in paths {
        let input = fs::read(&path).expect("an input");
        if let Err(failure) = panic::catch_unwind(|| body(&input)) {
            eprintln!("{} fails", path.display());
            panic::resume_unwind(failure);
        }
    }
}

//! Fuzzing: the targets of `fuzz/`, which need a nightly compiler and cargo-fuzz.

use std::{fs, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::build::{self, run};

const INSTALL: &str =
    "rustup toolchain install nightly --profile minimal; cargo install --locked cargo-fuzz";

/// Runs each target, or the named one, for `seconds`, beginning with its corpus. Failures are kept
/// in `fuzz/artifacts`, and inputs with new coverage in `target/fuzz-corpus`; `cargo fuzz cmin`
/// selects those worth keeping in `fuzz/corpus`.
pub(crate) fn fuzz(target: Option<&str>, seconds: u32) -> Result<()> {
    let has = Command::new("cargo")
        .args(["+nightly", "fuzz", "--version"])
        .output();
    if !has.is_ok_and(|output| output.status.success()) {
        bail!("fuzzing needs a nightly toolchain and cargo-fuzz: {INSTALL}");
    }
    let all = targets()?;
    let chosen: Vec<_> = all
        .iter()
        .filter(|name| target.is_none_or(|target| target == *name))
        .collect();
    if chosen.is_empty() {
        bail!("unknown target; the targets are {}", all.join(", "));
    }
    for name in chosen {
        let found = build::target_dir().join("fuzz-corpus").join(name);
        fs::create_dir_all(&found)
            .with_context(|| format!("failed to create {}", found.display()))?;
        // Not `build::cargo()`: inside xtask that is the stable toolchain's own program. Only a few
        // system calls are unsafe, so a sanitizer would only be slower.
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(build::root())
            .env_remove("RUSTUP_TOOLCHAIN")
            .args([
                "+nightly",
                "fuzz",
                "run",
                "--fuzz-dir",
                "fuzz",
                "--sanitizer",
                "none",
                name,
            ])
            .arg(&found)
            .arg(build::root().join("fuzz/corpus").join(name))
            .args([
                "--",
                "-timeout=20",
                "-max_len=8192",
                "-close_fd_mask=2",
                "-print_final_stats=1",
            ])
            .arg(format!("-max_total_time={seconds}"));
        run(&mut cargo).with_context(|| format!("failed to fuzz {name}"))?;
    }
    Ok(())
}

/// The names of the targets, which are the directories of the corpus.
fn targets() -> Result<Vec<String>> {
    let corpus = build::root().join("fuzz/corpus");
    let entries =
        fs::read_dir(&corpus).with_context(|| format!("failed to read {}", corpus.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

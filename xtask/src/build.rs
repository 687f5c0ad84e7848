//! Building the programs as users get them.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// What users install is static, so that it runs on nodes of whose libraries nothing is known and in an image that has nothing else, and at a fixed address, which
/// saves the relocations at start. Its panics abort. The profile's `strip` would leave out packages with settings of their own.
const RUSTFLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static -C force-unwind-tables=no -C strip=symbols";

/// Builds `podplane` and the plugins into `target/release`, as static programs.
pub(crate) fn programs() -> Result<()> {
    podplane()?;
    plugins()
}

/// Builds `podplane` alone.
pub(crate) fn podplane() -> Result<()> {
    program("podplane-cli", &["podplane".to_owned()])
}

/// Builds the plugins alone.
pub(crate) fn plugins() -> Result<()> {
    program("podplane-cni", &plugin_names()?)
}

/// Builds what `cargo xtask bench` calls, as `podplane` is built.
pub(crate) fn bench() -> Result<()> {
    program("podplane-bench", &["podplane-bench".to_owned()])
}

/// Builds the programs `names` of a package, and puts them into `target/release`.
fn program(package: &str, names: &[String]) -> Result<()> {
    // With an explicit target the flags are not for build scripts and macros, which cannot be static.
    let target = host_target()?;
    run(cargo().env("RUSTFLAGS", rustflags(&target)).args([
        "build",
        "--release",
        "--package",
        package,
        "--bins",
        "--target",
        &target,
    ]))?;
    let built = target_dir().join(&target).join("release");
    fs::create_dir_all(release_dir()).context("make target/release")?;
    for name in names {
        let (from, to) = (built.join(name), release_dir().join(name));
        // It may be running: a new file beside it and a rename leave that process alone.
        let new = to.with_extension("new");
        fs::copy(&from, &new).with_context(|| format!("copy {}", from.display()))?;
        fs::rename(&new, &to).with_context(|| format!("place {}", to.display()))?;
    }
    Ok(())
}

fn rustflags(target: &str) -> String {
    // Where Rust brings its own linker: of functions with the same code, as generic ones are by the hundred, one is kept.
    let fold = match target {
        "x86_64-unknown-linux-gnu" => " -C link-arg=-Wl,--icf=all",
        _ => "",
    };
    format!("{RUSTFLAGS}{fold}")
}

/// The names of the plugins: the programs of the cni package.
fn plugin_names() -> Result<Vec<String>> {
    let sources = root().join("cni/src/bin");
    let entries = fs::read_dir(&sources).with_context(|| format!("read {}", sources.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("a plugin's name")?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

/// The target of this machine, which can be linked statically without another toolchain.
fn host_target() -> Result<String> {
    let version = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("run rustc -vV")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc -vV says no host")?.to_owned())
}

/// The workspace's root.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Where cargo builds.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where the programs are.
pub(crate) fn release_dir() -> PathBuf {
    target_dir().join("release")
}

/// The cargo that runs this, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

//! Builds the programs: for this machine, and for publication.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::parts::Parts;

/// Programs are static, so that they run on nodes with unknown libraries and in an image without
/// any, and non-relocatable, which saves the relocations at start.
const RUSTFLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static";

/// The packages with programs for users. Cargo always gets both, and so builds their common
/// dependencies once: for one of them alone it would choose fewer features of the dependencies.
const PACKAGES: [&str; 2] = ["podplane-cli", "podplane-cni-plugins"];

/// The maximal size of the published `podplane`, and thereby of the image (ADR 0017).
const MAX_DIST: u64 = 60_000_000;

/// A profile of the root `Cargo.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// The profile of `up`, `build`, `test` and `bench`: built in minutes, fast where servers spend
    /// their time.
    Release,
    /// The profile for publication: small.
    Dist,
    /// As release, for a profiler: with symbols and frame pointers.
    Profiling,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dist => "dist",
            Self::Profiling => "profiling",
        }
    }

    /// Flags that the profile cannot express: its `strip` would leave out packages with settings of
    /// their own.
    fn rustflags(self) -> &'static str {
        match self {
            Self::Release | Self::Dist => "-C strip=symbols",
            Self::Profiling => "-C force-frame-pointers=yes",
        }
    }

    /// The directory of the programs.
    fn dir(self) -> PathBuf {
        target_dir().join(self.name())
    }
}

/// The parts of [`programs`].
pub(crate) const PARTS: usize = 2;

/// Builds `podplane` and the plugins into the profile's directory, and prints the time of each.
pub(crate) fn programs(profile: Profile, parts: &mut Parts) -> Result<()> {
    parts.time("build podplane", || podplane(profile))?;
    parts.time("build plugins", || plugins(profile))
}

/// Builds the programs for publication, and refuses a `podplane` that is too large for the image.
pub(crate) fn dist(parts: &mut Parts) -> Result<()> {
    programs(Profile::Dist, parts)?;
    let mut names = plugin_names()?;
    names.insert(0, "podplane".to_owned());
    for name in names {
        let size = fs::metadata(Profile::Dist.dir().join(&name))?.len();
        parts.note(&format!("{name}: {size} bytes"));
        ensure!(
            name != "podplane" || size < MAX_DIST,
            "the published podplane has {size} bytes: must be less than {MAX_DIST}; see docs/adr/0017-static-release-and-image.md"
        );
    }
    Ok(())
}

/// Builds `podplane` alone.
pub(crate) fn podplane(profile: Profile) -> Result<()> {
    build(profile, &PACKAGES, &["podplane".to_owned()])
}

/// Builds the plugins alone.
pub(crate) fn plugins(profile: Profile) -> Result<()> {
    build(profile, &PACKAGES, &plugin_names()?)
}

/// Builds the load generator of `cargo xtask bench apiserver` in the same way as `podplane`.
pub(crate) fn bench() -> Result<()> {
    build(
        Profile::Release,
        &["podplane-bench"],
        &["podplane-bench".to_owned()],
    )
}

/// Builds the programs `names` of these packages, and copies them into the profile's directory.
fn build(profile: Profile, packages: &[&str], names: &[String]) -> Result<()> {
    // With an explicit target the flags do not apply to build scripts and macros, which cannot be
    // static.
    let target = host_target()?;
    let mut cargo = cargo();
    cargo.env("RUSTFLAGS", rustflags(profile, &target)).args([
        "build",
        "--profile",
        profile.name(),
        "--target",
        &target,
    ]);
    cargo.args(packages.iter().flat_map(|package| ["--package", package]));
    run(cargo.args(names.iter().flat_map(|name| ["--bin", name.as_str()])))?;
    let (built, placed) = (
        target_dir().join(&target).join(profile.name()),
        profile.dir(),
    );
    fs::create_dir_all(&placed)
        .with_context(|| format!("failed to create {}", placed.display()))?;
    for name in names {
        let (from, to) = (built.join(name), placed.join(name));
        // The program may be running: a new file and a rename leave that process alone.
        let new = to.with_extension("new");
        fs::copy(&from, &new).with_context(|| format!("failed to copy {}", from.display()))?;
        fs::rename(&new, &to).with_context(|| format!("failed to place {}", to.display()))?;
    }
    Ok(())
}

fn rustflags(profile: Profile, target: &str) -> String {
    // Where Rust brings its own linker: functions with identical code, such as hundreds of generic
    // ones, are merged.
    let fold = match target {
        // A profiler would show one name for all merged functions.
        "x86_64-unknown-linux-gnu" if profile != Profile::Profiling => " -C link-arg=-Wl,--icf=all",
        _ => "",
    };
    format!("{RUSTFLAGS} {}{fold}", profile.rustflags())
}

/// The names of the plugins, which are the programs of their package.
fn plugin_names() -> Result<Vec<String>> {
    let sources = root().join("cni/plugins/src/bin");
    let entries =
        fs::read_dir(&sources).with_context(|| format!("failed to read {}", sources.display()))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("invalid name of a plugin")?;
        names.push(name.to_owned());
    }
    names.sort();
    Ok(names)
}

/// The target triple of this machine, which can be linked statically without another toolchain.
fn host_target() -> Result<String> {
    let version = Command::new("rustc")
        .arg("-vV")
        .output()
        .context("failed to run rustc -vV")?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host
        .context("missing host in the output of rustc -vV")?
        .to_owned())
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// The target directory of cargo.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The directory of the programs of the profile `release`.
pub(crate) fn release_dir() -> PathBuf {
    Profile::Release.dir()
}

/// The cargo that runs this program, in the root of the workspace, as if it was called by hand: the
/// variables that describe this package make build scripts run again, and what depends on them.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(root());
    cargo
}

/// The program that generates files; its first argument is to be added.
pub(crate) fn generator() -> Command {
    tool("xtask-generate")
}

/// A program for developers that is compiled when it is used, with its first argument to come.
pub(crate) fn tool(package: &str) -> Command {
    let mut cargo = cargo();
    cargo.args(["run", "--quiet", "--package", package, "--"]);
    cargo
}

/// Runs a command and waits for it; fails if the command does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}");
    let status = command
        .status()
        .with_context(|| format!("failed to start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

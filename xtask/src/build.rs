//! Builds the programs: for this machine, and as they are published.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::parts::Parts;

/// Programs are static, so that they run on nodes of whose libraries nothing is known and in an image that has nothing else,
/// and at a fixed address, which saves the relocations at start. `strip` of a profile would leave out packages with settings
/// of their own.
const RUSTFLAGS: &str = "-C target-feature=+crt-static -C relocation-model=static -C strip=symbols";

/// The packages whose programs users have. Cargo is always told of both, and so builds what they share once: for one of them
/// alone it would choose fewer features of the dependencies.
const PACKAGES: [&str; 2] = ["podplane-cli", "podplane-cni"];

/// The most that the published `podplane`, and with it the image, may weigh (ADR 0017).
const MAX_DIST: u64 = 60_000_000;

/// A profile of the root `Cargo.toml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// What `up`, `build`, `test` and `bench` use: built in minutes, fast where servers spend their time.
    Release,
    /// What is published: small.
    Dist,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dist => "dist",
        }
    }

    /// The directory of its programs.
    fn dir(self) -> PathBuf {
        target_dir().join(self.name())
    }
}

/// Builds `podplane` and the plugins into the profile's directory, and says what each took.
pub(crate) fn programs(profile: Profile, parts: &mut Parts) -> Result<()> {
    parts.time("build podplane", || podplane(profile))?;
    parts.time("build plugins", || plugins(profile))
}

/// Builds the programs as they are published, and refuses a `podplane` that is too large for the image.
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

/// Builds the load generator of `cargo xtask bench apiserver`, as `podplane` is built.
pub(crate) fn bench() -> Result<()> {
    build(
        Profile::Release,
        &["podplane-bench"],
        &["podplane-bench".to_owned()],
    )
}

/// Builds the programs `names` of these packages, and puts them into the profile's directory.
fn build(profile: Profile, packages: &[&str], names: &[String]) -> Result<()> {
    // With an explicit target the flags are not for build scripts and macros, which cannot be static.
    let target = host_target()?;
    let mut cargo = cargo();
    cargo.env("RUSTFLAGS", rustflags(&target)).args([
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
    fs::create_dir_all(&placed).with_context(|| format!("make {}", placed.display()))?;
    for name in names {
        let (from, to) = (built.join(name), placed.join(name));
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

/// Where the programs of the profile `release` are.
pub(crate) fn release_dir() -> PathBuf {
    Profile::Release.dir()
}

/// The cargo that runs this, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

/// The program that generates files, with its first argument to come.
pub(crate) fn generator() -> Command {
    let mut cargo = cargo();
    cargo.args(["run", "--quiet", "--package", "xtask-generate", "--"]);
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

//! Measures the style of the workspace's Rust code; run it as `cargo xtask style`.
//!
//! The figures are those by which a reader from another project compared this code with others.
//! They never fail a build: a figure that gets worse is a reason to look, and `--list` says where.
//!
//! [`source`] measures one file, [`report`] sums the files of each crate up and prints them. The
//! program is one of its own so that nobody compiles a parser of Rust in order to start a cluster.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

mod report;
mod source;

use report::StyleReport;
use source::Source;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask style",
    about = "Print figures of the style of each crate"
)]
struct StyleArgs {
    /// Print each doc comment that opens with a question word, and each comment line that is too
    /// wide, as FILE:LINE.
    #[arg(long)]
    list: bool,
    /// Measure these crates only, by their directories [default: all].
    #[arg(value_name = "DIRECTORY")]
    crates: Vec<String>,
}

/// The workspace's root.
fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package)
}

/// The Rust files that git knows, relative to the root.
fn files() -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .current_dir(root())
        .args(["ls-files", "*.rs"])
        .output()
        .context("failed to start git")?;
    ensure!(output.status.success(), "git ls-files: {}", output.status);
    let names = String::from_utf8(output.stdout).context("file names that are not UTF-8")?;
    Ok(names.lines().map(PathBuf::from).collect())
}

/// The directory of the crate that a file belongs to: the nearest one with a manifest.
fn crate_of(file: &Path) -> String {
    let owner = file
        .ancestors()
        .skip(1)
        .find(|dir| root().join(dir).join("Cargo.toml").is_file());
    owner.map_or_else(String::new, |dir| dir.display().to_string())
}

fn run(args: &StyleArgs) -> Result<()> {
    let mut report = StyleReport::default();
    for file in files()? {
        let owner = crate_of(&file);
        // A file that was deleted but is still in git's index has nothing to measure.
        let path = root().join(&file);
        if !path.exists() || !(args.crates.is_empty() || args.crates.contains(&owner)) {
            continue;
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("failed to read {}", file.display()))?;
        let source = Source::measure(&text)
            .with_context(|| format!("failed to parse {}", file.display()))?;
        report.add(owner, file, source);
    }
    report.print(args.list);
    Ok(())
}

fn main() -> ExitCode {
    match run(&StyleArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "this is the program's own error")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

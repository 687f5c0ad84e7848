//! `cargo xtask`: building, starting and testing podplane with nothing but a Rust toolchain.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod bench;
mod build;
mod fuzz;
mod outcome;
mod parts;
mod peers;
mod tests;
mod up;

use build::Profile;
use parts::Parts;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, starts and tests podplane")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build every program into target/release: podplane, and the CNI plugins, as static programs.
    Build,
    /// Build every program into target/dist as it is published: smaller, and several times as long to build.
    ///
    /// Fails if podplane is too large for the image.
    Dist,
    /// Build, start a cluster with three nodes and the pods of deploy/sample.yaml, and show them with their addresses.
    ///
    /// `target/release/podplane down` ends it, with the same --data-dir if one was given.
    #[command(
        after_help = "Examples:\n  cargo xtask up\n  cargo xtask up -- --nodes 5 --network ledger\n  cargo xtask up -- --data-dir /tmp/other -f pods.yaml"
    )]
    Up {
        /// Passed on to `podplane up`; --nodes and --filename replace the defaults.
        #[arg(last = true, value_name = "FLAGS")]
        flags: Vec<OsString>,
    },
    /// Build, install the programs that tests compare with, and run every test.
    Test {
        /// Passed on to `cargo test`, for example the name of a test.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build and run the long forms of the tests that have one.
    Soak {
        /// `churn` for one test alone, in which pods come and go for ten minutes while everything
        /// dies. All else is passed on to `cargo test`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure our programs beside others that do the same, in one run on this machine.
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// Fuzz what reads configurations, environments, data directories and results; needs nightly and cargo-fuzz.
    Fuzz {
        /// One target only.
        target: Option<String>,
        /// How long each target runs.
        #[arg(long, default_value_t = 600)]
        seconds: u32,
    },
    /// Write the .proto files of Kubernetes' objects anew from the published API definitions.
    Proto,
    /// Write the OpenAPI definitions of the kinds that podplane serves anew from the published ones. Needs pip.
    Definitions,
    /// Write the .proto files of Kubernetes' own protobuf encoding anew, from the descriptors that a stock kubectl carries.
    Kubernetes {
        /// A kubectl of the version whose definitions `cargo xtask definitions` writes.
        #[arg(default_value = "kubectl")]
        kubectl: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Args::parse().command {
        Command::Build => build::programs(Profile::Release, &mut Parts::of("build")),
        Command::Dist => build::dist(&mut Parts::of("dist")),
        Command::Up { flags } => up::up(&flags),
        Command::Test { args } => tests::test(&args),
        Command::Soak { args } => tests::soak(&args),
        Command::Bench { what } => bench::run(&what),
        Command::Fuzz { target, seconds } => fuzz::fuzz(target.as_deref(), seconds),
        Command::Proto => build::run(build::generator().arg("proto")),
        Command::Definitions => build::run(build::generator().arg("definitions")),
        Command::Kubernetes { kubectl } => {
            build::run(build::generator().arg("kubernetes").arg(kubectl))
        }
    };
    match done {
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

//! `cargo xtask`: building, starting and testing podplane with nothing but a Rust toolchain.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod bench;
mod build;
mod definitions;
mod fuzz;
mod kubernetes;
mod peers;
mod proto;
mod run;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, starts and tests podplane")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build every program into target/release: podplane, and the CNI plugins as static programs.
    Build,
    /// Build, start a cluster with three nodes and the pods of deploy/sample.yaml, and show them with their addresses.
    ///
    /// `target/release/podplane down` ends it.
    Up,
    /// Build, install the programs that tests compare with, and run every test.
    Test {
        /// Passed on to `cargo test`, for example the name of a test.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build and run the long forms of the tests that have one.
    Soak {
        /// Passed on to `cargo test`, for example the name of a test.
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
        Command::Build => build::programs(),
        Command::Up => run::up(),
        Command::Test { args } => run::test(&args),
        Command::Soak { args } => run::soak(&args),
        Command::Bench { what } => bench::run(&what),
        Command::Fuzz { target, seconds } => fuzz::fuzz(target.as_deref(), seconds),
        Command::Proto => proto::generate(),
        Command::Definitions => definitions::generate(),
        Command::Kubernetes { kubectl } => kubernetes::generate(&kubectl),
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

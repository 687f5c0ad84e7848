//! `cargo xtask`: builds, starts and tests podplane with nothing but a Rust toolchain.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

mod bench;
mod build;
mod fuzz;
mod outcome;
mod parts;
mod peers;
mod suite;
mod up;

use build::Profile;
use parts::Parts;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, starts and tests podplane")]
struct XtaskArgs {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Debug, Subcommand)]
enum XtaskCommand {
    /// Build all programs into target/release: podplane and the CNI plugins, statically linked.
    Build {
        /// Build for a profiler, with symbols and frame pointers, into target/profiling.
        #[arg(long)]
        profiling: bool,
    },
    /// Build all programs into target/dist as they are published: smaller, and several times slower
    /// to build.
    ///
    /// Fails if podplane is too large for the image.
    Dist,
    /// Build, start a cluster with three nodes and the pods of deploy/sample.yaml, and show them
    /// with their addresses.
    ///
    /// `target/release/podplane down` stops it, with the same --data-dir if one was given.
    #[command(
        after_help = "Examples:\n  cargo xtask up\n  cargo xtask up -- --nodes 5 --network ledger\n  cargo xtask up -- --data-dir /tmp/other -f pods.yaml"
    )]
    Up {
        /// Flags for `podplane up`; --nodes and --filename replace the defaults.
        #[arg(last = true, value_name = "FLAGS")]
        flags: Vec<OsString>,
    },
    /// Build, install the peer programs that tests compare with, and run all tests.
    Test {
        /// Arguments for `cargo test`, for example the name of a test.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build and run the tests in their long form, where they have one.
    Soak {
        /// `churn` for that test alone, in which pods are created and deleted for ten minutes while
        /// all processes are killed. All else is passed on to `cargo test`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Build, and write the pictures of docs/images anew.
    Pictures,
    /// Measure our programs beside comparable ones, in one run on this machine.
    Bench {
        #[command(subcommand)]
        what: bench::Benchmark,
    },
    /// Fuzz what reads requests, objects, files and the configuration of plugins; needs nightly and
    /// cargo-fuzz. docs/fuzzing.md has the targets.
    Fuzz {
        /// Run only this target.
        target: Option<String>,
        /// Seconds to run each target.
        #[arg(long, default_value_t = 600)]
        seconds: u32,
    },
    /// Print figures of the code's style for each crate: comments, names, logs and lengths.
    Style {
        /// Passed on; --help has them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Write the .proto files of Kubernetes' objects anew from the published API definitions.
    Proto,
    /// Write the OpenAPI definitions of the kinds that podplane serves anew from the published
    /// ones. Needs pip.
    Definitions,
    /// Write the .proto files of Kubernetes' own protobuf encoding anew, from the descriptors in a
    /// stock kubectl.
    Kubernetes {
        /// Path of a kubectl of the version whose definitions `cargo xtask definitions` writes.
        #[arg(default_value = "kubectl")]
        kubectl: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match XtaskArgs::parse().command {
        XtaskCommand::Build { profiling } => {
            let profile = match profiling {
                true => Profile::Profiling,
                false => Profile::Release,
            };
            build::programs(profile, &mut Parts::of("build", build::PARTS))
        }
        XtaskCommand::Dist => build::dist(&mut Parts::of("dist", build::PARTS)),
        XtaskCommand::Up { flags } => up::up(&flags),
        XtaskCommand::Test { args } => suite::test(&args),
        XtaskCommand::Soak { args } => suite::soak(&args),
        XtaskCommand::Pictures => suite::pictures(),
        XtaskCommand::Bench { what } => bench::run(&what),
        XtaskCommand::Fuzz { target, seconds } => fuzz::fuzz(target.as_deref(), seconds),
        XtaskCommand::Style { args } => build::run(build::tool("xtask-style").args(args)),
        XtaskCommand::Proto => build::run(build::generator().arg("proto")),
        XtaskCommand::Definitions => build::run(build::generator().arg("definitions")),
        XtaskCommand::Kubernetes { kubectl } => {
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

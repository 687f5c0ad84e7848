//! The generators behind `cargo xtask proto`, `definitions` and `kubernetes`.
//!
//! A separate program, so that building, starting or testing podplane does not compile Kubernetes'
//! types once more for it.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;

mod definitions;
mod dump;
mod kubernetes;
mod proto;

#[derive(Debug, Parser)]
#[command(about = "Generates the files of the schema; run it as `cargo xtask proto`, …")]
enum GeneratorArgs {
    /// Write the .proto files of Kubernetes' objects anew from the published API definitions
    Proto,
    /// Write the OpenAPI definitions of the kinds that podplane serves anew from the published ones
    Definitions,
    /// Write the .proto files of Kubernetes' own protobuf encoding anew
    Kubernetes {
        /// Path of a kubectl of the version whose definitions `cargo xtask definitions` writes
        kubectl: PathBuf,
    },
    /// Write the dump of a cluster, for `cargo xtask bench audit`
    Dump {
        #[arg(value_enum)]
        form: dump::DumpFormat,
        file: PathBuf,
        #[arg(long)]
        nodes: usize,
        /// Number of pods on each node
        #[arg(long)]
        pods: usize,
    },
}

/// The root of the workspace.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package).to_owned()
}

fn main() -> ExitCode {
    let done = match GeneratorArgs::parse() {
        GeneratorArgs::Proto => proto::generate(),
        GeneratorArgs::Definitions => definitions::generate(),
        GeneratorArgs::Kubernetes { kubectl } => kubernetes::generate(&kubectl),
        GeneratorArgs::Dump {
            form,
            file,
            nodes,
            pods,
        } => dump::write(form, &file, nodes, pods),
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

//! `cargo xtask`: building, starting and testing podplane with nothing but a Rust toolchain.

use clap::{Parser, Subcommand};

mod proto;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, starts and tests podplane")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the .proto files of Kubernetes' objects anew from the published API definitions.
    Proto,
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Proto => proto::generate(),
    }
}

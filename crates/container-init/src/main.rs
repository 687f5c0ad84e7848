//! The helper as a program of its own, for tests and for programs that embed the CRI server.

use std::process::ExitCode;

fn main() -> ExitCode {
    podplane_container_init::run()
}

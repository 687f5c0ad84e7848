//! Execution of other programs of the node, such as `nft` and `iptables-restore`, with an input.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
};

/// Runs a program to its end with `input` on standard input.
///
/// A program may end before it has read all its input, for example at a fault in it. That is not an
/// error here: its status and standard error tell.
pub(crate) fn output_of(program: &str, args: &[&str], input: &str) -> io::Result<Output> {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let written = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(input.as_bytes()));
    match written {
        Some(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => child.wait_with_output(),
    }
}

#[cfg(test)]
mod tests {
    use super::output_of;

    #[test]
    fn judges_a_program_that_does_not_read_by_its_status() {
        // More than a pipe holds.
        let input = "x".repeat(1 << 20);
        let output = output_of("sh", &["-c", "echo why >&2; exit 3"], &input).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(output.stderr, b"why\n");
    }

    #[test]
    fn writes_the_input_and_returns_the_output() {
        let output = output_of("cat", &[], "text").unwrap();
        assert_eq!(output.stdout, b"text");
    }
}

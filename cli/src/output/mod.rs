//! What commands print on standard output.

use std::{
    fmt,
    io::{self, Write as _},
};

use anyhow::Context as _;

use crate::report::OutputClosed;

/// Prints a line.
pub(crate) fn line(line: impl fmt::Display) -> anyhow::Result<()> {
    written(writeln!(anstream::stdout().lock(), "{line}"))
}

/// Prints bytes as they are.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    written(io::stdout().lock().write_all(bytes))
}

/// A reader that has gone away, as `head` does, ends the command in silence; all else is an error.
fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result.and_then(|()| io::stdout().lock().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        result => result.context("write to standard output"),
    }
}

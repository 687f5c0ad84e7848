//! The standard output of commands.

pub(crate) mod page;
pub(crate) mod sheet;
pub(crate) mod table;

use std::{
    fmt,
    io::{self, Write as _},
};

use anyhow::Context as _;
use clap::ValueEnum;
use podplane_api::printable;
use podplane_pki::kubeconfig::yaml_text;
use rustix::{stdio, termios};
use serde::Serialize as _;
use serde_json::{Value, ser::PrettyFormatter};

use crate::report::OutputClosed;

/// The form of objects other than a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table with more columns
    Wide,
    /// YAML, as kubectl prints it
    Yaml,
    /// JSON, as kubectl prints it
    Json,
    /// KIND/NAME, one per line
    Name,
}

/// Prints a line.
pub(crate) fn line(line: impl fmt::Display) -> anyhow::Result<()> {
    written(writeln!(anstream::stdout().lock(), "{line}"))
}

/// The width of standard output in columns, if it is a terminal.
pub(crate) fn terminal_width() -> Option<u16> {
    terminal_size().map(|(columns, _)| columns)
}

/// The columns and rows of standard output, if it is a terminal that says them.
pub(crate) fn terminal_size() -> Option<(u16, u16)> {
    let size = termios::tcgetwinsize(stdio::stdout()).ok()?;
    Some((size.ws_col, size.ws_row)).filter(|(columns, rows)| *columns > 0 && *rows > 0)
}

/// Prints text from a server or a file, without control characters that would drive the terminal.
pub(crate) fn text(text: impl fmt::Display) -> anyhow::Result<()> {
    line(printable::lines(&text.to_string()))
}

/// Prints bytes unchanged.
pub(crate) fn bytes(bytes: &[u8]) -> anyhow::Result<()> {
    written(io::stdout().lock().write_all(bytes))
}

/// Prints JSON, indented as kubectl does.
pub(crate) fn json(value: &Value) -> anyhow::Result<()> {
    bytes(&json_text(value)?)
}

/// The text of JSON, indented as kubectl does.
pub(crate) fn json_text(value: &Value) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let indent = PrettyFormatter::with_indent(b"    ");
    value.serialize(&mut serde_json::Serializer::with_formatter(
        &mut text, indent,
    ))?;
    text.push(b'\n');
    Ok(text)
}

/// Prints one document of YAML.
pub(crate) fn yaml(value: &Value) -> anyhow::Result<()> {
    bytes(yaml_text(value)?.as_bytes())
}

/// The result of printing what a command found. If the reader has gone, the exit code still says
/// it.
pub(crate) fn unless_closed(printed: anyhow::Result<()>) -> anyhow::Result<()> {
    match printed {
        Err(error) if error.is::<OutputClosed>() => Ok(()),
        printed => printed,
    }
}

/// Maps the error of a closed output, as after `head`, to [`OutputClosed`], which ends the command
/// silently.
fn written(result: io::Result<()>) -> anyhow::Result<()> {
    match result.and_then(|()| io::stdout().lock().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        result => result.context("failed to write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prints_yaml_in_block_style_that_round_trips() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {}, "annotations": {
                "yes": "on", "number": "1.10", "null": "null", "hex": "0x1f", "time": "2026-01-01T00:00:00Z", "octal": "017",
                "colon": "a: b", "hash": "a #b", "empty": "", "json": "{\"a\":\"b\"}\n", "lines": "one\n  two\n", "sexagesimal": "12:30:45",
                "long": "word ".repeat(60), "tab": "a\tb", "tilde": "~", "dash": "- a", "unicode": "é\u{0}\u{1b}"}},
            "spec": {"containers": [{"name": "c", "args": ["-v", "true", "y"]}, {"name": "d"}], "priority": -1, "hostNetwork": true}});
        let text = yaml_text(&pod).unwrap();
        assert_eq!(
            serde_saphyr::from_str::<Value>(&text).unwrap(),
            pod,
            "{text}"
        );
        let head = "apiVersion: v1\nkind: Pod\nmetadata:\n  annotations:\n";
        assert!(text.starts_with(head), "{text}");
        assert!(text.contains("spec:\n  containers:\n  - args:\n    - -v\n    - \"true\"\n    - \"y\"\n    name: c\n  - name: d\n"), "{text}");
    }
}

//! Logs of containers, in the format that kubelets and `crictl logs` read (KEP "CRI logging"):
//! `TIME STREAM TAG CONTENT`, a line each.

use std::{
    fs::File,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use podplane_host::{clock, fs};

/// The stream that a line was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStream {
    /// Standard output.
    Stdout,
}

impl LogStream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
        }
    }
}

/// The log of a container, open for appending.
#[derive(Debug)]
pub(super) struct ContainerLog {
    file: File,
}

impl ContainerLog {
    /// Opens the log, and makes it if it is missing. Its directory is the client's.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        options.append(true).create(true).mode(0o640);
        let file = fs::open_with(&options, path)?;
        Ok(Self { file })
    }

    /// Appends a complete line.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(super) fn line(&mut self, stream: LogStream, content: &str) -> io::Result<()> {
        // Always nine digits of a second, as other runtimes.
        let line = format!("{:.9} {} F {content}\n", clock::timestamp(), stream.name());
        self.file.write_all(line.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_lines_with_time_stream_and_tag() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        for text in ["one", "two"] {
            let mut log = ContainerLog::open(&path).unwrap();
            log.line(LogStream::Stdout, text).unwrap();
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let (time, rest) = lines[0].split_once(' ').unwrap();
        assert_eq!(rest, "stdout F one");
        assert!(time.ends_with('Z') && time.len() == "2026-01-01T00:00:00.123456789Z".len());
        assert!(lines[1].ends_with(" stdout F two"));
        assert_eq!(lines.len(), 2);
    }
}

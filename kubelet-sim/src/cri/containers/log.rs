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
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// The part of a line that a record has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogTag {
    /// A line, or the end of one.
    Full,
    /// The beginning of a line, or a part of it.
    Partial,
}

impl LogStream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
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

    /// Appends records of now, in one step.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(super) fn write(
        &mut self,
        stream: LogStream,
        records: &[(LogTag, Vec<u8>)],
    ) -> io::Result<()> {
        // Always nine digits of a second, as other runtimes.
        let time = format!("{:.9}", clock::timestamp());
        let mut text = Vec::new();
        for (tag, content) in records {
            let tag = match tag {
                LogTag::Full => 'F',
                LogTag::Partial => 'P',
            };
            write!(text, "{time} {} {tag} ", stream.name())?;
            text.extend_from_slice(content);
            text.push(b'\n');
        }
        self.file.write_all(&text)
    }

    /// Appends a complete line.
    ///
    /// # Errors
    ///
    /// The operating system's.
    pub(super) fn line(&mut self, stream: LogStream, content: &str) -> io::Result<()> {
        self.write(stream, &[(LogTag::Full, content.into())])
    }
}

/// The longest content of a record, as with containerd. Kubelets join the parts.
const MAX_RECORD: usize = 16 << 10;

/// Splits the output of a stream into records.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    line: Vec<u8>,
}

impl LineSplitter {
    /// Takes the next output, and returns the records that are complete.
    pub(super) fn push(&mut self, mut output: &[u8]) -> Vec<(LogTag, Vec<u8>)> {
        let mut records = Vec::new();
        while !output.is_empty() {
            let room = MAX_RECORD - self.line.len();
            let part = &output[..output.len().min(room)];
            match part.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    self.line.extend_from_slice(&part[..end]);
                    records.push((LogTag::Full, std::mem::take(&mut self.line)));
                    output = &output[end + 1..];
                }
                None => {
                    self.line.extend_from_slice(part);
                    output = &output[part.len()..];
                    // A line of exactly this length has a newline next, and is no part.
                    let is_end = output.first() == Some(&b'\n');
                    if self.line.len() == MAX_RECORD && !is_end {
                        records.push((LogTag::Partial, std::mem::take(&mut self.line)));
                    } else if self.line.len() == MAX_RECORD {
                        records.push((LogTag::Full, std::mem::take(&mut self.line)));
                        output = &output[1..];
                    }
                }
            }
        }
        records
    }

    /// The line that the end of the output has cut off.
    pub(super) fn finish(&mut self) -> Option<(LogTag, Vec<u8>)> {
        let rest = std::mem::take(&mut self.line);
        (!rest.is_empty()).then_some((LogTag::Partial, rest))
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

    #[test]
    fn splits_lines_and_long_ones_into_parts() {
        let mut splitter = LineSplitter::default();
        assert!(splitter.push(b"one").is_empty());
        let full = |text: &str| (LogTag::Full, text.as_bytes().to_vec());
        assert_eq!(
            splitter.push(b"\n\ntwo\nth"),
            [full("one"), full(""), full("two")]
        );
        assert_eq!(splitter.finish(), Some((LogTag::Partial, b"th".to_vec())));
        assert_eq!(splitter.finish(), None);
        for (length, tags) in [
            (MAX_RECORD - 1, vec![LogTag::Full]),
            (MAX_RECORD, vec![LogTag::Full]),
            (MAX_RECORD + 1, vec![LogTag::Partial, LogTag::Full]),
            (2 * MAX_RECORD, vec![LogTag::Partial, LogTag::Full]),
        ] {
            let mut line = vec![b'x'; length];
            line.push(b'\n');
            let records = LineSplitter::default().push(&line);
            let found: Vec<_> = records.iter().map(|(tag, _)| *tag).collect();
            assert_eq!(found, tags, "{length}");
            let joined: usize = records.iter().map(|(_, part)| part.len()).sum();
            assert_eq!(joined, length);
        }
    }
}

//! Detection of the input's format, and the reading of its documents.

mod json;
mod strings;
mod yaml;

use std::io::{self, BufRead as _, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use serde_json::{Map, Value};

use crate::dump::Dump;

/// The reasons why an input is not a dump of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It ended early, its compression is corrupt, or the disk failed.
    #[error(transparent)]
    Read(io::Error),
    /// It begins like JSON, but is not.
    #[error("invalid JSON from byte {at} on: {problem}")]
    Json {
        /// The offset in the (unpacked) input.
        at: u64,
        /// The syntax error.
        problem: String,
    },
    /// It is neither JSON nor YAML.
    #[error("invalid YAML: document {document}: {problem}")]
    Yaml {
        /// The number of the document, from 1.
        document: usize,
        /// The syntax error.
        problem: String,
    },
    /// It may be JSON or YAML, but has no nodes and pods.
    #[error(
        "there are no nodes and pods in it: want what `kubectl get nodes,pods -A -o json` or `-o yaml` prints"
    )]
    NoDump,
}

/// The part of the input that is in memory at once, unless an object is larger.
const WINDOW: usize = 1 << 20;

const GZIP: &[u8] = &[0x1f, 0x8b];

/// Reads every document into `dump`.
pub(crate) fn read(reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    let (head, reader) = peeked(reader)?;
    if !head.starts_with(GZIP) {
        let mut reader = ErrorRecorder::new(reader);
        let result = documents(&head, &mut reader, dump);
        return reader.finish(result);
    }
    let unpacked = MultiGzDecoder::new(BufReader::with_capacity(WINDOW, reader));
    let (head, unpacked) = peeked(unpacked)?;
    let mut unpacked = ErrorRecorder::new(unpacked);
    let result = documents(&head, &mut unpacked, dump);
    if result.is_err() {
        // Damage further on may be the cause: how much comes out of the decoder before it reports
        // that depends on the sizes of its reads. `finish` returns an error of this one.
        let _ = io::copy(&mut unpacked, &mut io::sink());
    }
    unpacked.finish(result)
}

/// Keeps the first error of a reader: a parser turns it into an error of syntax.
struct ErrorRecorder<R> {
    reader: R,
    first: Option<io::Error>,
}

impl<R> ErrorRecorder<R> {
    fn new(reader: R) -> Self {
        let first = None;
        Self { reader, first }
    }

    fn finish(self, result: Result<(), InputError>) -> Result<(), InputError> {
        self.first
            .map_or(result, |error| Err(InputError::Read(error)))
    }
}

impl<R: Read> Read for ErrorRecorder<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.reader.read(into).map_err(|error| {
            let kind = error.kind();
            if kind != io::ErrorKind::Interrupted {
                self.first.get_or_insert(error);
            }
            kind.into()
        })
    }
}

/// JSON is also YAML, but the JSON reader is many times faster.
fn documents(head: &[u8], reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    match head.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => json::read(reader, dump),
        _ => yaml::read(reader, dump),
    }
}

/// Stands for the list's kind for an object outside of a list, so that its kind does not stay
/// pending.
const NO_LIST: Option<&str> = Some("an object of unknown kind");

type PeekedReader<R> = Chain<Cursor<Vec<u8>>, R>;

/// The first bytes, and a reader that still has them.
fn peeked<R: Read>(reader: R) -> Result<(Vec<u8>, PeekedReader<BufReader<R>>), InputError> {
    let mut reader = BufReader::new(reader);
    let mut head = Vec::new();
    // Blank lines may come first; a pipe returns what it has.
    while head.iter().all(u8::is_ascii_whitespace) || head.len() < GZIP.len() {
        let more = reader.fill_buf().map_err(InputError::Read)?.to_vec();
        if more.is_empty() {
            break;
        }
        reader.consume(more.len());
        head.extend(more);
    }
    Ok((head.clone(), Cursor::new(head).chain(reader)))
}

/// The deepest nesting of lists; real input has less.
const MAX_DEPTH: usize = 16;

/// Ends an object, given its fields beside `items`. `list_kind` is the kind of the list around it.
fn finish(fields: Map<String, Value>, has_items: bool, list_kind: Option<&str>, dump: &mut Dump) {
    let kind = fields
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if has_items || kind.ends_with("List") {
        dump.note_list(kind);
        dump.resolve(kind);
    } else {
        dump.add_value(&Value::Object(fields), list_kind);
    }
}

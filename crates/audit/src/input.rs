//! Reading: which form the input has, and its documents.

mod json;
mod strings;
mod yaml;

use std::io::{self, BufRead as _, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use serde_json::{Map, Value};

use crate::dump::Dump;

/// Why an input is no dump of a cluster.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It ended early, is compressed in vain, or the disk is at fault.
    #[error("read it")]
    Read(#[source] io::Error),
    /// It is not JSON, although it begins as such.
    #[error("it is no JSON from byte {at} on: {problem}")]
    Json {
        /// Where in the (unpacked) input.
        at: u64,
        /// What is wrong there.
        problem: String,
    },
    /// It is neither JSON nor YAML.
    #[error("it is no YAML: document {document}: {problem}")]
    Yaml {
        /// Which document of it, from 1.
        document: usize,
        /// What is wrong.
        problem: String,
    },
    /// It may be JSON or YAML, but there is nothing to audit.
    #[error(
        "there are no nodes and pods in it: want what `kubectl get nodes,pods -A -o json` or `-o yaml` prints"
    )]
    NoDump,
}

/// How much of the input is in memory at once, if no object is larger.
const WINDOW: usize = 1 << 20;

const GZIP: &[u8] = &[0x1f, 0x8b];

/// Reads every document into `dump`.
pub(crate) fn read(reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    let (head, reader) = peeked(reader)?;
    if head.starts_with(GZIP) {
        let unpacked = MultiGzDecoder::new(BufReader::with_capacity(WINDOW, reader));
        let (head, unpacked) = peeked(unpacked)?;
        documents(&head, unpacked, dump)
    } else {
        documents(&head, reader, dump)
    }
}

/// JSON is also YAML, but kubectl's JSON is read many times faster as what it is.
fn documents(head: &[u8], reader: impl Read, dump: &mut Dump) -> Result<(), InputError> {
    match head.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => json::read(reader, dump),
        _ => yaml::read(reader, dump),
    }
}

/// Stands for the kind of the list where an object is in none, so that nobody waits for it.
const NO_LIST: Option<&str> = Some("an object of unknown kind");

type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

/// The first bytes, and a reader that still has them.
fn peeked<R: Read>(reader: R) -> Result<(Vec<u8>, Whole<BufReader<R>>), InputError> {
    let mut reader = BufReader::new(reader);
    let mut head = Vec::new();
    // Blank lines may come before anything else; a pipe gives what it has.
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

/// Lists in lists, deeper than anybody nests them.
const MAX_DEPTH: usize = 16;

/// The end of an object: the fields that it has beside `items`. `list_kind` is that of the list that
/// it is in.
fn finish(fields: Map<String, Value>, has_items: bool, list_kind: Option<&str>, dump: &mut Dump) {
    let kind = fields
        .get("kind")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if has_items || kind.ends_with("List") {
        dump.note_list();
        dump.resolve(kind);
    } else {
        dump.add_value(&Value::Object(fields), list_kind);
    }
}

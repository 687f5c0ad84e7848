//! Blocks of headers, compressed with one state for each direction of a session.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use crate::{SpdyError, dictionary::DICTIONARY};

/// The longest block of headers, decompressed. Clients send some tens of bytes.
const MAX_BLOCK: usize = 8 << 10;
const CHUNK: usize = 4 << 10;

/// Headers: names in lower case, and their values. A header with several values occurs several
/// times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// The first value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads the blocks of one direction.
#[derive(Debug)]
pub(crate) struct HeaderReader(Decompress);

impl HeaderReader {
    pub(crate) fn new() -> Self {
        Self(Decompress::new(true))
    }

    /// Reads the next block. All of a session have to be read, in order.
    pub(crate) fn read(&mut self, mut compressed: &[u8]) -> Result<Headers, SpdyError> {
        let mut block = Vec::new();
        loop {
            block.reserve(CHUNK);
            let (read, written) = (self.0.total_in(), self.0.total_out());
            let step = self
                .0
                .decompress_vec(compressed, &mut block, FlushDecompress::Sync);
            let read = usize::try_from(self.0.total_in() - read).unwrap_or(usize::MAX);
            compressed = compressed.get(read..).unwrap_or_default();
            match step {
                Err(error) if error.needs_dictionary().is_some() => {
                    let set = self.0.set_dictionary(&DICTIONARY);
                    set.map_err(|_| SpdyError::Headers)?;
                    continue;
                }
                Err(_) | Ok(Status::StreamEnd) => return Err(SpdyError::Headers),
                Ok(Status::Ok | Status::BufError) => {}
            }
            if block.len() > MAX_BLOCK {
                return Err(SpdyError::Headers);
            }
            // A step that fills its space may have more.
            let is_full = block.len() == block.capacity();
            if compressed.is_empty() && !is_full {
                return parse(&block).ok_or(SpdyError::Headers);
            }
            if !is_full && read == 0 && self.0.total_out() == written {
                return Err(SpdyError::Headers);
            }
        }
    }
}

/// Writes the blocks of one direction.
#[derive(Debug)]
pub(crate) struct HeaderWriter(Compress);

impl HeaderWriter {
    pub(crate) fn new() -> Self {
        let mut compress = Compress::new(Compression::fast(), true);
        // Fails only after data.
        _ = compress.set_dictionary(&DICTIONARY);
        Self(compress)
    }

    /// Writes a block without headers.
    pub(crate) fn write_empty(&mut self) -> Result<Vec<u8>, SpdyError> {
        let count = 0_u32.to_be_bytes();
        let mut compressed = Vec::with_capacity(64);
        let done = self
            .0
            .compress_vec(&count, &mut compressed, FlushCompress::Sync);
        match done {
            Ok(Status::Ok) => Ok(compressed),
            _ => Err(SpdyError::Headers),
        }
    }
}

/// The headers of a block: their number, and for each the length and text of its name and of its
/// values, which NUL separates.
fn parse(block: &[u8]) -> Option<Headers> {
    let mut rest = block;
    let mut headers = Vec::new();
    for _ in 0..number(&mut rest)? {
        let name = text(&mut rest)?;
        let values = text(&mut rest)?;
        // Further values of a name mean nothing here, and each would be a copy of the name.
        let value = values.split('\0').next().unwrap_or_default();
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    rest.is_empty().then_some(Headers(headers))
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let (number, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_be_bytes(*number))
}

fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    let length = usize::try_from(number(rest)?).ok()?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after;
    std::str::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The blocks of two SYN_STREAM frames in a session, as moby/spdystream 0.5.1 writes them for
    /// the streams of `kubectl exec`: `streamtype: error`, and `streamtype: stdin`.
    const ERROR: &[u8] = &[
        0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x62, 0x60, 0x60, 0x60, 0x04, 0xa7, 0xb3, 0x92, 0xa2,
        0xd4, 0xc4, 0x5c, 0x68, 0x51, 0xc2, 0x9a, 0x0a, 0x0a, 0x68, 0x00, 0x00, 0x00, 0x00, 0xff,
        0xff,
    ];
    const STDIN: &[u8] = &[
        0xc2, 0x2e, 0x55, 0x5c, 0x92, 0x92, 0x99, 0x07, 0x00, 0x00, 0x00, 0xff, 0xff,
    ];

    #[test]
    fn reads_the_blocks_of_another_implementation() {
        let mut reader = HeaderReader::new();
        let headers = reader.read(ERROR).unwrap();
        assert_eq!(headers.get("streamtype"), Some("error"));
        let headers = reader.read(STDIN).unwrap();
        assert_eq!(headers.get("streamtype"), Some("stdin"));
        assert_eq!(headers.get("other"), None);
        assert!(
            HeaderReader::new().read(STDIN).is_err(),
            "it needs the first"
        );
    }

    #[test]
    fn writes_blocks_that_it_reads() {
        let (mut writer, mut reader) = (HeaderWriter::new(), HeaderReader::new());
        for _ in 0..3 {
            let block = writer.write_empty().unwrap();
            assert_eq!(reader.read(&block).unwrap(), Headers::default());
        }
    }

    #[test]
    fn refuses_a_block_that_grows_without_end() {
        let mut compress = Compress::new(Compression::best(), true);
        compress.set_dictionary(&DICTIONARY).unwrap();
        let mut bomb = Vec::with_capacity(1 << 20);
        let zeros = vec![0; 10 << 20];
        compress
            .compress_vec(&zeros, &mut bomb, FlushCompress::Sync)
            .unwrap();
        assert!(bomb.len() < 16 << 10);
        assert!(HeaderReader::new().read(&bomb).is_err());
    }

    proptest! {
        #[test]
        fn any_block_is_read_or_refused(block in proptest::collection::vec(any::<u8>(), 0..200)) {
            _ = HeaderReader::new().read(&block);
            _ = parse(&block);
        }
    }
}

//! The frame of PEM documents (RFC 7468). What is inside is checked where it is used.

/// The labels of the blocks of a document, in order: `CERTIFICATE REQUEST`. A line that begins a
/// block without an end counts for nothing.
pub(crate) fn labels(document: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(document);
    let mut found = Vec::new();
    let mut open: Option<&str> = None;
    for line in text.lines().map(str::trim_end) {
        let label = |prefix| line.strip_prefix(prefix)?.strip_suffix("-----");
        if let Some(label) = label("-----BEGIN ") {
            open = Some(label);
        } else if let Some(label) = label("-----END ")
            && open.take() == Some(label)
        {
            found.push(label.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::labels;

    #[test]
    fn finds_complete_blocks() {
        let two = b"text\n-----BEGIN A B-----\nAAAA\n-----END A B-----\r\n-----BEGIN C-----\n-----END C-----";
        assert_eq!(labels(two), ["A B", "C"]);
        for none in [
            &b""[..],
            b"\xff\x00",
            b"-----BEGIN A-----\nAAAA",
            b"-----BEGIN A-----\n-----END B-----\n-----END A-----",
            b"-----BEGIN A",
            b" -----BEGIN A-----\n-----END A-----",
        ] {
            assert_eq!(labels(none), Vec::<String>::new());
        }
    }
}

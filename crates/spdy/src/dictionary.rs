//! The dictionary that header blocks are compressed with (SPDY/3 §2.6.10.1): words with their
//! lengths, and then texts that often occur.

use std::sync::LazyLock;

const WORDS: [&[u8]; 65] = [
    b"options",
    b"head",
    b"post",
    b"put",
    b"delete",
    b"trace",
    b"accept",
    b"accept-charset",
    b"accept-encoding",
    b"accept-language",
    b"accept-ranges",
    b"age",
    b"allow",
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-base",
    b"content-encoding",
    b"content-language",
    b"content-length",
    b"content-location",
    b"content-md5",
    b"content-range",
    b"content-type",
    b"date",
    b"etag",
    b"expect",
    b"expires",
    b"from",
    b"host",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"last-modified",
    b"location",
    b"max-forwards",
    b"pragma",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"range",
    b"referer",
    b"retry-after",
    b"server",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"user-agent",
    b"vary",
    b"via",
    b"warning",
    b"www-authenticate",
    b"method",
    b"get",
    b"status",
    b"200 OK",
    b"version",
    b"HTTP/1.1",
    b"url",
    b"public",
    b"set-cookie",
    b"keep-alive",
    b"origin",
];

const TEXTS: &[u8] = b"\
    100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505\
    203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Una\
    uthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Servic\
    e UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu\
    , Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,applic\
    ation/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=u\
    tf-8charset=iso-8859-1,utf-,*,enq=0.";

/// The dictionary.
pub(crate) static DICTIONARY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut dictionary = Vec::new();
    for word in WORDS {
        let length = u8::try_from(word.len()).expect("words are short");
        dictionary.extend_from_slice(&[0, 0, 0, length]);
        dictionary.extend_from_slice(word);
    }
    dictionary.extend_from_slice(TEXTS);
    dictionary
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_the_checksum_of_the_specification() {
        assert_eq!(DICTIONARY.len(), 1423);
        let (mut a, mut b) = (1_u32, 0_u32);
        for byte in DICTIONARY.iter() {
            a = (a + u32::from(*byte)) % 65_521;
            b = (b + a) % 65_521;
        }
        assert_eq!(b << 16 | a, 0xe3c6_a7c2);
    }
}

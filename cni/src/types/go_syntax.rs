//! What is wrong with a text that is no JSON, in the words of Go's `encoding/json`.

use super::json::go_quote;

/// Go's words for what serde found. Where it found something that Go accepts, serde's own.
pub(super) fn error(text: &[u8], error: &serde_json::Error) -> String {
    if error.is_eof() {
        // Go asks what a space would do at the end.
        let context = at_end(text);
        return context.map_or_else(
            || "unexpected end of JSON input".to_owned(),
            |context| unexpected(b' ', &context),
        );
    }
    let found = error.to_string();
    let offset = offset(text, error.line(), error.column());
    let (before, byte) = (&text[..offset], text.get(offset).copied().unwrap_or(b' '));
    let says = |words: &str| found.starts_with(words);
    let context = if says("expected value") || (says("trailing comma") && byte == b']') {
        "looking for beginning of value".to_owned()
    } else if says("key must be a string") || says("trailing comma") {
        "looking for beginning of object key string".to_owned()
    } else if says("expected `:`") {
        "after object key".to_owned()
    } else if says("expected `,` or `}`") {
        "after object key:value pair".to_owned()
    } else if says("expected `,` or `]`") {
        "after array element".to_owned()
    } else if says("trailing characters") {
        "after top-level value".to_owned()
    } else if says("control character") {
        "in string literal".to_owned()
    } else if says("invalid escape") {
        return escape(text, offset);
    } else if says("expected ident") {
        literal(before).unwrap_or_default()
    } else if says("invalid number") {
        number(before).unwrap_or_else(|| after_value(before).to_owned())
    } else {
        return found;
    };
    unexpected(byte, &context)
}

/// Go looks at bytes, and prints each as the character of that number.
fn unexpected(byte: u8, context: &str) -> String {
    let quoted = match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        other => {
            let quoted = go_quote(&char::from(other).to_string());
            format!("'{}'", &quoted[1..quoted.len() - 1])
        }
    };
    format!("invalid character {quoted} {context}")
}

/// Where in the bytes serde's place is. It counts in a text in which every invalid piece takes three bytes.
fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let lossy = String::from_utf8_lossy(text);
    let lines = lossy.split_inclusive('\n').take(line.saturating_sub(1));
    let place = (lines.map(str::len).sum::<usize>() + column).saturating_sub(1);
    let (mut from, mut to) = (0, 0);
    for chunk in text.utf8_chunks() {
        let (valid, invalid) = (chunk.valid().len(), chunk.invalid().len());
        if place < from + valid {
            return to + place - from;
        }
        from += valid;
        to += valid;
        if invalid > 0 && place < from + char::REPLACEMENT_CHARACTER.len_utf8() {
            return to;
        }
        from += if invalid > 0 {
            char::REPLACEMENT_CHARACTER.len_utf8()
        } else {
            0
        };
        to += invalid;
    }
    text.len()
}

/// What a space would be out of place in.
fn at_end(text: &[u8]) -> Option<String> {
    match outline(text) {
        Outline::InString => {
            let backslashes = text.iter().rev().take_while(|byte| **byte == b'\\').count();
            if backslashes % 2 == 1 {
                return Some(ESCAPE.to_owned());
            }
            let hex = text
                .iter()
                .rev()
                .take_while(|byte| byte.is_ascii_hexdigit())
                .count();
            let before = &text[..text.len() - hex];
            let slashes = before.strip_suffix(b"u").map_or(0, |before| {
                before
                    .iter()
                    .rev()
                    .take_while(|byte| **byte == b'\\')
                    .count()
            });
            (hex < 4 && slashes % 2 == 1).then(|| HEX.to_owned())
        }
        Outline::Inside(_) => literal(text).or_else(|| number(text)),
    }
}

const ESCAPE: &str = "in string escape code";
const HEX: &str = r"in \u hexadecimal character escape";

fn escape(text: &[u8], offset: usize) -> String {
    let end = text.len().min(offset + 1);
    let start = end.saturating_sub(6);
    let hex = text[start..end].windows(2).rposition(|pair| pair == br"\u");
    let Some(hex) = hex.map(|at| start + at + 2) else {
        return unexpected(text.get(offset).copied().unwrap_or(b' '), ESCAPE);
    };
    let wrong = text[hex..].iter().find(|byte| !byte.is_ascii_hexdigit());
    unexpected(wrong.copied().unwrap_or(b' '), HEX)
}

/// The word that has begun.
fn literal(before: &[u8]) -> Option<String> {
    for word in ["true", "false", "null"] {
        for length in (1..word.len()).rev() {
            if before.ends_with(&word.as_bytes()[..length]) {
                let next = &word[length..=length];
                return Some(format!("in literal {word} (expecting '{next}')"));
            }
        }
    }
    None
}

/// The number that has begun; none when it could end here.
fn number(before: &[u8]) -> Option<String> {
    let (last, rest) = before.split_last()?;
    let is_exponent = |bytes: &[u8]| {
        let digit = bytes.len().checked_sub(2).map(|at| bytes[at]);
        (bytes.ends_with(b"e") || bytes.ends_with(b"E"))
            && digit.is_some_and(|digit| digit.is_ascii_digit())
    };
    let context = match last {
        b'-' | b'+' if is_exponent(rest) => "in exponent of numeric literal",
        b'-' => "in numeric literal",
        b'.' => "after decimal point in numeric literal",
        b'e' | b'E' if rest.last().is_some_and(u8::is_ascii_digit) => {
            "in exponent of numeric literal"
        }
        _ => return None,
    };
    Some(context.to_owned())
}

/// What may follow a value where this one ends.
fn after_value(before: &[u8]) -> &'static str {
    match outline(before) {
        Outline::Inside(Some(b'{')) => "after object key:value pair",
        Outline::Inside(Some(_)) => "after array element",
        _ => "after top-level value",
    }
}

/// What a text that is JSON so far ends in.
enum Outline {
    InString,
    /// The bracket that is open.
    Inside(Option<u8>),
}

fn outline(text: &[u8]) -> Outline {
    let (mut open, mut in_string, mut escaped) = (Vec::new(), false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => open.push(*byte),
            b'}' | b']' => _ = open.pop(),
            _ => {}
        }
    }
    if in_string {
        Outline::InString
    } else {
        Outline::Inside(open.last().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::super::go_json::{Kind, Struct, decode};

    #[test]
    fn texts_are_those_of_go() {
        static ANY: Kind = Kind::Struct(Struct {
            name: "",
            full: "struct {}",
            fields: &[],
        });
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            ("{\"a\": \"b", "unexpected end of JSON input"),
            (
                "{\"a\":1,}",
                "invalid character '}' looking for beginning of object key string",
            ),
            (
                "[1,]",
                "invalid character ']' looking for beginning of value",
            ),
            ("{} x", "invalid character 'x' after top-level value"),
            (
                "{\"a\":1}\n\n\u{1}",
                r"invalid character '\x01' after top-level value",
            ),
            (
                "{\"a\":nulx}",
                "invalid character 'x' in literal null (expecting 'l')",
            ),
            (
                "{'a':1}",
                r"invalid character '\'' looking for beginning of object key string",
            ),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            (
                "{\"a\":1 \"b\"}",
                "invalid character '\"' after object key:value pair",
            ),
            ("[1 2]", "invalid character '2' after array element"),
            (
                "{\"a\":\"a\tb\"}",
                r"invalid character '\t' in string literal",
            ),
            (
                "{\"a\":01}",
                "invalid character '1' after object key:value pair",
            ),
            (
                "{\"a\":1e}",
                "invalid character '}' in exponent of numeric literal",
            ),
            (
                "{\"a\":1.x}",
                "invalid character 'x' after decimal point in numeric literal",
            ),
            ("-", "invalid character ' ' in numeric literal"),
            (
                "tru",
                "invalid character ' ' in literal true (expecting 'e')",
            ),
            (
                r#"{"a":"\x"}"#,
                "invalid character 'x' in string escape code",
            ),
            (
                r#"{"a":"\u12x"}"#,
                r"invalid character 'x' in \u hexadecimal character escape",
            ),
            (
                "\u{feff}{}",
                "invalid character 'ï' looking for beginning of value",
            ),
            (
                "{\u{a0}}",
                "invalid character 'Â' looking for beginning of object key string",
            ),
        ] {
            assert_eq!(
                decode(text.as_bytes(), &ANY),
                Err(expected.to_owned()),
                "{text}"
            );
        }
        let found = decode(b"{\"a\":\"\xff\"\xff}", &ANY);
        let expected = "invalid character 'ÿ' after object key:value pair";
        assert_eq!(found, Err(expected.to_owned()));
    }
}

//! The bound on the nesting of an expression, which is checked on its text.
//!
//! Parsing, checking, evaluating and dropping an expression are recursive. The parser bounds the
//! nesting of brackets, but not chains such as `a.b.c` or `1 + 1 + 1`, whose trees are as deep as
//! they are long.

/// The most characters of an expression, as in the reference.
pub(crate) const MAX_CHARACTERS: usize = 100_000;
/// The deepest tree that an expression may have. The reference allows 250 levels of recursion in
/// its parser, and no bound on chains.
pub(crate) const MAX_DEPTH: usize = 200;

/// An upper bound of the depth of the expression's tree. It never underestimates; quotes that do
/// not match are an error of the parser.
pub(crate) fn depth(text: &str) -> usize {
    let bytes = text.as_bytes();
    // The operators since the last separator, for each open bracket.
    let mut open = vec![0_usize];
    let (mut below, mut deepest, mut at) = (0_usize, 0_usize, 0_usize);
    while let Some(&byte) = bytes.get(at) {
        let rest = bytes.get(at..).unwrap_or_default();
        at += 1;
        match byte {
            b'\'' | b'"' => at = end_of_string(bytes, at - 1),
            b'/' if rest.starts_with(b"//") => {
                let line = rest.iter().position(|byte| *byte == b'\n');
                at = line.map_or(bytes.len(), |length| at + length);
            }
            b'(' | b'[' | b'{' => {
                below += open.last().copied().unwrap_or_default() + 1;
                open.push(0);
            }
            b')' | b']' | b'}' => {
                open.pop();
                let links = open.last_mut();
                match links {
                    Some(links) => {
                        below = below.saturating_sub(*links + 1);
                        // What follows a call or an index is above it: `a(b).c`.
                        *links += 1;
                    }
                    None => open.push(0),
                }
            }
            b',' => restart(&mut open),
            b'&' | b'|' if rest.starts_with(b"&&") || rest.starts_with(b"||") => {
                // The parser balances these trees.
                at += 1;
                restart(&mut open);
            }
            b'.' | b'+' | b'-' | b'*' | b'/' | b'%' | b'!' | b'?' | b':' | b'=' | b'<' | b'>' => {
                add(&mut open)
            }
            b'i' if rest.starts_with(b"in") && !continues(bytes, at) => add(&mut open),
            _ => {}
        }
        deepest = deepest.max(below + open.last().copied().unwrap_or_default());
    }
    deepest
}

fn add(open: &mut [usize]) {
    if let Some(links) = open.last_mut() {
        *links += 1;
    }
}

fn restart(open: &mut [usize]) {
    if let Some(links) = open.last_mut() {
        *links = 0;
    }
}

/// True if the characters around an `in` at `at - 1` make it part of a name.
fn continues(bytes: &[u8], at: usize) -> bool {
    let is_name = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    is_name(bytes.get(at + 1)) || at >= 2 && is_name(bytes.get(at - 2))
}

/// The end of the string whose quote is at `start`.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let quote = bytes.get(start).copied().unwrap_or_default();
    let is_raw = start > 0
        && bytes
            .get(start.saturating_sub(2)..start)
            .is_some_and(|before| before.iter().any(|b| matches!(b, b'r' | b'R')));
    let triple = [quote; 3];
    let (mut at, end): (usize, &[u8]) = match bytes.get(start..) {
        Some(rest) if rest.starts_with(&triple) => (start + 3, &triple),
        _ => (start + 1, &triple[..1]),
    };
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(end) {
            return at + end.len();
        }
        at += if rest.starts_with(b"\\") && !is_raw {
            2
        } else {
            1
        };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn chains_and_brackets_are_deep_and_sequences_are_not() {
        for (text, least, most) in [
            ("a", 0, 0),
            ("a.b.c.d", 3, 3),
            ("1 + 1 + 1", 2, 2),
            ("[[[1]]]", 3, 6),
            ("a && b && c && d", 0, 0),
            ("f(a.b, c.d, e.f)", 2, 2),
            ("'....' + \"((((\" + r'\\' + '''..'..''' // ....", 3, 3),
            ("'\\'....'", 0, 0),
            ("x in [1] // (((", 1, 3),
            ("index.inner", 1, 1),
            ("a?b:c?d:e", 4, 4),
            ("a[0][0][0]", 3, 6),
            (")))(((", 3, 3),
        ] {
            let got = depth(text);
            assert!((least..=most).contains(&got), "{text}: {got}");
        }
    }
}

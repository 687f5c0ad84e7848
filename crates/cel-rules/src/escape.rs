//! Names of fields as identifiers: `a-b` is `a__dash__b` in expressions.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The words that are no identifiers.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The name of a field in expressions; `None` if it has none there.
pub fn escape(name: &str) -> Option<String> {
    let first = name.bytes().next()?;
    if first.is_ascii_digit() {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    if !name.bytes().all(is_allowed) {
        return None;
    }
    let escaped = name.replace("__", "__underscores__");
    let escaped = escaped.replace('.', "__dot__").replace('-', "__dash__");
    Some(escaped.replace('/', "__slash__"))
}

/// The name of a field that an expression names so; the inverse of [`escape`].
pub fn unescape(escaped: &str) -> Option<String> {
    static ESCAPE: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("__([^_]+)__").expect("a constant of this file"));
    let mut is_known = true;
    let name = ESCAPE.replace_all(escaped, |found: &Captures<'_>| {
        match found.get(1).map_or("", |word| word.as_str()) {
            "underscores" => "__".to_owned(),
            "dot" => ".".to_owned(),
            "dash" => "-".to_owned(),
            "slash" => "/".to_owned(),
            word => {
                let is_whole = found.get(0).is_some_and(|all| all.as_str() == escaped);
                is_known &= is_whole && RESERVED.contains(&word);
                word.to_owned()
            }
        }
    });
    is_known.then(|| name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::{escape, unescape};

    #[test]
    fn names_are_escaped_as_in_the_reference() {
        for (name, escaped) in [
            ("a", "a"),
            ("a_b", "a_b"),
            ("a__b", "a__underscores__b"),
            ("a.b-c/d", "a__dot__b__dash__c__slash__d"),
            ("namespace", "__namespace__"),
            ("int", "int"),
        ] {
            assert_eq!(escape(name).as_deref(), Some(escaped));
            assert_eq!(unescape(escaped).as_deref(), Some(name));
        }
        for name in ["", "1a", "a b", "ä", "$a"] {
            assert_eq!(escape(name), None, "{name}");
        }
    }
}

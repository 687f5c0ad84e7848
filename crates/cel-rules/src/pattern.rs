//! Regular expressions of Go's dialect, with a bound on their size.
//!
//! Go's and this crate's engine are both automata with linear time, and their dialects differ in
//! details: `\d`, `\w`, `\s` and `\b` are of ASCII in Go, `\Q…\E` is a literal, and a `[`, `&` or
//! `~` inside a class is a character.

use regex::{Regex, RegexBuilder};
use regex_syntax::hir::{Hir, HirKind};

/// The most states of a pattern's automaton, by the estimate of [`ParsedPattern::states`].
const MAX_STATES: u64 = 50_000;
/// The most bytes of a compiled pattern.
const MAX_BYTES: usize = 8 << 20;

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    states: u64,
}

/// A pattern that was parsed, and is not compiled.
#[derive(Debug)]
pub(crate) struct ParsedPattern {
    text: String,
    states: u64,
}

impl Pattern {
    /// Compiles a pattern of Go's dialect.
    ///
    /// # Errors
    ///
    /// The text of the error, if it is malformed or too large.
    pub fn new(text: &str) -> Result<Self, String> {
        Self::parse(text)?.compile()
    }

    pub(crate) fn parse(text: &str) -> Result<ParsedPattern, String> {
        let text_of_ours = translate(text);
        let hir = regex_syntax::ParserBuilder::new()
            .nest_limit(100)
            .build()
            .parse(&text_of_ours)
            .map_err(|error| error_text(text, &error))?;
        let states = states(&hir);
        if states > MAX_STATES {
            return Err(format!(
                "error parsing regexp: expression too large: `{text}`"
            ));
        }
        Ok(ParsedPattern {
            text: text_of_ours,
            states,
        })
    }

    /// True if the pattern is found in the text.
    pub fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }

    pub(crate) fn regex(&self) -> &Regex {
        &self.regex
    }

    /// An upper bound of the steps of a search in a text of that length, in units of cost.
    pub(crate) fn search_cost(&self, length: usize) -> u64 {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        length.saturating_mul(self.states) / 1_000
    }
}

impl ParsedPattern {
    /// An estimate of the number of states of the automaton.
    pub(crate) fn states(&self) -> u64 {
        self.states
    }

    pub(crate) fn compile(self) -> Result<Pattern, String> {
        let regex = RegexBuilder::new(&self.text).size_limit(MAX_BYTES).build();
        let regex = regex.map_err(|_| "error parsing regexp: expression too large".to_owned())?;
        Ok(Pattern {
            regex,
            states: self.states,
        })
    }
}

fn error_text(text: &str, error: &regex_syntax::Error) -> String {
    let kind = match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "invalid syntax".to_owned(),
    };
    format!("error parsing regexp: {kind}: `{text}`")
}

/// Counts states without recursion: a repetition has those of its body as often as it may occur.
fn states(hir: &Hir) -> u64 {
    let mut total = 0_u64;
    let mut left = vec![(hir, 1_u64)];
    while let Some((hir, times)) = left.pop() {
        let own = match hir.kind() {
            HirKind::Literal(literal) => literal.0.len(),
            HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
                class.ranges().len().min(250) * 2
            }
            HirKind::Repetition(repetition) => {
                let most = repetition.max.unwrap_or(repetition.min.max(1));
                left.push((&repetition.sub, times.saturating_mul(u64::from(most))));
                1
            }
            HirKind::Capture(capture) => {
                left.push((&capture.sub, times));
                2
            }
            HirKind::Concat(parts) | HirKind::Alternation(parts) => {
                left.extend(parts.iter().map(|part| (part, times)));
                1
            }
            _ => 1,
        };
        let own = u64::try_from(own).unwrap_or(u64::MAX);
        total = total.saturating_add(own.saturating_mul(times));
        if total > MAX_STATES {
            return total;
        }
    }
    total
}

/// The pattern in the dialect of this crate's engine.
fn translate(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let width = c.len_utf8();
        let mut taken = width;
        match c {
            '\\' => {
                let escaped = rest.get(width..).and_then(|rest| rest.chars().next());
                taken += escaped.map_or(0, char::len_utf8);
                match escaped {
                    Some('Q') if !in_class => {
                        let literal = rest.get(taken..).unwrap_or_default();
                        let end = literal.find("\\E");
                        let literal = literal
                            .get(..end.unwrap_or(literal.len()))
                            .unwrap_or_default();
                        out.push_str(&regex_syntax::escape(literal));
                        taken += literal.len() + if end.is_some() { 2 } else { 0 };
                    }
                    Some('d') => out.push_str(if in_class { "0-9" } else { "[0-9]" }),
                    Some('w') => out.push_str(if in_class {
                        "0-9A-Za-z_"
                    } else {
                        "[0-9A-Za-z_]"
                    }),
                    Some('s') => out.push_str(if in_class {
                        r"\t\n\x0C\r "
                    } else {
                        r"[\t\n\x0C\r ]"
                    }),
                    Some('D') => out.push_str("[^0-9]"),
                    Some('W') => out.push_str("[^0-9A-Za-z_]"),
                    Some('S') => out.push_str(r"[^\t\n\x0C\r ]"),
                    Some('b') if !in_class => out.push_str(r"(?-u:\b)"),
                    // Any escaped punctuation is itself, in Go; a `/`, for example.
                    Some(
                        c
                        @ ('/' | '\'' | '"' | ',' | ':' | ';' | '=' | '@' | '!' | '%' | '`' | '_'),
                    ) => {
                        out.push(c);
                    }
                    _ => out.push_str(rest.get(..taken).unwrap_or_default()),
                }
            }
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                // A `]` or `^]` at the start is a character.
                let inner = rest.get(width..).unwrap_or_default();
                for first in ["^]", "]", "^"] {
                    if inner.starts_with(first) {
                        out.push_str(&first.replace(']', r"\]"));
                        taken += first.len();
                        break;
                    }
                }
            }
            '[' if !rest.starts_with("[:") => out.push_str(r"\["),
            '[' => {
                // A class by name, `[:alpha:]`.
                let end = rest.find(":]").map_or(width, |end| end + 2);
                out.push_str(rest.get(..end).unwrap_or_default());
                taken = end;
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => out.extend(['\\', c]),
            _ => out.push(c),
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn patterns_are_of_gos_dialect() {
        for (pattern, text, want) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.-]+$", "a_b.c-d", true),
            (r"^\w+$", "ä", false),
            (r"^[^\s]+$", "a b", false),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^[[]$", "[", true),
            (r"^[]a]$", "]", true),
            (r"^[^]a]$", "b", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[:alpha:]_]+$", "ab_", true),
            (r"\bfoo\b", "a foo b", true),
            (r"^a\/b$", "a/b", true),
            (r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", "a-b", true),
            (r"^$", "", true),
            ("^.$", "ä", true),
            ("a$", "a\n", false),
        ] {
            let compiled = Pattern::new(pattern).unwrap();
            assert_eq!(compiled.is_match(text), want, "{pattern} {text}");
        }
    }

    #[test]
    fn refuses_malformed_and_huge_patterns() {
        for pattern in [
            "(",
            "[a",
            "a{2,1}",
            "(?=a)",
            r"(a)\1",
            "((a{1000}){1000}){1000}",
            r"(\pL{100}){100}",
        ] {
            let error = Pattern::new(pattern).unwrap_err();
            assert!(
                error.starts_with("error parsing regexp: "),
                "{pattern}: {error}"
            );
        }
        assert!(Pattern::new(&"(".repeat(100_000)).is_err());
    }
}

//! The filter of a view.

use regex::{Regex, RegexBuilder};

/// The most bytes of a compiled filter.
const SIZE_LIMIT: usize = 1 << 20;

/// A filter, as k9s has it: a regular expression, a text if it is not a valid one, and with `!`
/// before it what does not match. Case does not matter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    text: String,
    is_inverse: bool,
    matcher: Option<Regex>,
}

impl Filter {
    pub(crate) fn new(text: &str) -> Self {
        let (pattern, is_inverse) = match text.strip_prefix('!') {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let build = |pattern: &str| {
            let mut builder = RegexBuilder::new(pattern);
            builder
                .case_insensitive(true)
                .size_limit(SIZE_LIMIT)
                .build()
        };
        let matcher = match pattern {
            "" => None,
            _ => build(pattern)
                .or_else(|_| build(&regex::escape(pattern)))
                .ok(),
        };
        Self {
            text: text.to_owned(),
            is_inverse,
            matcher,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_match(&self, texts: &[impl AsRef<str>]) -> bool {
        match &self.matcher {
            None => true,
            Some(matcher) => {
                let mut texts = texts.iter().map(AsRef::as_ref);
                texts.any(|text| matcher.is_match(text)) != self.is_inverse
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_by_expression_or_text() {
        let is_match = |filter: &str| Filter::new(filter).is_match(&["web-0", "node-1"]);
        for filter in ["", "web", "WEB", "^web-[0-9]$", "node", "!api", "!"] {
            assert!(is_match(filter), "{filter}");
        }
        for filter in ["api", "!web", "^eb"] {
            assert!(!is_match(filter), "{filter}");
        }
        // Not a valid expression, so it is a text.
        assert!(Filter::new("a(b").is_match(&["xa(bx"]));
        assert!(!Filter::new("a(b").is_match(&["ab"]));
    }
}

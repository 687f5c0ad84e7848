//! The text of an error with its causes, for logs and answers.
//!
//! An error of this workspace prints its own step and not its cause, which `source` returns. It is
//! a crate of its own since plugins and the store, which know no other crate, print errors too.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::error::Error;

/// The error and its causes, from the outermost one inwards.
pub fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error: &'a (dyn Error + 'static) = next?;
        next = error.source();
        Some(error)
    })
}

/// The error and its causes on one line, with `: ` between.
#[must_use]
pub fn one_line(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<String> = causes(error).map(ToString::to_string).collect();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::{fmt, io};

    use super::*;

    #[derive(Debug)]
    struct FailedStep(&'static str, io::Error);

    impl fmt::Display for FailedStep {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for FailedStep {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.1)
        }
    }

    #[test]
    fn joins_each_cause_once() {
        let error = FailedStep("failed to read a", io::Error::other("disk on fire"));
        assert_eq!(one_line(&error), "failed to read a: disk on fire");
        assert_eq!(one_line(&error.1), "disk on fire");
        assert_eq!(causes(&error).count(), 2);
    }
}

//! How a command ends: once, in words, with an exit code.

use std::{
    fmt,
    io::{self, ErrorKind},
    process::ExitCode,
};

use anstyle::{AnsiColor, Style};
use podplane_api::printable;
use podplane_client::{ApiError, Reason};

use crate::cluster::limits;

const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Exit code of a command line that cannot be carried out as it stands.
const USAGE: u8 = 2;

/// A command line that cannot be carried out as it stands, found after parsing. Exits with 2, as clap's own do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// An input that the command can do nothing with. Exits with 2 where 1 means that something was found.
#[derive(Debug)]
pub(crate) struct Unusable(pub(crate) anyhow::Error);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Unusable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

impl Unusable {
    /// What an error is about, with or without the word on its exit code.
    fn inner(error: &anyhow::Error) -> &anyhow::Error {
        error
            .downcast_ref::<Self>()
            .map_or(error, |Self(inner)| inner)
    }
}

/// Nobody reads our output any more, as after `podplane get pods | head`. No failure.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct OutputClosed;

/// Prints the error, with what caused it, and returns the exit code for it.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    if Unusable::inner(error).is::<OutputClosed>() {
        return ExitCode::SUCCESS;
    }
    print(error);
    if error.is::<UsageError>() || error.is::<Unusable>() {
        ExitCode::from(USAGE)
    } else {
        ExitCode::FAILURE
    }
}

/// Prints the error, with what caused it. For a command that goes on with its other work and fails at the end.
pub(crate) fn print(error: &anyhow::Error) {
    anstream::eprintln!("{}", Report(error));
    if let Some(limits) = hits_limit(error).then(limits::limits).flatten() {
        anstream::eprintln!("note: processes here have {limits}");
    }
}

/// Whether the error is one of those that limits of the shell lead to.
fn hits_limit(error: &anyhow::Error) -> bool {
    let io = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<io::Error>().map(io::Error::kind)
    };
    let mut kinds = Unusable::inner(error).chain().filter_map(io);
    let limited = [
        ErrorKind::FileTooLarge,
        ErrorKind::OutOfMemory,
        ErrorKind::WouldBlock,
    ];
    kinds.any(|kind| limited.contains(&kind))
}

/// `error: …`, or the server's own words as kubectl prints them, and a line for each cause.
struct Report<'a>(&'a anyhow::Error);

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chain = Unusable::inner(self.0).chain();
        let Some(first) = chain.next() else {
            return Ok(());
        };
        match first.downcast_ref::<ApiError>() {
            Some(refused) => {
                let message = printable::lines(&refused.message);
                write!(f, "{ERROR}{}{ERROR:#}{message}", prefix(refused))?;
            }
            None => {
                let first = first.to_string();
                write!(f, "{ERROR}error: {ERROR:#}{}", printable::lines(&first))?;
            }
        }
        for cause in chain {
            let cause = cause.to_string();
            write!(f, "\n  caused by: {}", printable::lines(&cause))?;
        }
        Ok(())
    }
}

/// The rule of kubectl: what is wrong with an object speaks for itself, all else is said to come from the server.
fn prefix(error: &ApiError) -> String {
    match error.reason {
        Reason::Invalid => "The ".into(),
        Reason::ServiceUnavailable => "error: the server does not answer: ".into(),
        reason => format!("Error from server ({}): ", reason.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn plain(error: &anyhow::Error) -> String {
        anstream::adapter::strip_str(&Report(error).to_string()).to_string()
    }

    #[test]
    fn the_server_is_quoted_as_kubectl_does() {
        let error = ApiError::not_found("pods", "x").into();
        assert_eq!(
            plain(&error),
            r#"Error from server (NotFound): pods "x" not found"#
        );
        assert_eq!(
            plain(&Unusable(error).into()),
            r#"Error from server (NotFound): pods "x" not found"#
        );
        let error = ApiError::new(
            Reason::Invalid,
            r#"Pod "x" is invalid: spec: Required value"#,
        )
        .into();
        assert_eq!(
            plain(&error),
            r#"The Pod "x" is invalid: spec: Required value"#
        );
    }

    #[test]
    fn causes_follow() {
        let error = std::io::Error::other("disk on fire");
        let error = Err::<(), _>(error).context("read x.yaml").unwrap_err();
        assert_eq!(
            plain(&error),
            "error: read x.yaml\n  caused by: disk on fire"
        );
    }

    #[test]
    fn the_terminal_is_not_driven_by_what_an_error_quotes() {
        let error = ApiError::new(Reason::BadRequest, "a \u{1b}[31mb\u{202e}\nc").into();
        let shown = Report(&error).to_string();
        assert!(shown.ends_with("a \\u{1b}[31mb\\u{202e}\nc"), "{shown:?}");
    }

    #[test]
    fn exit_codes() {
        let code = |error: anyhow::Error| format!("{:?}", failure(&error));
        assert_eq!(
            code(OutputClosed.into()),
            format!("{:?}", ExitCode::SUCCESS)
        );
        assert_eq!(
            code(UsageError("x".into()).into()),
            format!("{:?}", ExitCode::from(2))
        );
        assert_eq!(
            code(anyhow::anyhow!("x")),
            format!("{:?}", ExitCode::from(1))
        );
        assert_eq!(
            code(Unusable(anyhow::anyhow!("x")).into()),
            format!("{:?}", ExitCode::from(2))
        );
        assert_eq!(
            code(Unusable(OutputClosed.into()).into()),
            format!("{:?}", ExitCode::SUCCESS)
        );
    }
}

//! The end of a command: one report of its error, and an exit code.

use std::{
    fmt,
    io::{self, ErrorKind},
    process::ExitCode,
};

use anstyle::{AnsiColor, Style};
use podplane_api::printable;
use podplane_client::{ApiError, Reason, ServerError, endpoint::EndpointError, is_unserved_kind};
use podplane_cluster::limits;
use podplane_ipam::Notice;
use podplane_tui::TerminalError;

const ERROR: Style = AnsiColor::Red.on_default().bold();

/// The exit code of a command that cannot begin: its command line is invalid, or it cannot read
/// what it works on. Commands that check something exit with it for every failure, since 1 is
/// their verdict. docs/exit-codes.md has the table.
pub(crate) const UNUSABLE: u8 = 2;

/// The base of exit codes for signals, as in shells: the signal's number is added.
pub(crate) const SIGNALLED: u8 = 128;

/// An invalid command line, found after parsing. Exits with 2, like clap's own errors.
pub(crate) use podplane_cluster::settings::UsageError;

/// A file, a kubeconfig or another input that the command cannot use. Exits with 2. Prints as the
/// error in it.
#[derive(Debug)]
pub(crate) struct UnusableInput(pub(crate) anyhow::Error);

/// The server does not answer. Exits with 2.
#[derive(Debug, thiserror::Error)]
#[error("the server at {server} does not answer{hint}")]
pub(crate) struct NoAnswer {
    server: String,
    hint: String,
}

impl NoAnswer {
    /// Adds the server's address to an error that says that it did not answer. `hint` says what to
    /// do about it.
    pub(crate) fn locate(
        error: anyhow::Error,
        server: impl fmt::Display,
        hint: &str,
    ) -> anyhow::Error {
        match is_unanswered(&error) && !error.is::<Self>() {
            true => error.context(Self {
                server: server.to_string().trim_end_matches('/').to_owned(),
                hint: hint.to_owned(),
            }),
            false => error,
        }
    }
}

/// The error of a call over a connection that failed.
pub(crate) fn unanswered(error: &anyhow::Error) -> ApiError {
    ApiError::new(Reason::ServiceUnavailable, error.root_cause().to_string())
}

/// Returns true if a server did not answer. One that does not know a kind did.
pub(crate) fn is_unanswered(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<ApiError>();
    error.is_some_and(|error| error.is_unavailable() && !is_unserved_kind(error))
}

impl fmt::Display for UnusableInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for UnusableInput {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}

/// The chain of an error and its causes, without the mark of [`UnusableInput`].
fn chain(error: &anyhow::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    error.chain().map(|mut cause| {
        while let Some(UnusableInput(inner)) = cause.downcast_ref() {
            cause = inner.as_ref();
        }
        cause
    })
}

/// The reader of the output is gone, as after `podplane get pods | head`. Not a failure.
#[derive(Debug, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct OutputClosed;

/// Prints the error with its causes, and returns its exit code.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    let is_closed = chain(error).any(<dyn std::error::Error>::is::<OutputClosed>);
    if is_closed {
        return ExitCode::SUCCESS;
    }
    print(error);
    ExitCode::from(exit_code(error))
}

/// The exit code of a command that failed.
fn exit_code(error: &anyhow::Error) -> u8 {
    let is_invalid = error.is::<UsageError>() || error.is::<UnusableInput>();
    let names_no_server = error.is::<ServerError>() || error.is::<EndpointError>();
    let has_no_terminal = matches!(error.downcast_ref(), Some(TerminalError::NotATerminal(_)));
    let is_invalid = is_invalid || has_no_terminal;
    match is_invalid || names_no_server || error.is::<NoAnswer>() || is_unanswered(error) {
        true => UNUSABLE,
        false => 1,
    }
}

/// Prints the error with its causes. For a command that goes on with its other work and fails at
/// the end.
pub(crate) fn print(error: &anyhow::Error) {
    anstream::eprintln!("{}", ErrorReport(error));
    if let Some(limits) = hits_limit(error).then(limits::limits).flatten() {
        anstream::eprintln!("note: processes here have {limits}");
    }
}

/// Notes the host bits of the ranges of a flag, which are dropped, as the controllers do.
pub(crate) fn note_host_bits(ranges: &str) {
    for notice in Notice::of_host_bits(ranges) {
        anstream::eprintln!("note: {notice}");
    }
}

/// The error with its causes as text without colours.
pub(crate) fn plain(error: &anyhow::Error) -> String {
    anstream::adapter::strip_str(&ErrorReport(error).to_string()).to_string()
}

/// Returns true if a limit of the shell may have caused the error.
fn hits_limit(error: &anyhow::Error) -> bool {
    let io = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<io::Error>().map(io::Error::kind)
    };
    let mut kinds = chain(error).filter_map(io);
    let limited = [
        ErrorKind::FileTooLarge,
        ErrorKind::OutOfMemory,
        ErrorKind::WouldBlock,
    ];
    kinds.any(|kind| limited.contains(&kind))
}

/// The printed form: `error: …`, or the server's message as kubectl prints it, and a line for each
/// cause.
struct ErrorReport<'a>(&'a anyhow::Error);

impl fmt::Display for ErrorReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut chain = chain(self.0);
        let Some(first) = chain.next() else {
            return Ok(());
        };
        let mut said = match first.downcast_ref::<ApiError>() {
            Some(refused) => {
                let message = printable::lines(&refused.message);
                write!(f, "{ERROR}{}{ERROR:#}{message}", prefix(refused))?;
                refused.message.clone()
            }
            None => {
                let first = first.to_string();
                write!(f, "{ERROR}error: {ERROR:#}{}", printable::lines(&first))?;
                first
            }
        };
        for cause in chain {
            let cause = cause.to_string();
            // Errors of libraries may have their cause in their own text.
            if !said.ends_with(&cause) {
                write!(f, "\n  caused by: {}", printable::lines(&cause))?;
                said = cause;
            }
        }
        Ok(())
    }
}

/// The prefix of a server's error, as in kubectl: a message about an invalid object stands alone,
/// others are said to come from the server.
fn prefix(error: &ApiError) -> String {
    match error.reason {
        Reason::Invalid => "The ".into(),
        Reason::ServiceUnavailable if is_unserved_kind(error) => "error: ".into(),
        Reason::ServiceUnavailable => "error: the server does not answer: ".into(),
        reason => format!("Error from server ({}): ", reason.as_str()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    fn plain(error: &anyhow::Error) -> String {
        anstream::adapter::strip_str(&ErrorReport(error).to_string()).to_string()
    }

    #[test]
    fn quotes_server_errors_as_kubectl_does() {
        let error = ApiError::not_found("pods", "x").into();
        assert_eq!(
            plain(&error),
            r#"Error from server (NotFound): pods "x" not found"#
        );
        assert_eq!(
            plain(&UnusableInput(error).into()),
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
    fn prints_causes_after_the_error() {
        let error = std::io::Error::other("disk on fire");
        let error = Err::<(), _>(error)
            .context("failed to read x.yaml")
            .unwrap_err();
        assert_eq!(
            plain(&error),
            "error: failed to read x.yaml\n  caused by: disk on fire"
        );
    }

    #[test]
    fn prints_a_cause_once() {
        let error = anyhow::anyhow!("disk on fire").context("read: disk on fire");
        let error = error.context("failed to read x.yaml");
        assert_eq!(
            plain(&error),
            "error: failed to read x.yaml\n  caused by: read: disk on fire"
        );
    }

    #[test]
    fn the_mark_of_unusable_input_is_not_printed() {
        let error = anyhow::anyhow!("disk on fire").context("failed to read x.yaml");
        let error = anyhow::Error::from(UnusableInput(error)).context("failed to plan");
        assert_eq!(
            plain(&UnusableInput(error).into()),
            "error: failed to plan\n  caused by: failed to read x.yaml\n  caused by: disk on fire"
        );
    }

    #[test]
    fn escapes_control_characters_of_errors() {
        let error = ApiError::new(Reason::BadRequest, "a \u{1b}[31mb\u{202e}\nc").into();
        let shown = ErrorReport(&error).to_string();
        assert!(shown.ends_with("a \\u{1b}[31mb\\u{202e}\nc"), "{shown:?}");
    }

    #[test]
    fn exit_code_follows_from_the_error() {
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
        let refused = |reason| code(ApiError::new(reason, "x").into());
        assert_eq!(
            refused(Reason::NotFound),
            format!("{:?}", ExitCode::from(1))
        );
        assert_eq!(
            refused(Reason::ServiceUnavailable),
            format!("{:?}", ExitCode::from(2))
        );
        assert_eq!(
            code(UnusableInput(anyhow::anyhow!("x")).into()),
            format!("{:?}", ExitCode::from(2))
        );
        assert_eq!(
            code(UnusableInput(OutputClosed.into()).into()),
            format!("{:?}", ExitCode::SUCCESS)
        );
    }
}

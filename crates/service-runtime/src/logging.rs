//! Logs: one line for each event on standard error, so that standard output is left to the program.

use std::{
    io::{self, IsTerminal as _},
    sync::{Mutex, OnceLock, PoisonError},
};

use tracing_subscriber::{
    EnvFilter, Layer as _, Registry,
    filter::{LevelFilter, ParseError},
    fmt,
    layer::SubscriberExt as _,
    registry, reload,
    util::SubscriberInitExt as _,
};

/// The filter and the format of logs.
#[derive(Clone, Debug, clap::Args)]
pub struct LogConfig {
    /// Set the log filter: a level (off, error, warn, info, debug, trace) or `target=level`
    /// directives separated by commas
    #[arg(
        long,
        env = "PODPLANE_LOG",
        default_value = "info",
        value_name = "FILTER",
        global = true
    )]
    pub log: String,

    /// Write log lines in this format
    #[arg(
        long,
        env = "PODPLANE_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        global = true
    )]
    pub log_format: LogFormat,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// `time LEVEL target: message field=value`
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// An invalid log filter.
#[derive(Debug, thiserror::Error)]
pub enum LogFilterError {
    /// A single word is not a level.
    #[error(
        "invalid log filter: {0:?} is neither a level (off, error, warn, info, debug, trace) nor a directive such as podplane_scheduler=debug"
    )]
    NoLevel(String),
    /// A directive is invalid.
    #[error(
        "invalid log filter {filter:?}: want a level such as info, or directives such as podplane_scheduler=debug"
    )]
    Directive {
        /// The whole filter.
        filter: String,
        /// The reason.
        #[source]
        source: ParseError,
    },
}

/// The log filter, which can be changed.
struct LogFilter {
    handle: reload::Handle<EnvFilter, Registry>,
    /// The filter's text as it was set.
    text: Mutex<String>,
}

static FILTER: OnceLock<LogFilter> = OnceLock::new();

fn parse(text: &str) -> Result<EnvFilter, LogFilterError> {
    // The library takes a single word for the name of a target, so a misspelt level would silence
    // everything.
    let words = text
        .split(',')
        .map(str::trim)
        .filter(|_| !text.contains('['));
    for word in words.filter(|word| !word.is_empty() && !word.contains('=')) {
        if word.parse::<LevelFilter>().is_err() {
            return Err(LogFilterError::NoLevel(word.to_owned()));
        }
    }
    EnvFilter::try_new(text).map_err(|source| LogFilterError::Directive {
        filter: text.to_owned(),
        source,
    })
}

/// Installs the process's subscriber. Later calls change nothing.
///
/// # Errors
///
/// [`LogFilterError`] if the filter cannot be understood.
pub fn init(config: &LogConfig) -> Result<(), LogFilterError> {
    let (filter, handle) = reload::Layer::new(parse(&config.log)?);
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    let lines = match config.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    // It fails only if a subscriber is installed already, as in tests that start several services.
    if registry()
        .with(lines.with_filter(filter))
        .try_init()
        .is_ok()
    {
        let text = Mutex::new(config.log.clone());
        _ = FILTER.set(LogFilter { handle, text });
    }
    Ok(())
}

/// The present filter; `None` if [`init`] was not called.
pub fn filter() -> Option<String> {
    let filter = FILTER.get()?;
    let text = filter.text.lock().unwrap_or_else(PoisonError::into_inner);
    Some(text.clone())
}

/// Changes the filter from now on. Does nothing if [`init`] was not called.
///
/// # Errors
///
/// [`LogFilterError`] if the filter cannot be understood.
pub fn set_filter(text: &str) -> Result<(), LogFilterError> {
    let new = parse(text)?;
    if let Some(filter) = FILTER.get() {
        let mut known = filter.text.lock().unwrap_or_else(PoisonError::into_inner);
        // The subscriber lives as long as the process, and its lock is never held by a thread that
        // panics.
        if filter.handle.reload(new).is_ok() {
            text.clone_into(&mut known);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn parses_or_rejects_filters() {
        for text in [
            "info",
            "off",
            "warn,podplane_scheduler=debug",
            "a::b=trace,info",
            "",
        ] {
            assert!(parse(text).is_ok(), "{text}");
        }
        let error = parse("debgu").unwrap_err();
        assert!(
            error.to_string().contains("\"debgu\" is neither a level"),
            "{error}"
        );
        let error = parse("podplane_scheduler=loud").unwrap_err();
        assert!(error.source().is_some(), "{error}");
    }
}

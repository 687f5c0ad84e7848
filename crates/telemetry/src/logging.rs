//! Logs: one line for each event, on standard error, so that standard output stays the program's own.

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

/// How logs look and which are written.
#[derive(Clone, Debug, clap::Args)]
pub struct LogConfig {
    /// Which events are logged: a level (error, warn, info, debug, trace) or `target=level` directives, separated by commas.
    #[arg(
        long,
        env = "PODPLANE_LOG",
        default_value = "info",
        value_name = "FILTER",
        global = true
    )]
    pub log: String,

    /// The form of each line: text for people, json for machines.
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

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// `time LEVEL target: message field=value`
    #[default]
    Text,
    /// One JSON object.
    Json,
}

/// A filter that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum LogFilterError {
    /// A directive is neither a level nor has one.
    #[error(
        "invalid log filter: {0:?} is no level (off, error, warn, info, debug, trace), and no directive such as podplane_scheduler=debug"
    )]
    NoLevel(String),
    /// A directive that is none.
    #[error(
        "invalid log filter {filter:?}: want a level such as info, or directives such as podplane_scheduler=debug"
    )]
    Directive {
        /// The whole filter.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: ParseError,
    },
}

/// What decides which lines are written, and can be changed.
struct Filter {
    handle: reload::Handle<EnvFilter, Registry>,
    /// As it was given.
    text: Mutex<String>,
}

static FILTER: OnceLock<Filter> = OnceLock::new();

fn parse(text: &str) -> Result<EnvFilter, LogFilterError> {
    // The library takes a word alone for the name of a target, so that a level misspelt would silence everything.
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
    // It fails only when a subscriber is there already, as in tests that start several services.
    if registry()
        .with(lines.with_filter(filter))
        .try_init()
        .is_ok()
    {
        let text = Mutex::new(config.log.clone());
        _ = FILTER.set(Filter { handle, text });
    }
    Ok(())
}

/// Which lines are written, as it was said last; `None` where [`init`] was not called.
pub fn filter() -> Option<String> {
    let filter = FILTER.get()?;
    let text = filter.text.lock().unwrap_or_else(PoisonError::into_inner);
    Some(text.clone())
}

/// Changes which lines are written, from now on. Nothing happens where [`init`] was not called.
///
/// # Errors
///
/// [`LogFilterError`] if the filter cannot be understood.
pub fn set_filter(text: &str) -> Result<(), LogFilterError> {
    let new = parse(text)?;
    if let Some(filter) = FILTER.get() {
        let mut known = filter.text.lock().unwrap_or_else(PoisonError::into_inner);
        // The subscriber lives as long as the process, and its lock is never held by a thread that panics.
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
    fn filters_are_understood_or_refused() {
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
            error.to_string().contains("\"debgu\" is no level"),
            "{error}"
        );
        let error = parse("podplane_scheduler=loud").unwrap_err();
        assert!(error.source().is_some(), "{error}");
    }
}

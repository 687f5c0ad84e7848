//! Logs: one line for each event, on standard error, so that standard output stays the program's own.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

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
#[error(
    "invalid --log {filter:?}: want a level such as info, or directives such as podplane_scheduler=debug"
)]
pub struct LogFilterError {
    filter: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Installs the process's subscriber. Later calls change nothing.
///
/// # Errors
///
/// [`LogFilterError`] if the filter cannot be understood.
pub fn init(config: &LogConfig) -> Result<(), LogFilterError> {
    let filter = EnvFilter::try_new(&config.log).map_err(|source| LogFilterError {
        filter: config.log.clone(),
        source,
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal());
    // `try_init` fails only when a subscriber is there already, as in tests that start several services.
    let _ = match config.log_format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    Ok(())
}

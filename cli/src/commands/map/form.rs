//! The formats of the map, and the files they are written to.

use std::{
    io::{self, IsTerminal as _},
    path::PathBuf,
    str::FromStr,
};

use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use serde_json::Value;

use crate::{output, report::UsageError};

/// A format of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum MapFormat {
    Text,
    Json,
    Svg,
    Png,
}

/// `FORMAT` for standard output, or `FORMAT=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MapOutput {
    pub(super) format: MapFormat,
    file: Option<PathBuf>,
}

impl FromStr for MapOutput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = match text.split_once('=') {
            Some((_, "")) => return Err("missing FILE after =".into()),
            Some((format, file)) => (format, Some(file.into())),
            None => (text, None),
        };
        let format = MapFormat::from_str(format, false)
            .map_err(|_| "want text, json, svg or png, or one of them with =FILE".to_owned())?;
        Ok(Self { format, file })
    }
}

impl MapOutput {
    /// Refuses to print bytes to a terminal, and a file that cannot be written.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.format == MapFormat::Png && self.is_terminal() {
            let why = "a terminal does not show PNG: write it to a file with -o png=FILE";
            return Err(UsageError(why.into()).into());
        }
        output::page::check(&self.file)
    }

    /// Returns true if a terminal shows the output.
    pub(super) fn is_terminal(&self) -> bool {
        self.file.is_none() && io::stdout().is_terminal()
    }

    /// Returns true if the output has colours by default.
    pub(super) fn wants_color(&self) -> bool {
        self.file.is_none() && AutoStream::choice(&io::stdout()) != ColorChoice::Never
    }

    pub(super) fn write(&self, bytes: &[u8]) -> anyhow::Result<()> {
        match &self.file {
            Some(file) => output::page::write(file, bytes),
            None => output::bytes(bytes),
        }
    }

    pub(super) fn write_text(&self, text: &str) -> anyhow::Result<()> {
        self.write(text.as_bytes())
    }

    pub(super) fn write_json(&self, value: &Value) -> anyhow::Result<()> {
        self.write(&output::json_text(value)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_format_may_name_a_file() {
        let parsed = |text: &str| text.parse::<MapOutput>();
        let svg = parsed("svg=a=b.svg").unwrap();
        assert_eq!(svg.format, MapFormat::Svg);
        assert_eq!(svg.file, Some("a=b.svg".into()));
        assert_eq!(parsed("text").unwrap().file, None);
        for invalid in ["svg=", "gif", "gif=a", ""] {
            assert!(parsed(invalid).is_err(), "{invalid}");
        }
    }
}

//! Reports in files of their own, beside what a command prints.

use std::{fmt, fs, path::Path};

use anyhow::Context as _;
use jiff::Timestamp;
use podplane_api::printable;
use podplane_report::Fact;

/// Writes a report, or a picture of one, and says so.
pub(crate) fn write(file: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    anyhow::ensure!(
        file != Path::new("-"),
        "a report is written to a file, and `-` is none: name it, such as report.html"
    );
    fs::write(file, bytes).with_context(|| format!("failed to write {}", file.display()))?;
    wrote(file.display());
    Ok(())
}

/// Says on standard error that a file was written.
pub(crate) fn wrote(what: impl fmt::Display) {
    anstream::eprintln!("wrote {}", printable::line(&what.to_string()));
}

/// Returns the circumstances of a report, which its readers cannot ask for: the source, the time,
/// and the program.
pub(crate) fn circumstances(source: String) -> Vec<Fact> {
    let now = Timestamp::now();
    vec![
        Fact::new("Source", source),
        Fact::new("Time", format!("{now:.0}")),
        Fact::new("Made by", concat!("podplane ", env!("CARGO_PKG_VERSION"))),
    ]
}

/// Returns the names of files that were read.
pub(crate) fn files<P: AsRef<Path>>(files: &[P]) -> String {
    let names = files.iter().map(|file| match file.as_ref() {
        stdin if stdin == Path::new("-") => "standard input".into(),
        file => file.display().to_string(),
    });
    names.collect::<Vec<_>>().join(", ")
}

//! Reports in files of their own, beside what a command prints.

use std::{
    fmt, fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use podplane_api::printable;
use podplane_report::Fact;

use crate::report::UsageError;

/// Checks that reports can be written to these files, before the work that they are about. Leaves
/// no file behind, and no file changed.
pub(crate) fn check<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> anyhow::Result<()> {
    for file in files {
        refuse_stdout(file)?;
        let written = match fs::File::create_new(file) {
            Ok(_) => fs::remove_file(file),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                fs::OpenOptions::new().write(true).open(file).map(drop)
            }
            Err(error) => Err(error),
        };
        written.map_err(|error| not_writable(file, &error))?;
    }
    Ok(())
}

/// The directory that a file is in.
pub(crate) fn directory(file: &Path) -> &Path {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty());
    dir.unwrap_or(Path::new("."))
}

/// Checks that a file can be replaced in one step, before the work that it is about.
pub(crate) fn check_replaceable(file: &Path) -> anyhow::Result<()> {
    let tried = tempfile::tempfile_in(directory(file));
    tried.map_err(|error| not_writable(file, &error))?;
    Ok(())
}

/// Makes a directory for files, before the work that they are about.
pub(crate) fn make_dir(dir: &Path) -> anyhow::Result<()> {
    Ok(fs::create_dir_all(dir).map_err(|error| not_writable(dir, &error))?)
}

/// The error of a file that cannot be written, before the work or after it: 1 is the verdict of a
/// command that checks something.
pub(crate) fn not_writable(file: &Path, error: &io::Error) -> UsageError {
    UsageError(format!("failed to write {}: {error}", file.display()))
}

fn refuse_stdout(file: &Path) -> anyhow::Result<()> {
    if file == Path::new("-") {
        let message =
            "a report is written to a file, and `-` is none: name it, such as report.html";
        Err(UsageError(message.into()))?;
    }
    Ok(())
}

/// Writes a report, or a picture of one, and says so.
pub(crate) fn write(file: &Path, bytes: impl AsRef<[u8]>) -> anyhow::Result<()> {
    refuse_stdout(file)?;
    fs::write(file, bytes).map_err(|error| not_writable(file, &error))?;
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

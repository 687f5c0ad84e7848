//! Errors of file operations, in Go's words.

use std::{io, path::Path};

use rustix::{
    fs::{FileType, Mode},
    io::Errno,
};

/// An error such as `open /a/b: no such file or directory`.
pub(super) fn go_path_error(
    operation: &str,
    path: &Path,
    error: impl Into<io::Error>,
) -> io::Error {
    let error = error.into();
    let text = format!("{operation} {}: {}", path.display(), go_text(&error));
    io::Error::new(error.kind(), text)
}

/// The C library's text as Go has it: in lower case, without the number.
pub(super) fn go_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(chars).collect()
}

/// Makes a directory and its parents as Go's `MkdirAll` does, so that an error names the same
/// directory.
pub(super) fn mkdir_all(path: &Path) -> io::Result<()> {
    let is_dir = || {
        let stat = rustix::fs::stat(path).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    };
    match is_dir() {
        Some(true) => return Ok(()),
        Some(false) => return Err(go_path_error("mkdir", path, Errno::NOTDIR)),
        None => {}
    }
    if let Some(parent) = path.parent()
        && !parent.as_os_str().is_empty()
    {
        mkdir_all(parent)?;
    }
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o755)) {
        // Another process has made it meanwhile.
        Err(_) if is_dir() == Some(true) => Ok(()),
        made => made.map_err(|error| go_path_error("mkdir", path, error)),
    }
}

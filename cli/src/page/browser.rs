//! The browser that opens the page.

use std::{
    env,
    io::{self, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
};

use tempfile::NamedTempFile;

/// Opens a browser where there is a desktop; the address is printed in any case.
///
/// The address has a token, and everybody on the machine can read the command lines of processes.
/// So the browser gets a file that leads there, which only this user can read. It has to be kept
/// until the browser has read it.
pub(super) fn open(url: &str) -> Option<NamedTempFile> {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()));
    if !has_display {
        return None;
    }
    // Without the file or the program the user opens the address.
    let file = redirect(url).ok()?;
    let mut command = Command::new("xdg-open");
    command
        .arg(file.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().ok().map(|_opening| file)
}

/// A page that leads to `url`, which has no character that HTML would need to escape.
fn redirect(url: &str) -> io::Result<NamedTempFile> {
    let dir = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut file = tempfile::Builder::new()
        .prefix("podplane-ui-")
        .suffix(".html")
        .tempfile_in(dir.filter(|dir| dir.is_dir()).unwrap_or_else(env::temp_dir))?;
    writeln!(
        file,
        "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=\"0;url={url}\"><title>podplane</title><a href=\"{url}\">podplane</a>"
    )?;
    file.flush()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn the_address_is_in_a_file_of_the_user_alone() {
        let url = "http://podplane-1.localhost:1/ui/#token=1";
        let file = redirect(url).unwrap();
        let mode = fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let page = fs::read_to_string(file.path()).unwrap();
        assert!(page.contains(&format!("content=\"0;url={url}\"")), "{page}");
        assert!(!file.path().to_string_lossy().contains("token"));
    }
}

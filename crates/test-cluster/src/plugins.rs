//! CNI plugins that die between their work and their answer.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::{ClusterError, Result, fault::Fault, recording::Recorder};

/// A directory of wrappers for the CNI plugins of another directory, for `podplane up
/// --cni-bin-dir`.
///
/// Each wrapper is a shell script that executes the plugin of its name. While there is a token for
/// it, the script lets the plugin do its work, takes its answer, and kills itself with SIGKILL
/// before it passes the answer on. To the runtime, the plugin died with its work done, such as an
/// allocation file that was written.
#[derive(Debug)]
pub struct Plugins {
    dir: PathBuf,
    recorder: Recorder,
}

impl Plugins {
    /// Makes wrappers for the plugins of `real` in the directory `dir`, which is created.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if they cannot be made.
    pub fn before(real: &Path, dir: impl Into<PathBuf>, recorder: Recorder) -> Result<Self> {
        // The runtime executes them in a directory of its own, so the paths have to be absolute.
        let absolute = |path: &Path| {
            let found = std::path::absolute(path);
            found.map_err(ClusterError::io(format!("find {}", path.display())))
        };
        let (real, dir) = (&absolute(real)?, absolute(&dir.into())?);
        let made = || -> io::Result<()> {
            fs::create_dir_all(&dir)?;
            for entry in fs::read_dir(real)? {
                let entry = entry?;
                let metadata = fs::metadata(entry.path())?;
                if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
                    let path = dir.join(entry.file_name());
                    fs::write(&path, script(&entry.path(), &tokens(&path)))?;
                    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
                }
            }
            Ok(())
        };
        made().map_err(ClusterError::io(format!(
            "make plugins in {} that stand before those of {}",
            dir.display(),
            real.display()
        )))?;
        Ok(Self { dir, recorder })
    }

    /// The directory of the wrappers, for `podplane up --cni-bin-dir`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lets the next `times` ADDs of a plugin, such as `host-local`, die between their work and
    /// their answer, until the fault is healed or dropped.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Io`] if there is no such plugin.
    pub fn die_before_answer(&self, plugin: &str, times: u32) -> Result<Fault> {
        let path = self.dir.join(plugin);
        let tokens = tokens(&path);
        let made = || -> io::Result<()> {
            fs::metadata(&path)?;
            fs::create_dir_all(&tokens)?;
            (0..times).try_for_each(|number| fs::write(tokens.join(number.to_string()), ""))
        };
        made().map_err(ClusterError::io(format!(
            "arm the plugin {}",
            path.display()
        )))?;
        let what = format!("the next {times} ADDs of {plugin} die before they answer");
        let undo = move || _ = fs::remove_dir_all(tokens);
        Ok(Fault::new(what, self.recorder.clone(), undo))
    }

    /// Returns the number of ADDs of a plugin that are still to die.
    #[must_use]
    pub fn left(&self, plugin: &str) -> usize {
        let tokens = fs::read_dir(tokens(&self.dir.join(plugin)));
        tokens.map_or(0, |tokens| tokens.count())
    }
}

fn tokens(plugin: &Path) -> PathBuf {
    plugin.with_extension("tokens")
}

fn script(plugin: &Path, tokens: &Path) -> Vec<u8> {
    let mut script = OsString::from("#!/bin/sh\nplugin=");
    script.push(quoted(plugin));
    script.push("\ntokens=");
    script.push(quoted(tokens));
    script.push(
        r#"
if [ "$CNI_COMMAND" = ADD ] && [ -d "$tokens" ]; then
    for token in "$tokens"/*; do
        # Whoever removes it has it.
        if rm "$token" 2>/dev/null; then
            answer=$("$plugin")
            kill -KILL $$
        fi
    done
fi
exec "$plugin"
"#,
    );
    script.as_bytes().to_vec()
}

/// Quotes a path for the shell.
fn quoted(path: &Path) -> OsString {
    let mut quoted = OsString::from("'");
    let text = path.to_string_lossy().replace('\'', r"'\''");
    quoted.push(text);
    quoted.push("'");
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_a_relative_path_of_plugins() {
        let dir = tempfile::tempdir_in(".").unwrap();
        let relative = Path::new(dir.path().file_name().unwrap());
        fs::write(relative.join("host-local"), "").unwrap();
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(relative.join("host-local"), executable).unwrap();
        let plugins = Plugins::before(relative, relative.join("before"), Recorder::default());
        let plugins = plugins.unwrap();
        assert!(plugins.dir().is_absolute());
        let script = fs::read_to_string(plugins.dir().join("host-local")).unwrap();
        let real = std::env::current_dir().unwrap().join(relative);
        let line = format!("plugin='{}'", real.join("host-local").display());
        assert!(script.contains(&line), "{line} in {script}");
    }
}

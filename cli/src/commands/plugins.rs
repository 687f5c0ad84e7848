//! `plugins`: installs podplane's CNI plugins for a container runtime.

use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use podplane_cni::{runtime, skel};
use podplane_cni_plugins::PLUGINS;
use tempfile::NamedTempFile;

use crate::output::{self, page};

/// The time that an existing program in a plugin's place has to identify itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// Install podplane's CNI plugins for a container runtime
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  podplane plugins install /opt/cni/bin")]
pub(crate) struct PluginsArgs {
    #[command(subcommand)]
    command: PluginsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PluginsCommand {
    /// Install podplane's CNI plugins into DIR
    ///
    /// The plugins are those beside the podplane program. Each file is replaced atomically, so
    /// running plugins are not disturbed. If DIR has a file of the same name that is not
    /// podplane's, nothing is installed; --force replaces it.
    #[command(
        after_help = "Examples:\n  podplane plugins install /opt/cni/bin\n  podplane plugins install /opt/cni/bin --force"
    )]
    Install(InstallArgs),
}

#[derive(Debug, clap::Args)]
struct InstallArgs {
    /// Install into this directory, such as /opt/cni/bin; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Replace programs of the same name that are not podplane's
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: PluginsArgs) -> anyhow::Result<ExitCode> {
    let PluginsCommand::Install(InstallArgs { dir, force }) = args.command;
    let program = env::current_exe().context("failed to find the podplane program")?;
    let from = program.parent().unwrap_or(Path::new("/"));
    install(from, &dir, force)?;
    Ok(ExitCode::SUCCESS)
}

/// The present content of a plugin's place.
enum TargetContent {
    Empty,
    /// The same program as the one to be written.
    Same,
    /// A podplane plugin, with its version.
    Ours(String),
    /// Another file, with its description of itself.
    Foreign(String),
}

/// A plugin and its place.
struct PluginInstall {
    name: &'static str,
    program: Vec<u8>,
    target: PathBuf,
    place: TargetContent,
}

fn install(from: &Path, dir: &Path, force: bool) -> anyhow::Result<()> {
    page::make_dir(dir)?;
    let steps = PLUGINS.map(|name| step(name, from, dir));
    let steps: Vec<_> = steps.into_iter().collect::<anyhow::Result<_>>()?;
    refuse_foreign(&steps, force)?;
    for step in &steps {
        let PluginInstall {
            name,
            program,
            target,
            place,
        } = step;
        if !matches!(place, TargetContent::Same) {
            write(program, dir, target)
                .with_context(|| format!("failed to write {}", target.display()))?;
        }
        let done = match place {
            TargetContent::Empty => "installed".to_owned(),
            TargetContent::Same => "unchanged".to_owned(),
            TargetContent::Ours(version) => format!("replaced podplane {version}"),
            TargetContent::Foreign(about) => format!("replaced {about}"),
        };
        output::line(format_args!("{name}: {done}"))?;
    }
    // The renames, too, must survive a loss of power.
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("failed to sync {}", dir.display()))
}

fn refuse_foreign(steps: &[PluginInstall], force: bool) -> anyhow::Result<()> {
    let mut refused = String::new();
    for PluginInstall { target, place, .. } in steps {
        if let TargetContent::Foreign(about) = place {
            _ = write!(refused, "\n  {}: {about}", target.display());
        }
    }
    anyhow::ensure!(
        force || refused.is_empty(),
        "these are not podplane's, and nothing was written; --force replaces them:{refused}"
    );
    Ok(())
}

fn step(name: &'static str, from: &Path, dir: &Path) -> anyhow::Result<PluginInstall> {
    let source = from.join(name);
    let program = fs::read(&source).with_context(|| {
        format!(
            "failed to read the plugin {}, which belongs beside the podplane program",
            source.display()
        )
    })?;
    let target = dir.join(name);
    let place = match fs::symlink_metadata(&target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => TargetContent::Empty,
        Err(error) => {
            return Err(error).with_context(|| format!("failed to look at {}", target.display()));
        }
        Ok(found) if found.is_dir() => {
            anyhow::bail!("{} is a directory", target.display());
        }
        Ok(found) if found.is_file() => {
            let mode = found.permissions().mode() & 0o7777;
            let is_same = mode == 0o755 && fs::read(&target).is_ok_and(|old| old == program);
            if is_same {
                TargetContent::Same
            } else {
                ask(name, &target)
            }
        }
        Ok(_) => ask(name, &target),
    };
    Ok(PluginInstall {
        name,
        program,
        target,
        place,
    })
}

/// Asks a program to identify itself, as plugins do when `CNI_COMMAND` is not set.
fn ask(name: &str, program: &Path) -> TargetContent {
    let unset = [("CNI_COMMAND", OsString::new())];
    let answer = match runtime::execute(program, b"", &unset, Some(PATIENCE)) {
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(_) => String::new(),
    };
    let about = answer.lines().next().unwrap_or_default();
    match about.strip_prefix(&skel::about_prefix(name)) {
        Some(version) => TargetContent::Ours(version.to_owned()),
        None if about.is_empty() => {
            TargetContent::Foreign("a file that does not say what it is".to_owned())
        }
        None => TargetContent::Foreign(format!("{about:?}")),
    }
}

/// Writes a new file and renames it into place: at any moment the plugin is either the whole old or
/// the whole new one.
fn write(program: &[u8], dir: &Path, target: &Path) -> anyhow::Result<()> {
    // A runtime that lists the directory must not take the unfinished file for a plugin.
    let mut file = NamedTempFile::with_prefix_in(".podplane-", dir)?;
    io::Write::write_all(&mut file, program)?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o755))?;
    file.as_file().sync_all()?;
    file.persist(target)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(dir: &Path, name: &str, about: &str) {
        let path = dir.join(name);
        fs::write(&path, format!("#!/bin/sh\necho '{about}' >&2\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    }

    /// Programs that identify themselves as podplane's, of a version.
    fn ours(version: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in PLUGINS {
            let about = format!("{}{version}", skel::about_prefix(name));
            script(dir.path(), name, &about);
        }
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn installs_all_plugins_and_replaces_older_versions() {
        let (from, to) = (ours("1"), tempfile::tempdir().unwrap());
        let dir = to.path().join("opt/cni/bin");
        for from in [&from, &from, &ours("2")] {
            install(from.path(), &dir, false).unwrap();
            assert_eq!(names(&dir), PLUGINS);
            for name in PLUGINS {
                let written = fs::read(dir.join(name)).unwrap();
                assert_eq!(written, fs::read(from.path().join(name)).unwrap());
                let mode = fs::metadata(dir.join(name)).unwrap().permissions().mode();
                assert_eq!(mode & 0o7777, 0o755);
            }
        }
    }

    #[test]
    fn replaces_foreign_programs_only_with_force() {
        let (from, to) = (ours("1"), tempfile::tempdir().unwrap());
        script(to.path(), "host-local", "CNI host-local plugin v1.1.1");
        fs::write(to.path().join("ptp"), "junk").unwrap();
        script(to.path(), "vlan", "CNI vlan plugin v1.1.1");
        let before = fs::read(to.path().join("host-local")).unwrap();
        let error = install(from.path(), to.path(), false)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("host-local: \"CNI host-local plugin v1.1.1\""),
            "{error}"
        );
        assert!(
            error.contains("ptp: a file that does not say what it is"),
            "{error}"
        );
        assert_eq!(
            names(to.path()),
            ["host-local", "ptp", "vlan"],
            "nothing was written"
        );
        assert_eq!(fs::read(to.path().join("host-local")).unwrap(), before);
        install(from.path(), to.path(), true).unwrap();
        assert_ne!(fs::read(to.path().join("host-local")).unwrap(), before);
        assert!(to.path().join("vlan").exists());
    }

    #[test]
    fn installs_nothing_if_a_plugin_is_missing() {
        let (from, to) = (ours("1"), tempfile::tempdir().unwrap());
        fs::remove_file(from.path().join("static")).unwrap();
        let error = install(from.path(), to.path(), false).unwrap_err();
        assert!(
            error.to_string().contains("static, which belongs beside"),
            "{error}"
        );
        assert!(names(to.path()).is_empty());
    }
}

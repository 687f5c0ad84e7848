//! `plugins`: puts podplane's CNI plugins where a container runtime looks for them.

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
use podplane_cni::{PLUGINS, runtime, skel};
use tempfile::NamedTempFile;

use crate::output;

/// How long a program that is found in a plugin's place may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);

/// Put podplane's CNI plugins where a container runtime looks for them
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  podplane plugins install /opt/cni/bin")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write every plugin into DIR, each in one step, so that one that runs is not disturbed
    ///
    /// The plugins are those beside the podplane program. Where one of them is another's program, nothing is written; --force replaces it.
    #[command(
        after_help = "Examples:\n  podplane plugins install /opt/cni/bin\n  podplane plugins install /opt/cni/bin --force"
    )]
    Install(InstallArgs),
}

#[derive(Debug, clap::Args)]
struct InstallArgs {
    /// The directory, such as /opt/cni/bin; made if it is not there
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Replace programs of the same name that are not podplane's
    #[arg(long)]
    force: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Command::Install(InstallArgs { dir, force }) = args.command;
    let program = env::current_exe().context("find the podplane program")?;
    let from = program.parent().unwrap_or(Path::new("/"));
    install(from, &dir, force)?;
    Ok(ExitCode::SUCCESS)
}

/// What is in a plugin's place.
enum Place {
    Empty,
    /// The very program that would be written.
    Same,
    /// A program of podplane's, with its version.
    Ours(String),
    /// Something else, and what it says it is.
    Foreign(String),
}

/// A plugin and its place.
struct Step {
    name: &'static str,
    program: Vec<u8>,
    target: PathBuf,
    place: Place,
}

fn install(from: &Path, dir: &Path, force: bool) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let steps = PLUGINS.map(|name| step(name, from, dir));
    let steps: Vec<_> = steps.into_iter().collect::<anyhow::Result<_>>()?;
    refuse_foreign(&steps, force)?;
    for step in &steps {
        let Step {
            name,
            program,
            target,
            place,
        } = step;
        if !matches!(place, Place::Same) {
            write(program, dir, target).with_context(|| format!("write {}", target.display()))?;
        }
        let done = match place {
            Place::Empty => "installed".to_owned(),
            Place::Same => "unchanged".to_owned(),
            Place::Ours(version) => format!("replaced podplane {version}"),
            Place::Foreign(about) => format!("replaced {about}"),
        };
        output::line(format_args!("{name}: {done}"))?;
    }
    // The renames, too, are to survive a loss of power.
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.with_context(|| format!("sync {}", dir.display()))
}

fn refuse_foreign(steps: &[Step], force: bool) -> anyhow::Result<()> {
    let mut refused = String::new();
    for Step { target, place, .. } in steps {
        if let Place::Foreign(about) = place {
            _ = write!(refused, "\n  {}: {about}", target.display());
        }
    }
    anyhow::ensure!(
        force || refused.is_empty(),
        "these are not podplane's, and nothing was written; --force replaces them:{refused}"
    );
    Ok(())
}

fn step(name: &'static str, from: &Path, dir: &Path) -> anyhow::Result<Step> {
    let source = from.join(name);
    let program = fs::read(&source).with_context(|| {
        format!(
            "read the plugin {}, which belongs beside the podplane program",
            source.display()
        )
    })?;
    let target = dir.join(name);
    let place = match fs::symlink_metadata(&target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Place::Empty,
        Err(error) => return Err(error).with_context(|| format!("look at {}", target.display())),
        Ok(found) if found.is_dir() => {
            anyhow::bail!("{} is a directory", target.display());
        }
        Ok(found) if found.is_file() => {
            let mode = found.permissions().mode() & 0o7777;
            let is_same = mode == 0o755 && fs::read(&target).is_ok_and(|old| old == program);
            if is_same {
                Place::Same
            } else {
                ask(name, &target)
            }
        }
        Ok(_) => ask(name, &target),
    };
    Ok(Step {
        name,
        program,
        target,
        place,
    })
}

/// Asks a program what it is, as plugins answer when `CNI_COMMAND` is not set.
fn ask(name: &str, program: &Path) -> Place {
    let unset = [("CNI_COMMAND", OsString::new())];
    let answer = match runtime::execute(program, b"", &unset, Some(PATIENCE)) {
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(_) => String::new(),
    };
    let about = answer.lines().next().unwrap_or_default();
    match about.strip_prefix(&skel::about_prefix(name)) {
        Some(version) => Place::Ours(version.to_owned()),
        None if about.is_empty() => {
            Place::Foreign("a file that does not say what it is".to_owned())
        }
        None => Place::Foreign(format!("{about:?}")),
    }
}

/// Writes a new file and renames it into place: who runs or starts the plugin meanwhile has the whole old one, or the whole new one.
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

    /// Programs that say they are podplane's, of a version.
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
    fn all_are_written_and_a_newer_version_replaces_them() {
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
    fn anothers_program_is_replaced_only_by_force() {
        let (from, to) = (ours("1"), tempfile::tempdir().unwrap());
        script(to.path(), "host-local", "CNI host-local plugin v1.1.1");
        fs::write(to.path().join("ptp"), "junk").unwrap();
        script(to.path(), "tuning", "CNI tuning plugin v1.1.1");
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
            ["host-local", "ptp", "tuning"],
            "nothing was written"
        );
        assert_eq!(fs::read(to.path().join("host-local")).unwrap(), before);
        install(from.path(), to.path(), true).unwrap();
        assert_ne!(fs::read(to.path().join("host-local")).unwrap(), before);
        assert!(to.path().join("tuning").exists());
    }

    #[test]
    fn a_plugin_that_is_missing_stops_all() {
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

//! Images of Debian's programs in the form of the published ones, since no registry is asked.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use podplane_tests::programs::finish;

use crate::daemon::Daemon;

/// The name that deploy/compose.yaml has for the image of deploy/Dockerfile.prometheus.
const PROMETHEUS: &str = "podplane-prometheus";
/// The configuration of that image.
const PROMETHEUS_CHANGES: &[&str] = &["ENTRYPOINT [\"prometheus\"]"];
/// The name that deploy/compose.ha.yaml has for the image of deploy/Dockerfile.etcd.
const ETCD: &str = "podplane-etcd";
/// The user of Debian's package.
const ETCD_USER: u32 = 100;
/// The configuration of that image.
const ETCD_CHANGES: &[&str] = &["CMD [\"etcd\"]"];

/// Makes the image of the programs in this directory.
pub(crate) fn prometheus(daemon: &Daemon, programs: &Path) -> Result<()> {
    let root = daemon.dir().join("prometheus");
    let programs = ["prometheus", "promtool"].map(|name| programs.join(name));
    add_programs(&root, &programs)?;
    import(daemon, &root, PROMETHEUS, PROMETHEUS_CHANGES)
}

/// Makes the image of these programs. It has nothing but them, their libraries, and the directory
/// that belongs to the package's own user.
pub(crate) fn etcd(daemon: &Daemon, programs: &[PathBuf]) -> Result<()> {
    let root = daemon.dir().join("etcd");
    add_programs(&root, programs)?;
    let data = root.join("var/lib/etcd");
    fs::create_dir_all(&data)?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
    chown(&data, Some(ETCD_USER), Some(ETCD_USER))?;
    import(daemon, &root, ETCD, ETCD_CHANGES)
}

/// Copies programs with their libraries.
fn add_programs(root: &Path, programs: &[PathBuf]) -> Result<()> {
    let bin = root.join("bin");
    fs::create_dir_all(&bin)?;
    for program in programs {
        let name = program.file_name().context("a name")?;
        let copied = fs::copy(program, bin.join(name));
        copied.with_context(|| format!("copy {}", program.display()))?;
        for library in libraries(program) {
            let to = root.join(library.strip_prefix("/")?);
            fs::create_dir_all(to.parent().context("its directory")?)?;
            fs::copy(&library, &to).with_context(|| format!("copy {}", library.display()))?;
        }
    }
    Ok(())
}

fn import(daemon: &Daemon, root: &Path, image: &str, changes: &[&str]) -> Result<()> {
    let archive = daemon.dir().join(format!("{image}.tar"));
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&archive);
    finish(tar.arg("--directory").arg(root).arg(".")).ok();
    let mut import = daemon.command("docker");
    import.arg("import");
    for change in changes {
        import.args(["--change", change]);
    }
    finish(import.arg(&archive).arg(image)).ok();
    Ok(())
}

/// The libraries of a program, with the one that loads the others; none of a static one.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = finish(Command::new("ldd").arg(program));
    let paths = listed.stdout.split_whitespace();
    let paths = paths.filter(|word| word.starts_with('/') && Path::new(word).is_file());
    paths.map(PathBuf::from).collect()
}

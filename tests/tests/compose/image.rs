//! An image of Debian's Prometheus in the form of the published one, since no registry is asked.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use podplane_tests::programs::finish;

use crate::daemon::Daemon;

/// The name of the image.
pub(crate) const PROMETHEUS: &str = "debian-prometheus";
/// The published image's user, nobody.
const USER: u32 = 65534;
/// The configuration of the published image.
const CHANGES: [&str; 4] = [
    "USER 65534",
    "WORKDIR /prometheus",
    "VOLUME /prometheus",
    "ENTRYPOINT [\"/bin/prometheus\"]",
];

/// Makes the image of the programs in this directory.
pub(crate) fn prometheus(daemon: &Daemon, programs: &Path) -> Result<()> {
    let root = daemon.dir().join("prometheus");
    let bin = root.join("bin");
    fs::create_dir_all(&bin)?;
    for name in ["prometheus", "promtool"] {
        let program = programs.join(name);
        fs::copy(&program, bin.join(name)).with_context(|| format!("copy {name}"))?;
        for library in libraries(&program) {
            let to = root.join(library.strip_prefix("/")?);
            fs::create_dir_all(to.parent().context("its directory")?)?;
            fs::copy(&library, &to).with_context(|| format!("copy {}", library.display()))?;
        }
    }
    let data = root.join("prometheus");
    fs::create_dir(&data)?;
    chown(&data, Some(USER), Some(USER))?;

    let archive = daemon.dir().join("prometheus.tar");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&archive);
    finish(tar.arg("--directory").arg(&root).arg(".")).ok();
    let mut import = daemon.command("docker");
    import.arg("import");
    for change in CHANGES {
        import.args(["--change", change]);
    }
    finish(import.arg(&archive).arg(PROMETHEUS)).ok();
    Ok(())
}

/// The libraries of a program, with the one that loads the others; none of a static one.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = finish(Command::new("ldd").arg(program));
    let paths = listed.stdout.split_whitespace();
    let paths = paths.filter(|word| word.starts_with('/') && Path::new(word).is_file());
    paths.map(PathBuf::from).collect()
}

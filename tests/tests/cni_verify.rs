//! `podplane cni verify` on the command line: lines as checks end, signals, exit codes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
};

use anyhow::{Context as _, Result};
use podplane_tests::{
    eventually,
    programs::{Scratch, bin_dir, finish, podplane},
};
use rustix::process::{Pid, Signal, kill_process};

/// The environment variable of all processes that a test starts.
const MARK: &str = "PODPLANE_VERIFY_TEST";

/// podplane's host-local with a store of its own. In the ADD that follows a full range it hangs,
/// and so does a child of it.
fn plugin(dir: &Scratch) -> Result<PathBuf> {
    let path = dir.path().join("my-ipam");
    let text = format!(
        "#!/bin/sh\n\
         if [ $CNI_COMMAND.$CNI_CONTAINERID = ADD.next ]; then\n\
         sleep 1000 & touch {dir}/hangs; sleep 1000\n\
         fi\n\
         sed 's|\"dataDir\":\"[^\"]*\"|\"dataDir\":\"{dir}/store\"|' | {bin}/host-local\n",
        dir = dir.path().display(),
        bin = bin_dir().display(),
    );
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn verify(dir: &Scratch, plugin: &Path, flags: &[&str]) -> Result<Child> {
    let temporary = dir.path().join("tmp");
    fs::create_dir_all(&temporary)?;
    let mut command = podplane(["cni", "verify"]);
    command
        .arg(plugin)
        .args(flags)
        .env("TMPDIR", temporary)
        .env(MARK, dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command.spawn()?)
}

/// The number of processes with the mark of this test in their environment.
fn marked(dir: &Scratch) -> usize {
    let mark = format!("{MARK}={}", dir.path().display());
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let environments =
        processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
    let has_mark = |environment: &Vec<u8>| {
        environment
            .split(|byte| *byte == 0)
            .any(|entry| entry == mark.as_bytes())
    };
    environments.filter(has_mark).count()
}

/// The leases in all networks of the plugin's store.
fn leases(dir: &Scratch) -> usize {
    let networks = fs::read_dir(dir.path().join("store"))
        .into_iter()
        .flatten()
        .flatten();
    let names = networks.flat_map(|network| fs::read_dir(network.path()).into_iter().flatten());
    let is_lease = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("10.");
    names
        .flatten()
        .map(|entry| entry.file_name())
        .filter(is_lease)
        .count()
}

#[tokio::test]
async fn signal_ends_the_run_with_a_report_and_leaves_nothing() -> Result<()> {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let dir = Scratch::new();
        let junit = dir.path().join("report.xml");
        let flags = [
            "--only",
            "check-answer",
            "--only",
            "exhaustion",
            "--only",
            "add-repeat",
        ];
        let flags = [
            &flags[..],
            &["--junit", junit.to_str().context("a path in UTF-8")?],
        ]
        .concat();
        let mut child = verify(&dir, &plugin(&dir)?, &flags)?;
        let hangs = dir.path().join("hangs");
        eventually("the plugin hangs", async || hangs.exists(), |hangs| *hangs).await;
        assert!(leases(&dir) > 5, "a full range");
        assert!(marked(&dir) > 1);

        let pid = Pid::from_child(&child);
        kill_process(pid, signal)?;
        let mut stdout = String::new();
        child
            .stdout
            .take()
            .context("a pipe")?
            .read_to_string(&mut stdout)?;
        let status = child.wait()?;
        assert_eq!(status.code(), Some(code), "{stdout}");
        let result = |id: &str| {
            let line = stdout
                .lines()
                .find(|line| line.contains(&format!("   {id} ")));
            line.and_then(|line| line.split("  ").next())
                .map(str::to_owned)
        };
        assert_eq!(result("exhaustion").as_deref(), Some("stopped"), "{stdout}");
        assert_eq!(result("add-repeat").as_deref(), Some("not run"), "{stdout}");
        assert!(stdout.contains("\nInterrupted. "), "{stdout}");
        assert!(fs::read_to_string(junit)?.contains("stopped"));

        assert_eq!(fs::read_dir(dir.path().join("tmp"))?.count(), 0);
        assert_eq!((leases(&dir), marked(&dir)), (0, 0), "{stdout}");
    }
    Ok(())
}

#[tokio::test]
async fn prints_each_check_as_it_ends() -> Result<()> {
    let dir = Scratch::new();
    let flags = ["--only", "bad-json", "--only", "exhaustion"];
    let mut child = verify(&dir, &plugin(&dir)?, &flags)?;
    let stdout = BufReader::new(child.stdout.take().context("a pipe")?);
    // The next check never ends.
    let mut lines = stdout.lines();
    let told = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains("bad-json")));
    assert!(told.context("a line")??.starts_with("ok "));
    kill_process(Pid::from_child(&child), Signal::TERM)?;
    child.wait()?;
    Ok(())
}

#[test]
fn closed_pipe_ends_the_run() -> Result<()> {
    let dir = Scratch::new();
    let host_local = bin_dir().join("host-local");
    let mut child = verify(&dir, &host_local, &["--rounds", "100000"])?;
    // The whole run would take hours.
    drop(child.stdout.take());
    let status = child.wait()?;
    assert!(status.success(), "{status}");
    assert_eq!(fs::read_dir(dir.path().join("tmp"))?.count(), 0);
    Ok(())
}

#[test]
fn quick_conflicts_with_rounds() {
    let mut command = podplane(["cni", "verify", "/bin/true", "--quick", "--rounds", "5"]);
    let refused = finish(&mut command);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--rounds"), "{}", refused.stderr);
}

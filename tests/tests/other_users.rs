//! Another user of the same machine gets nothing of a cluster but the probes: not by its ports, not
//! by its sockets, not by its files, and not by /proc.
//!
//! Nothing is listed by hand: files are found by a walk, ports and sockets by the open files of the
//! cluster's processes, methods by reflection, and paths by the OpenAPI document.

mod cluster;
mod ports;

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use anyhow::Result;
use podplane_tests::{Machine, peers, stranger::Stranger};

use cluster::OwnedCluster;

/// `nobody`, and a user who has not even a name.
const OWNER: u32 = 65534;
const STRANGER: Stranger = Stranger(65533);

#[tokio::test(flavor = "multi_thread")]
async fn another_user_gets_nothing_of_a_cluster_of_root() -> Result<()> {
    nothing_is_given_away(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_gets_nothing_of_a_cluster_of_an_unprivileged_user() -> Result<()> {
    nothing_is_given_away(OWNER)
}

fn nothing_is_given_away(owner: u32) -> Result<()> {
    if !peers::root() || !peers::program("curl") || !peers::program("kubectl") {
        return Ok(());
    }
    let Some(grpcurl) = peers::grpcurl() else {
        return Ok(());
    };
    let before = Machine::now();
    let cluster = OwnedCluster::start(owner)?;
    cluster.podplane("run web --replicas 2 --wait").ok();
    let processes = cluster.processes()?;
    let secrets = secrets(&cluster)?;
    assert!(secrets.len() > 20, "keys of all processes, and a token");

    files_are_closed(&cluster)?;
    processes_tell_no_secret(&processes, &secrets)?;
    logs_have_no_secret(&cluster, &secrets)?;
    ports::only_probes_are_answered(&cluster, &processes, &grpcurl)?;
    programs_are_refused(&cluster, &processes)?;
    // The directory's own mode is one wall. Keys and sockets have another, for owners who open it.
    open_directories(cluster.data_dir())?;
    keys_are_closed(&cluster, &secrets)?;
    ports::sockets_are_closed(&cluster, &processes)?;

    assert_eq!(cluster.processes()?, processes, "the same processes run");
    cluster.podplane("ping web-0 web-1 --count 1").ok();
    cluster.purge()?;
    assert_eq!(before, Machine::now());
    Ok(())
}

/// Everything below a directory, without following links.
fn walk(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                dirs.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// The lines of private keys, in each spelling, and the token: whatever of it is seen somewhere is
/// too much.
fn secrets(cluster: &OwnedCluster) -> Result<BTreeSet<String>> {
    let mut secrets = BTreeSet::from([cluster::TOKEN.to_owned()]);
    for path in walk(cluster.data_dir())? {
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        let mut is_key = false;
        for line in text.lines() {
            match line {
                _ if line.starts_with("-----") => is_key = line.contains("BEGIN PRIVATE KEY"),
                _ if is_key => _ = secrets.insert(line.to_owned()),
                _ => secrets.extend(
                    line.trim()
                        .strip_prefix("client-key-data: ")
                        .map(Into::into),
                ),
            }
        }
    }
    Ok(secrets)
}

fn found<'a>(secrets: &'a BTreeSet<String>, text: &str) -> Option<&'a String> {
    secrets.iter().find(|secret| text.contains(*secret))
}

/// What of these paths the stranger may read or write.
fn accessible(paths: &[PathBuf]) -> Result<String> {
    const TRY: &str = r#"
        while IFS= read -r -d '' path; do
            [ -r "$path" ] && echo "read $path"
            [ -w "$path" ] && echo "write $path"
        done
        exit 0
    "#;
    let paths = paths.iter().map(|path| format!("{}\0", path.display()));
    Ok(STRANGER.shell(TRY, paths.collect())?.ok())
}

/// All files that the cluster has made, wherever it was told to make them, and those that its
/// processes have open elsewhere.
fn files_are_closed(cluster: &OwnedCluster) -> Result<()> {
    let mut paths = vec![cluster.data_dir().to_owned()];
    for dir in cluster.dirs() {
        paths.extend(walk(&dir)?);
    }
    assert!(paths.len() > 50, "{paths:?}");
    for pid in cluster.processes()?.keys() {
        for file in fs::read_dir(format!("/proc/{pid}/fd"))? {
            // It may have been closed meanwhile.
            let Ok(open) = fs::read_link(file?.path()) else {
                continue;
            };
            // The other ones are pipes and the like.
            paths.extend(Some(open).filter(|open| open.is_file() && open.starts_with("/")));
        }
    }
    assert_eq!(accessible(&paths)?, "");
    Ok(())
}

fn keys_are_closed(cluster: &OwnedCluster, secrets: &BTreeSet<String>) -> Result<()> {
    let all = walk(cluster.data_dir())?;
    let open = accessible(&all)?;
    assert!(open.contains("cluster.json"), "it is open now: {open}");
    let open: BTreeSet<_> = open.lines().collect();
    let mut closed = 0;
    for path in all {
        let shown = path.display();
        let is_writable = open.contains(&*format!("write {shown}"));
        assert!(!is_writable, "everyone may write {shown}");
        let bytes = fs::read(&path).unwrap_or_default();
        let has_secret = found(secrets, &String::from_utf8_lossy(&bytes)).is_some();
        if has_secret || fs::symlink_metadata(&path)?.file_type().is_socket() {
            closed += 1;
            let is_readable = open.contains(&*format!("read {shown}"));
            assert!(!is_readable, "everyone may read {shown}");
        }
    }
    assert!(closed > 20, "keys and sockets: {closed}");
    Ok(())
}

fn open_directories(dir: &Path) -> Result<()> {
    let dirs = walk(dir)?.into_iter().filter(|path| path.is_dir());
    for dir in dirs.chain([dir.to_owned()]) {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn processes_tell_no_secret(
    processes: &cluster::Processes,
    secrets: &BTreeSet<String>,
) -> Result<()> {
    // Everything that the kernel tells others of a process, and then what it must not tell them.
    const TRY: &str = r#"
        while read -r pid; do
            for file in /proc/$pid/*; do
                [ -f "$file" ] && head -c 262144 "$file" 2>/dev/null | tr '\0' '\n'
            done
            for file in /proc/$pid/{environ,maps,auxv}; do
                head -c 1 "$file" >/dev/null 2>&1 && echo "OPEN $file"
            done
            for link in /proc/$pid/{cwd,root,exe} /proc/$pid/{fd,ns}/*; do
                readlink "$link" >/dev/null 2>&1 && echo "OPEN $link"
            done
            for namespace in net mnt user; do
                nsenter --target $pid --$namespace true 2>/dev/null && echo "OPEN $namespace $pid"
            done
        done
        exit 0
    "#;
    let pids = processes.keys().map(|pid| format!("{pid}\n"));
    let told = STRANGER.shell(TRY, pids.collect())?.ok();
    assert!(told.contains("--data-dir"), "command lines are told");
    let open: Vec<_> = told
        .lines()
        .filter(|line| line.starts_with("OPEN"))
        .collect();
    assert_eq!(open, [""; 0]);
    assert_eq!(found(secrets, &told), None);
    // The owner's own view.
    for (pid, line) in processes {
        let environment = fs::read(format!("/proc/{pid}/environ"))?;
        let environment = String::from_utf8_lossy(&environment);
        assert_eq!(found(secrets, &environment), None, "{line}");
    }
    Ok(())
}

fn logs_have_no_secret(cluster: &OwnedCluster, secrets: &BTreeSet<String>) -> Result<()> {
    for path in walk(&cluster.data_dir().join("logs"))? {
        let log = fs::read_to_string(&path)?;
        assert_eq!(found(secrets, &log), None, "{}", path.display());
    }
    Ok(())
}

/// The stranger's own kubectl and podplane.
fn programs_are_refused(cluster: &OwnedCluster, processes: &cluster::Processes) -> Result<()> {
    let dir = cluster.data_dir().display().to_string();
    let run = |program: &Path, args: &str| {
        let mut command = STRANGER.command(program);
        let command = command.args(args.split_whitespace());
        podplane_tests::stranger::run(command.env("PODPLANE_DATA_DIR", &dir), String::new())
    };
    for args in [
        "status",
        "get pods",
        "describe pod web-0",
        "logs web-0",
        "exec web-0 -- true",
        "ping web-0 web-1 --count 1",
        "trace pod web-0",
        "run mine",
        "node add mine",
        "restart scheduler",
        "kubeconfig",
        "up --detach",
        "down --purge",
    ] {
        let said = run(&cluster.bin_dir().join("podplane"), args)?;
        assert_ne!(said.code, Some(0), "{args}: {said:?}");
        // A directory of another user who is not root is not even looked into.
        let reasons = ["ermission denied", "belongs to user"];
        let is_refused = reasons.iter().any(|reason| said.stderr.contains(reason));
        assert!(is_refused, "{args}: {said:?}");
    }
    let kubectl = Path::new("kubectl");
    let said = run(kubectl, &format!("get pods --kubeconfig {dir}/kubeconfig"))?;
    assert!(said.failed(1).contains("permission denied"));
    let server = fs::read_to_string(cluster.data_dir().join("apiserver.address"))?;
    // Without credentials, kubectl asks a person for them.
    let guessed = format!(
        "--server {} --insecure-skip-tls-verify --token guessed",
        server.trim()
    );
    for args in [
        "get pods -A",
        "get --raw /metrics",
        "auth whoami",
        "create token default",
    ] {
        let said = run(kubectl, &format!("{args} {guessed}"))?.failed(1);
        let is_refused = said.contains("provide credentials") || said.contains("nauthorized");
        assert!(is_refused, "{args}: {said}");
    }
    assert_eq!(cluster.processes()?, *processes, "the same processes run");
    Ok(())
}

//! Mistakes of people and machines, and podplane's answers to them.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use podplane_api::{Object as _, core::Pod};
use podplane_tests::{
    Cluster, Network, builder, eventually,
    machine::TEST_DISK,
    peers, processes_of,
    programs::{ProgramOutput, Scratch, bin_dir, finish, podplane},
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

fn up(dir: &Scratch, flags: &str) -> ProgramOutput {
    dir.podplane(&format!("up --detach --wait --network ledger {flags}"))
}

/// Checks that a command failed with code 1 or 2 (the command line itself is wrong) and printed all
/// of `want`, without a panic.
#[track_caller]
fn refuses(refused: &ProgramOutput, want: &[&str]) {
    assert!(matches!(refused.code, Some(1 | 2)), "{refused:?}");
    assert!(!refused.stderr.contains("panicked"), "{}", refused.stderr);
    for want in want {
        assert!(
            refused.stderr.contains(want),
            "{want:?} is not in: {}",
            refused.stderr
        );
    }
}

#[test]
fn ranges_that_cannot_work_are_refused_before_anything_starts() {
    let dir = Scratch::new();
    for (flags, want) in [
        (
            "--cluster-cidr 10.0.0.0/24 --node-cidr-mask-size 24 --service-cluster-ip-range 10.0.0.0/24",
            &["10.0.0.0/24", "no block"][..],
        ),
        (
            "--cluster-cidr 10.0.0.0/26 --node-cidr-mask-size 24",
            &["mask size of cluster CIDR must be less than or equal to --node-cidr-mask-size"],
        ),
        (
            "--cluster-cidr nonsense",
            &[
                "invalid value 'nonsense' for '--cluster-cidr <CIDR[,CIDR]>': not a CIDR such as 10.244.0.0/16",
            ],
        ),
        (
            "--cluster-cidr 10.0.0.0/16,10.1.0.0/16",
            &["they are not configured as dual stack"],
        ),
        ("--nodes many", &["--nodes", "many"]),
        ("--listen here", &["--listen", "here"]),
    ] {
        refuses(&up(&dir, flags), want);
        assert_eq!(
            podplane_tests::processes_of(&dir.path().display().to_string()).unwrap(),
            [],
            "{flags}"
        );
    }
}

#[test]
fn a_data_directory_of_another_version_is_refused_and_kept() {
    let dir = Scratch::new();
    up(&dir, "").ok();
    dir.podplane("down").ok();
    let version = dir.path().join("VERSION");
    fs::write(&version, "999\n").unwrap();
    refuses(&up(&dir, ""), &["999", &dir.path().display().to_string()]);
    assert!(dir.path().join("store").exists());
    // An earlier version is read, and raised before the cluster writes.
    fs::write(&version, "1\n").unwrap();
    up(&dir, "").ok();
    assert_eq!(fs::read_to_string(&version).unwrap(), "3\n");
}

#[test]
fn a_directory_that_is_not_ours_is_not_touched() {
    let dir = Scratch::new();
    fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
    refuses(&up(&dir, ""), &["data directory"]);
    let purge = dir.podplane("down --purge");
    assert_eq!(
        fs::read_to_string(dir.path().join("thesis.txt")).unwrap(),
        "years of work",
        "{purge:?}"
    );
}

#[test]
fn a_truncated_store_is_named_and_not_opened() {
    let dir = Scratch::new();
    up(&dir, "").ok();
    dir.podplane("run web --replicas 20 --wait").ok();
    dir.podplane("down").ok();
    let data = find(&dir.path().join("store"), "db").expect("sled's file");
    let file = fs::File::options().write(true).open(&data).unwrap();
    file.set_len(file.metadata().unwrap().len() / 3).unwrap();
    let refused = up(&dir, "--timeout 10s");
    refuses(&refused, &[&dir.path().join("store").display().to_string()]);
    dir.podplane("down").ok();
    let alone =
        finish(podplane(["apiserver", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path()));
    refuses(&alone, &["store"]);
}

fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.flatten().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            find(&path, name)
        } else {
            (entry.file_name() == name).then_some(path)
        }
    })
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = Scratch::new();
    refuses(
        &up(&dir, &format!("--listen {address} --timeout 10s")),
        &[&address, "in use"],
    );
    dir.podplane("down").ok();
    let alone = finish(podplane(["apiserver", "--listen", &address, "--data-dir"]).arg(dir.path()));
    refuses(&alone, &[&address, "in use"]);
}

#[test]
fn missing_plugins_are_named_before_anything_starts() {
    let dir = Scratch::new();
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().display().to_string();
    refuses(
        &up(&dir, &format!("--cni-bin-dir {empty}")),
        &["host-local", &empty],
    );
}

/// A directory of plugins in which `host-local` is a script.
fn plugins_with(host_local: &str) -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    for plugin in ["bridge", "loopback"] {
        fs::copy(bin_dir().join(plugin), dir.path().join(plugin))?;
    }
    let script = dir.path().join("host-local");
    fs::write(&script, format!("#!/bin/sh\n{host_local}\n"))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

/// Checks the pod's events when its plugin misbehaves.
async fn plugin_trouble(script: &str, want: &[&str]) -> Result<()> {
    let plugins = plugins_with(script)?;
    let dir = Scratch::new();
    let flags = format!("--cni-bin-dir {}", plugins.path().display());
    let args = format!("up --detach --wait --network ledger --nodes 1 {flags}");
    let mut command = podplane(args.split_whitespace());
    command
        .env("PODPLANE_DATA_DIR", dir.path())
        .env("PODPLANE_CNI_TIMEOUT", "1");
    finish(&mut command).ok();
    dir.podplane("run web").ok();
    let events = || async { dir.podplane("get events -o json").stdout };
    let said = eventually("the event", events, |said| {
        said.contains("FailedCreatePodSandBox")
    })
    .await;
    let described = dir.podplane("describe pod web").ok();
    dir.check().await?;
    for want in want {
        assert!(said.contains(want), "{want:?} is not in: {said}");
        assert!(described.contains(want), "{want:?} is not in: {described}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_hangs_is_killed_and_named() -> Result<()> {
    plugin_trouble("exec sleep 1000", &["host-local", "1s"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_plugin_ends_with_the_cluster() -> Result<()> {
    const HANGS: &str = "sleep 987654";
    let plugins = plugins_with(&format!("exec {HANGS}"))?;
    let dir = Scratch::new();
    let flags = format!("--cni-bin-dir {}", plugins.path().display());
    up(&dir, &flags).ok();
    dir.podplane("run web").ok();
    let hanging = || async { processes_of(HANGS).unwrap() };
    eventually("the plugin hangs", hanging, |processes| {
        !processes.is_empty()
    })
    .await;
    dir.podplane("down --purge").ok();
    assert_eq!(processes_of(HANGS).unwrap(), []);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_prints_rubbish_is_quoted() -> Result<()> {
    plugin_trouble(
        "echo this is no JSON; exit 1",
        &[
            "netplugin failed but error parsing its diagnostic message",
            "this is no JSON",
        ],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_vanished_is_named() -> Result<()> {
    plugin_trouble(
        "rm \"$0\"; exit 1",
        &["netplugin failed with no error message"],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_are_read_strictly() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).flags("--nodes 1")).await? else {
        return Ok(());
    };
    let file = cluster.data_dir().join("pod.yaml");
    let path = file.display().to_string();
    for (text, want) in [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, imaage: i}]}\n",
            &["pod.yaml", r#"unknown field "spec.containers[0].imaage""#][..],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: 5}]}\n",
            &["spec.containers[0].image"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: A_b}\nspec: {containers: [{name: c, image: i}]}\n",
            &["metadata.name", "A_b", "RFC 1123"],
        ),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}\n",
            &["spec.containers", "Required value"],
        ),
        (
            "apiVersion: v1\nkind: Node\nmetadata: {name: node-x}\nspec: {podCIDR: 10.0.0.0/33, podCIDRs: [10.0.0.0/33]}\n",
            &[
                r#"spec.podCIDRs[0]: Invalid value: "10.0.0.0/33": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
            ],
        ),
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
            &["Deployment"],
        ),
        ("{", &["pod.yaml"]),
        ("", &["pod.yaml"]),
    ] {
        fs::write(&file, text)?;
        for verb in ["create", "apply"] {
            refuses(&cluster.run([verb, "-f", &path]), want);
        }
    }
    refuses(
        &cluster.run(["create", "-f", "/nonexistent.yaml"]),
        &["/nonexistent.yaml"],
    );
    refuses(
        &cluster.podplane("get pods nothing"),
        &[r#"pods "nothing" not found"#],
    );
    refuses(&cluster.podplane("get pods -l !!"), &["!!"]);
    refuses(
        &cluster.podplane("run web -n nowhere"),
        &[r#"namespaces "nowhere" not found"#],
    );
    cluster.finish().await
}

/// A small file system, unmounted when dropped.
struct Disk(tempfile::TempDir);

impl Disk {
    fn of(size: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let size = std::ffi::CString::new(format!("size={size}"))?;
        mount(
            TEST_DISK,
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            size.as_c_str(),
        )
        .context("mount a small file system")?;
        Ok(Self(dir))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_and_loses_none() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let disk = Disk::of("96m")?;
    let dir = Scratch::within(disk.0.path());
    up(&dir, "").ok();
    dir.podplane("run kept --replicas 3 --wait").ok();
    // Fills the disk to the last byte.
    let ballast = disk.0.path().join("ballast");
    let mut filler = fs::File::create(&ballast)?;
    let full = std::io::copy(&mut std::io::repeat(0), &mut filler);
    assert!(full.is_err(), "the disk takes {full:?}");
    refuses(&dir.podplane("run lost"), &["space"]);
    assert_eq!(pods(&dir)?, ["kept-0", "kept-1", "kept-2"], "reads go on");
    drop(filler);
    fs::remove_file(&ballast)?;
    let again = || async { dir.podplane("run after").code };
    eventually("writes go on when there is space", again, |code| {
        *code == Some(0)
    })
    .await;
    dir.podplane("down").ok();
    up(&dir, "").ok();
    assert_eq!(pods(&dir)?, ["after", "kept-0", "kept-1", "kept-2"]);
    dir.check().await?;
    dir.podplane("down --purge").ok();
    Ok(())
}

/// The names of all pods.
fn pods(dir: &Scratch) -> Result<Vec<String>> {
    let list: serde_json::Value = serde_json::from_str(&dir.podplane("get pods -o json").ok())?;
    let pods: Vec<Pod> = serde_json::from_value(list["items"].clone())?;
    Ok(pods.iter().map(|pod| pod.name().to_owned()).collect())
}

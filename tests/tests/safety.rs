//! Refusals of a process without authentication: requests of web pages, and data directories that
//! others prepared.

use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{PermissionsExt as _, chown, symlink},
        process::CommandExt as _,
    },
    path::Path,
    process::Command,
};

use anyhow::Result;
use http::Method;
use podplane_tests::{
    Cluster, Machine, Network, builder, peers,
    programs::{ProgramOutput, Scratch, bin_dir, finish},
};

const NOBODY: u32 = 65534;

/// The addresses of all ports of a cluster: of each service, and of the supervisor.
fn ports(cluster: &Cluster) -> Vec<(String, String)> {
    [
        "apiserver",
        "ipam-controller",
        "controller-manager",
        "scheduler",
        "kubelet-node-0",
        "supervisor",
    ]
    .into_iter()
    .map(|name| {
        let address = cluster.podplane(&format!("status {name} --http")).ok();
        (name.to_owned(), address.trim().to_owned())
    })
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_port_refuses_web_pages() -> Result<()> {
    let Some(cluster) = Cluster::up(builder(Network::Ledger).nodes(1)).await? else {
        return Ok(());
    };
    for (name, address) in ports(&cluster) {
        let rest = cluster.http(&address)?;
        let ask =
            async |method: Method, path: &str, headers: &[(&str, &str)], body: &'static str| {
                let answer = rest.exchange(method, path, headers, body).await;
                answer.map(|answer| answer.code)
            };
        let evil = [("host", "rebound.example")];
        assert_eq!(ask(Method::GET, "/livez", &evil, "").await?, 421, "{name}");
        let page = [("origin", "http://evil.example")];
        assert_eq!(ask(Method::GET, "/livez", &page, "").await?, 403, "{name}");
        assert_eq!(ask(Method::GET, "/livez", &[], "").await?, 200, "{name}");
        for media in ["", "text/plain", "application/x-www-form-urlencoded"] {
            for method in [Method::POST, Method::PUT] {
                let headers = [("content-type", media)];
                let code = ask(method, "/debug/log-level", &headers, "debug").await?;
                assert_eq!(code, 415, "{name} as {media:?}");
            }
            let headers = [("content-type", media)];
            let health = "/grpc.health.v1.Health/Check";
            let code = ask(Method::POST, health, &headers, "\0\0\0\0\0").await?;
            // The supervisor and the CRI server serve gRPC on their sockets alone.
            assert!(
                code == 415 || (name == "supervisor" && code == 404),
                "{name}: {code}"
            );
        }
        let level = rest.get("/debug/log-level").await?.body;
        assert_eq!(level.as_str().map(str::trim), Some("info"), "{name}");
    }
    let args = "restart apiserver --extra-config apiserver.allowed-hosts=rebound.example";
    cluster.podplane(args).ok();
    let (_, address) = ports(&cluster).remove(0);
    let evil = [("host", "Rebound.Example:7080")];
    let answer = cluster
        .http(&address)?
        .exchange(Method::GET, "/livez", &evil, "")
        .await?;
    assert_eq!(answer.code, 200, "{}", answer.body);
    cluster.finish().await
}

/// The commands that read a data directory, all of which must refuse to.
const COMMANDS: [&str; 10] = [
    "up --detach --wait --network ledger --nodes 1",
    "status",
    "get pods",
    "apply -f ../deploy/sample.yaml",
    "exec web-0 -- true",
    "ping web-0 10.0.0.1",
    "node add node-9",
    "store check",
    "node run a --network ledger --server 127.0.0.1:1",
    "down",
];

#[track_caller]
fn refuses(dir: &Scratch, why: &str) {
    for command in COMMANDS {
        let refused = dir.podplane(command);
        assert_ne!(refused.code, Some(0), "{command}: {refused:?}");
        assert!(refused.stderr.contains(why), "{command}: {refused:?}");
    }
}

/// A data directory of a cluster that is down.
fn prepared() -> Scratch {
    let dir = Scratch::new();
    dir.podplane("up --detach --wait --network ledger --nodes 1")
        .ok();
    dir.podplane("down").ok();
    dir
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

#[test]
fn a_data_directory_of_another_user_is_refused() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let before = Machine::now();
    let dir = prepared();
    let user = Some(NOBODY);
    for name in [
        "",
        "cluster.json",
        "VERSION",
        "logs",
        "nodes",
        "logs/supervisor.log",
    ] {
        let path = dir.path().join(name);
        chown(&path, user, None)?;
        refuses(&dir, "belongs to user 65534");
        chown(&path, Some(0), None)?;
    }
    // Deeper than the files that every command reads.
    let deep = dir.path().join("nodes/node-0/net.d");
    fs::create_dir_all(&deep)?;
    chown(&deep, user, None)?;
    let up = dir.podplane(COMMANDS[0]);
    assert!(
        up.code == Some(1) && up.stderr.contains("belongs to user 65534"),
        "{up:?}"
    );
    chown(&deep, Some(0), None)?;
    dir.podplane(COMMANDS[0]).ok();
    dir.podplane("down --purge").ok();
    // An empty directory may yet be filled by its owner.
    let empty = Scratch::new();
    chown(empty.path(), user, None)?;
    refuses(&empty, "belongs to user 65534");
    assert_eq!(before, Machine::now());
    Ok(())
}

#[test]
fn a_data_directory_that_others_may_write_is_refused() -> Result<()> {
    let dir = prepared();
    for (name, mode) in [
        ("", 0o770),
        ("", 0o1777),
        ("cluster.json", 0o664),
        ("logs", 0o757),
        ("logs/supervisor.log", 0o666),
    ] {
        let path = dir.path().join(name);
        let kept = fs::metadata(&path)?.permissions();
        set_mode(&path, mode)?;
        refuses(&dir, "can be written by others");
        fs::set_permissions(&path, kept)?;
    }
    dir.podplane(COMMANDS[0]).ok();
    dir.podplane("down --purge").ok();
    Ok(())
}

#[test]
fn links_in_a_data_directory_are_not_followed() -> Result<()> {
    let dir = prepared();
    let elsewhere = tempfile::tempdir()?;
    let victim = elsewhere.path().join("victim");
    for name in [
        "logs/supervisor.log",
        "logs/apiserver.log",
        "cluster.json",
        "lock",
        "supervisor.json",
        "logs",
    ] {
        let path = dir.path().join(name);
        let kept = elsewhere.path().join("kept");
        let was_there = fs::rename(&path, &kept).is_ok();
        fs::write(&victim, "untouched")?;
        symlink(&victim, &path)?;
        refuses(&dir, "is a symbolic link");
        assert_eq!(fs::read_to_string(&victim)?, "untouched", "{name}");
        fs::remove_file(&path)?;
        if was_there {
            fs::rename(&kept, &path)?;
        }
    }
    dir.podplane(COMMANDS[0]).ok();
    dir.podplane("down --purge").ok();
    Ok(())
}

#[test]
fn checks_programs_named_by_cluster_json_but_not_those_of_the_caller() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let plugins = tempfile::tempdir()?;
    for plugin in ["bridge", "host-local", "loopback"] {
        fs::copy(bin_dir().join(plugin), plugins.path().join(plugin))?;
    }
    let dir = Scratch::new();
    let up = COMMANDS[0];
    let flag = format!("--cni-bin-dir {}", plugins.path().display());
    let down = |dir: &Scratch| dir.podplane("down").ok();
    dir.podplane(&format!("{up} {flag}")).ok();
    down(&dir);
    for place in ["", "host-local"] {
        let path = plugins.path().join(place);
        chown(&path, Some(NOBODY), None)?;
        let refused = dir.podplane(up);
        let why = format!(
            "{} belongs to user 65534",
            path.display().to_string().trim_end_matches('/')
        );
        assert!(
            refused.code == Some(1) && refused.stderr.contains(&why),
            "{refused:?}"
        );
        dir.podplane(&format!("{up} {flag}")).ok();
        down(&dir);
        chown(&path, Some(0), None)?;
    }
    dir.podplane(up).ok();
    dir.podplane("down --purge").ok();
    Ok(())
}

/// A user without privileges trusts root, who could do anything anyway.
#[test]
fn unprivileged_users_trust_files_of_root() -> Result<()> {
    if !peers::root() {
        return Ok(());
    }
    let programs = tempfile::tempdir()?;
    for name in ["podplane", "bridge", "host-local", "loopback"] {
        fs::copy(bin_dir().join(name), programs.path().join(name))?;
    }
    set_mode(programs.path(), 0o755)?;
    let home = Scratch::new();
    chown(home.path(), Some(NOBODY), Some(NOBODY))?;
    let dir = home.path().join("d");
    let as_nobody = |args: &str, umask: u32| -> ProgramOutput {
        let mut command = Command::new("sh");
        let line = format!(
            "umask {umask:04o}; exec {}/podplane {args}",
            programs.path().display()
        );
        command.args(["-c", &line]).env("PODPLANE_DATA_DIR", &dir);
        finish(command.uid(NOBODY).gid(NOBODY))
    };
    // Files made with a lenient umask can be used again.
    as_nobody(COMMANDS[0], 0o002).ok();
    as_nobody("down", 0o002).ok();
    chown(dir.join("cluster.json"), Some(0), Some(0))?;
    set_mode(&dir.join("cluster.json"), 0o644)?;
    as_nobody(COMMANDS[0], 0o002).ok();
    as_nobody("down", 0o002).ok();
    // root does not use them as long as they are not root's.
    let mut status = podplane_tests::programs::podplane(["status", "--data-dir"]);
    let status = finish(status.arg(&dir));
    assert!(
        status.stderr.contains("belongs to user 65534"),
        "{status:?}"
    );
    as_nobody("down --purge", 0o022).ok();
    Ok(())
}

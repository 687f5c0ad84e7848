//! Exhausted limits of the kernel, each in a namespace or a process of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{env, process::Command};

use podplane_netlink::{Bridge, Netlink, Request, Veth, netns};
use podplane_test_network::{NetnsFixture, require};

/// The environment variable of the process that reaches the limit.
const INSIDE: &str = "PODPLANE_TEST_LIMITED";

/// Returns true in the process that reaches the limit. In any other process it runs the same test
/// in such a process, after `prepare` has set the limit there, and returns false.
fn is_inside(test: &str, prepare: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let mut inside = Command::new("unshare");
    inside.args(["--user", "--map-root-user", "--mount", "--net"]);
    inside.args(["sh", "-c", &format!("{prepare} && exec \"$0\" \"$@\"")]);
    inside.arg(env::current_exe().unwrap());
    inside.args(["--exact", test, "--nocapture"]);
    let output = inside.env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

fn refusal_of_a_namespace() -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pod");
    let error = netns::create(&path).unwrap_err();
    assert!(!path.exists());
    error.source.to_string()
}

#[test]
fn names_the_limit_of_network_namespaces() {
    let prepare = "echo 0 > /proc/sys/user/max_net_namespaces";
    if is_inside("names_the_limit_of_network_namespaces", prepare) {
        let error = refusal_of_a_namespace();
        let expected = "network namespaces (sysctl user.max_net_namespaces=0)";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn names_the_limit_of_open_files() {
    // The test's own files have numbers below that.
    if is_inside("names_the_limit_of_open_files", "ulimit -n 16") {
        let mut held = Vec::new();
        let dir = tempfile::tempdir().unwrap();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            held.push(file);
        }
        let error = netns::create(&dir.path().join("pod")).unwrap_err();
        drop(held);
        let error = error.source.to_string();
        assert!(
            error.contains("open files of a process (ulimit -n 16)"),
            "{error}"
        );
    }
}

#[test]
fn names_the_limit_of_bridge_ports() {
    if !require(&["root"]) {
        return;
    }
    let world = NetnsFixture::new();
    let node = world.netns("node");
    let mut netlink = Netlink::open_in(&node).unwrap();
    let bridge = Request::create_bridge(&Bridge {
        name: "br0",
        ..Bridge::default()
    });
    netlink.execute([bridge]).unwrap();
    let index = netlink.link("br0").unwrap().unwrap().index;
    let failed = (0..2000).find_map(|port| {
        let (name, peer_name) = (format!("port{port}"), format!("peer{port}"));
        let veth = Request::create_veth(&Veth {
            name: &name,
            peer_name: &peer_name,
            controller: Some(index),
            ..Veth::default()
        });
        netlink.execute([veth]).err()
    });
    let failed = failed.unwrap();
    let source = std::error::Error::source(&failed).unwrap().to_string();
    assert!(source.contains("ports of a bridge (1024"), "{source}");
}

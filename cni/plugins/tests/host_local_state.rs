//! The program `host-local` under adverse conditions: many processes at once, a lock that stays
//! taken, reboots, full and unusual file systems.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::{
    fs::FlockOperation,
    mount::{MountFlags, UnmountFlags},
};
use serde_json::{Value, json};

use podplane_test_network::{DEBIAN, call, memory_dir, our_plugins, require, tree};

fn ours() -> PathBuf {
    our_plugins().join("host-local")
}

fn debians() -> PathBuf {
    Path::new(DEBIAN).join("host-local")
}

fn config(mut ipam: Value, data_dir: &Path) -> Value {
    ipam["type"] = "host-local".into();
    ipam["dataDir"] = data_dir.to_str().unwrap().into();
    json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": ipam})
}

/// Starts a program, which then waits for its configuration.
fn start(command: &mut Command, verb: &str, id: &str) -> Child {
    command
        .envs([("CNI_COMMAND", verb), ("CNI_CONTAINERID", id)])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_NETNS", "/does/not/exist")])
        .env("CNI_PATH", DEBIAN)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn tell(child: &mut Child, config: &Value) {
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(config.to_string().as_bytes()).unwrap();
}

/// Waits for the exit code and the answer.
fn finish(mut child: Child) -> (i32, Value) {
    let mut text = String::new();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_to_string(&mut text).unwrap();
    let code = child.wait().unwrap().code().unwrap();
    (code, serde_json::from_str(&text).unwrap_or(Value::Null))
}

fn run(command: &mut Command, verb: &str, id: &str, config: &Value) -> (i32, Value) {
    let mut child = start(command, verb, id);
    tell(&mut child, config);
    finish(child)
}

fn address(answer: &Value) -> String {
    answer["ips"][0]["address"].as_str().unwrap().to_owned()
}

fn leases(dir: &Path) -> usize {
    podplane_host_local::usage(&dir.join("net")).unwrap().len()
}

#[test]
fn many_concurrent_adds_get_distinct_addresses() {
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let (all, at_once) = if is_soak { (10_000, 400) } else { (1_000, 250) };
    let dir = tempfile::tempdir().unwrap();
    let config = config(json!({"subnet": "10.1.0.0/16"}), dir.path());
    let mut given = BTreeMap::new();
    for crowd in 0..all / at_once {
        let start = |n| {
            start(
                &mut Command::new(ours()),
                "ADD",
                &format!("c{}", crowd * at_once + n),
            )
        };
        let mut children: Vec<_> = (0..at_once).map(start).collect();
        for child in &mut children {
            tell(child, &config);
        }
        for (n, child) in children.into_iter().enumerate() {
            let (code, answer) = finish(child);
            assert_eq!(code, 0, "{answer}");
            let before = given.insert(address(&answer), (crowd, n));
            assert_eq!(before, None, "{answer} was given before");
        }
    }
    assert_eq!((given.len(), leases(dir.path())), (all, all));
}

#[test]
fn ours_and_debians_never_give_an_address_twice_concurrently() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = config(json!({"subnet": "10.1.2.0/26"}), dir.path());
    let live = Mutex::new(BTreeMap::new());
    let work = |worker: usize| {
        for round in 0..40 {
            let id = format!("w{worker}-{round}");
            let program = |n: usize| {
                if n.is_multiple_of(2) {
                    ours()
                } else {
                    debians()
                }
            };
            let (code, text) = call(&program(worker + round), "ADD", &id, "", &config);
            assert_eq!(code, 0, "{text}");
            let given = address(&serde_json::from_str(&text).unwrap());
            let other = live.lock().unwrap().insert(given.clone(), id.clone());
            assert_eq!(other, None, "{given} is also {id}'s");
            // Some stay.
            if round % 10 != 0 {
                live.lock().unwrap().remove(&given);
                let del = call(&program(worker + round / 2), "DEL", &id, "", &config);
                assert_eq!(del, (0, String::new()));
            }
        }
    };
    let work = &work;
    thread::scope(|scope| {
        for worker in 0..8 {
            scope.spawn(move || work(worker));
        }
    });
    let left: BTreeMap<_, _> = podplane_host_local::usage(&dir.path().join("net"))
        .unwrap()
        .into_iter()
        .map(|lease| (format!("{}/26", lease.ip), lease.container_id))
        .collect();
    assert_eq!(left, *live.lock().unwrap());
    assert_eq!(left.len(), 32);
}

#[test]
fn waits_for_the_lock_only_until_its_timeout() {
    let dir = tempfile::tempdir().unwrap();
    let limited = |limit: &str| {
        config(
            json!({"subnet": "10.1.2.0/24", "lockTimeout": limit}),
            dir.path(),
        )
    };
    let (add, config) = (|| Command::new(ours()), limited("30ms"));
    assert_eq!(run(&mut add(), "ADD", "c0", &config).0, 0);
    let lock = File::open(dir.path().join("net/lock")).unwrap();
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
    for command in ["ADD", "DEL"] {
        let (code, error) = run(&mut add(), command, "c1", &config);
        assert_eq!((code, &error["code"]), (1, &json!(11)), "{error}");
        let msg = error["msg"].as_str().unwrap();
        let holder = format!("process {} (", std::process::id());
        assert!(msg.contains(&holder) && msg.contains("net/lock"), "{msg}");
    }
    // A process that still waits when the lock is released gets it.
    let mut child = start(&mut add(), "ADD", "c2");
    tell(&mut child, &limited("1h"));
    let inode = format!(":{} ", lock.metadata().unwrap().ino());
    let deadline = Instant::now() + Duration::from_secs(60);
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    while !fs::read_to_string("/proc/locks")
        .unwrap()
        .lines()
        .any(waits)
    {
        assert!(Instant::now() < deadline, "nobody waits for the lock");
        thread::yield_now();
    }
    rustix::fs::flock(&lock, FlockOperation::Unlock).unwrap();
    assert_eq!(finish(child).0, 0);
    let (code, error) = run(&mut add(), "ADD", "c3", &limited("soon"));
    assert_eq!(code, 1);
    assert!(
        error["msg"]
            .as_str()
            .unwrap()
            .contains("lockTimeout \"soon\"")
    );
    assert_eq!(leases(dir.path()), 2);
}

/// A command for ours in a mount namespace of its own, after `script` was run in it.
fn after(script: &str, unshare: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command
        .arg("--mount")
        .args(unshare)
        .args(["sh", "-ec", &format!("{script}; exec \"$0\"")])
        .arg(ours());
    command
}

#[test]
fn releases_leases_of_an_earlier_boot() {
    if !require(&["root", "cni-plugins"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = config(
        json!({"subnet": "10.1.2.0/24", "bootID": true, "rangeStart": "10.1.2.10"}),
        dir.path(),
    );
    assert_eq!(
        run(&mut Command::new(debians()), "ADD", "old", &config).0,
        0
    );
    // The machine booted long ago, whatever the stamp says.
    assert_eq!(run(&mut Command::new(ours()), "ADD", "older", &config).0, 0);
    assert_eq!(leases(dir.path()), 2);

    // A time namespace simulates another boot, which began after the earlier leases were written.
    // /run is empty.
    let lease = fs::metadata(dir.path().join("net/10.1.2.11")).unwrap();
    let written = UNIX_EPOCH + Duration::from_secs(lease.ctime().try_into().unwrap());
    while SystemTime::now() < written + Duration::from_secs(6) {
        thread::sleep(Duration::from_millis(100)); // Files have no other clock than this one.
    }
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let uptime: u64 = uptime.split('.').next().unwrap().parse().unwrap();
    let young = uptime - 2;
    let offset = format!("--boottime=-{young}");
    let unshare = ["--time", "--fork", offset.as_str()];
    let boot = || after("mount -t tmpfs none /run", &unshare);
    // The reference was faster, and its lease is of this boot.
    assert_eq!(
        run(&mut Command::new(debians()), "ADD", "new", &config).0,
        0
    );
    let mut without = config.clone();
    without["ipam"]["bootID"] = false.into();
    assert_eq!(
        run(&mut boot(), "DEL", "nobody", &without),
        (0, Value::Null)
    );
    assert_eq!(leases(dir.path()), 3, "only if it is asked for");
    let (code, answer) = run(&mut boot(), "ADD", "newer", &config);
    assert_eq!(code, 0, "{answer}");
    let owners = || -> Vec<String> {
        let leases = podplane_host_local::usage(&dir.path().join("net")).unwrap();
        leases.into_iter().map(|lease| lease.container_id).collect()
    };
    assert_eq!(owners(), ["new", "newer"]);
    // The stamp is lost; leases of this boot stay.
    assert_eq!(run(&mut boot(), "DEL", "nobody", &config), (0, Value::Null));
    assert_eq!(owners(), ["new", "newer"]);
}

#[test]
fn gives_the_same_addresses_without_an_index() {
    if !require(&["root"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let config = config(json!({"subnet": "10.1.2.0/24"}), dir.path());
    let without = || after("mount -t tmpfs -o ro none /run", &[]);
    let with = || Command::new(ours());
    for round in 0..6 {
        let mut command = if round % 2 == 0 { without() } else { with() };
        let (code, answer) = run(&mut command, "ADD", &format!("c{round}"), &config);
        assert_eq!(code, 0, "{answer}");
        assert_eq!(address(&answer), format!("10.1.2.{}/24", round + 2));
    }
    for round in 0..6 {
        let mut command = if round % 3 == 0 { without() } else { with() };
        let del = run(&mut command, "DEL", &format!("c{round}"), &config);
        assert_eq!(del, (0, Value::Null));
        assert_eq!(leases(dir.path()), 5 - round);
    }
}

/// A tmpfs with the size that `options` set.
struct TinyTmpfs(tempfile::TempDir);

impl TinyTmpfs {
    fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let flags = if options == "ro" {
            MountFlags::RDONLY
        } else {
            MountFlags::empty()
        };
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, options.as_c_str()).unwrap();
        Self(dir)
    }
}

impl Drop for TinyTmpfs {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn an_add_on_a_full_file_system_allocates_all_families_or_none() {
    if !require(&["root"]) {
        return;
    }
    let inodes = (2..12).map(|n| format!("size=1m,nr_inodes={n}"));
    let pages = (1..9).map(|n| format!("size={},nr_inodes=100", n * 4096));
    let (mut failed, mut complete) = (0, 0);
    for options in inodes.chain(pages) {
        let tiny = TinyTmpfs::new(&options);
        let ranges = json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]]});
        let config = config(ranges, tiny.0.path());
        let mut given = 0;
        for n in 0..3 {
            let id = format!("c{n}");
            let (code, answer) = run(&mut Command::new(ours()), "ADD", &id, &config);
            if code != 0 {
                let msg = answer["msg"].as_str().unwrap();
                assert!(msg.ends_with("no space left on device"), "{options}: {msg}");
                failed += 1;
                break;
            }
            given += 2;
            complete += 1;
        }
        let net = tree(&tiny.0.path().join("net"));
        let found = net
            .iter()
            .filter(|(name, _)| name.starts_with(['1', 'f', '.']));
        assert_eq!(found.count(), given, "{options}: {net:?}");
    }
    assert!(
        failed >= 8 && complete >= 8,
        "{failed} failed, {complete} complete"
    );
}

#[test]
fn status_fails_if_no_lease_can_be_written() {
    if !require(&["root"]) {
        return;
    }
    for (options, why) in [
        ("size=1m,nr_inodes=1", "without a free inode"),
        ("ro", "cannot be written: Read-only file system"),
    ] {
        let tiny = TinyTmpfs::new(options);
        let mut config = config(json!({"subnet": "10.1.2.0/24"}), tiny.0.path());
        config["cniVersion"] = "1.1.0".into();
        let (code, answer) = run(&mut Command::new(ours()), "STATUS", "", &config);
        assert_eq!((code, &answer["code"]), (1, &json!(50)), "{options}");
        let msg = answer["msg"].as_str().unwrap();
        assert!(msg.contains(why), "{options}: {msg}");
    }
}

/// Otherwise the address is lost until somebody mends the configuration, and the pod cannot be
/// deleted.
#[test]
fn del_frees_an_address_despite_invalid_routes_and_ranges() {
    let program = Path::new(env!("CARGO_BIN_EXE_host-local"));
    let scratch = memory_dir();
    let config = |change: Value| {
        let mut config = json!({"cniVersion": "1.0.0", "name": "net", "type": "host-local",
            "ipam": {"type": "host-local", "dataDir": scratch.path(), "ranges": [[{"subnet": "10.1.2.0/24"}]]}});
        for (key, value) in change.as_object().unwrap() {
            config["ipam"][key] = value.clone();
        }
        config
    };
    let leases = || {
        podplane_host_local::usage(&scratch.path().join("net"))
            .unwrap()
            .len()
    };
    for change in [
        json!({"ranges": [[{"subnet": "10.1.3.0/24"}]]}),
        json!({"ranges": []}),
        json!({"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.2.0/25"}]]}),
        json!({"ranges": [[{"subnet": "10.1.2.0/24", "rangeStart": "10.9.0.1"}]]}),
        json!({"subnet": "nonsense"}),
        json!({"routes": [{"dst": "nonsense"}]}),
        json!({"Routes": "nonsense"}),
    ] {
        let (code, text) = call(program, "ADD", "a", "", &config(json!({})));
        assert_eq!((code, leases()), (0, 1), "{text}");
        let (code, text) = call(program, "DEL", "a", "IP=nonsense", &config(change.clone()));
        assert_eq!((code, leases()), (0, 0), "{change}: {text}");
    }
    // The keys that locate the lease are checked.
    let (code, text) = call(program, "DEL", "a", "", &config(json!({"dataDir": 1})));
    assert_eq!(code, 1, "{text}");
}

//! `host-local`, killed at every system call of ADD and DEL.
//!
//! Whatever is left, both ours and Debian's continue without giving an address twice, and a DEL for
//! the same container, by either, leaves nothing of it.
//!
//! strace(1) kills the program as it enters a system call, which is after the one before; each call
//! has its turn. `PODPLANE_SOAK=1` kills a second call on each state that a first one has left.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bridge;
mod chained;
mod firewall;
#[path = "../differential/side.rs"]
mod side;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use podplane_test_network::{DEBIAN, memory_dir, our_plugins, require};
use serde_json::{Value, json};
use side::{DATA_DIR, FileNode, ObservedResult, PluginInput, PluginSide, Tree};

/// The container whose calls are killed, and the content of its lease.
const VICTIM: &str = "victim";
const VICTIMS: &str = "victim\r\neth0";

/// An initial directory, with the ranges.
#[derive(Clone)]
struct CrashScenario {
    name: &'static str,
    ipam: Value,
    before: Tree,
}

fn scenarios() -> Vec<CrashScenario> {
    let scenario = |name, ranges: Value, files: &[(&str, &str)]| {
        let mut before = Tree::new();
        if !files.is_empty() {
            before.insert("data".to_owned(), (FileNode::Directory, 0o755));
            before.insert("data/net".to_owned(), (FileNode::Directory, 0o755));
        }
        for (file, content) in files {
            let node = FileNode::File(content.as_bytes().to_owned());
            before.insert(format!("data/net/{file}"), (node, 0o600));
        }
        let ipam = json!({"type": "host-local", "dataDir": DATA_DIR, "ranges": ranges});
        CrashScenario { name, ipam, before }
    };
    let one = json!([[{"subnet": "10.1.2.0/29"}]]);
    let dual = json!([[{"subnet": "10.1.2.0/29"}], [{"subnet": "fd00::/125"}]]);
    let [a, b] = ["a\r\neth0", "b\r\neth0"];
    vec![
        scenario("empty", one.clone(), &[]),
        scenario("empty, dual stack", dual.clone(), &[]),
        scenario(
            "a few leases",
            one.clone(),
            &[
                ("10.1.2.2", a),
                ("10.1.2.3", b),
                ("last_reserved_ip.0", "10.1.2.3"),
                ("lock", ""),
            ],
        ),
        scenario(
            "one left, behind the cursor",
            one.clone(),
            &[
                ("10.1.2.2", a),
                ("10.1.2.3", b),
                ("10.1.2.5", "c\r\neth0"),
                ("10.1.2.6", "d\r\neth0"),
                ("last_reserved_ip.0", "10.1.2.6"),
                ("lock", ""),
            ],
        ),
        scenario(
            "empty and old leases",
            one.clone(),
            &[
                ("10.1.2.2", "a"),
                ("10.1.2.3", ""),
                ("10.1.2.4", b),
                ("last_reserved_ip.0", ""),
                ("lock", ""),
            ],
        ),
        scenario(
            "dual stack",
            dual.clone(),
            &[
                ("10.1.2.2", a),
                ("fd00::2", a),
                ("fd00::3", b),
                ("last_reserved_ip.0", "10.1.2.2"),
                ("last_reserved_ip.1", "fd00::3"),
                ("lock", ""),
            ],
        ),
        scenario(
            "dual stack, with leases of its own",
            dual,
            &[
                ("10.1.2.2", a),
                ("10.1.2.3", VICTIMS),
                ("fd00::2", a),
                ("fd00::3", VICTIMS),
                ("last_reserved_ip.0", "10.1.2.3"),
                ("last_reserved_ip.1", "fd00::3"),
                ("lock", ""),
            ],
        ),
        scenario(
            "with an old lease of its own",
            one,
            &[
                ("10.1.2.2", VICTIM),
                ("10.1.2.3", b),
                ("last_reserved_ip.0", "10.1.2.3"),
                ("lock", ""),
            ],
        ),
    ]
}

#[test]
fn a_kill_at_any_system_call_leaks_and_duplicates_no_address() {
    if !require(&["cni-plugins", "strace"]) {
        return;
    }
    let is_soak = std::env::var_os("PODPLANE_SOAK").is_some();
    let work = |command: &'static str| {
        move || {
            let world = CrashFixture::new();
            let mut total = (0, 0);
            for scenario in scenarios() {
                let (kills, left) = world.scan(&scenario, command);
                println!(
                    "{command}, {}: {kills} kills left {} states",
                    scenario.name,
                    left.len()
                );
                total = (total.0 + kills, total.1 + left.len());
                let again = if is_soak { left } else { Vec::new() };
                for (before, command) in again
                    .into_iter()
                    .flat_map(|tree| [(tree.clone(), "ADD"), (tree, "DEL")])
                {
                    let (kills, left) = world.scan(
                        &CrashScenario {
                            before,
                            ..scenario.clone()
                        },
                        command,
                    );
                    total = (total.0 + kills, total.1 + left.len());
                }
            }
            println!("{command}: {} kills left {} states", total.0, total.1);
            total
        }
    };
    let (add, del) = thread::scope(|scope| {
        let workers = ["ADD", "DEL"].map(|command| scope.spawn(work(command)));
        let [add, del] = workers.map(|worker| worker.join());
        (add.unwrap(), del.unwrap())
    });
    // With fewer, something else than the plugin was killed.
    assert!(add.0 > 400 && del.0 > 400, "too few kills: {add:?} {del:?}");
    assert!(
        add.1 >= 20 && del.1 >= 10,
        "too few states: {add:?} {del:?}"
    );
}

struct CrashFixture {
    home: tempfile::TempDir,
    /// The directory in which calls are killed. Our index belongs to it.
    scene: PluginSide,
    /// A directory for copies of what was left.
    copy: PluginSide,
    ours: PathBuf,
    debians: PathBuf,
}

impl CrashFixture {
    fn new() -> Self {
        let home = memory_dir();
        Self {
            scene: PluginSide::new(home.path(), "scene"),
            copy: PluginSide::new(home.path(), "copy"),
            home,
            ours: our_plugins().join("host-local"),
            debians: Path::new(DEBIAN).join("host-local"),
        }
    }

    /// Kills the call at each of its system calls. Returns the number of kills, and the different
    /// states that they left.
    fn scan(&self, scenario: &CrashScenario, command: &str) -> (usize, Vec<Tree>) {
        let mut left: Vec<Tree> = Vec::new();
        let mut kills = 0;
        for (name, nth, is_locked) in self.system_calls(scenario, command) {
            let inject = format!("inject={name}:signal=SIGKILL:when={nth}");
            let seen = self.traced(scenario, command, &["-o", "/dev/null", "-e", &inject]);
            if seen.code.is_some() {
                continue; // It did not get there this time: the loader's calls vary.
            }
            kills += 1;
            let place = format!("{command} killed at {name} {nth}, {}", scenario.name);
            check_whole(scenario, &seen.tree, &place);
            // Before the lock there is no index of ours that could be wrong.
            let is_known = left.contains(&seen.tree);
            if is_locked || !is_known {
                self.check_continuation(&self.scene, &self.ours, scenario, &seen.tree, &place);
            }
            if is_known {
                continue;
            }
            for program in [&self.ours, &self.debians] {
                let place = format!("{place}, then {}", program.display());
                self.copy.set(&seen.tree);
                self.check_continuation(&self.copy, program, scenario, &seen.tree, &place);
                self.copy.set(&seen.tree);
                self.check_release(program, scenario, &place);
            }
            self.copy.set(&seen.tree);
            self.check_gc(scenario, &place);
            left.push(seen.tree);
        }
        (kills, left)
    }

    /// The system calls of a call that succeeds: the name, the ordinal of the call among those of
    /// that name, and whether the lock has been requested.
    fn system_calls(&self, scenario: &CrashScenario, command: &str) -> Vec<(String, usize, bool)> {
        let log = self.home.path().join("strace");
        self.traced(scenario, command, &["-o", log.to_str().unwrap()]);
        let log = fs::read_to_string(log).unwrap();
        let names = log.lines().filter_map(|line| line.split_once('('));
        let mut times = BTreeMap::<_, usize>::new();
        let mut is_locked = false;
        names
            .map(|(name, _)| {
                let nth = times.entry(name).or_default();
                *nth += 1;
                is_locked |= name == "flock";
                (name.to_owned(), *nth, is_locked)
            })
            .collect()
    }

    /// Runs the call under strace on the scenario's directory.
    fn traced(&self, scenario: &CrashScenario, command: &str, options: &[&str]) -> ObservedResult {
        self.scene.set(&scenario.before);
        if !scenario.before.is_empty() {
            // Lets our index learn the directory.
            self.scene
                .run(&self.ours, &call("CHECK", "nobody", scenario));
        }
        let mut strace = Command::new("/usr/bin/strace");
        strace.arg("-qq").args(options).arg(&self.ours);
        self.scene
            .run_by(&mut strace, &call(command, VICTIM, scenario))
    }

    /// Checks that all containers together, the killed one included, get every address exactly
    /// once.
    fn check_continuation(
        &self,
        side: &PluginSide,
        program: &Path,
        scenario: &CrashScenario,
        tree: &Tree,
        place: &str,
    ) {
        let mut held: BTreeSet<IpAddr> = leases(tree).into_keys().collect();
        let ids = [VICTIM.to_owned()]
            .into_iter()
            .chain((0..10).map(|n| format!("new{n}")));
        let mut full = None;
        for id in ids {
            let seen = side.run(program, &call("ADD", &id, scenario));
            if seen.code == Some(0) {
                for ip in given(&seen) {
                    assert!(
                        held.insert(ip),
                        "{place}: {ip} was given twice, now to {id}\n{tree:?}"
                    );
                }
            } else if seen.stdout.contains("no IP addresses available") {
                let is_v4 = seen.stdout.contains("in range set: 10.1.2.");
                full = Some(is_v4);
                break;
            } else {
                let is_duplicate = id == VICTIM && seen.stdout.contains("duplicate allocation");
                assert!(is_duplicate, "{place}: ADD {id}: {}", seen.stdout);
                if program == self.debians {
                    // Its rollback also releases what the container had before.
                    held = leases(&seen.tree).into_keys().collect();
                }
            }
        }
        let is_v4 = full.unwrap_or_else(|| panic!("{place}: there is no end"));
        let after = side.tree();
        let usable = if is_v4 { 2..=6 } else { 2..=7 };
        for n in usable {
            let ip: IpAddr = if is_v4 {
                [10, 1, 2, n].into()
            } else {
                [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into()
            };
            let file = format!("data/net/{ip}");
            // The reference takes an empty file for a lease.
            let is_held =
                held.contains(&ip) || (program == self.debians && after.contains_key(&file));
            assert!(is_held, "{place}: {ip} is lost\n{after:?}");
        }
    }

    /// Checks that a DEL of the container leaves nothing of it.
    fn check_release(&self, program: &Path, scenario: &CrashScenario, place: &str) {
        let seen = self.copy.run(program, &call("DEL", VICTIM, scenario));
        assert_eq!(
            (seen.code, seen.stdout.as_str()),
            (Some(0), ""),
            "{place}: {}",
            seen.stderr
        );
        check_whole(scenario, &seen.tree, place);
        let own: Vec<_> = leases(&seen.tree)
            .into_iter()
            .filter(|(_, owner)| owner == VICTIMS)
            .collect();
        assert_eq!(own, [], "{place}: still there");
        let strange = strange(scenario, &seen.tree);
        if program == self.debians {
            // A file that was made and not yet written has no owner. Ours removes it with the next
            // call.
            assert!(
                strange
                    .iter()
                    .all(|(_, node)| matches!(node, FileNode::File(text) if text.is_empty())),
                "{place}: {strange:?}"
            );
            self.copy.run(&self.ours, &call("ADD", "next", scenario));
            let seen = self.copy.run(&self.ours, &call("DEL", "next", scenario));
            assert_eq!(
                strange_names(scenario, &seen.tree),
                [""; 0],
                "{place}, then ours"
            );
        } else {
            assert_eq!(strange, [], "{place}");
        }
    }

    /// Checks that a GC without the container leaves nothing of it either.
    fn check_gc(&self, scenario: &CrashScenario, place: &str) {
        let mut gc = call("GC", "", scenario);
        let valid: Vec<_> = ["a", "b", "c", "d"]
            .map(|id| json!({"containerID": id, "ifname": "eth0"}))
            .into();
        let mut config: Value = serde_json::from_str(&gc.config).unwrap();
        config["cniVersion"] = "1.1.0".into();
        config["cni.dev/valid-attachments"] = valid.into();
        gc.config = config.to_string();
        let seen = self.copy.run(&self.ours, &gc);
        assert_eq!(
            (seen.code, seen.stdout.as_str()),
            (Some(0), ""),
            "{place}, then GC"
        );
        check_whole(scenario, &seen.tree, place);
        let own: Vec<_> = leases(&seen.tree)
            .into_iter()
            .filter(|(_, owner)| owner.starts_with(VICTIM))
            .collect();
        assert_eq!(own, [], "{place}: still there after GC");
        assert_eq!(
            strange_names(scenario, &seen.tree),
            [""; 0],
            "{place}, then GC"
        );
    }
}

fn call(command: &str, id: &str, scenario: &CrashScenario) -> PluginInput {
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": scenario.ipam});
    let env = [
        ("CNI_COMMAND", command),
        ("CNI_CONTAINERID", id),
        ("CNI_IFNAME", "eth0"),
        ("CNI_NETNS", "/does/not/exist"),
        ("CNI_PATH", "/x"),
    ];
    PluginInput {
        env: env.map(|(key, value)| (key, value.to_owned())).into(),
        config: config.to_string(),
    }
}

/// Checks that leases of others are unchanged, and that there is no new lease without an owner.
fn check_whole(scenario: &CrashScenario, tree: &Tree, place: &str) {
    let (before, after) = (leases(&scenario.before), leases(tree));
    for (ip, owner) in before
        .iter()
        .filter(|(_, owner)| !owner.starts_with(VICTIM))
    {
        assert_eq!(after.get(ip), Some(owner), "{place}: {ip}");
    }
    for (ip, owner) in &after {
        let is_known = owner == VICTIMS || before.get(ip) == Some(owner);
        assert!(is_known, "{place}: {ip} has {owner:?}");
    }
    for (path, (node, _)) in tree {
        let is_address = address(path).is_some();
        let is_empty = matches!(node, FileNode::File(text) if text.is_empty());
        assert!(
            !(is_address && is_empty) || scenario.before.contains_key(path),
            "{place}: {path} is empty"
        );
    }
}

fn address(path: &str) -> Option<IpAddr> {
    path.rsplit('/').next()?.parse().ok()
}

/// The addresses and their owners. An empty file is not a lease.
fn leases(tree: &Tree) -> BTreeMap<IpAddr, String> {
    let lease = |(path, (node, _)): (&String, &(FileNode, u32))| match node {
        FileNode::File(text) if !text.is_empty() => {
            Some((address(path)?, String::from_utf8(text.clone()).unwrap()))
        }
        _ => None,
    };
    tree.iter().filter_map(lease).collect()
}

/// New files that are neither a lease nor the lock nor a cursor.
fn strange<'a>(scenario: &CrashScenario, tree: &'a Tree) -> Vec<(&'a String, &'a FileNode)> {
    let is_strange = |path: &String, node: &FileNode| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_usual =
            address(path).is_some() || name == "lock" || name.starts_with("last_reserved_ip.");
        !is_usual && *node != FileNode::Directory && !scenario.before.contains_key(path)
    };
    let files = tree.iter().map(|(path, (node, _))| (path, node));
    files
        .filter(|(path, node)| is_strange(path, node))
        .collect()
}

fn strange_names(scenario: &CrashScenario, tree: &Tree) -> Vec<String> {
    strange(scenario, tree)
        .into_iter()
        .map(|(path, _)| path.clone())
        .collect()
}

fn given(seen: &ObservedResult) -> Vec<IpAddr> {
    let result: Value = serde_json::from_str(&seen.stdout).unwrap();
    let ips = result["ips"].as_array().unwrap().iter();
    ips.map(|ip| {
        let address = ip["address"].as_str().unwrap();
        address.split_once('/').unwrap().0.parse().unwrap()
    })
    .collect()
}

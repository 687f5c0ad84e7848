//! `podplane cni` and `podplane plugins`: plugins without a cluster.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use podplane_tests::{
    peers,
    programs::{ProgramOutput, bin_dir, finish, podplane},
};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEBIAN: &str = "/usr/lib/cni";

fn plugins() -> bool {
    let present = Path::new(DEBIAN).join("host-local").exists();
    peers::require(
        "cni-plugins",
        present,
        "apt-get install containernetworking-plugins",
    )
}

/// A configuration directory with one network, and a cache.
struct Bench {
    dir: TempDir,
}

impl Bench {
    fn new(plugin: &Value) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let bench = Self { dir };
        fs::create_dir(bench.path("net.d")).expect("a directory");
        let mut plugin = plugin.clone();
        plugin["ipam"] = json!({"type": "host-local", "dataDir": bench.path("networks"), "subnet": "10.9.8.0/24"});
        let list = json!({"cniVersion": "1.1.0", "name": "mynet", "plugins": [plugin]});
        fs::write(bench.path("net.d/10-mynet.conflist"), list.to_string()).expect("a file");
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A command line with the environment variables of cnitool.
    fn command(&self, line: &str) -> Command {
        let mut command = podplane(["cni"].into_iter().chain(line.split(' ')));
        command.arg("--cache-dir").arg(self.path("cache"));
        command
            .env("NETCONFPATH", self.path("net.d"))
            .env("CNI_PATH", bin_dir());
        command
    }

    fn run(&self, line: &str) -> ProgramOutput {
        finish(&mut self.command(line))
    }

    fn names(&self, dir: &str) -> Vec<String> {
        names(&self.path(dir))
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten();
    let names = entries.map(|entry| {
        entry
            .expect("an entry")
            .file_name()
            .into_string()
            .expect("text")
    });
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn cni_commands_work_like_cnitool() {
    let bench = Bench::new(&json!({"type": "host-local"}));
    let added = bench.run("add mynet /no/such/netns").ok();
    let result: Value = serde_json::from_str(&added).expect("JSON");
    assert_eq!(result["ips"][0]["address"], "10.9.8.2/24");
    // The output of: printf /no/such/netns | sha512sum | head -c 20
    let entry = "mynet-cnitool-3d77df867c6eb76f38c7-eth0";
    assert_eq!(bench.names("cache/results"), [entry]);
    bench.run("check mynet /no/such/netns").ok();
    bench.run("status mynet /no/such/netns").ok();
    let second = bench.run("add mynet /no/such/netns").failed(1);
    assert!(
        second.contains("error: plugin type=\"host-local\" failed (add): ")
            && second.contains("duplicate allocation is not allowed (code 999)"),
        "{second}"
    );
    bench.run("del mynet /no/such/netns").ok();
    bench.run("del mynet /no/such/netns").ok();
    assert!(bench.names("cache/results").is_empty());

    let mut other = bench.command("add mynet /no/such/netns --container-id web-0");
    other
        .env("CNI_IFNAME", "net1")
        .env("CNI_ARGS", "IP=10.9.8.77");
    let result = finish(&mut other).ok();
    assert!(result.contains("10.9.8.77/24"), "{result}");
    bench
        .run("add mynet /no/such/netns --container-id web-1")
        .ok();
    bench.run("gc mynet --keep web-0/net1").ok();
    assert_eq!(bench.names("cache/results"), ["mynet-web-0-net1"]);
    assert_eq!(
        bench.names("networks/mynet"),
        ["10.9.8.77", "last_reserved_ip.0", "lock"]
    );
    bench.run("gc mynet").ok();
    assert!(bench.names("cache/results").is_empty());
}

#[test]
fn errors_name_the_fault() {
    let bench = Bench::new(&json!({"type": "host-local"}));
    let unknown = bench.run("add theirs /no/such/netns").failed(1);
    let dir = bench.path("net.d");
    let want = format!(
        "error: no net configuration with name \"theirs\" in {}\n",
        dir.display()
    );
    assert_eq!(unknown, want);
    let nowhere = bench
        .run("add mynet /no/such/netns --bin-dir /no:/where")
        .failed(1);
    assert!(
        nowhere.contains("failed to find plugin \"host-local\" in path [/no /where]"),
        "{nowhere}"
    );
    let empty = bench
        .run("add mynet /no/such/netns --conf-dir /no/such/dir")
        .failed(1);
    assert_eq!(
        empty,
        "error: no net configurations found in /no/such/dir\n"
    );
    for line in [
        "add mynet",
        "add mynet /n --args A",
        "add mynet /n --capability-args []",
        "gc mynet --keep web-0",
        "add mynet /n --timeout soon",
    ] {
        bench.run(line).failed(2);
    }
    let ifname = bench.run("add mynet /n --ifname a/b").failed(1);
    assert!(
        ifname.contains("interface name contains / or : or whitespace characters (code 4)"),
        "{ifname}"
    );
}

#[test]
fn a_bridge_is_made_in_the_callers_namespace() {
    if !peers::root() {
        return;
    }
    let bench = Bench::new(&json!({"type": "bridge", "bridge": "cni0", "isGateway": true}));
    // Namespaces of a node and of a pod, which both end with the script.
    let script = r#"
        own=$(readlink /proc/self/ns/net)
        unshare --net sleep 60 & pod=$!
        trap "kill $pod" EXIT
        while [ "$(readlink /proc/$pod/ns/net)" = "$own" ]; do sleep 0.01; done
        "$@" add mynet /proc/$pod/ns/net --cache-dir $CACHE
        nsenter --target $pod --net ip -oneline address show eth0
        "$@" check mynet /proc/$pod/ns/net --cache-dir $CACHE
        "$@" del mynet /proc/$pod/ns/net --cache-dir $CACHE
        nsenter --target $pod --net ip -oneline link
    "#;
    let tool = bench.command("");
    let mut shell = Command::new("unshare");
    shell.args(["--net", "sh", "-e", "-c", script, "sh"]);
    shell.arg(tool.get_program()).args(["cni", "--log", "warn"]);
    shell.envs(
        tool.get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    let done = finish(shell.env("CACHE", bench.path("cache")).stdin(Stdio::null()));
    let stdout = done.ok();
    assert!(stdout.contains("inet 10.9.8.2/24"), "{stdout}");
    let last = stdout.lines().last().expect("a line");
    assert!(last.contains(" lo:"), "the interface is gone: {stdout}");
}

fn install(dir: &Path, force: &[&str]) -> ProgramOutput {
    finish(podplane(["plugins", "install"]).arg(dir).args(force))
}

#[test]
fn plugins_are_installed_and_others_are_not_overwritten() {
    if !plugins() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let dir = dir.path().join("opt/cni/bin");
    let said = install(&dir, &[]).ok();
    let names = names(&dir);
    assert!(names.iter().any(|name| name == "host-local"), "{names:?}");
    for name in &names {
        assert!(said.contains(&format!("{name}: installed\n")), "{said}");
        let mode = fs::metadata(dir.join(name))
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o755);
        let version = finish(Command::new(dir.join(name)).env("CNI_COMMAND", "VERSION")).ok();
        assert!(version.contains("\"1.1.0\""), "{name}: {version}");
    }
    assert!(install(&dir, &[]).ok().contains("host-local: unchanged"));

    fs::copy(Path::new(DEBIAN).join("bridge"), dir.join("bridge")).expect("a copy");
    let refused = install(&dir, &[]).failed(1);
    assert!(
        refused.contains("bridge: \"CNI bridge plugin version unknown\""),
        "{refused}"
    );
    assert!(refused.contains("--force"), "{refused}");
    let theirs = fs::read(Path::new(DEBIAN).join("bridge")).expect("a file");
    assert_eq!(fs::read(dir.join("bridge")).expect("a file"), theirs);
    let said = install(&dir, &["--force"]).ok();
    assert!(
        said.contains("bridge: replaced \"CNI bridge plugin version unknown\""),
        "{said}"
    );
    assert_ne!(fs::read(dir.join("bridge")).expect("a file"), theirs);
}

#[test]
fn a_plugin_that_runs_is_not_disturbed() {
    let bench = Bench::new(&json!({"type": "host-local"}));
    let dir = bench.path("bin");
    install(&dir, &[]).ok();
    // Changed bytes stand for an older version.
    let program = dir.join("host-local");
    let mut old = fs::OpenOptions::new()
        .append(true)
        .open(&program)
        .expect("the plugin");
    old.write_all(b"old").expect("written");
    drop(old);
    let mut running: Child = Command::new(&program)
        .env_clear()
        .envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "pod"),
            ("CNI_IFNAME", "eth0"),
        ])
        .envs([("CNI_NETNS", "/no/such/netns"), ("CNI_PATH", "/")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the plugin");
    let said = install(&dir, &[]).ok();
    assert!(
        said.contains("host-local: replaced podplane 0.1.0"),
        "{said}"
    );
    let config = json!({"cniVersion": "1.0.0", "name": "mynet",
        "ipam": {"type": "host-local", "dataDir": bench.path("networks"), "subnet": "10.9.8.0/24"}});
    let mut stdin = running.stdin.take().expect("a pipe");
    stdin
        .write_all(config.to_string().as_bytes())
        .expect("it still reads");
    drop(stdin);
    let result = ProgramOutput::from(running.wait_with_output().expect("its end")).ok();
    assert!(result.contains("10.9.8.2/24"), "{result}");
}

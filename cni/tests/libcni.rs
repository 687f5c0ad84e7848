//! The runtime beside libcni itself: each continues where the other stopped, and plugins cannot
//! tell them apart.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "a test")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use podplane_cni::{Attachment, CniResult, NetworkConfigList, skel};
use podplane_test_network::{
    DEBIAN, GO_PACKAGES,
    bench::{Bench, RESULT, pod},
    our_plugins, require, tree,
};
use serde_json::{Value, json};

/// The peer program, built once from Debian's source package of libcni.
fn peer() -> &'static Path {
    static PEER: OnceLock<PathBuf> = OnceLock::new();
    PEER.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let program = dir.join("libcni");
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&program)
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/peers/libcni.go"
            ))
            .envs([("GO111MODULE", "off"), ("GOPATH", GO_PACKAGES)])
            .envs([("GOFLAGS", ""), ("CGO_ENABLED", "0")])
            .env("GOCACHE", dir.join("go-cache"))
            .output()
            .unwrap();
        assert!(
            built.status.success(),
            "{}",
            String::from_utf8_lossy(&built.stderr)
        );
        program
    })
}

/// A configuration directory, plugins and a cache, for either runtime.
struct RuntimePair {
    bench: Bench,
    conf_dir: PathBuf,
}

impl RuntimePair {
    fn new() -> Self {
        let bench = Bench::new();
        let conf_dir = bench.dir.path().join("net.d");
        fs::create_dir(&conf_dir).unwrap();
        Self { bench, conf_dir }
    }

    fn configure(&self, file: &str, text: &str) {
        fs::write(self.conf_dir.join(file), text).unwrap();
    }

    fn load(&self, network: &str) -> Result<NetworkConfigList, String> {
        let list = NetworkConfigList::load(&self.conf_dir, network);
        list.map_err(|error| skel::text(&error))
    }

    /// libcni's answer, or its error.
    fn theirs(&self, command: &str, network: &str, pod: &Attachment) -> Result<String, String> {
        let runtime = &self.bench.runtime;
        let output = Command::new(peer())
            .args([command, network])
            .env("TEST_CONF_DIR", &self.conf_dir)
            .env("TEST_BIN_DIRS", json!(runtime.bin_dirs).to_string())
            .env("TEST_CACHE_DIR", &runtime.cache_dir)
            .env("TEST_ID", &pod.container_id)
            .env("TEST_NETNS", pod.netns.as_deref().unwrap_or(Path::new("")))
            .env("TEST_IFNAME", &pod.ifname)
            .env("TEST_ARGS", json!(pod.args).to_string())
            .env(
                "TEST_CAPABILITY_ARGS",
                json!(pod.capability_args).to_string(),
            )
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        if output.status.success() {
            Ok(text(output.stdout))
        } else {
            Err(text(output.stderr))
        }
    }

    fn ours(&self, command: &str, network: &str, pod: &Attachment) -> Result<String, String> {
        let (list, runtime) = (self.load(network)?, &self.bench.runtime);
        let done = match command {
            "add" => runtime
                .add(&list, pod)
                .map(|result| CniResult::to_json(&result)),
            "check" => runtime.check(&list, pod).map(|()| String::new()),
            "del" => runtime.del(&list, pod).map(|()| String::new()),
            other => panic!("{other}"),
        };
        done.map_err(|error| error.message())
    }

    /// The files of the cache. The namespace, which libcni stores from 1.2 on, is left out:
    /// Debian's is 1.1.
    fn cache(&self) -> BTreeMap<String, String> {
        let results = self.bench.runtime.cache_dir.join("results");
        let files = tree(&results).into_iter();
        files
            .map(|(name, text)| (name, text.replace(r#""netns":"/netns/pod","#, "")))
            .collect()
    }

    /// Takes the input and environment of a plugin, as recorded to the byte. The records are
    /// removed.
    fn given(&self, plugin: &str, command: &str) -> (String, Vec<String>) {
        let dir = self.bench.dir.path();
        let stdin = dir.join(format!("{plugin}.{command}.json"));
        let env = fs::read_to_string(dir.join(format!("{plugin}.env"))).unwrap();
        let mut env: Vec<_> = env
            .lines()
            .filter(|line| line.starts_with("CNI_"))
            .map(str::to_owned)
            .collect();
        env.sort();
        let text = fs::read_to_string(&stdin).unwrap();
        fs::remove_file(stdin).unwrap();
        (text, env)
    }
}

fn chain(version: &str) -> String {
    json!({"cniVersion": version, "name": "net", "comment": "<&>\u{2028}é", "plugins": [
        {"type": "first", "capabilities": {"ips": true, "off": false}, "z": {"b": 1, "a": [null, 0.5, "<x>"]}, "runtimeConfig": {"mine": 1}},
        {"type": "second", "name": "its own", "capabilities": {"portMappings": true}},
    ]})
    .to_string()
}

fn pod_with_arguments() -> Attachment {
    let mut pod = pod();
    pod.args = [("K8S_POD_NAME", "a&b"), ("IgnoreUnknown", "1")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .to_vec();
    pod.capability_args =
        json!({"ips": ["10.0.0.2"], "off": 1, "portMappings": [{"hostPort": 8080}]})
            .as_object()
            .unwrap()
            .clone();
    pod
}

#[test]
fn plugins_and_the_cache_get_the_same_bytes_as_from_libcni() {
    if !require(&["libcni"]) {
        return;
    }
    let single = json!({"cniVersion": "1.0.0", "name": "net", "type": "first", "capabilities": {"ips": true}}).to_string();
    for (file, text, version, plugins) in [
        (
            "net.conflist",
            chain("1.0.0"),
            "1.0.0",
            vec!["first", "second"],
        ),
        (
            "net.conflist",
            chain("0.4.0"),
            "0.4.0",
            vec!["first", "second"],
        ),
        (
            "net.conflist",
            chain("0.3.1"),
            "0.3.1",
            vec!["first", "second"],
        ),
        ("net.conf", single, "1.0.0", vec!["first"]),
    ] {
        let pair = RuntimePair::new();
        pair.configure(file, &text);
        let result = json!({"cniVersion": version, "ips": [{"version": "4", "interface": 0, "address": "10.0.0.2/24", "gateway": "10.0.0.1"}],
            "interfaces": [{"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/netns/pod"}],
            "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.0.0.1"]}});
        for plugin in &plugins {
            pair.bench.plugin(
                plugin,
                &format!("if [ $CNI_COMMAND = ADD ]; then echo '{result}'; fi"),
            );
        }
        let pod = pod_with_arguments();
        let mut seen = Vec::new();
        for add in [RuntimePair::theirs, RuntimePair::ours] {
            let printed: Value =
                serde_json::from_str(&add(&pair, "add", "net", &pod).unwrap()).unwrap();
            let given: Vec<_> = plugins
                .iter()
                .map(|plugin| pair.given(plugin, "ADD"))
                .collect();
            seen.push((printed, given, pair.cache()));
        }
        assert_eq!(seen[0], seen[1], "ADD, {file} {version}");
        for command in ["check", "del"] {
            if (command, version) == ("check", "0.3.1") {
                assert_eq!(
                    pair.theirs(command, "net", &pod),
                    pair.ours(command, "net", &pod)
                );
                continue;
            }
            let entry = pair.cache();
            let mut seen = Vec::new();
            for run in [RuntimePair::theirs, RuntimePair::ours] {
                run(&pair, command, "net", &pod).unwrap();
                let verb = command.to_uppercase();
                let given: Vec<_> = plugins
                    .iter()
                    .map(|plugin| pair.given(plugin, &verb))
                    .collect();
                seen.push((given, pair.cache()));
                for (name, text) in &entry {
                    fs::write(
                        pair.bench.runtime.cache_dir.join("results").join(name),
                        text,
                    )
                    .unwrap();
                }
            }
            assert_eq!(seen[0], seen[1], "{command}, {file} {version}");
        }
    }
}

#[test]
fn ours_and_libcni_delete_each_others_attachments() {
    if !require(&["libcni", "cni-plugins"]) {
        return;
    }
    let ours: PathBuf = our_plugins();
    for (bin_dirs, add, others) in [
        (
            [DEBIAN.into(), ours.clone()],
            RuntimePair::theirs as fn(&_, &_, &_, &_) -> _,
            RuntimePair::ours as fn(&_, &_, &_, &_) -> _,
        ),
        (
            [ours, DEBIAN.into()],
            RuntimePair::ours,
            RuntimePair::theirs,
        ),
    ] {
        let mut pair = RuntimePair::new();
        let data = pair.bench.dir.path().join("networks");
        let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "host-local",
            "ipam": {"type": "host-local", "dataDir": data, "subnet": "10.9.0.0/24"}}]});
        pair.configure("10.conflist", &config.to_string());
        pair.bench.runtime.bin_dirs = bin_dirs.to_vec();
        let leases = || {
            tree(&data.join("net"))
                .iter()
                .filter(|(name, _)| name.starts_with("10."))
                .count()
        };
        let added: Result<String, String> = add(&pair, "add", "net", &pod());
        assert!(added.unwrap().contains("10.9.0.2/24"));
        assert_eq!((leases(), pair.cache().len()), (1, 1));
        // With the other's plugins, too.
        pair.bench.runtime.bin_dirs.reverse();
        assert_eq!(others(&pair, "check", "net", &pod()), Ok(String::new()));
        assert_eq!(others(&pair, "del", "net", &pod()), Ok(String::new()));
        assert_eq!((leases(), pair.cache().len()), (0, 0));
    }
}

#[test]
fn gc_deletes_attachments_of_libcni() {
    if !require(&["libcni"]) {
        return;
    }
    let pair = RuntimePair::new();
    pair.configure("net.conflist", &chain("1.0.0"));
    for plugin in ["first", "second"] {
        pair.bench.plugin(plugin, RESULT);
    }
    let pod = pod_with_arguments();
    pair.theirs("add", "net", &pod).unwrap();
    let cached = pair.bench.runtime.cached().unwrap().remove(0).attachment;
    let same = (&cached.args, &cached.capability_args) == (&pod.args, &pod.capability_args);
    assert!(
        same && cached.container_id == "pod" && cached.ifname == "eth0",
        "{cached:?}"
    );
    pair.given("first", "ADD");
    pair.bench
        .runtime
        .gc(&pair.load("net").unwrap(), Some(&[]))
        .unwrap();
    let (stdin, env) = pair.given("first", "DEL");
    let stdin: Value = serde_json::from_str(&stdin).unwrap();
    assert_eq!(stdin["runtimeConfig"], json!({"ips": ["10.0.0.2"]}));
    assert!(
        env.contains(&"CNI_ARGS=K8S_POD_NAME=a&b;IgnoreUnknown=1".to_owned()),
        "{env:?}"
    );
    assert_eq!(pair.cache().len(), 0);
}

#[test]
fn ours_and_libcni_find_and_refuse_the_same_configurations() {
    if !require(&["libcni"]) {
        return;
    }
    let plugin = |name: &str| {
        format!(r#"{{"name": "{name}", "cniVersion": "0.4.0", "type": "{name}-single"}}"#)
    };
    let conflist = |name: &str| {
        format!(
            r#"{{"name": "{name}", "disableCheck": true, "cniVersion": "1.0.0", "plugins": [{{"type": "{name}-list"}}]}}"#
        )
    };
    let (a, b) = (plugin("a"), plugin("b"));
    let (list_a, list_b) = (conflist("a"), conflist("b"));
    let directories: &[&[(&str, &str)]] = &[
        &[],
        &[("x.txt", "junk"), ("10.conf", &b)],
        &[("10.conf", &a), ("99.conflist", &list_a)],
        &[
            ("20.json", &a),
            ("10.conf", r#"{"type": "nameless"}"#),
            ("30.conf", "{"),
        ],
        &[("05.conf", "{"), ("10.json", &a)],
        &[("05.conf", r#"{"name": "c"}"#), ("10.json", &a)],
        &[("05.conflist", "{"), ("10.conflist", &list_a)],
        &[("05.conflist", &list_a), ("10.conflist", "{")],
        &[("05.conflist", &list_b), ("10.conf", &a)],
        &[("05.conflist", &list_b)],
        &[("05.conflist", r#"{"plugins": [{"type": "x"}]}"#)],
        &[("05.conflist", r#"{"name": 5, "plugins": [{"type": "x"}]}"#)],
        &[(
            "05.conflist",
            r#"{"name": "a", "cniVersion": 5, "plugins": [{"type": "x"}]}"#,
        )],
        &[("05.conflist", r#"{"name": "a", "plugins": {}}"#)],
        &[("05.conflist", r#"{"name": "a", "plugins": []}"#)],
        &[(
            "05.conflist",
            r#"{"name": "a", "plugins": [{"type": "x"}, {"Type": "y"}]}"#,
        )],
        &[("05.conflist", r#"{"name": "a", "plugins": [{"type": ""}]}"#)],
    ];
    for files in directories {
        let pair = RuntimePair::new();
        for (file, text) in *files {
            pair.configure(file, text);
        }
        let theirs = pair.theirs("load", "a", &pod());
        let theirs = theirs.map(|text| serde_json::from_str::<Value>(&text).unwrap());
        let ours = pair.load("a").map(|list| {
            let types = list
                .plugins
                .iter()
                .map(|plugin| plugin.get("type").or(plugin.get("Type")));
            json!([
                list.cni_version,
                list.disable_check,
                types.collect::<Vec<_>>()
            ])
        });
        match (&theirs, &ours) {
            // Ours has the name of the file in front.
            (Err(theirs), Err(ours)) => {
                assert!(ours.ends_with(theirs), "{files:?}: {theirs}\n{ours}")
            }
            _ => assert_eq!(theirs, ours, "{files:?}"),
        }
    }
}

#[test]
fn failures_have_the_texts_of_libcni() {
    if !require(&["libcni"]) {
        return;
    }
    let pair = RuntimePair::new();
    pair.configure("net.conflist", &chain("1.0.0"));
    pair.bench.plugin("second", RESULT);
    let mut bodies = vec![
        "exit 2",
        "echo no >&2; exit 3",
        "echo oops; exit 1",
        "kill -9 $$",
    ];
    bodies.push(r#"echo '{"code": 7, "msg": "bad", "details": "very"}'; exit 1"#);
    bodies.push(r#"echo '{"cniVersion": "7.0.0"}'"#);
    for body in bodies {
        pair.bench.plugin(
            "first",
            &format!("if [ $CNI_COMMAND = DEL ]; then exit 0; fi\n{body}"),
        );
        let (theirs, ours) = (
            pair.theirs("add", "net", &pod()),
            pair.ours("add", "net", &pod()),
        );
        // libcni prints this from 1.2 on; Debian's is 1.1.
        let ours = ours.map_err(|error| error.replace(r#""no\n": exit status 3"#, r#""no\n""#));
        // Each JSON library has its own words for a syntax error.
        let words = |error: String| error.split("\"oops\\n\": ").next().unwrap().to_owned();
        assert_eq!(theirs.map_err(words), ours.map_err(words), "{body}");
    }
    pair.bench.plugin("first", RESULT);
    pair.bench
        .plugin("second", "if [ $CNI_COMMAND = ADD ]; then exit 2; fi");
    let (theirs, ours) = (
        pair.theirs("add", "net", &pod()),
        pair.ours("add", "net", &pod()),
    );
    assert!(theirs.as_ref().unwrap_err().contains("name=\"its own\""));
    assert_eq!(theirs, ours);
    let mut bad = pod();
    for (id, ifname) in [
        ("a/b", "eth0"),
        ("pod", "an-interface-name"),
        ("pod", "a b"),
        ("", "eth0"),
    ] {
        bad.container_id = id.to_owned();
        bad.ifname = ifname.to_owned();
        let (theirs, ours) = (
            pair.theirs("add", "net", &bad),
            pair.ours("add", "net", &bad),
        );
        // libcni names a plugin that it has not run.
        let theirs = theirs
            .unwrap_err()
            .replace("plugin type=\"first\" failed (add): ", "");
        assert_eq!(theirs, ours.unwrap_err());
    }
    fs::remove_file(pair.bench.dir.path().join("bin/first")).unwrap();
    for command in ["add", "check"] {
        let (theirs, ours) = (
            pair.theirs(command, "net", &pod()),
            pair.ours(command, "net", &pod()),
        );
        let (theirs, ours) = (theirs.unwrap_err(), ours.unwrap_err());
        assert!(ours.ends_with(&theirs), "{theirs}\n{ours}");
    }
}

//! The runtime, against plugins that misbehave. They are shell scripts; nothing here needs privileges.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use podplane_cni::{Attachment, Runtime, RuntimeError, ValidAttachment, runtime::PluginError};
use serde_json::{Value, json};
use support::list;
use tempfile::TempDir;

/// A directory of plugins and a runtime for them.
struct Bench {
    dir: TempDir,
    runtime: Runtime,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime {
            bin_dirs: vec!["/no/such/dir".into(), dir.path().join("bin")],
            cache_dir: dir.path().join("cache"),
            node_netns: None,
            timeout: Duration::from_secs(20),
        };
        fs::create_dir(dir.path().join("bin")).unwrap();
        Self { dir, runtime }
    }

    /// A plugin that notes `<name> <command>`, keeps its input, and then does as told.
    fn plugin(&self, name: &str, body: &str) {
        let dir = self.dir.path().display();
        let script = format!(
            "#!/bin/sh\necho \"{name} $CNI_COMMAND\" >> {dir}/calls\ncat > {dir}/{name}.$CNI_COMMAND.json\nenv > {dir}/{name}.env\n{body}\n"
        );
        let path = self.dir.path().join("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        _ = fs::remove_file(self.dir.path().join("calls"));
        text.lines().map(str::to_owned).collect()
    }

    fn input(&self, name: &str, command: &str) -> Value {
        let path = self.dir.path().join(format!("{name}.{command}.json"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn cached(&self) -> usize {
        fs::read_dir(self.dir.path().join("cache/results")).map_or(0, Iterator::count)
    }
}

const RESULT: &str = r#"if [ $CNI_COMMAND = ADD ]; then echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}'; fi"#;

fn network(version: &str, types: &[&str]) -> podplane_cni::NetworkConfigList {
    let plugins: Vec<_> = types
        .iter()
        .map(|name| json!({"type": name, "capabilities": {"ips": true}}))
        .collect();
    list(&json!({"cniVersion": version, "name": "net", "plugins": plugins}))
}

fn pod() -> Attachment {
    Attachment::new("pod", Some("/netns/pod".into()), "eth0")
}

#[test]
fn a_chain_passes_results_on_and_comes_back_in_reverse() {
    let bench = Bench::new();
    bench.plugin("first", RESULT);
    bench.plugin("second", RESULT);
    let network = network("1.0.0", &["first", "second"]);
    let mut pod = pod();
    pod.args = vec![
        ("A".to_owned(), "b".to_owned()),
        ("C".to_owned(), "d".to_owned()),
    ];
    pod.capability_args
        .insert("ips".to_owned(), json!(["10.0.0.2"]));
    pod.capability_args
        .insert("portMappings".to_owned(), json!([]));
    let result = bench.runtime.add(&network, &pod).unwrap();
    assert_eq!(bench.calls(), ["first ADD", "second ADD"]);
    assert_eq!(bench.input("first", "ADD").get("prevResult"), None);
    let second = bench.input("second", "ADD");
    assert_eq!(second["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    assert_eq!(second["runtimeConfig"], json!({"ips": ["10.0.0.2"]}));
    assert_eq!(
        (&second["name"], &second["cniVersion"]),
        (&json!("net"), &json!("1.0.0"))
    );
    let env = fs::read_to_string(bench.dir.path().join("second.env")).unwrap();
    for line in [
        "CNI_ARGS=A=b;C=d",
        "CNI_IFNAME=eth0",
        "CNI_NETNS=/netns/pod",
        "CNI_CONTAINERID=pod",
    ] {
        assert!(env.lines().any(|found| found == line), "{line} in {env}");
    }
    assert_eq!(bench.runtime.cached_result(&network, &pod), Some(result));
    assert_eq!(bench.runtime.cached().unwrap()[0].attachment, pod);

    bench.runtime.check(&network, &pod).unwrap();
    assert_eq!(bench.calls(), ["first CHECK", "second CHECK"]);
    bench.runtime.del(&network, &pod).unwrap();
    assert_eq!(bench.calls(), ["second DEL", "first DEL"]);
    assert_eq!(
        bench.input("first", "DEL")["prevResult"]["ips"][0]["address"],
        "10.0.0.2/24"
    );
    assert_eq!(bench.cached(), 0);
}

#[test]
fn the_cache_is_libcnis() {
    let bench = Bench::new();
    bench.plugin("first", RESULT);
    let network = network("1.0.0", &["first"]);
    bench.runtime.add(&network, &pod()).unwrap();
    let path = bench.dir.path().join("cache/results/net-pod-eth0");
    let text = fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with(r#"{"kind":"cniCacheV1","containerId":"pod","config":""#),
        "{text}"
    );
    assert!(
        text.contains(r#""ifName":"eth0","networkName":"net","netns":"/netns/pod","result":{"#),
        "{text}"
    );
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    // An entry that was cut short does not stand in the way of a DEL.
    fs::write(&path, &text[..40]).unwrap();
    bench.runtime.del(&network, &pod()).unwrap();
    assert_eq!(bench.input("first", "DEL").get("prevResult"), None);
    assert_eq!(bench.cached(), 0);
    // The older format is the bare result.
    fs::write(
        &path,
        r#"{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.0.0.9/24"}]}"#,
    )
    .unwrap();
    bench.runtime.del(&network, &pod()).unwrap();
    assert_eq!(
        bench.input("first", "DEL")["prevResult"]["ips"][0]["address"],
        "10.0.0.9/24"
    );
}

#[test]
fn a_failed_add_is_rolled_back() {
    let bench = Bench::new();
    bench.plugin("first", RESULT);
    bench.plugin(
        "second",
        r#"if [ $CNI_COMMAND = ADD ]; then echo '{"code": 11, "msg": "later"}'; exit 1; fi"#,
    );
    bench.plugin("third", RESULT);
    let network = network("1.0.0", &["first", "second", "third"]);
    let error = bench.runtime.add(&network, &pod()).unwrap_err();
    assert_eq!(
        error.message(),
        "plugin type=\"second\" failed (add): later"
    );
    assert_eq!(error.cni_error().unwrap().code, 11);
    assert_eq!(
        bench.calls(),
        ["first ADD", "second ADD", "second DEL", "first DEL"]
    );
    assert_eq!(bench.cached(), 0);

    bench.plugin("first", r#"if [ $CNI_COMMAND = DEL ]; then echo '{"code": 5, "msg": "stuck"}'; exit 1; fi; echo '{}'"#);
    let error = bench.runtime.add(&network, &pod()).unwrap_err();
    assert!(matches!(error, RuntimeError::Rollback { .. }));
    let message = error.message();
    for part in [
        "plugin type=\"second\" failed (add): later",
        "plugin type=\"first\" failed (delete): stuck",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_del_goes_on_past_a_plugin_that_fails() {
    let bench = Bench::new();
    bench.plugin("first", RESULT);
    bench.plugin("second", RESULT);
    let network = network("1.0.0", &["first", "second"]);
    bench.runtime.add(&network, &pod()).unwrap();
    bench.plugin("second", "echo broken >&2; exit 3");
    bench.calls();
    let error = bench.runtime.del(&network, &pod()).unwrap_err();
    assert_eq!(
        error.message(),
        "plugin type=\"second\" failed (delete): netplugin failed: \"broken\\n\": exit status 3"
    );
    assert_eq!(bench.calls(), ["second DEL", "first DEL"]);
    assert_eq!(bench.cached(), 1, "kept for the next attempt");
}

#[test]
fn a_plugin_that_hangs_is_killed_with_its_children() {
    let bench = Bench::new();
    bench.plugin(
        "hang",
        "echo waiting >&2; if [ $CNI_COMMAND = ADD ]; then sleep 600 & echo $! > $0.pid; wait; fi",
    );
    let runtime = Runtime {
        timeout: Duration::from_millis(700),
        ..bench.runtime.clone()
    };
    let started = Instant::now();
    let error = runtime
        .add(&network("1.0.0", &["hang"]), &pod())
        .unwrap_err()
        .message();
    assert!(started.elapsed() < Duration::from_secs(10));
    let program = bench.dir.path().join("bin/hang");
    let expected = format!(
        "plugin type=\"hang\" failed (add): plugin {} did not finish within 700ms and was killed: \"waiting\\n\"",
        program.display()
    );
    assert_eq!(error, expected);
    let child = fs::read_to_string(bench.dir.path().join("bin/hang.pid")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        // Killed at once; it may stay a zombie until init reaps it.
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the plugin's child still runs: {stat}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(bench.calls(), ["hang ADD", "hang DEL"]);
}

#[test]
fn a_plugin_that_never_stops_printing_is_ended_in_time() {
    let bench = Bench::new();
    bench.plugin("flood", "if [ $CNI_COMMAND = ADD ]; then exec yes; fi");
    let runtime = Runtime {
        timeout: Duration::from_millis(700),
        ..bench.runtime.clone()
    };
    let started = Instant::now();
    let error = runtime
        .add(&network("1.0.0", &["flood"]), &pod())
        .unwrap_err()
        .message();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert!(
        error.contains("did not finish within 700ms and was killed"),
        "{error}"
    );
    assert!(
        error.len() < 1000,
        "what it printed is not in the error: {}",
        error.len()
    );
}

#[test]
fn a_grandchild_that_keeps_the_pipes_does_not_hold_us() {
    let bench = Bench::new();
    bench.plugin(
        "daemon",
        &format!("setsid sleep 5 & echo $! > $0.pid\n{RESULT}"),
    );
    let started = Instant::now();
    bench
        .runtime
        .add(&network("1.0.0", &["daemon"]), &pod())
        .unwrap();
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "waited for the daemon"
    );
}

#[test]
fn rubbish_is_answered_with_libcnis_words() {
    let bench = Bench::new();
    let message = |body: &str| {
        bench.plugin(
            "p",
            &format!("if [ $CNI_COMMAND = DEL ]; then exit 0; fi\n{body}"),
        );
        bench
            .runtime
            .add(&network("1.0.0", &["p"]), &pod())
            .unwrap_err()
            .message()
    };
    let prefix = "plugin type=\"p\" failed (add): ";
    let rubbish = message("echo hello");
    assert!(
        rubbish.starts_with(&format!("{prefix}failed to unmarshal raw result: ")),
        "{rubbish}"
    );
    assert_eq!(
        message("echo '{\"cniVersion\": \"7.0.0\"}'"),
        format!("{prefix}unsupported CNI result version \"7.0.0\"")
    );
    assert_eq!(
        message("exit 2"),
        format!("{prefix}netplugin failed with no error message: exit status 2")
    );
    assert_eq!(
        message("kill -9 $$"),
        format!("{prefix}netplugin failed with no error message: signal: killed")
    );
    let unreadable = message("echo oops; exit 1");
    let expected =
        format!("{prefix}netplugin failed but error parsing its diagnostic message \"oops\\n\": ");
    assert!(unreadable.starts_with(&expected), "{unreadable}");
    // A plugin that fills its pipes before it reads is served all the same.
    bench.plugin("p", &format!("head -c 300000 /dev/zero >&2\n{RESULT}"));
    bench
        .runtime
        .add(&network("1.0.0", &["p"]), &pod())
        .unwrap();
}

#[test]
fn a_missing_plugin_is_looked_for_and_nothing_is_run() {
    let bench = Bench::new();
    bench.plugin("first", RESULT);
    let error = bench
        .runtime
        .add(&network("1.0.0", &["first", "nope"]), &pod())
        .unwrap_err();
    let dirs = format!("/no/such/dir {}", bench.dir.path().join("bin").display());
    assert_eq!(
        error.message(),
        format!(
            "plugin type=\"nope\" failed (add): failed to find plugin \"nope\" in path [{dirs}]"
        )
    );
    assert!(matches!(
        error,
        RuntimeError::Plugin {
            source: PluginError::NotFound { .. },
            ..
        }
    ));
    assert_eq!(bench.calls(), ["first ADD", "first DEL"]);
    let error = bench
        .runtime
        .add(&network("1.0.0", &["../first"]), &pod())
        .unwrap_err()
        .message();
    assert_eq!(
        error,
        "plugin type=\"../first\" failed (add): invalid plugin name: ../first"
    );
    let mut bad = pod();
    bad.container_id = "a/b".to_owned();
    let error = bench
        .runtime
        .add(&network("1.0.0", &["first"]), &bad)
        .unwrap_err();
    assert_eq!(
        error.cni_error().unwrap().msg,
        "invalid characters in containerID"
    );
    assert_eq!(bench.calls(), Vec::<String>::new());
}

#[test]
fn commands_are_run_only_where_the_version_has_them() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let error = bench
        .runtime
        .check(&network("0.3.1", &["p"]), &pod())
        .unwrap_err();
    assert_eq!(
        error.message(),
        "configuration version \"0.3.1\" does not support the CHECK command"
    );
    bench.runtime.status(&network("1.0.0", &["p"])).unwrap();
    assert_eq!(bench.calls(), Vec::<String>::new());
    bench.plugin("p", r#"echo '{"code": 50, "msg": "full"}'; exit 1"#);
    let error = bench.runtime.status(&network("1.1.0", &["p"])).unwrap_err();
    assert_eq!(error.cni_error().unwrap().code, 50);
    assert_eq!(bench.calls(), ["p STATUS"]);
}

#[test]
fn gc_deletes_what_is_not_valid_and_tells_the_plugins() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let network = network("1.1.0", &["p"]);
    for id in ["a", "b", "c"] {
        bench
            .runtime
            .add(&network, &Attachment::new(id, Some("/x".into()), "eth0"))
            .unwrap();
    }
    bench.calls();
    let valid = [ValidAttachment {
        container_id: "b".to_owned(),
        ifname: "eth0".to_owned(),
    }];
    bench.runtime.gc(&network, Some(&valid)).unwrap();
    assert_eq!(bench.calls(), ["p DEL", "p DEL", "p GC"]);
    let input = bench.input("p", "GC");
    assert_eq!(
        input["cni.dev/valid-attachments"],
        json!([{"containerID": "b", "ifname": "eth0"}])
    );
    assert_eq!(
        bench.runtime.cached().unwrap()[0].attachment.container_id,
        "b"
    );
    bench.runtime.gc(&network, None).unwrap();
    assert_eq!(bench.calls(), ["p DEL", "p GC"]);
    assert_eq!(
        bench.input("p", "GC").get("cni.dev/valid-attachments"),
        None
    );
}

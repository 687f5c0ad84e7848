//! The runtime against misbehaving plugins. They are shell scripts; nothing here needs privileges.

#![expect(clippy::disallowed_methods, reason = "a test")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    time::{Duration, Instant},
};

use podplane_cni::{Attachment, Runtime, RuntimeError, ValidAttachment, runtime::PluginError};
use podplane_test_network::{
    bench::{Bench, RESULT, network, pod},
    list, wait_for_end,
};
use serde_json::json;

#[test]
fn passes_results_along_the_chain_and_deletes_in_reverse() {
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
fn the_cache_has_the_format_of_libcni() {
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
    // A truncated entry does not prevent a DEL.
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
fn a_del_continues_after_a_failed_plugin() {
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
    wait_for_end(&child);
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
fn does_not_wait_for_a_grandchild_that_keeps_the_pipes() {
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
fn invalid_output_is_reported_with_the_texts_of_libcni() {
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
    // A plugin that fills its pipes before it reads is still served.
    bench.plugin("p", &format!("head -c 300000 /dev/zero >&2\n{RESULT}"));
    bench
        .runtime
        .add(&network("1.0.0", &["p"]), &pod())
        .unwrap();
}

#[test]
fn runs_nothing_if_a_plugin_is_missing() {
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
    let RuntimeError::Plugin { source, .. } = error else {
        panic!("{error:?}");
    };
    assert!(matches!(*source, PluginError::NotFound { .. }));
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
fn runs_commands_only_if_the_version_has_them() {
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
fn gc_deletes_invalid_attachments_and_notifies_the_plugins() {
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

#[test]
fn an_entry_of_another_attachment_is_left_alone() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let (mut a, mut ab) = (network("1.0.0", &["p"]), network("1.0.0", &["p"]));
    a.name = "a".to_owned();
    ab.name = "a-b".to_owned();
    // Both attachments have the file a-b-c-eth0.
    let theirs = Attachment::new("c", Some("/netns/c".into()), "eth0");
    let ours = Attachment::new("b-c", Some("/netns/b-c".into()), "eth0");
    bench.runtime.add(&ab, &theirs).unwrap();
    assert_eq!(bench.runtime.cached_result(&a, &ours), None);
    bench.runtime.del(&a, &ours).unwrap();
    assert_eq!(bench.input("p", "DEL").get("prevResult"), None);
    assert!(bench.runtime.cached_result(&ab, &theirs).is_some());
}

#[test]
fn converts_the_cached_result_to_the_version_of_the_list() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    bench
        .runtime
        .add(&network("1.0.0", &["p"]), &pod())
        .unwrap();
    let older = network("0.4.0", &["p"]);
    bench.runtime.check(&older, &pod()).unwrap();
    let previous = bench.input("p", "CHECK")["prevResult"].clone();
    assert_eq!(
        (&previous["cniVersion"], &previous["ips"][0]["version"]),
        (&json!("0.4.0"), &json!("4"))
    );
    // Before 0.4.0 a DEL has none.
    bench
        .runtime
        .del(&network("0.3.1", &["p"]), &pod())
        .unwrap();
    assert_eq!(bench.input("p", "DEL").get("prevResult"), None);
    assert_eq!(bench.cached(), 0);
}

#[test]
fn a_broken_cache_entry_fails_only_a_check() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let network = network("1.0.0", &["p"]);
    bench.runtime.add(&network, &pod()).unwrap();
    let path = bench.dir.path().join("cache/results/net-pod-eth0");
    fs::write(&path, "").unwrap();
    bench.calls();
    let error = bench.runtime.check(&network, &pod()).unwrap_err();
    assert_eq!(
        error.message(),
        "failed to get network \"net\" cached result: unexpected end of JSON input"
    );
    assert!(bench.runtime.cached().unwrap().is_empty());
    // A failed second ADD does not undo an attachment that may be in use.
    bench.plugin(
        "p",
        r#"if [ $CNI_COMMAND = ADD ]; then echo '{"code": 999, "msg": "duplicate"}'; exit 1; fi"#,
    );
    bench.runtime.add(&network, &pod()).unwrap_err();
    assert_eq!(bench.calls(), ["p ADD"]);
    bench.runtime.del(&network, &pod()).unwrap();
    assert_eq!(bench.cached(), 0);
}

#[test]
fn a_plugins_own_runtime_config_is_replaced_and_keys_match_in_any_case() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let network = list(&json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"Type": "p", "Capabilities": {"ips": true, "mac": false}, "runtimeConfig": {"old": 1}, "prevResult": {"old": 1}}
    ]}));
    let mut pod = pod();
    for key in ["ips", "mac", "bandwidth"] {
        pod.capability_args.insert(key.to_owned(), json!([]));
    }
    bench.runtime.add(&network, &pod).unwrap();
    let input = bench.input("p", "ADD");
    assert_eq!(input["runtimeConfig"], json!({"ips": []}));
    let keys: Vec<_> = input.as_object().unwrap().keys().collect();
    assert!(keys.is_sorted(), "{keys:?}");
}

#[test]
fn results_take_the_version_of_the_configuration_if_they_have_none() {
    let bench = Bench::new();
    bench.plugin("p", r#"echo '{"ips": [{"address": "10.0.0.2/24"}]}'"#);
    let result = bench
        .runtime
        .add(&network("1.0.0", &["p"]), &pod())
        .unwrap();
    assert_eq!(result.version.as_str(), "1.0.0");
    bench.plugin("p", "echo null");
    let result = bench
        .runtime
        .add(&network("1.1.0", &["p"]), &pod())
        .unwrap();
    assert_eq!((result.version.as_str(), result.ips.len()), ("1.1.0", 0));
}

#[test]
fn disable_check_and_disable_gc_run_no_plugin() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let mut network = network("1.1.0", &["p"]);
    bench.runtime.add(&network, &pod()).unwrap();
    network.disable_check = true;
    network.disable_gc = true;
    bench.calls();
    bench.runtime.check(&network, &pod()).unwrap();
    bench.runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!((bench.calls().len(), bench.cached()), (0, 1));
}

#[test]
fn gc_uses_the_cached_arguments_and_continues_after_failures() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let network = network("1.1.0", &["p"]);
    let mut stale = Attachment::new("stale", Some("/netns/stale".into()), "eth7");
    stale.args = vec![("K".to_owned(), "v".to_owned())];
    stale
        .capability_args
        .insert("ips".to_owned(), json!(["10.0.0.9"]));
    bench.runtime.add(&network, &stale).unwrap();
    let mut other = network.clone();
    other.name = "other".to_owned();
    bench.runtime.add(&other, &pod()).unwrap();
    bench.calls();
    bench.plugin("p", r#"if [ $CNI_COMMAND = DEL ]; then env > $0.del; fi; echo '{"code": 11, "msg": "busy"}'; exit 1"#);
    let error = bench.runtime.gc(&network, Some(&[])).unwrap_err().message();
    assert_eq!(
        error,
        "failed to delete stale attachment stale eth7: plugin type=\"p\" failed (delete): busy; plugin type=\"p\" failed (gc): busy"
    );
    assert_eq!(
        bench.calls(),
        ["p DEL", "p GC"],
        "the other network's attachment stays"
    );
    let input = bench.input("p", "DEL");
    assert_eq!(input["runtimeConfig"], json!({"ips": ["10.0.0.9"]}));
    assert_eq!(input["prevResult"]["ips"][0]["address"], "10.0.0.2/24");
    let env = fs::read_to_string(bench.dir.path().join("bin/p.del")).unwrap();
    for line in [
        "CNI_ARGS=K=v",
        "CNI_IFNAME=eth7",
        "CNI_NETNS=/netns/stale",
        "CNI_CONTAINERID=stale",
    ] {
        assert!(env.lines().any(|found| found == line), "{line} in {env}");
    }
    let input = bench.input("p", "GC");
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        assert_eq!(input[key], json!([]), "{key}");
    }
    assert_eq!(
        (input.get("prevResult"), input.get("runtimeConfig")),
        (None, None)
    );
    let env = fs::read_to_string(bench.dir.path().join("p.env")).unwrap();
    for line in ["CNI_ARGS=", "CNI_IFNAME=", "CNI_NETNS=", "CNI_CONTAINERID="] {
        assert!(env.lines().any(|found| found == line), "{line} in {env}");
    }
    assert_eq!(bench.runtime.cached().unwrap().len(), 2);
}

#[test]
fn a_single_files_plugin_is_named_in_errors() {
    let bench = Bench::new();
    bench.plugin(
        "p",
        r#"if [ $CNI_COMMAND = ADD ]; then echo '{"code": 7, "msg": "no"}'; exit 1; fi"#,
    );
    let network = br#"{"name": "net", "cniVersion": "1.0.0", "type": "p"}"#;
    let network = podplane_cni::NetworkConfigList::from_plugin(network).unwrap();
    let error = bench.runtime.add(&network, &pod()).unwrap_err();
    assert_eq!(
        error.message(),
        "plugin type=\"p\" name=\"net\" failed (add): no"
    );
}

#[test]
fn waits_for_a_plugin_that_is_being_written() {
    let bench = Bench::new();
    bench.plugin("p", RESULT);
    let path = bench.dir.path().join("bin/p");
    let writer = fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Long enough that the first attempt meets it; the result is the same otherwise.
            std::thread::sleep(Duration::from_millis(300));
            drop(writer);
        });
        bench
            .runtime
            .add(&network("1.0.0", &["p"]), &pod())
            .unwrap();
    });
}

#[test]
fn asks_a_plugin_for_its_versions() {
    let bench = Bench::new();
    let answer = |body: &str| {
        bench.plugin("p", body);
        let versions = bench.runtime.supported_versions("p");
        versions.map_err(|error| error.message())
    };
    assert_eq!(
        answer(r#"echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0"]}'"#),
        Ok(vec!["0.4.0".to_owned(), "1.0.0".to_owned()])
    );
    assert_eq!(bench.input("p", "VERSION"), json!({"cniVersion": "1.1.0"}));
    assert_eq!(
        answer(r#"echo '{"code": 4, "msg": "unknown CNI_COMMAND: VERSION"}'; exit 1"#),
        Ok(vec!["0.1.0".to_owned()])
    );
    assert_eq!(
        answer(r#"echo '{"cniVersion": "0.2.0"}'"#),
        Ok(vec!["0.1.0".to_owned(), "0.2.0".to_owned()])
    );
    let failed = "plugin type=\"p\" failed (version): decoding version info: ";
    for (body, want) in [
        ("echo '{}'", "missing field cniVersion"),
        (
            r#"echo '{"cniVersion": "1.0.0"}'"#,
            "missing field supportedVersions",
        ),
        ("true", "unexpected end of JSON input"),
    ] {
        assert_eq!(answer(body), Err(format!("{failed}{want}")));
    }
    bench.plugin(
        "p",
        r#"echo '{"cniVersion": "1.0.0", "supportedVersions": ["1.0.0"]}'"#,
    );
    let capabilities = bench.runtime.validate(&network("1.0.0", &["p"])).unwrap();
    assert_eq!(Vec::from_iter(capabilities), ["ips"]);
    let error = bench
        .runtime
        .validate(&network("1.1.0", &["p", "missing"]))
        .unwrap_err()
        .message();
    assert!(
        error.starts_with("plugin p does not support config version \"1.1.0\"; "),
        "{error}"
    );
    assert!(
        error.contains("failed to find plugin \"missing\""),
        "{error}"
    );
}

/// A plugin that ends only when two others like it run too, and fails for the interface `bad`.
const AT_ONCE: &str = r#"
case $CNI_COMMAND in
ADD) touch $0.$CNI_IFNAME
     tries=0
     while [ $(ls $0.* | wc -l) -lt 3 ]; do
         tries=$((tries+1)); [ $tries -lt 500 ] || { echo '{"code": 100, "msg": "alone"}'; exit 1; }
         sleep 0.02
     done
     [ $CNI_IFNAME != bad ] || { echo '{"code": 101, "msg": "bad"}'; exit 1; };;
esac
"#;

fn three(third: &str) -> Vec<(podplane_cni::NetworkConfigList, Attachment)> {
    let names = ["eth0", "eth1", third].into_iter().enumerate();
    let with = |(index, ifname): (usize, &str)| {
        let mut network = network("1.0.0", &["p"]);
        network.name = format!("net{index}");
        (
            network,
            Attachment::new("pod", Some("/netns/pod".into()), ifname),
        )
    };
    names.map(with).collect()
}

#[test]
fn attaches_several_networks_concurrently() {
    let bench = Bench::new();
    bench.plugin("p", &format!("{AT_ONCE}{RESULT}"));
    let networks = three("eth2");
    let results = bench.runtime.add_all(&networks).unwrap();
    assert_eq!((results.len(), bench.cached()), (3, 3));
    bench.calls();
    bench.runtime.del_all(&networks).unwrap();
    assert_eq!((bench.calls().len(), bench.cached()), (3, 0));
    let error = bench.runtime.add_all(&three("eth0")).unwrap_err();
    assert_eq!(
        error.message(),
        "interface \"eth0\" of container \"pod\" is asked for twice"
    );
    assert_eq!(bench.calls().len(), 0);
}

#[test]
fn a_failed_network_rolls_all_networks_back() {
    let bench = Bench::new();
    bench.plugin(
        "p",
        &format!("echo $CNI_COMMAND $CNI_IFNAME >> $0-log\n{AT_ONCE}{RESULT}"),
    );
    let error = bench.runtime.add_all(&three("bad")).unwrap_err();
    assert_eq!(error.message(), "plugin type=\"p\" failed (add): bad");
    assert_eq!(error.cni_error().unwrap().code, 101);
    let log = fs::read_to_string(bench.dir.path().join("bin/p-log")).unwrap();
    let deleted: Vec<_> = log
        .lines()
        .filter_map(|line| line.strip_prefix("DEL "))
        .collect();
    assert_eq!(
        deleted,
        ["bad", "eth1", "eth0"],
        "the failed one takes itself back, then the others in reverse"
    );
    assert_eq!(bench.cached(), 0);
}

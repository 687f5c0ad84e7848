//! The program `host-local`: compared with Debian's word for word, and with many processes at once.
//! Random sequences beside Debian's are in `differential`, kills in `crash`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use podplane_cni::{Attachment, Runtime};
use serde_json::{Value, json};

use podplane_test_network::{DEBIAN, call, list, our_plugins, require, without_json_words};

fn ours() -> PathBuf {
    our_plugins().join("host-local")
}

fn debians() -> PathBuf {
    Path::new(DEBIAN).join("host-local")
}

fn config(version: &str, mut ipam: Value, data_dir: &Path) -> Value {
    ipam["type"] = "host-local".into();
    ipam["dataDir"] = data_dir.to_str().unwrap().into();
    json!({"cniVersion": version, "name": "net", "type": "bridge", "ipam": ipam})
}

#[test]
fn output_below_1_0_equals_that_of_debians_byte_for_byte() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let resolv_conf = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        &resolv_conf,
        "nameserver 10.96.0.10\nsearch a b\noptions ndots:5 <x>\n",
    )
    .unwrap();
    let ipam = json!({
        "ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd01::/16", "gw": "fd00::9"}, {"dst": "10.0.0.5/8"}],
        "resolvConf": resolv_conf.path(),
    });
    for version in ["", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0"] {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let expected = call(
            &debians(),
            "ADD",
            "c",
            "",
            &config(version, ipam.clone(), a.path()),
        );
        let found = call(
            &ours(),
            "ADD",
            "c",
            "",
            &config(version, ipam.clone(), b.path()),
        );
        assert_eq!(found, expected, "{version}");
    }
}

#[test]
fn refusals_have_the_texts_of_debians() {
    if !require(&["cni-plugins"]) {
        return;
    }
    let range = json!({"subnet": "10.1.2.0/24"});
    for (ipam, args) in [
        (json!({}), ""),
        (json!({"subnet": "10.1.2.0/31"}), ""),
        (json!({"subnet": "10.1.2.5/24"}), ""),
        (json!({"subnet": "nonsense"}), ""),
        (
            json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.3.1"}),
            "",
        ),
        (json!({"subnet": "10.1.2.0/24", "rangeEnd": "10.1.2.0"}), ""),
        (
            json!({"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.9", "rangeEnd": "10.1.2.8"}),
            "",
        ),
        (json!({"subnet": "10.1.2.0/24", "gateway": "x"}), ""),
        (json!({"ranges": [[]]}), ""),
        (json!({"ranges": [[{}]]}), ""),
        (json!({"ranges": [[range, {"subnet": "fd00::/64"}]]}), ""),
        (json!({"ranges": [[range, range]]}), ""),
        (json!({"ranges": [[range], [range]]}), ""),
        (
            json!({"subnet": "10.1.2.0/24", "resolvConf": "/does/not/exist"}),
            "",
        ),
        (json!({"subnet": "10.1.2.0/24"}), "IP=bad"),
        (json!({"subnet": "10.1.2.0/24"}), "IP=10.1.2.1"),
        (json!({"subnet": "10.1.2.0/24"}), "IP=10.9.9.9"),
        (json!({"subnet": "10.1.2.0/24"}), "A=b=c"),
        (json!({"subnet": "10.1.2.0/24"}), "IP=10.1.2.9;"),
        (json!({"subnet": "10.1.2.0/24"}), "X=1;Y=2"),
        (json!({"subnet": "10.1.2.0/24"}), "IgnoreUnknown=z"),
    ] {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let expected = call(
            &debians(),
            "ADD",
            "c",
            args,
            &config("1.0.0", ipam.clone(), a.path()),
        );
        let found = call(
            &ours(),
            "ADD",
            "c",
            args,
            &config("1.0.0", ipam.clone(), b.path()),
        );
        assert_eq!(expected.0, 1, "{ipam} {args}: {}", expected.1);
        assert_eq!(
            without_json_words(found),
            without_json_words(expected),
            "{ipam} {args}"
        );
    }
}

#[test]
fn concurrent_adds_get_different_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(
        "1.0.0",
        json!({"subnet": "10.1.0.0/24", "rangeEnd": "10.1.0.201"}),
        dir.path(),
    );
    let add = |worker: usize| -> Vec<String> {
        let ids = (0..200).filter(|n| n % 16 == worker);
        let answers = ids.map(|n| call(&ours(), "ADD", &format!("c{n}"), "", &config));
        answers
            .map(|(code, stdout)| {
                assert_eq!(code, 0, "{stdout}");
                let result: Value = serde_json::from_str(&stdout).unwrap();
                result["ips"][0]["address"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    let add = &add;
    let given: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..16)
            .map(|worker| scope.spawn(move || add(worker)))
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    assert_eq!(given.len(), 200);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 200);
    assert_eq!(
        podplane_host_local::usage(&dir.path().join("net"))
            .unwrap()
            .len(),
        200
    );
    let (code, stdout) = call(&ours(), "ADD", "one-too-many", "", &config);
    assert_eq!(code, 1);
    assert!(
        stdout.contains("no IP addresses available in range set: 10.1.0.1-10.1.0.201"),
        "{stdout}"
    );
}

#[test]
fn gc_keeps_valid_leases_and_status_reports_exhaustion() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("1.1.0", json!({"subnet": "10.1.2.0/29"}), dir.path());
    assert_eq!(call(&ours(), "STATUS", "", "", &config), (0, String::new()));
    assert!(!dir.path().join("net").exists(), "STATUS makes nothing");
    for n in 0..5 {
        assert_eq!(call(&ours(), "ADD", &format!("c{n}"), "", &config).0, 0);
    }
    let (code, stdout) = call(&ours(), "STATUS", "", "", &config);
    let error: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &error["code"]), (1, &json!(50)));
    assert_eq!(call(&ours(), "GC", "", "", &config), (0, String::new()));
    let ids = || -> Vec<String> {
        let leases = podplane_host_local::usage(&dir.path().join("net")).unwrap();
        leases.into_iter().map(|lease| lease.container_id).collect()
    };
    assert_eq!(
        ids().len(),
        5,
        "without a list nothing is known to be invalid"
    );
    let mut gc = config.clone();
    gc["cni.dev/valid-attachments"] = json!([
        {"containerID": "c1", "ifname": "eth0"}, {"containerID": "c3", "ifname": "eth1"}
    ]);
    assert_eq!(call(&ours(), "GC", "", "", &gc), (0, String::new()));
    assert_eq!(ids(), ["c1"]);
}

#[test]
fn runs_only_the_ipam_plugin_without_devices() {
    let dir = tempfile::tempdir().unwrap();
    let network = list(&json!({
        "cniVersion": "1.0.0", "name": "net",
        "plugins": [config("", json!({"subnet": "10.1.2.0/29"}), dir.path())],
    }));
    let runtime = Runtime {
        bin_dirs: vec![our_plugins()],
        cache_dir: dir.path().join("cache"),
        spare: None,
        node_netns: None,
        timeout: Duration::from_secs(10),
    };
    let pod = Attachment::new("pod", Some("/does/not/exist".into()), "eth0");
    let result = runtime.ipam_add(&network, &pod).unwrap();
    assert_eq!(result.ips[0].address.to_string(), "10.1.2.2/29");
    assert_eq!(runtime.cached_result(&network, &pod), Some(result));
    let again = runtime.ipam_add(&network, &pod).unwrap_err().message();
    assert_eq!(
        again,
        "plugin type=\"host-local\" name=\"net\" failed (add): failed to allocate for range 0: 10.1.2.2 has been allocated to pod, duplicate allocation is not allowed"
    );
    let net = dir.path().join("net");
    assert_eq!(
        podplane_host_local::usage(&net).unwrap().len(),
        1,
        "a repeated ADD does not take down what lives"
    );
    let parsed = podplane_host_local::Config::of_network(&network).unwrap();
    assert_eq!(
        (parsed.dir(), podplane_host_local::capacity(&parsed).pods()),
        (net.clone(), 5)
    );
    runtime.ipam_del(&network, &pod).unwrap();
    runtime.ipam_del(&network, &pod).unwrap();
    assert_eq!(podplane_host_local::usage(&net).unwrap(), []);
    assert_eq!(runtime.cached().unwrap(), []);
}

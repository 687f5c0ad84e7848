//! Fuzzes results of plugins and entries of the cache, whoever wrote them.
//!
//! The input is parts separated by the byte 0x1e: a version, a result, and entries of the cache.

use std::{fs, time::Duration};

use podplane_cni::{Attachment, CniResult, NetworkConfigList, Runtime, Version};
use serde_json::Value;

pub(crate) fn run(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0x1e);
    let version = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    let text = parts.next().unwrap_or_default();
    if let Ok(result) = CniResult::parse(text, &version) {
        check_round_trip(&result);
    }
    if let Ok(value) = serde_json::from_slice::<Value>(text) {
        let direct = CniResult::parse(text, &version).ok();
        let by_value = CniResult::from_value(&value, &version).ok();
        // A duplicate key is merged in the text and replaced in the value; without one the results
        // agree.
        if direct.is_some() && value.to_string().len() >= text.len() {
            assert_eq!(direct, by_value);
        }
    }
    let entries: Vec<_> = parts.take(8).collect();
    if !entries.is_empty() {
        cache(&entries);
    }
}

/// Checks that a printed result can be parsed and is equal: completely in its own version, and in
/// part in every other one.
fn check_round_trip(result: &CniResult) {
    for version in Version::ALL {
        let text = result.clone().with_version(version).to_json();
        let read = CniResult::parse(text.as_bytes(), "");
        // Routes without a destination are printed as in the reference, and nobody can parse them.
        if result.routes.iter().any(|route| route.dst.is_none()) {
            continue;
        }
        let read = read.unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(read.version, version);
        assert_eq!(read.to_json(), text, "printing the parsed result differs");
        if version == result.version && version >= Version::V0_3_0 {
            assert_eq!(read.ips, result.ips);
            assert_eq!(read.routes, result.routes);
            assert_eq!(read.dns, result.dns);
        }
    }
}

fn cache(entries: &[&[u8]]) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let results = dir.path().join("results");
    fs::create_dir(&results).expect("a directory of results");
    for (index, entry) in entries.iter().enumerate() {
        fs::write(results.join(format!("net-c{index}-eth0")), entry).expect("an entry");
    }
    let runtime = Runtime {
        bin_dirs: Vec::new(),
        cache_dir: dir.path().to_owned(),
        spare: None,
        node_netns: None,
        timeout: Duration::from_secs(1),
    };
    let list = NetworkConfigList::from_list(
        br#"{"name": "net", "cniVersion": "1.1.0", "plugins": [{"type": "a"}, {"type": "b"}]}"#,
    )
    .expect("a list");
    let cached = runtime.cached().expect("unreadable entries are skipped");
    assert!(cached.len() <= entries.len());
    for index in 0..entries.len() {
        let attachment = Attachment::new(format!("c{index}"), None, "eth0");
        let _ = runtime.cached_result(&list, &attachment);
        // No plugin is found, so these calls end after they have read the cache.
        let _ = runtime.check(&list, &attachment);
        let _ = runtime.del(&list, &attachment);
    }
    let _ = runtime.gc(&list, Some(&[]));
}

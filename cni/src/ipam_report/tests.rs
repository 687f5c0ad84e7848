use std::{fs, os::unix::fs::PermissionsExt as _, time::Instant};

use serde_json::json;

use super::*;

/// The directory of a node whose network has this value of [`KEY`].
struct NodeFixture {
    dir: tempfile::TempDir,
}

impl NodeFixture {
    fn with(spec: &Value) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let list = json!({"cniVersion": "1.0.0", "name": "net", KEY: spec,
            "plugins": [{"type": "bridge", "ipam": {"type": "my-ipam"}}]});
        fs::write(dir.path().join("10-net.conflist"), list.to_string()).unwrap();
        Self { dir }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn source(&self) -> Result<Option<ReportSource>, ReportError> {
        ReportSource::of_first(self.dir.path())
    }

    fn read_with(&self, bin_dirs: &[PathBuf]) -> Result<IpamReport, ReportError> {
        self.source()?.unwrap().read(&ReportNode {
            name: "node-0",
            dir: self.dir.path(),
            pod_cidrs: &["10.0.0.0/29".to_owned()],
            bin_dirs,
        })
    }

    fn read(&self) -> Result<IpamReport, String> {
        self.read_with(&[]).map_err(|error| error.message())
    }
}

fn parse(report: &Value) -> Result<IpamReport, String> {
    IpamReport::parse(report.to_string().as_bytes())
}

fn v4(count: u64) -> Capacity {
    Capacity {
        ipv4: Some(count),
        ipv6: None,
    }
}

#[test]
fn a_report_has_a_capacity_and_may_have_addresses_and_ranges() {
    assert_eq!(
        parse(&json!({"capacity": {"ipv4": 5}})).unwrap().addresses,
        None
    );
    let report = parse(&json!({
        "capacity": {"ipv4": 5, "ipv6": 18_446_744_073_709_551_616.0_f64},
        "addresses": [{"address": "10.0.0.2", "containerID": "a", "ifname": "eth0"},
            {"address": "fd00::2/64", "containerID": "a"}],
        "ranges": ["10.0.0.0/29", "fd00::/64"], "later": true}));
    let report = report.unwrap();
    assert_eq!(report.capacity.ipv6, Some(u64::MAX));
    let addresses = report.addresses.unwrap();
    assert_eq!(addresses[0].ifname.as_deref(), Some("eth0"));
    assert_eq!(addresses[1].address, "fd00::2".parse::<IpAddr>().unwrap());
    assert_eq!(report.ranges.len(), 2);
}

#[test]
fn refuses_what_is_not_a_report_and_names_the_field() {
    let held = |address: &str, id: &str| json!({"capacity": {"ipv4": 5}, "addresses": [{"address": address, "containerID": id}]});
    for (report, want) in [
        (json!({}), "missing field `capacity`"),
        (
            json!({"capacity": {}}),
            "capacity: must have ipv4, ipv6 or both",
        ),
        (
            json!({"capacity": {"ipv4": -1}}),
            "capacity.ipv4: invalid number -1",
        ),
        (
            json!({"capacity": {"ipv4": 1.5}}),
            "capacity.ipv4: invalid number 1.5",
        ),
        (
            held("10.0.0", "a"),
            "addresses[0].address: invalid address \"10.0.0\"",
        ),
        (
            held("10.0.0.2", ""),
            "addresses[0].containerID: must not be empty",
        ),
        (
            json!({"capacity": {"ipv4": 5}, "ranges": ["x"]}),
            "ranges[0]",
        ),
    ] {
        let error = parse(&report).unwrap_err();
        assert!(error.contains(want), "{report}: {error}");
    }
    assert!(IpamReport::parse(b"").is_err());
    assert!(IpamReport::parse(b"{\"capacity\": {\"ipv4\": 1}} and more").is_err());
}

#[test]
fn rejects_a_source_that_is_not_exactly_one_command_or_file() {
    for (spec, want) in [
        (json!({}), "either \"command\" or \"file\""),
        (json!({"command": ["a"], "file": "b"}), "either"),
        (json!({"command": []}), "command: must be a list"),
        (json!({"command": "a"}), "invalid type"),
        (json!({"file": "b", "timeout": "1s"}), "only a command"),
        (
            json!({"command": ["a"], "timeout": "0s"}),
            "timeout: invalid duration",
        ),
        (
            json!({"command": ["a"], "timeout": "2h"}),
            "timeout: invalid duration",
        ),
        (json!({"comand": ["a"]}), "unknown field `comand`"),
        (json!(7), "invalid type"),
    ] {
        let error = NodeFixture::with(&spec).source().unwrap_err().message();
        assert!(error.contains(want), "{spec}: {error}");
        assert!(error.contains("10-net.conflist"), "{error}");
    }
}

#[test]
fn a_configuration_without_the_key_has_no_source() {
    let node = NodeFixture::with(&json!({"file": "x"}));
    let list = r#"{"name": "net", "plugins": [{"type": "bridge"}]}"#;
    node.write("10-net.conflist", list);
    assert_eq!(node.source().unwrap(), None);
    node.write("05-net.conf", r#"{"name": "net", "type": "bridge"}"#);
    assert_eq!(node.source().unwrap(), None);
    let empty = tempfile::tempdir().unwrap();
    assert!(ReportSource::of_first(empty.path()).is_err());
}

#[test]
fn reads_the_report_file_beside_the_configuration() {
    let node = NodeFixture::with(&json!({"file": "report.txt"}));
    let error = node.read().unwrap_err();
    assert!(error.contains("report.txt: No such file"), "{error}");
    node.write("report.txt", r#"{"capacity": {"ipv4": 5}}"#);
    assert_eq!(node.read().unwrap().capacity, v4(5));
    node.write("report.txt", &" ".repeat(MAX_BYTES + 2));
    assert!(node.read().unwrap_err().contains("more than"));
    let directory = NodeFixture::with(&json!({"file": "."}));
    assert!(directory.read().unwrap_err().contains("not a regular file"));
}

#[test]
fn a_command_gets_the_configuration_and_the_facts_about_its_node() {
    let node = NodeFixture::with(&json!({"command": ["./report", "7"]}));
    node.write(
        "report",
        r#"#!/bin/sh -eu
        grep -q '"type":"my-ipam"'
        [ "$IPAM_REPORT_NODE $IPAM_REPORT_POD_CIDRS $IPAM_REPORT_NETWORK" = "node-0 10.0.0.0/29 net" ]
        [ -f "$IPAM_REPORT_CONFLIST" ] && [ -d "$IPAM_REPORT_NODE_DIR" ]
        echo "{\"capacity\": {\"ipv4\": $1}}""#,
    );
    assert_eq!(node.read().unwrap().capacity, v4(7));
}

#[test]
fn a_command_without_a_slash_is_beside_the_plugins() {
    let node = NodeFixture::with(&json!({"command": ["my-ipam", "report"]}));
    let error = node.read().unwrap_err();
    assert!(error.contains("my-ipam could not be run"), "{error}");
    let plugins = tempfile::tempdir().unwrap();
    let text = "#!/bin/sh\necho '{\"capacity\": {\"ipv6\": 9}}'";
    let path = node.write("my-ipam", text);
    fs::rename(path, plugins.path().join("my-ipam")).unwrap();
    let report = node.read_with(&[plugins.path().to_owned()]).unwrap();
    assert_eq!(report.capacity.ipv6, Some(9));
}

#[test]
fn reports_why_a_command_failed() {
    let node = NodeFixture::with(&json!({"command": ["./report"]}));
    for (script, want) in [
        ("echo broken >&2; exit 3", "failed: exit status 3: broken"),
        ("echo nonsense; exit 1", "failed and printed \"nonsense\""),
        ("echo nonsense", "invalid IPAM report"),
        ("yes '' | head -c 9000000", "more than 8388608 bytes"),
    ] {
        node.write("report", &format!("#!/bin/sh\n{script}"));
        let error = node.read().unwrap_err();
        assert!(error.contains(want), "{script}: {error}");
    }
}

#[test]
fn a_command_that_hangs_is_killed_with_its_children() {
    let node = NodeFixture::with(&json!({"command": ["./report"], "timeout": "200ms"}));
    node.write("report", "#!/bin/sh\nsleep 1000 & echo $! > child; wait");
    let began = Instant::now();
    let error = node.read().unwrap_err();
    assert!(error.contains("did not finish within 200ms"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(60));
    let child = fs::read_to_string(node.dir.path().join("child")).unwrap();
    let stat = format!("/proc/{}/stat", child.trim());
    // The child was killed: it is gone, or its new parent has not reaped it yet.
    let gone = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
    let deadline = Instant::now() + Duration::from_secs(30);
    while !gone() {
        assert!(Instant::now() < deadline, "the child still runs");
        std::thread::yield_now();
    }
}

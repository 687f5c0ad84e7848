use super::*;

#[derive(Debug)]
struct FakePlugin;

impl Plugin for FakePlugin {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        assert_eq!(call.container_id, "c1");
        Ok(CniResult::default())
    }

    fn del(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn check(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn gc(&self, _: &Call) -> Result<(), CniError> {
        Ok(())
    }

    fn status(&self, _: &Call) -> Result<(), CniError> {
        Err(CniError::new(code::NOT_AVAILABLE, "full"))
    }
}

const ENV: [(&str, &str); 5] = [
    ("CNI_COMMAND", "ADD"),
    ("CNI_CONTAINERID", "c1"),
    ("CNI_NETNS", "/does/not/exist"),
    ("CNI_IFNAME", "eth0"),
    ("CNI_PATH", "/opt/cni/bin"),
];

fn call(changes: &[(&str, &str)], stdin: &str) -> Result<String, CniError> {
    let env = |key: &str| {
        let found = changes.iter().chain(&ENV).find(|(name, _)| *name == key);
        found.map(|(_, value)| OsString::from(value))
    };
    answer(&FakePlugin, &env, &mut stdin.as_bytes(), &mut io::sink())
}

fn refusal(changes: &[(&str, &str)], stdin: &str) -> (u32, String, String) {
    let error = call(changes, stdin).unwrap_err();
    (error.code, error.msg, error.details)
}

fn plain(code: u32, msg: &str) -> (u32, String, String) {
    (code, msg.to_owned(), String::new())
}

const GOOD: &str = r#"{"name": "n", "cniVersion": "1.0.0"}"#;

#[test]
fn missing_variables_are_listed_in_order() {
    let missing = refusal(&[("CNI_CONTAINERID", ""), ("CNI_IFNAME", "")], GOOD);
    assert_eq!(
        missing,
        plain(
            4,
            "required env variables [CNI_CONTAINERID,CNI_IFNAME] missing"
        )
    );
    let invalid_first = refusal(&[("CNI_NETNS", ""), ("CNI_IFNAME", "a/b")], GOOD);
    assert_eq!(
        invalid_first.1,
        "interface name contains / or : or whitespace characters"
    );
    assert!(call(&[("CNI_COMMAND", "DEL"), ("CNI_NETNS", "")], GOOD).is_ok());
}

#[test]
fn prints_its_versions_without_a_command() {
    let env = |_: &str| None;
    let mut stderr = Vec::new();
    let stdout = answer(&FakePlugin, &env, &mut io::empty(), &mut stderr).unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(stdout, "");
    assert!(
        stderr.ends_with("supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n"),
        "{stderr}"
    );
}

#[test]
fn checks_the_configuration_before_the_command() {
    let foo = [("CNI_COMMAND", "FOO")];
    assert_eq!(
        refusal(&foo, ""),
        plain(
            6,
            "error unmarshall network config: EOF while parsing a value at line 1 column 0"
        )
    );
    assert_eq!(refusal(&foo, GOOD), plain(4, "unknown CNI_COMMAND: FOO"));
    for junk in ["[]", "5", "\"x\"", r#"{"name": 5}"#] {
        assert_eq!(refusal(&foo, junk).0, 6, "{junk}");
    }
    for nameless in ["null", "{}", r#"{"name": null}"#, r#"{"name": ""}"#] {
        assert_eq!(refusal(&[], nameless), plain(7, "missing network name"));
    }
    let (code, msg, details) = refusal(&[], r#"{"name": "a/b"}"#);
    assert_eq!(
        (code, msg.as_str(), details.as_str()),
        (7, "invalid characters found in network name", "a/b")
    );
}

#[test]
fn checks_the_version_by_the_rules_of_each_command() {
    let with = |command: &str, version: &str| {
        let stdin = format!(r#"{{"name": "n", "cniVersion": {version}}}"#);
        call(&[("CNI_COMMAND", command)], &stdin)
    };
    let refused = |command: &str, version: &str| {
        let error = with(command, version).unwrap_err();
        (error.code, error.msg)
    };
    assert!(
        with("ADD", r#""""#)
            .unwrap()
            .contains(r#""cniVersion": "0.1.0""#)
    );
    let error = with("ADD", r#""9.9""#).unwrap_err();
    assert_eq!(error.code, 1);
    assert_eq!(
        error.details,
        r#"config is "9.9", plugin supports ["0.1.0" "0.2.0" "0.3.0" "0.3.1" "0.4.0" "1.0.0" "1.1.0"]"#
    );
    assert_eq!(refused("ADD", "5").0, 6);
    assert_eq!(
        refused("CHECK", r#""0.3.1""#),
        (1, "config version does not allow CHECK".to_owned())
    );
    assert_eq!(
        refused("CHECK", r#""1.2.0""#),
        (1, "plugin version does not allow CHECK".to_owned())
    );
    assert_eq!(
        refused("CHECK", r#""1.0""#),
        (1, "incompatible CNI versions".to_owned())
    );
    assert_eq!(
        refused("CHECK", r#""1.0.0.0""#),
        (6, r#"invalid version "1.0.0.0": too many parts"#.to_owned())
    );
    assert_eq!(
        refused("GC", r#""abc""#),
        (6, r#"failed to convert major version part "abc": strconv.Atoi: parsing "abc": invalid syntax"#.to_owned())
    );
    assert_eq!(
        refused("GC", r#""1.0.0""#),
        (1, "config version does not allow GC".to_owned())
    );
    assert_eq!(refused("STATUS", r#""1.1.0""#), (50, "full".to_owned()));
}

#[test]
fn version_reads_no_input() {
    let answer = call(&[("CNI_COMMAND", "VERSION")], "junk").unwrap();
    let expected = "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n";
    assert_eq!(answer, expected);
}

#[test]
fn the_plugins_own_namespace_is_refused_before_any_work() {
    let own = [
        ("CNI_NETNS", "/proc/thread-self/ns/net"),
        ("CNI_CONTAINERID", "other"),
    ];
    // The fake plugin would panic for this container.
    assert_eq!(refusal(&own, GOOD).0, 8);
    let allowed = [
        ("CNI_NETNS", "/proc/thread-self/ns/net"),
        ("CNI_NETNS_OVERRIDE", "True"),
    ];
    assert!(call(&allowed, GOOD).is_ok());
}

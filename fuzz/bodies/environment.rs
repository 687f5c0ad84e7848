//! Fuzzes the environment and standard input of a plugin: the parts that all plugins share.
//!
//! The input is `KEY=value` fields, each ended by the byte 0x1e, and then standard input.

use std::{collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStringExt as _};

use podplane_cni::{
    CniError, CniResult,
    skel::{self, Call, Plugin},
    types::json,
};
use serde_json::Value;

pub(crate) fn run(data: &[u8]) {
    let mut fields: Vec<_> = data.split(|byte| *byte == 0x1e).collect();
    let stdin = fields.pop().unwrap_or_default();
    let mut env = BTreeMap::new();
    for field in fields {
        let at = field
            .iter()
            .position(|byte| *byte == b'=')
            .unwrap_or(field.len());
        let value = field.get(at + 1..).unwrap_or_default().to_vec();
        env.insert(field[..at].to_vec(), OsString::from_vec(value));
    }
    let get = |key: &str| {
        let value = env.get(key.as_bytes())?;
        if key == "CNI_NETNS" && !value.is_empty() {
            // The plugin opens this path, which must not name a real file.
            let mut path = OsString::from("/does/not/exist/");
            path.push(value);
            return Some(path);
        }
        Some(value.clone())
    };
    let command = get("CNI_COMMAND").unwrap_or_default();
    let mut stderr = Vec::new();
    let answer = skel::answer(&Recorder, &get, &mut &*stdin, &mut stderr);
    match answer {
        Ok(text) if command.is_empty() => assert!(
            text.is_empty() && !stderr.is_empty(),
            "says how to call it, on standard error"
        ),
        Ok(text) => match command.to_str() {
            Some("ADD") => {
                let result: Value = serde_json::from_str(&text).expect("a result is JSON");
                let asked = json::parse_folded(stdin).unwrap_or_default();
                let version = asked.get("cniversion").and_then(Value::as_str);
                let version = version.filter(|version| !version.is_empty());
                let answered = result.get("cniVersion").and_then(Value::as_str);
                assert_eq!(answered, version.or(Some("0.1.0")));
            }
            Some("VERSION") => {
                let _: Value = serde_json::from_str(&text).expect("the versions are JSON");
            }
            Some("DEL" | "CHECK" | "GC" | "STATUS") => assert!(text.is_empty(), "printed {text}"),
            _ => panic!("accepted the invalid command {command:?}"),
        },
        Err(error) => {
            let text = error.to_json();
            let json: Value = serde_json::from_str(&text).expect("an error is JSON");
            assert_eq!(json.get("code"), Some(&Value::from(error.code)), "{text}");
            assert!(json.get("msg").is_some_and(Value::is_string), "{text}");
        }
    }
}

/// A plugin that only checks that it is called as the interface promises.
struct Recorder;

impl Recorder {
    fn see(call: &Call, has_attachment: bool) -> Result<(), CniError> {
        if has_attachment {
            assert!(
                !call.container_id.is_empty() && !call.container_id.contains(['/', '\n']),
                "{call:?}"
            );
            assert!((1..16).contains(&call.ifname.len()), "{call:?}");
            assert!(
                !call.ifname.contains(['/', ':']) && !call.ifname.contains(char::is_whitespace),
                "{call:?}"
            );
        }
        let stdin = json::parse_folded(&call.stdin).expect("only JSON gets here");
        assert!(stdin.is_object(), "only an object gets here");
        Ok(())
    }
}

impl Plugin for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn add(&self, call: &Call) -> Result<CniResult, CniError> {
        Self::see(call, true)?;
        // The name of an interface and an argument, as text that must be escaped.
        let mut result = CniResult::default();
        result.dns.domain.clone_from(&call.args);
        result.dns.search.push(call.ifname.clone());
        Ok(result)
    }

    fn del(&self, call: &Call) -> Result<(), CniError> {
        Self::see(call, true)
    }

    fn check(&self, call: &Call) -> Result<(), CniError> {
        Self::see(call, true)
    }

    fn gc(&self, call: &Call) -> Result<(), CniError> {
        Self::see(call, false)
    }

    fn status(&self, call: &Call) -> Result<(), CniError> {
        Self::see(call, false)?;
        Err(CniError::new(50, call.args.clone()).with_details(call.args.clone()))
    }
}

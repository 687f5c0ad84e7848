//! The report as SARIF 2.1.0, which code hosts show beside a file.

use podplane_audit::{AuditReport, Code, Finding, Severity};
use serde_json::{Value, json};

/// The log of one run. `artifact` is the input file, if there was one.
pub(super) fn log(report: &AuditReport, artifact: Option<&str>) -> Value {
    let rules = Code::ALL.map(|code| {
        json!({
            "id": code.as_str(),
            "shortDescription": {"text": code.meaning()},
            "helpUri": "https://github.com/podplane/podplane/blob/main/docs/audit.md",
        })
    });
    let results: Vec<_> = report
        .findings
        .iter()
        .map(|finding| result(finding, artifact))
        .collect();
    let unread: Vec<_> = report
        .summary
        .unread
        .iter()
        .map(|unread| json!({"level": "error", "message": {"text": unread.to_string()}}))
        .collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "podplane audit",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": "https://github.com/podplane/podplane",
                "rules": rules,
            }},
            "results": results,
            "invocations": [{
                "executionSuccessful": report.is_complete(),
                "toolExecutionNotifications": unread,
            }],
            "properties": {"summary": report.summary},
        }],
    })
}

fn result(finding: &Finding, artifact: Option<&str>) -> Value {
    let Finding {
        code,
        severity,
        objects,
        prefixes: _,
        message,
        repair,
    } = finding;
    let level = match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    };
    // Code hosts require a place in the file; an object's line would not help anybody.
    let place =
        artifact.map(|uri| json!({"artifactLocation": {"uri": uri}, "region": {"startLine": 1}}));
    let logical: Vec<_> = objects
        .iter()
        .map(|object| json!({"fullyQualifiedName": object, "kind": "resource"}))
        .collect();
    let mut location = json!({});
    if let Some(place) = place {
        location["physicalLocation"] = place;
    }
    if !logical.is_empty() {
        location["logicalLocations"] = Value::Array(logical);
    }
    json!({
        "ruleId": code.as_str(),
        "ruleIndex": Code::ALL.iter().position(|each| each == code),
        "level": level,
        "message": {"text": format!("{message}. Repair: {repair}.")},
        "locations": [location],
        // A finding has the same fingerprint in every run, whatever the numbers in its message.
        "partialFingerprints": {"objects/v1": format!("{code}:{}", objects.join(","))},
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podplane_audit::{ControllerFlags, DumpCollector, DumpScope, ExpectedBlocks, audit};

    use super::*;

    #[test]
    fn writes_a_rule_per_code_and_a_result_per_finding() {
        let dump = json!({"kind": "List", "items": [
            {"kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}},
            {"kind": "Node", "metadata": {"name": "b"}, "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}},
        ]});
        let mut collector = DumpCollector::new(DumpScope::Fields);
        collector.read(dump.to_string().as_bytes()).unwrap();
        let read = collector.finish(&ControllerFlags::default());
        let report = audit(
            &read,
            &ExpectedBlocks::new(&ControllerFlags::default(), &read).unwrap(),
        );
        let log = log(&report, Some("dump.json"));
        let rules = log["runs"][0]["tool"]["driver"]["rules"]
            .as_array()
            .unwrap();
        let results = log["runs"][0]["results"].as_array().unwrap();
        assert_eq!((rules.len(), results.len()), (Code::ALL.len(), 1));
        let result = &results[0];
        assert_eq!(result["level"], "error");
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        let logical = result["locations"][0]["logicalLocations"]
            .as_array()
            .unwrap();
        let names: BTreeMap<_, _> = logical
            .iter()
            .map(|l| (l["fullyQualifiedName"].as_str().unwrap(), ()))
            .collect();
        assert_eq!(names.into_keys().collect::<Vec<_>>(), ["Node/a", "Node/b"]);
    }
}

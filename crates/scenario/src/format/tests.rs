//! The schema accepts a file if the program does, as far as form is concerned: it does not know the
//! names of objects, nodes and fields.

use std::{collections::BTreeMap, path::Path};

use regex::Regex;
use serde_json::Value;

use crate::{document, load::parse, tests::catalog};

/// Returns true if a schema accepts a value. Knows only the keywords that our schema has.
fn takes(root: &Value, schema: &Value, value: &Value) -> bool {
    let Value::Object(keywords) = schema else {
        return schema != false;
    };
    let is = |schema: &Value| takes(root, schema, value);
    let list = |of: &Value| of.as_array().expect("a list").clone();
    let has = |key: &Value| value.get(key.as_str().expect("a key")).is_some();
    let keys: Vec<&String> = value
        .as_object()
        .into_iter()
        .flat_map(|map| map.keys())
        .collect();
    let items = value.as_array();
    keywords.iter().all(|(keyword, of)| match &**keyword {
        "$schema" | "$id" | "$defs" | "title" | "description" | "default" | "format" => true,
        "$ref" => {
            let name = of.as_str().and_then(|name| name.strip_prefix("#/$defs/"));
            is(&root["$defs"][name.expect("a definition")])
        }
        "type" => match of {
            Value::Array(kinds) => kinds.iter().any(|kind| is_of(kind, value)),
            kind => is_of(kind, value),
        },
        "const" => value == of,
        "enum" => list(of).contains(value),
        "anyOf" => list(of).iter().any(is),
        "oneOf" => list(of).iter().filter(|each| is(each)).count() == 1,
        "not" => !is(of),
        "required" => !value.is_object() || list(of).iter().all(has),
        "properties" => of
            .as_object()
            .expect("schemas")
            .iter()
            .all(|(key, schema)| {
                value
                    .get(key)
                    .is_none_or(|value| takes(root, schema, value))
            }),
        "additionalProperties" => keys.iter().all(|key| {
            let is_named = keywords
                .get("properties")
                .is_some_and(|named| named.get(key).is_some());
            is_named || takes(root, of, &value[*key])
        }),
        "propertyNames" => keys
            .iter()
            .all(|key| takes(root, of, &Value::from(key.as_str()))),
        "dependentSchemas" => of
            .as_object()
            .expect("schemas")
            .iter()
            .all(|(key, schema)| value.get(key).is_none() || is(schema)),
        "dependentRequired" => of
            .as_object()
            .expect("lists")
            .iter()
            .all(|(key, others)| value.get(key).is_none() || list(others).iter().all(has)),
        "items" => items.is_none_or(|items| items.iter().all(|item| takes(root, of, item))),
        "minItems" => {
            items.is_none_or(|items| items.len() as u64 >= of.as_u64().expect("a number"))
        }
        "minimum" => value
            .as_f64()
            .is_none_or(|value| value >= of.as_f64().expect("a number")),
        "maximum" => value
            .as_f64()
            .is_none_or(|value| value <= of.as_f64().expect("a number")),
        "pattern" => value.as_str().is_none_or(|text| {
            Regex::new(of.as_str().expect("a text"))
                .expect("a pattern")
                .is_match(text)
        }),
        other => panic!("the schema has {other}, which this test does not know"),
    })
}

fn is_of(kind: &Value, value: &Value) -> bool {
    match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_f64().is_some_and(|value| value.fract() == 0.0),
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        other => panic!("the schema has the type {other:?}, which this test does not know"),
    }
}

fn schema_takes(schema: &Value, text: &str) -> bool {
    let document = document::Document::parse(Path::new("x.yaml"), text).unwrap();
    takes(
        schema,
        schema,
        &document.value_at(&document::Path::default()),
    )
}

/// Steps or whole files, with true for those that are valid.
const TABLE: &[(bool, &str)] = &[
    // Durations.
    (true, "- wait: {within: 20s, expect: [{object: pod/a}]}"),
    (true, "- wait: {within: 200ms, expect: [{object: pod/a}]}"),
    (
        true,
        "- wait: {within: '1m 30s', expect: [{object: pod/a}]}",
    ),
    (true, "- wait: {within: 1m30s, expect: [{object: pod/a}]}"),
    (true, "- wait: {within: 1.5s, expect: [{object: pod/a}]}"),
    (
        true,
        "- wait: {within: ' 2 hours ', expect: [{object: pod/a}]}",
    ),
    (true, "- wait: {within: 3us, expect: [{object: pod/a}]}"),
    (true, "- wait: {within: 3µs, expect: [{object: pod/a}]}"),
    (true, "- wait: {within: 1M, expect: [{object: pod/a}]}"),
    (true, "- wait: {within: '0', expect: [{object: pod/a}]}"),
    (
        true,
        "- wait: {within: 999999999years, expect: [{object: pod/a}]}",
    ),
    (
        false,
        "- wait: {within: 99999999999999999999s, expect: [{object: pod/a}]}",
    ),
    (false, "- wait: {within: 20, expect: [{object: pod/a}]}"),
    (false, "- wait: {within: 1.5, expect: [{object: pod/a}]}"),
    (false, "- wait: {within: '20', expect: [{object: pod/a}]}"),
    (false, "- wait: {within: '', expect: [{object: pod/a}]}"),
    (
        false,
        "- wait: {within: 20 sheep, expect: [{object: pod/a}]}",
    ),
    (false, "- wait: {within: 20S, expect: [{object: pod/a}]}"),
    (false, "- wait: {within: -1s, expect: [{object: pod/a}]}"),
    (
        false,
        "- wait: {within: 1.0001s, expect: [{object: pod/a}]}",
    ),
    (false, "- wait: {within: 0.5ns, expect: [{object: pod/a}]}"),
    (false, "- wait: {within: 1s30, expect: [{object: pod/a}]}"),
    (false, "- wait: {within: PT1M, expect: [{object: pod/a}]}"),
    (false, "- {delete: pod/a, settle: soon}"),
    // Null.
    (false, ""),
    (false, "steps:"),
    (false, "- "),
    (false, "- delete:"),
    (false, "- heal: null"),
    (false, "- {delete: pod/a, name: null}"),
    (false, "- {delete: pod/a, violations: null}"),
    (false, "- {delete: pod/a, wait: null}"),
    (false, "- {delete: {object: pod/a, namespace: null}}"),
    (false, "- wait: {within:, expect: [{object: pod/a}]}"),
    (false, "- wait: {timing: ~, expect: [{object: pod/a}]}"),
    (false, "- wait: {expect: [{object: pod/a}, null]}"),
    (false, "- kill: {process: scheduler, signal: null}"),
    (
        false,
        "- partition: {node: null, process: scheduler, from: apiserver}",
    ),
    (false, "- run: {command: [ls, null]}"),
    (false, "- run: {command: ls, env: {A: null}}"),
    (false, "- run: {command: ls, stdout: {equals: null}}"),
    (
        false,
        "- restart: {service: scheduler, flags: {ip-policy: null}}",
    ),
    (
        false,
        "- expect: [{object: pod/a, jsonpath: .x, exists: null}]",
    ),
    (false, "- expect: [{count: pods, equals: null}]"),
    (
        true,
        "- expect: [{object: pod/a, jsonpath: .x, equals: null}]",
    ),
    (
        true,
        "- expect: [{object: pod/a, jsonpath: .x, notEquals: null}]",
    ),
    (
        true,
        "- expect: [{object: pod/a, jsonpath: .x, equals: {a: [null]}}]",
    ),
    (true, "- apply: {kind: Pod, spec: null}"),
    (false, "cluster:\nsteps: [{delete: pod/a}]"),
    (false, "matrix:\nsteps: [{delete: pod/a}]"),
    (false, "cluster: {seed: null}\nsteps: [{delete: pod/a}]"),
    (
        false,
        "cluster: {cniTemplate: null}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {nodes: [{name: a, podCIDR: null}]}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {extraConfig: {kubelet: null}}\nsteps: [{delete: pod/a}]",
    ),
    // Lists that say nothing.
    (false, "steps: []"),
    (false, "- expect: []"),
    (false, "- wait: {expect: []}"),
    (false, "- apply: []"),
    (false, "- delete: []"),
    (false, "- addNodes: {names: []}"),
    (false, "- run: {command: []}"),
    (false, "matrix: {a: []}\nsteps: [{delete: pod/a}]"),
    (false, "matrix: []\nsteps: [{delete: pod/a}]"),
    (true, "matrix: {}\nsteps: [{delete: pod/a}]"),
    (false, "- violations: []"),
    (true, "- violations: [leaked-address]"),
    (true, "- {delete: pod/a, violations: []}"),
    (false, "- violations: [lost]"),
    // Numbers.
    (
        true,
        "- scale: {object: deployment/web, replicas: 4294967295}",
    ),
    (
        false,
        "- scale: {object: deployment/web, replicas: 4294967296}",
    ),
    (false, "- scale: {object: deployment/web, replicas: -1}"),
    (false, "- scale: {object: deployment/web, replicas: 1.5}"),
    (false, "- scale: {object: deployment/web, replicas: '3'}"),
    (true, "- scale: {object: deployment/web, replicas: 3.0}"),
    (true, "- scale: {object: deployment/web, replicas: 3e2}"),
    (true, "- scale: {object: deployment/web, replicas: -0.0}"),
    (false, "- scale: {object: deployment/web, replicas: -1.0}"),
    (
        false,
        "- scale: {object: deployment/web, replicas: 4294967296.0}",
    ),
    (false, "- scale: {object: deployment/web, replicas: 1e300}"),
    (true, "- delete: {object: pod/a, gracePeriodSeconds: 3.0}"),
    (false, "- delete: {object: pod/a, gracePeriodSeconds: 3.5}"),
    (
        true,
        "- calls: {of: scheduler, fail: UNAVAILABLE, times: 2.0}",
    ),
    (true, "- run: {command: [ls, 1.0], exitCode: 2.0}"),
    (true, "- expect: [{count: pods, equals: 3.0}]"),
    (
        true,
        "cluster: {nodes: 3.0, seed: 1.0, nodeCIDRMaskSize: 26.0}\nsteps: [{delete: pod/a}]",
    ),
    (
        true,
        "matrix: {n: [3.0]}\ncluster: {nodes: '${n}'}\nsteps: [{delete: pod/a}]",
    ),
    (true, "- run: {command: ls, exitCode: -1}"),
    (false, "- run: {command: ls, exitCode: 4294967296}"),
    (
        true,
        "cluster: {nodeCIDRMaskSize: 255}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {nodeCIDRMaskSize: 256}\nsteps: [{delete: pod/a}]",
    ),
    (true, "cluster: {nodes: 100000}\nsteps: [{delete: pod/a}]"),
    (false, "cluster: {nodes: 100001}\nsteps: [{delete: pod/a}]"),
    (
        true,
        "cluster: {seed: 18446744073709551615}\nsteps: [{delete: pod/a}]",
    ),
    (false, "cluster: {seed: -1}\nsteps: [{delete: pod/a}]"),
    (
        false,
        "cluster: {waitForNodes: 'true'}\nsteps: [{delete: pod/a}]",
    ),
    // Values of the matrix.
    (
        true,
        "matrix: {n: [3]}\ncluster: {nodes: '${n}'}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "matrix: {n: [3]}\ncluster: {nodes: '$${n}'}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "matrix: {n: [3]}\ncluster: {nodes: '${n} '}\nsteps: [{delete: pod/a}]",
    ),
    (
        true,
        "matrix: {n: [0]}\ncluster: {compat: 'upstream-1.3${n}'}\nsteps: [{delete: pod/a}]",
    ),
    (
        true,
        "matrix: {n: [3]}\nsteps: [{wait: {within: '${n}s', expect: [{object: pod/a}]}}]",
    ),
    (true, "matrix: {o: [pod/a]}\nsteps: [{delete: '${o}'}]"),
    (
        true,
        "matrix: {n: [a, 1, 1.5, true]}\nsteps: [{delete: pod/a}]",
    ),
    (true, "matrix: [{n: a}, {n: 1}]\nsteps: [{delete: pod/a}]"),
    (false, "matrix: {n: [null]}\nsteps: [{delete: pod/a}]"),
    (false, "matrix: {n: [[1]]}\nsteps: [{delete: pod/a}]"),
    (false, "matrix: {n: 1}\nsteps: [{delete: pod/a}]"),
    (false, "matrix: [{n: {}}]\nsteps: [{delete: pod/a}]"),
    // Blocks and ranges.
    (
        true,
        "cluster: {clusterCIDR: 10.244.0.0/16}\nsteps: [{delete: pod/a}]",
    ),
    (
        true,
        "cluster: {clusterCIDR: '10.244.0.0/16, fd00:10::/56'}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {clusterCIDR: 10.300.0.0/16}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {clusterCIDR: 10.244.0.0/33}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {clusterCIDR: 10.244.0.0/08}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {clusterCIDR: 'fd00::/129'}\nsteps: [{delete: pod/a}]",
    ),
    (
        false,
        "cluster: {clusterCIDR: '10.244.0.0/16,'}\nsteps: [{delete: pod/a}]",
    ),
    (true, "- addNodes: {names: a, podCIDR: ' 10.0.0.0/24 '}"),
    (false, "- addNodes: {names: a, podCIDR: 10.0.0.0}"),
    // Objects.
    (false, "- delete: web-0"),
    (false, "- delete: pod/"),
    (false, "- delete: pod/a/b"),
    (true, "- delete: {object: pod/a, wait: false}"),
    // Words.
    (true, "- run: {command: [sleep, 1, 1.5, true]}"),
    (false, "- run: {command: [sleep, [1]]}"),
    (true, "- restart: {service: kubelet, flags: {max-pods: 3}}"),
    (
        false,
        "- restart: {service: kubelet, flags: {max-pods: [3]}}",
    ),
    (false, "- run: {command: ls, env: {A: 1}}"),
    // What goes together.
    (false, "- name: nothing"),
    (false, "- {delete: pod/a, heal: {}}"),
    (true, "- heal: {}"),
    (true, "- heal: {node: node-0}"),
    (false, "- heal: {node: node-0, process: scheduler}"),
    (false, "- partition: {from: apiserver}"),
    (
        false,
        "- partition: {node: node-0, process: scheduler, from: apiserver}",
    ),
    (true, "- partition: {node: node-0, from: apiserver}"),
    (false, "- fillDisk: {}"),
    (false, "- calls: {of: scheduler}"),
    (false, "- calls: {of: scheduler, clear: false}"),
    (false, "- calls: {of: scheduler, clear: true, delay: 1s}"),
    (
        false,
        "- calls: {of: scheduler, delay: 1s, afterwards: true}",
    ),
    (
        true,
        "- calls: {of: scheduler, delay: 1s, afterwards: false}",
    ),
    (true, "- calls: {of: scheduler, clear: true}"),
    (
        true,
        "- calls: {of: scheduler, fail: UNAVAILABLE, afterwards: true}",
    ),
    (false, "- expect: [{equals: 1}]"),
    (false, "- expect: [{object: pod/a, count: pods}]"),
    (false, "- expect: [{count: pods}]"),
    (false, "- expect: [{count: pods, equals: three}]"),
    (false, "- expect: [{count: pods, jsonpath: .a, equals: 1}]"),
    (false, "- expect: [{object: pod/a, equals: 1}]"),
    (
        false,
        "- expect: [{object: pod/a, cel: 'true', jsonpath: .a}]",
    ),
    (
        false,
        "- expect: [{object: pod/a, cel: 'true', exists: true}]",
    ),
    (
        true,
        "- expect: [{object: pod/a, jsonpath: .a, atLeast: 1.5}]",
    ),
    (false, "- expect: [{metric: up, equals: 1}]"),
    (false, "- expect: [{metric: up, service: scheduler}]"),
    (
        true,
        "- expect: [{metric: up, service: scheduler, equals: 1}]",
    ),
    (false, "- expect: [{call: BindPod, equals: 1}]"),
    (true, "- expect: [{event: NodeReady}]"),
    (false, "- expect: [{event: NodeReady, where: 'true'}]"),
    (true, "- expect: [{command: ls, stdout: {contains: a}}]"),
    (false, "- expect: [{command: ls, stdin: a}]"),
    (
        false,
        "cluster: {network: auto}\nsteps: [{expect: [{ping: {from: a, to: b}, answers: false, answeredBy: b}]}]",
    ),
    (
        true,
        "cluster: {network: auto}\nsteps: [{expect: [{ping: {from: a, to: b}, answers: false}]}]",
    ),
];

#[test]
fn schema_and_program_accept_the_same_scenarios() {
    let schema = super::schema();
    let mut failed = Vec::new();
    for (good, text) in TABLE {
        let text = match text.starts_with('-') {
            true => format!("steps:\n{text}\n"),
            false => (*text).to_owned(),
        };
        let read = parse(Path::new("x.yaml"), &text, &BTreeMap::new(), &catalog());
        for (who, takes) in [
            ("the program", read.is_ok()),
            ("the schema", schema_takes(&schema, &text)),
        ] {
            if takes != *good {
                let verb = if takes { "takes" } else { "does not take" };
                failed.push(format!("{who} {verb}:\n{text}{read:?}\n"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_schema_takes_every_scenario_of_the_repository() {
    let schema = super::schema();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut number = 0;
    let mut dirs = vec![root.join("tests/scenarios"), root.join("examples")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "yaml")
            {
                let text = std::fs::read_to_string(&path).unwrap();
                if text.lines().any(|line| line.starts_with("steps:")) {
                    assert!(schema_takes(&schema, &text), "{}", path.display());
                    number += 1;
                }
            }
        }
    }
    assert!(number > 20, "{number}");
}

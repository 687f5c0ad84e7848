//! Tests with inputs of every valid format, and invalid ones.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    io::{self, Read, Write as _},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use podplane_audit::{
    ControllerFlags, Dump, DumpCollector, DumpScope, ExpectedBlocks, InputError, Repair, Severity,
    audit,
};
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert_eq, prop_compose, prop_oneof, proptest,
};
use serde_json::{Value, json};

fn read(input: impl Read) -> Result<Dump, InputError> {
    let mut collector = DumpCollector::new(DumpScope::Nodes);
    collector.read(input)?;
    Ok(collector.finish(&flags()))
}

fn flags() -> ControllerFlags {
    ControllerFlags {
        cluster_cidr: Some("10.0.0.0/16".into()),
        node_cidr_mask_size: Some(24),
        ..ControllerFlags::default()
    }
}

/// The results of every operation on a dump, as text.
fn all_results(dump: &Dump) -> String {
    let expected = ExpectedBlocks::new(&flags(), dump).unwrap();
    let report = audit(dump, &expected);
    let repair = Repair::new(dump, &expected, &report, Severity::Info);
    let files = repair.map(|repair| repair.files("podplane audit -"));
    format!("{report:?}{files:?}")
}

fn data(name: &str) -> Vec<u8> {
    fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name),
    )
    .unwrap()
}

/// A reader that returns one byte at a time.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let one = into.len().min(1);
        self.0.read(&mut into[..one])
    }
}

#[test]
fn reads_all_formats_alike() {
    let json = data("pods.json");
    let want = all_results(&read(json.as_slice()).unwrap());
    assert_eq!(all_results(&read(Drip(&json)).unwrap()), want);
    let value: Value = serde_json::from_slice(&json).unwrap();
    let yaml = serde_saphyr::to_string(&value).unwrap();
    assert_eq!(all_results(&read(yaml.as_bytes()).unwrap()), want);
    assert_eq!(all_results(&read(Drip(yaml.as_bytes())).unwrap()), want);
    for text in [json.as_slice(), yaml.as_bytes()] {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text).unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(all_results(&read(packed.as_slice()).unwrap()), want);
        assert_eq!(all_results(&read(Drip(&packed)).unwrap()), want);
    }
    // The objects one after the other, as `kubectl get --raw` and jq print them, and all of them
    // twice.
    let items = value["items"].as_array().unwrap();
    let single: String = items
        .iter()
        .rev()
        .map(|item| format!(" {item:#}\n"))
        .collect();
    assert_eq!(all_results(&read(single.as_bytes()).unwrap()), want);
    assert_eq!(
        all_results(&read(format!("{single}{value}").as_bytes()).unwrap()),
        want
    );
    assert_eq!(
        all_results(&read(value["items"].to_string().as_bytes()).unwrap()),
        want
    );
}

#[test]
fn reads_objects_larger_than_the_window() {
    let note = "x".repeat(5 << 20);
    let node = |name: &str| json!({"kind": "Node", "metadata": {"name": name, "annotations": {"note": note}}, "spec": {"podCIDR": "10.0.0.0/24"}});
    let list = json!({"kind": "List", "items": [node("a"), node("b")]});
    let dump = read(list.to_string().as_bytes()).unwrap();
    assert!(all_results(&dump).contains("is assigned to 2 nodes: a and b"));
}

#[test]
fn reads_nested_lists_and_arrays() {
    let value: Value = serde_json::from_slice(&data("pods.json")).unwrap();
    let want = all_results(&read(value.to_string().as_bytes()).unwrap());
    let of_kind = |kind: &str| -> Vec<Value> {
        let items = value["items"].as_array().unwrap().iter();
        items.filter(|item| item["kind"] == kind).cloned().collect()
    };
    let (nodes, pods) = (of_kind("Node"), of_kind("Pod"));
    let bare = |items: &[Value]| -> Vec<Value> {
        let mut items = items.to_vec();
        for item in &mut items {
            item.as_object_mut().unwrap().remove("kind");
        }
        items
    };
    let node_list = json!({"kind": "NodeList", "items": bare(&nodes)});
    let pod_list = json!({"items": bare(&pods), "kind": "PodList"});
    let note = "x".repeat(3 << 20);
    for nested in [
        json!({"kind": "List", "items": [node_list, pod_list]}),
        json!([node_list, pod_list]),
        json!([nodes, pods]),
        json!([[[node_list]], {"items": [{"items": [pod_list]}]}]),
        // A list larger than the window is read by its fields.
        json!([{"kind": "NodeList", "note": note, "items": bare(&nodes)}, pod_list]),
        json!({"kind": "List", "items": [{"items": bare(&pods), "note": note, "kind": "PodList"}, node_list]}),
    ] {
        let json = nested.to_string();
        assert_eq!(all_results(&read(json.as_bytes()).unwrap()), want);
        let yaml = serde_saphyr::to_string(&nested).unwrap();
        assert_eq!(all_results(&read(yaml.as_bytes()).unwrap()), want);
    }
}

#[test]
fn rejects_lists_nested_too_deeply() {
    let error = read("[".repeat(2 << 20).as_bytes())
        .unwrap_err()
        .to_string();
    assert!(error.contains("nested too deeply"), "{error}");
}

#[test]
fn splits_joined_yaml_files_without_a_separator() {
    let value: Value = serde_json::from_slice(&data("pods.json")).unwrap();
    let want = all_results(&read(value.to_string().as_bytes()).unwrap());
    let of_kind = |kind: &str| {
        let items = value["items"].as_array().unwrap().iter();
        let items: Vec<_> = items.filter(|item| item["kind"] == kind).collect();
        serde_saphyr::to_string(&json!({"apiVersion": "v1", "items": items, "kind": "List"}))
            .unwrap()
    };
    let together = of_kind("Node") + &of_kind("Pod");
    for input in [together.clone(), format!("---\n{together}")] {
        let dump = read(input.as_bytes()).unwrap();
        assert!(dump.notes()[0].contains("`---`"), "{:?}", dump.notes());
        assert_eq!(all_results(&dump), want);
    }
    let apart = of_kind("Node") + "---\n" + &of_kind("Pod");
    let dump = read(apart.as_bytes()).unwrap();
    assert!(dump.notes().is_empty(), "{:?}", dump.notes());
    assert_eq!(all_results(&dump), want);
}

#[test]
fn writes_counts_beyond_a_double_like_plan() {
    let node = json!({"kind": "Node", "metadata": {"name": "a"}, "spec": {"podCIDR": "fd00::/64", "podCIDRs": ["fd00::/64"]}});
    let dump = read(json!([node]).to_string().as_bytes()).unwrap();
    let report = audit(
        &dump,
        &ExpectedBlocks::new(&ControllerFlags::default(), &dump).unwrap(),
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(
        json["summary"]["addresses"]["capacity"],
        "18446744073709551614"
    );
    assert_eq!(json["summary"]["addresses"]["used"], 0);
}

#[test]
fn counts_shared_blocks_and_addresses_once() {
    let node = |name: &str, block: &str| {
        json!({"kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDR": block, "podCIDRs": [block]}})
    };
    let pod = |name: &str, node: &str, ip: &str| {
        json!({"kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node}, "status": {"phase": "Running", "podIPs": [{"ip": ip}]}})
    };
    let pods = [
        pod("one", "small", "10.0.1.2"),
        pod("two", "twin", "10.0.1.2"),
        pod("three", "apart", "10.1.0.2"),
    ];
    let twins = [node("small", "10.0.1.0/24"), node("twin", "10.0.1.0/24")];
    let apart = [node("apart", "10.1.0.0/29")];
    let wide = [node("wide", "10.0.0.0/16")];
    let counts = |nodes: &[&[Value]]| {
        let items: Vec<&Value> = nodes.iter().copied().flatten().chain(&pods).collect();
        let dump = read(json!(items).to_string().as_bytes()).unwrap();
        let expected = ExpectedBlocks::new(&ControllerFlags::default(), &dump).unwrap();
        let json = serde_json::to_value(audit(&dump, &expected)).unwrap();
        json["summary"]["addresses"].clone()
    };
    let want = json!({"capacity": 253 + 5, "used": 2, "free": 252 + 4});
    assert_eq!(counts(&[&twins, &apart]), want);
    let want = json!({"capacity": 65_533 + 5, "used": 2, "free": 65_532 + 4});
    assert_eq!(
        counts(&[&twins, &apart, &wide]),
        want,
        "a block within another"
    );
}

#[test]
fn a_finding_has_all_of_its_places() {
    let node = |name: &str, blocks: &[&str]| {
        json!({"kind": "Node", "metadata": {"name": name},
            "spec": {"podCIDR": blocks[0], "podCIDRs": blocks}})
    };
    let items = [
        node("wide", &["10.0.0.0/22"]),
        node("a", &["10.0.1.0/24"]),
        node("b", &["10.0.2.7/24", "fd00::/64"]),
        node("apart", &["10.1.0.0/24"]),
    ];
    let dump = read(json!(items).to_string().as_bytes()).unwrap();
    let expected = ExpectedBlocks::new(&ControllerFlags::default(), &dump).unwrap();
    let report = serde_json::to_value(audit(&dump, &expected)).unwrap();
    let findings = report["findings"].as_array().unwrap().iter();
    let places: Vec<_> = findings
        .map(|finding| (finding["code"].as_str().unwrap(), &finding["prefixes"]))
        .collect();
    assert_eq!(
        places,
        [
            (
                "overlapping-pod-cidr",
                &json!(["10.0.0.0/22", "10.0.1.0/24", "10.0.2.0/24"])
            ),
            (
                "wrong-family-pod-cidr",
                &json!(["10.0.2.0/24", "fd00::/64"])
            ),
            ("wrong-size-pod-cidr", &json!(["10.0.0.0/22"])),
        ]
    );
}

#[test]
fn accepts_an_empty_cluster() {
    for text in [
        "{\"kind\": \"List\", \"items\": []}",
        "{\"items\": null, \"kind\": \"PodList\"}",
        "kind: List\nitems: []\n",
    ] {
        let dump = read(text.as_bytes()).unwrap();
        assert_eq!(
            audit(
                &dump,
                &ExpectedBlocks::new(&ControllerFlags::default(), &dump).unwrap()
            )
            .findings,
            []
        );
    }
}

#[test]
fn rejects_other_inputs_with_the_reason() {
    for (text, want) in [
        ("", "there are no nodes and pods in it"),
        ("  \n", "there are no nodes and pods in it"),
        ("{}", "there are no nodes and pods in it"),
        (
            "{\"kind\": \"Status\", \"message\": \"Forbidden\"}",
            "there are no nodes and pods in it",
        ),
        ("No resources found", "there are no nodes and pods in it"),
        (
            "{\"kind\": \"List\", \"items\": [{\"kind\": \"Node\"}",
            "invalid JSON from byte 43 on: it ends here",
        ),
        (
            "{\"kind\": \"List\", \"items\": [{\"kind\": }]}",
            "invalid JSON from byte 27 on:",
        ),
        (
            "{\"kind\": \"List\", \"items\": [] trailing",
            "invalid JSON from byte 29 on: want `,` or `}`",
        ),
        (
            "{\"kind\": \"List\"} NAME STATUS",
            "invalid JSON from byte 17 on: want an object",
        ),
        ("kind: List\nitems: [\n", "invalid YAML: document 1: "),
        ("kind: Node\n---\nitems: [\n", "invalid YAML: document 2: "),
    ] {
        let error = read(text.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with(want), "{text:?}: {error}");
    }
    let error = read([0x1f, 0x8b, 8, 0, 0].as_slice()).unwrap_err();
    assert!(matches!(error, InputError::Read(_)), "{error}");
}

#[test]
fn reports_damaged_gzip_whatever_the_chunks() {
    let packed = |text: &str| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(text.as_bytes()).unwrap();
        packed.finish().unwrap()
    };
    for first in ["kind: List\nitems: []\n", "items: [\n", "{]", "{}"] {
        let mut input = packed(first);
        // A member whose compressed block has a reserved type.
        let second = input.len();
        input.extend(packed("kind: List\n"));
        input[second + 10] = 0xff;
        for error in [read(input.as_slice()), read(Drip(&input))] {
            let error = error.unwrap_err();
            assert!(matches!(error, InputError::Read(_)), "{first:?}: {error}");
        }
    }
}

/// A value that may stand in place of any field.
fn odd() -> impl Strategy<Value = Value> {
    const TEXTS: &[&str] = &[
        "",
        "10.0.1.0/24",
        "10.0.1.7/24",
        "10.0.0.0/15",
        "fd00::/64",
        "10.0.1.9",
        "::ffff:10.0.1.9",
        "/",
        "no",
        "true",
        "n1",
        "../x",
        "Pod",
        "Node",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(TEXTS).prop_map(Value::from),
        ".{0,6}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            inner.clone().prop_map(|ip| json!({"ip": ip})),
            inner.prop_map(|value| json!({"name": value})),
        ]
    })
}

prop_compose! {
    fn object()(kind in prop::sample::select(&["Node", "Pod", ""][..]), f in prop::collection::vec(odd(), 12)) -> Value {
        let [a, b, c, d, e, g, h, i, j, k, l, m] = f.try_into().unwrap();
        json!({"kind": kind, "metadata": {"name": a, "namespace": b, "deletionTimestamp": c},
            "spec": {"podCIDR": d, "podCIDRs": [e, g], "nodeName": h, "hostNetwork": i},
            "status": {"phase": j, "podIP": k, "podIPs": l, "conditions": m}})
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(dump) = read(bytes.as_slice()) {
            all_results(&dump);
        }
    }

    #[test]
    fn corrupted_dumps_never_panic(place in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<prop::sample::Index>(), is_yaml in any::<bool>()) {
        let mut text = data(if is_yaml { "nodes.yaml" } else { "ip-capacity.json" });
        let place = place.index(text.len());
        text[place] = byte;
        if byte % 2 == 0 {
            text.truncate(cut.index(text.len()));
        }
        if let Ok(dump) = read(text.as_slice()) {
            all_results(&dump);
        }
    }

    #[test]
    fn odd_values_never_panic(objects in prop::collection::vec(object(), 0..12), kind in prop::sample::select(&["List", "NodeList", "PodList"][..])) {
        let list = json!({"items": objects, "kind": kind});
        let json = all_results(&read(list.to_string().as_bytes()).unwrap());
        // The result is the same in whatever chunks it was read.
        prop_assert_eq!(json, all_results(&read(Drip(list.to_string().as_bytes())).unwrap()));
    }
}

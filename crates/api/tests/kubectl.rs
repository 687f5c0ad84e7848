//! Patches compared with `kubectl patch --local`, which runs kube-apiserver's own library: random
//! objects and patches, and known cases with their texts.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::PathBuf,
    process::Command,
};

use podplane_api::{
    patch::{self, PatchError},
    schema::Type,
};
use podplane_test_requirements::kubectl;
use serde_json::{Value, json};

mod cases;
mod peer;
mod random;
use cases::PatchCase;
use peer::SINCE_1_34;
use random::RandomDocuments;

const KINDS: &[(&str, &str, &str, &str)] = &[
    ("", "v1", "v1", "Pod"),
    ("", "v1", "v1", "Node"),
    ("", "v1", "v1", "Service"),
    ("", "v1", "v1", "Namespace"),
    ("apps", "v1", "apps/v1", "Deployment"),
    ("apps", "v1", "apps/v1", "ReplicaSet"),
    (
        "coordination.k8s.io",
        "v1",
        "coordination.k8s.io/v1",
        "Lease",
    ),
];

/// Applies one patch to objects (by name) with kubectl; returns the results and the printed errors.
fn reference(
    kubectl: &PathBuf,
    objects: &[Value],
    style: &str,
    patch: &Value,
) -> (BTreeMap<String, Value>, String) {
    let directory = tempfile::tempdir().unwrap();
    let [file, patch_file] = ["objects.json", "patch.json"].map(|name| directory.path().join(name));
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    fs::write(&file, list.to_string()).unwrap();
    fs::write(&patch_file, patch.to_string()).unwrap();
    let output = Command::new(kubectl)
        .args(["patch", "--local", "-o", "json", "--type", style, "-f"])
        .arg(&file)
        .arg("--patch-file")
        .arg(&patch_file)
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let results = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let by_name = results.map(|result| {
        let result =
            result.unwrap_or_else(|error| panic!("kubectl printed {text}\n{errors}\n{error}"));
        (
            result["metadata"]["name"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            result,
        )
    });
    (by_name.collect(), errors)
}

fn ours(ty: Type, object: &Value, style: &str, patch: &Value) -> Result<Value, PatchError> {
    match style {
        "json" => patch::json(object.clone(), patch.clone()),
        "merge" => patch::merge(object.clone(), patch.clone()),
        _ => patch::strategic(ty, object.clone(), patch.clone()),
    }
}

/// The first path at which two documents differ.
fn difference(ours: &Value, theirs: &Value) -> Option<String> {
    let keys = |value: &Value| -> BTreeSet<String> {
        match value {
            Value::Object(map) => map.keys().cloned().collect(),
            Value::Array(list) => (0..list.len()).map(|index| index.to_string()).collect(),
            _ => BTreeSet::new(),
        }
    };
    if ours == theirs {
        return None;
    }
    if keys(ours) == keys(theirs) && !keys(ours).is_empty() {
        let differs = keys(ours).into_iter().find_map(|key| {
            let at = format!("/{key}");
            let below = difference(ours.pointer(&at)?, theirs.pointer(&at)?)?;
            Some(format!("{at}{below}"))
        });
        if differs.is_some() {
            return differs;
        }
    }
    Some(format!(": ours is {ours}\ntheirs is {theirs}"))
}

fn rounds(short: u64, long: u64) -> u64 {
    if env::var_os("PODPLANE_SOAK").is_some() {
        long
    } else {
        short
    }
}

/// Applies random patches to random objects, several objects for each patch. Both must fail, or
/// both succeed with the same result.
fn compare(style: &str, objects: usize, rounds: u64) {
    let Some(kubectl) = kubectl() else { return };
    let mut applied = 0;
    let mut refused = 0;
    let first = env::var("PODPLANE_SEED").map_or(0, |seed| seed.parse().unwrap());
    for seed in first..first + rounds {
        let mut random = RandomDocuments::new(seed).without(SINCE_1_34);
        let (group, version, api_version, kind) = *random.pick(KINDS);
        let ty = Type::of_kind(group, version, kind).unwrap();
        let objects: Vec<Value> = (0..objects)
            .map(|index| random.object(ty, api_version, kind, &format!("o{index}")))
            .collect();
        let patch = match style {
            "json" => random.json(&objects[0]),
            "merge" => {
                let mut patch = random.merge(ty);
                while !patch.is_object()
                    || patch
                        .get("metadata")
                        .is_some_and(|metadata| !metadata.is_object())
                {
                    patch = random.merge(ty);
                }
                patch
            }
            _ => {
                let mut patch = random.strategic(ty, None, 6);
                let renames = |patch: &Value| {
                    let whole = |map: &Value| {
                        !map.is_object()
                            || map.get("$patch").is_some()
                            || map.get("$retainKeys").is_some()
                    };
                    whole(patch) || patch.get("metadata").is_some_and(whole)
                };
                while renames(&patch) {
                    patch = random.strategic(ty, None, 6);
                }
                patch
            }
        };
        let (theirs, errors) = reference(&kubectl, &objects, style, &patch);
        assert!(
            !errors.contains("panic:"),
            "seed {seed}: kubectl is broken by {patch}:\n{errors}"
        );
        for object in &objects {
            let name = object["metadata"]["name"].as_str().unwrap();
            match (ours(ty, object, style, &patch), theirs.get(name)) {
                (Ok(ours), Some(theirs)) => {
                    if let Some(difference) = difference(&ours, theirs) {
                        panic!(
                            "seed {seed}: {difference}
of {style} patch {patch}
of {object}"
                        );
                    }
                    applied += 1;
                }
                (Err(_), None) => refused += 1,
                (Ok(ours), None) => panic!(
                    "seed {seed}: kubectl refuses {style} patch {patch}\nof {object}:\n{errors}\nours is {ours}"
                ),
                (Err(error), Some(theirs)) => panic!(
                    "seed {seed}: {error}: {style} patch {patch}\nof {object}\ntheirs is {theirs}"
                ),
            }
        }
    }
    eprintln!("{style}: {applied} patches applied alike, {refused} refused by both");
    assert!(applied > refused / 3, "too few patches say anything");
}

/// Adds the fields that every object has and the table omits.
fn complete(case: &PatchCase, mut object: Value) -> Value {
    let (group, version, kind) = case.kind;
    object["apiVersion"] = if group.is_empty() {
        version.into()
    } else {
        format!("{group}/{version}").into()
    };
    object["kind"] = kind.into();
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    object["metadata"]["name"] = "x".into();
    object
}

#[test]
fn applies_known_strategic_patches_as_expected() {
    for case in cases::strategic() {
        let (group, version, kind) = case.kind;
        let ty = Type::of_kind(group, version, kind).unwrap();
        let ours = patch::strategic(ty, complete(&case, case.object.clone()), case.patch.clone());
        let expected = case
            .expected
            .clone()
            .map(|expected| complete(&case, expected));
        assert_eq!(
            ours.map_err(|error| error.to_string()),
            expected.map_err(str::to_owned),
            "{}",
            case.name
        );
    }
}

/// Checks the table itself.
#[test]
fn kubectl_applies_known_strategic_patches_as_expected() {
    let Some(kubectl) = kubectl() else { return };
    for case in cases::strategic() {
        let (theirs, errors) = reference(
            &kubectl,
            &[complete(&case, case.object.clone())],
            "strategic",
            &case.patch,
        );
        match &case.expected {
            Ok(expected) => assert_eq!(
                theirs.get("x"),
                Some(&complete(&case, expected.clone())),
                "{}: {errors}",
                case.name
            ),
            Err(text) => assert_eq!(
                errors,
                format!("error: {}\n", text.trim_end_matches('\n')),
                "{}",
                case.name
            ),
        }
    }
}

#[test]
fn random_strategic_merge_patches_have_the_result_of_kubectl() {
    compare("strategic", 20, rounds(40, 3000));
}

#[test]
fn random_merge_patches_have_the_result_of_kubectl() {
    compare("merge", 20, rounds(20, 500));
}

#[test]
fn random_json_patches_have_the_result_of_kubectl() {
    compare("json", 2, rounds(60, 5000));
}

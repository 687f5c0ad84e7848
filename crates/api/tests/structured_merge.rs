//! Server-side apply compared with the library that kube-apiserver uses for it, as Debian packages
//! it: random writes by several managers. After each, the object, its owners and the conflicts must
//! be the same.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
};

use podplane_api::{
    jiff::Timestamp,
    patch::{
        FieldSet,
        apply::{ApplyError, Conflicts, Writer, apply, track},
    },
    schema::{ElementIdentity, Type, TypeStructure},
};
use podplane_test_requirements::require;
use serde_json::{Value, json};

mod random;
use random::RandomDocuments;

const LIBRARY: &str = "/usr/share/gocode/src/sigs.k8s.io/structured-merge-diff";

/// Builds the program; `None` if the test must be skipped.
fn program() -> Option<tempfile::TempDir> {
    let have_go = Command::new("go").arg("version").output().is_ok();
    let is_there = have_go && Path::new(LIBRARY).exists();
    let install = "apt-get install golang-go golang-k8s-sigs-structured-merge-diff-dev";
    if !require("go", is_there, install) {
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/structured_merge/main.go"
    );
    fs::copy(source, directory.path().join("main.go")).unwrap();
    let built = Command::new("go")
        .args(["build", "-o", "program", "main.go"])
        .current_dir(directory.path())
        .env("GO111MODULE", "off")
        .env("GOPATH", "/usr/share/gocode")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(directory)
}

/// The types below `ty` in the schema format of that library.
fn describe(ty: Type, types: &mut BTreeMap<String, Value>) -> Value {
    match ty.kind() {
        TypeStructure::Scalar => json!({"scalar": "untyped"}),
        TypeStructure::Any => json!({"namedType": "__any"}),
        TypeStructure::Map(values) => {
            json!({"map": {"elementType": describe(values, types), "elementRelationship": relationship(ty)}})
        }
        TypeStructure::List(list) => {
            let items = describe(list.items(), types);
            match &list.identity {
                ElementIdentity::Atomic => {
                    json!({"list": {"elementType": items, "elementRelationship": "atomic"}})
                }
                ElementIdentity::Set => {
                    json!({"list": {"elementType": items, "elementRelationship": "associative"}})
                }
                ElementIdentity::Keys(keys) => {
                    let names: Vec<_> = keys.iter().map(|key| &key.name).collect();
                    for key in keys.iter().filter(|key| key.default.is_some()) {
                        let item = types.get_mut(items["namedType"].as_str().unwrap()).unwrap();
                        for field in item["map"]["fields"].as_array_mut().unwrap() {
                            if field["name"] == key.name.as_str() {
                                field["default"] = key.default.clone().unwrap();
                            }
                        }
                    }
                    json!({"list": {"elementType": items, "elementRelationship": "associative", "keys": names}})
                }
            }
        }
        TypeStructure::Struct(of) => {
            if !types.contains_key(&of.name) {
                types.insert(of.name.clone(), Value::Null);
                let fields: Vec<_> = of
                    .fields()
                    .map(|(name, field)| json!({"name": name, "type": describe(field.ty(), types)}))
                    .collect();
                let described = json!({"name": of.name, "map": {"fields": fields, "elementRelationship": relationship(ty)}});
                types.insert(of.name.clone(), described);
            }
            json!({"namedType": of.name})
        }
    }
}

fn relationship(ty: Type) -> &'static str {
    if ty.is_atomic_map() {
        "atomic"
    } else {
        "separable"
    }
}

fn schema(ty: Type) -> (String, String) {
    let any = json!({"namedType": "__any"});
    let mut types = BTreeMap::from([(
        "__any".to_owned(),
        json!({"name": "__any", "scalar": "untyped", "list": {"elementType": any, "elementRelationship": "atomic"},
               "map": {"elementType": any, "elementRelationship": "separable"}}),
    )]);
    let root = describe(ty, &mut types);
    let types: Vec<_> = types.into_values().collect();
    (
        json!({"types": types}).to_string(),
        root["namedType"].as_str().unwrap().to_owned(),
    )
}

/// The object's fields with arbitrary JSON.
fn any_fields(ty: Type) -> Vec<&'static str> {
    let TypeStructure::Struct(fields) = ty.kind() else {
        panic!("a kind is a struct")
    };
    let any = fields
        .fields()
        .filter(|(_, field)| matches!(field.ty().kind(), TypeStructure::Any));
    any.map(|(name, _)| name).collect()
}

/// Sorts lists for the comparison: that library appends to lists where newer ones keep the order of
/// the configuration. Lists in arbitrary JSON are atomic.
fn sorted(ty: Option<Type>, value: &Value) -> Value {
    let below = |name: &str| ty.and_then(|ty| ty.field(name));
    match (ty.map(|ty| ty.kind()), value) {
        (Some(TypeStructure::Any), value) => value.clone(),
        (_, Value::Object(fields)) => fields
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), sorted(below(name), value)))
            .collect(),
        (kind, Value::Array(elements)) => {
            let items = match kind {
                Some(TypeStructure::List(list)) => Some(list.items()),
                _ => None,
            };
            let mut elements: Vec<_> = elements.iter().map(|value| sorted(items, value)).collect();
            elements.sort_by_key(Value::to_string);
            elements.into()
        }
        (_, scalar) => scalar.clone(),
    }
}

/// The state before the first write.
fn blank(ty: Type) -> Value {
    let TypeStructure::Struct(fields) = ty.kind() else {
        panic!("a kind is a struct")
    };
    let structs = fields
        .fields()
        .filter(|(_, field)| matches!(field.ty().kind(), TypeStructure::Struct(_)));
    structs
        .map(|(name, _)| (name.to_owned(), json!({})))
        .collect()
}

#[test]
fn writes_by_several_managers_merge_as_in_the_reference() {
    let Some(program) = program() else { return };
    let rounds = if env::var_os("PODPLANE_SOAK").is_some() {
        4000
    } else {
        150
    };
    let first: u64 = env::var("PODPLANE_SEED").map_or(0, |seed| seed.parse().unwrap());
    let (mut applied, mut conflicts, mut updated) = (0, 0, 0);
    for (group, version, kind) in [
        ("", "v1", "Pod"),
        ("", "v1", "Node"),
        ("", "v1", "Service"),
        ("apps", "v1", "Deployment"),
        ("apps", "v1", "ControllerRevision"),
    ] {
        let ty = Type::of_kind(group, version, kind).unwrap();
        let mut child = Command::new(program.path().join("program"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (schema, name) = schema(ty);
        writeln!(
            input,
            "{}",
            json!({"schema": schema, "type": name, "any": any_fields(ty)})
        )
        .unwrap();
        for seed in first..first + rounds {
            let mut random = RandomDocuments::new(seed);
            let mut live: Option<Value> = None;
            let mut history = Vec::new();
            for step in 0..6 {
                let manager = *random.pick(&["a", "b", "c"]);
                let operation = if step == 0 || random.chance(30) {
                    "Update"
                } else {
                    "Apply"
                };
                let force = random.chance(50);
                let mut object = random.configuration(ty);
                match operation {
                    "Apply" => random.nulls(ty, &mut object),
                    // These are not in an object that was decoded.
                    _ => object
                        .as_object_mut()
                        .unwrap()
                        .retain(|_, value| !value.is_null()),
                }
                if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
                    // These fields have no owner by a rule of kube-apiserver, not of the library.
                    let ownerless = [
                        "creationTimestamp",
                        "generation",
                        "resourceVersion",
                        "selfLink",
                        "uid",
                    ];
                    metadata.retain(|name, _| !ownerless.contains(&name.as_str()));
                    if metadata.is_empty() {
                        object.as_object_mut().unwrap().remove("metadata");
                    }
                }
                if operation == "Update" {
                    object["metadata"]["labels"]["who"] = manager.into();
                }
                let write = json!({"reset": (step == 0).then(|| blank(ty)), "operation": operation, "manager": manager, "force": force, "object": object});
                writeln!(input, "{write}").unwrap();
                history.push(write.to_string());
                let theirs: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
                let context = || {
                    format!(
                        "{kind}, seed {seed}, writes:\n{}\ntheirs is {theirs}",
                        history.join("\n")
                    )
                };
                let writer = Writer {
                    manager,
                    api_version: "v1",
                    subresource: "",
                    now: Timestamp::UNIX_EPOCH,
                    ignored: &FieldSet::default(),
                };
                let result = match operation {
                    "Update" => {
                        updated += 1;
                        Ok(track(ty, live.as_ref(), &object, &writer))
                    }
                    _ => apply(
                        ty,
                        live.as_ref(),
                        &object,
                        &writer,
                        if force {
                            Conflicts::Take
                        } else {
                            Conflicts::Refuse
                        },
                    )
                    .map(|applied| applied.object),
                };
                match result {
                    Ok(mut ours) => {
                        applied += 1;
                        let entries = ours["metadata"]["managedFields"]
                            .as_array()
                            .cloned()
                            .unwrap_or_default();
                        let of = |entry: &Value| {
                            format!(
                                "{}/{}",
                                entry["operation"].as_str().unwrap(),
                                entry["manager"].as_str().unwrap()
                            )
                        };
                        let owners: BTreeMap<_, _> = entries
                            .iter()
                            .map(|entry| (of(entry), entry["fieldsV1"].clone()))
                            .collect();
                        let their_owners = theirs["managers"]
                            .as_object()
                            .unwrap_or_else(|| panic!("ours is {ours}, {}", context()));
                        let their_owners: BTreeMap<_, _> = their_owners
                            .iter()
                            .map(|(name, fields)| (name.clone(), fields.clone()))
                            .collect();
                        live = Some(ours.clone());
                        ours["metadata"]
                            .as_object_mut()
                            .unwrap()
                            .remove("managedFields");
                        assert_eq!(
                            sorted(Some(ty), &ours).to_string(),
                            sorted(Some(ty), &theirs["object"]).to_string(),
                            "{}",
                            context()
                        );
                        assert_eq!(
                            json!(owners).to_string(),
                            json!(their_owners).to_string(),
                            "{}",
                            context()
                        );
                    }
                    Err(ApplyError::Conflicts(list)) => {
                        conflicts += 1;
                        // Which fields these are is checked by the forced apply. This version of
                        // the library reports some other fields instead.
                        let theirs = theirs["conflicts"].as_array().map(Vec::len);
                        assert_eq!(Some(list.len()), theirs, "{list:?}, {}", context());
                    }
                    Err(error) => assert!(theirs["error"].is_string(), "{error}, {}", context()),
                }
            }
        }
        drop(input);
        child.wait().unwrap();
    }
    eprintln!("{applied} writes alike ({updated} updates), {conflicts} conflicts alike");
    assert!(conflicts > 50 && applied > 10 * 50);
}

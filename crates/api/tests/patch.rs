//! Patches without a peer: the records and refusals of an apply, and properties of any document.

#![expect(clippy::unwrap_used, reason = "a test")]

use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use podplane_api::{
    jiff::Timestamp,
    patch::{
        self, FieldSet, PatchError,
        apply::{ApplyError, ApplyOutcome, Conflicts, Writer, apply, track},
    },
    schema::Type,
};
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use serde_json::{Value, json};

mod random;
use random::RandomDocuments;

fn deployment() -> Type {
    Type::of::<Deployment>().unwrap()
}

fn writer<'a>(manager: &'a str, ignored: &'a FieldSet) -> Writer<'a> {
    Writer {
        manager,
        api_version: "apps/v1",
        subresource: "",
        now: Timestamp::UNIX_EPOCH,
        ignored,
    }
}

fn applied(
    live: Option<&Value>,
    config: &Value,
    manager: &str,
    conflicts: Conflicts,
) -> Result<ApplyOutcome, ApplyError> {
    let status = FieldSet::of_fields(&[&["status"]]);
    apply(
        deployment(),
        live,
        config,
        &writer(manager, &status),
        conflicts,
    )
}

fn config(replicas: Option<u32>, image: &str) -> Value {
    let mut config = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"app": "d"}},
        "spec": {"template": {"spec": {"containers": [{"name": "c", "image": image, "ports": [{"containerPort": 80}]}]}}}});
    if let Some(replicas) = replicas {
        config["spec"]["replicas"] = replicas.into();
    }
    config
}

#[test]
fn an_apply_records_the_fields_of_its_configuration() {
    let object = applied(None, &config(Some(2), "i"), "kubectl", Conflicts::Refuse)
        .unwrap()
        .object;
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{"manager": "kubectl", "operation": "Apply", "apiVersion": "apps/v1", "time": "1970-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:app": {}}}, "f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {
                "k:{\"name\":\"c\"}": {".": {}, "f:name": {}, "f:image": {}, "f:ports": {
                    "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}}}}}}}}])
    );
}

#[test]
fn removes_fields_no_longer_applied_unless_others_own_them() {
    let first = applied(None, &config(Some(2), "i"), "a", Conflicts::Refuse)
        .unwrap()
        .object;
    let alone = applied(Some(&first), &config(None, "i"), "a", Conflicts::Refuse).unwrap();
    assert_eq!(alone.object["spec"].get("replicas"), None);
    assert!(alone.changed);
    // The same value is not a conflict: both own it.
    let shared = applied(Some(&first), &config(Some(2), "i"), "b", Conflicts::Refuse).unwrap();
    assert!(!shared.changed);
    let left = applied(
        Some(&shared.object),
        &config(None, "i"),
        "a",
        Conflicts::Refuse,
    )
    .unwrap()
    .object;
    assert_eq!(left["spec"]["replicas"], 2);
}

#[test]
fn removing_all_other_metadata_keeps_the_name() {
    let mut config = config(None, "i");
    config["metadata"]["namespace"] = "n".into();
    let first = applied(None, &config, "a", Conflicts::Refuse).unwrap();
    config["metadata"] = json!({"name": "d", "namespace": "n"});
    let named = applied(Some(&first.object), &config, "a", Conflicts::Refuse).unwrap();
    config.as_object_mut().unwrap().remove("metadata");
    let unnamed = applied(Some(&first.object), &config, "a", Conflicts::Refuse).unwrap();
    for mut object in [named.object, unnamed.object] {
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(object["metadata"], json!({"name": "d", "namespace": "n"}));
    }
}

#[test]
fn changing_a_field_of_another_manager_conflicts() {
    let live = applied(None, &config(Some(2), "i"), "a", Conflicts::Refuse)
        .unwrap()
        .object;
    let error = applied(Some(&live), &config(Some(3), "i"), "b", Conflicts::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "a": .spec.replicas"#
    );
    let error = applied(Some(&live), &config(Some(3), "j"), "b", Conflicts::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"a\":\n- .spec.replicas\n- .spec.template.spec.containers[name=\"c\"].image"
    );
    let taken = applied(Some(&live), &config(Some(3), "i"), "b", Conflicts::Take).unwrap();
    assert_eq!(taken.conflicts[0].field, ".spec.replicas");
    assert_eq!(taken.object["spec"]["replicas"], 3);
    let again = applied(
        Some(&taken.object),
        &config(None, "i"),
        "a",
        Conflicts::Refuse,
    )
    .unwrap()
    .object;
    assert_eq!(
        again["spec"]["replicas"], 3,
        "it is no longer a's to remove"
    );
}

#[test]
fn an_applied_null_in_arbitrary_json_takes_the_place_of_all_but_contents() {
    let ty = Type::of_kind("apps", "v1", "ControllerRevision").unwrap();
    let nothing = FieldSet::default();
    let ada = writer("ada", &nothing);
    let config = json!({"metadata": {"name": "c"}, "data": {"a": null}, "revision": null});
    let contents = json!({"a": {"b": [1]}});
    for (live, kept) in [
        (json!({"a": 1}), config["data"].clone()),
        (json!({"a": [1]}), config["data"].clone()),
        (json!({"a": {}}), config["data"].clone()),
        (json!({}), config["data"].clone()),
        (contents.clone(), contents.clone()),
    ] {
        let live = json!({"metadata": {"name": "c"}, "revision": 1, "data": live});
        let once = apply(ty, Some(&live), &config, &ada, Conflicts::Take).unwrap();
        assert_eq!(once.object["data"], kept);
        assert_eq!(once.object.get("revision"), None);
        assert!(once.changed, "the revision is gone");
        let twice = apply(ty, Some(&once.object), &config, &ada, Conflicts::Refuse).unwrap();
        assert!(!twice.changed, "{}", twice.object);
        assert_eq!(twice.object, once.object);
    }
}

#[test]
fn an_applied_null_for_an_empty_object_is_one_change() {
    let ty = Type::of_kind("apps", "v1", "ControllerRevision").unwrap();
    let nothing = FieldSet::default();
    let ada = writer("ada", &nothing);
    for (live, config) in [
        (json!({"a": {}}), json!({"a": null})),
        (json!({"a": null}), json!({"a": {}})),
        (json!({}), json!(null)),
    ] {
        let live = json!({"metadata": {"name": "c"}, "data": live});
        let config = json!({"metadata": {"name": "c"}, "data": config});
        let once = apply(ty, Some(&live), &config, &ada, Conflicts::Take).unwrap();
        assert!(once.changed, "{}", once.object);
        let kept = config["data"].as_object().map(|_| &config["data"]);
        assert_eq!(once.object.get("data"), kept);
        let twice = apply(ty, Some(&once.object), &config, &ada, Conflicts::Refuse).unwrap();
        assert!(!twice.changed, "{}", twice.object);
        assert_eq!(twice.object, once.object);
    }
}

#[test]
fn an_object_that_loses_its_contents_settles_with_the_next_apply() {
    let ty = Type::of_kind("apps", "v1", "ControllerRevision").unwrap();
    let nothing = FieldSet::default();
    let ada = writer("ada", &nothing);
    let mut object = json!({"metadata": {"name": "c"}});
    // As in the reference: null is left of an object whose contents are removed, though the
    // configuration has an empty object.
    for (applied, stored, changed) in [
        (json!({"b": 1}), json!({"b": 1}), true),
        (json!({}), json!(null), true),
        (json!({}), json!({}), true),
        (json!({}), json!({}), false),
    ] {
        let config = json!({"metadata": {"name": "c"}, "data": {"a": applied}});
        let outcome = apply(ty, Some(&object), &config, &ada, Conflicts::Take).unwrap();
        assert_eq!(outcome.object["data"], json!({"a": stored}));
        assert_eq!(outcome.changed, changed);
        object = outcome.object;
    }
}

#[test]
fn an_update_owns_the_fields_that_it_changes() {
    let live = applied(None, &config(Some(2), "i"), "a", Conflicts::Refuse)
        .unwrap()
        .object;
    let mut scaled = live.clone();
    scaled["spec"]["replicas"] = 5.into();
    let none = FieldSet::default();
    let scale = Writer {
        subresource: "scale",
        ..writer("kubectl", &none)
    };
    let scaled = track(deployment(), Some(&live), &scaled, &scale);
    let owners = scaled["metadata"]["managedFields"].as_array().unwrap();
    assert_eq!(owners[1]["subresource"], "scale");
    assert_eq!(owners[1]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
    assert_eq!(owners[0]["fieldsV1"]["f:spec"].get("f:replicas"), None);
    let error = applied(Some(&scaled), &config(Some(2), "i"), "a", Conflicts::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"Apply failed with 1 conflict: conflict with "kubectl" with subresource "scale" using apps/v1 at 1970-01-01T00:00:00Z: .spec.replicas"#
    );
}

#[test]
fn a_first_apply_respects_existing_fields() {
    let mut live = config(Some(2), "i");
    live["metadata"]["managedFields"] = json!([]);
    let error = applied(Some(&live), &config(Some(3), "i"), "a", Conflicts::Refuse).unwrap_err();
    assert!(error.to_string().contains("before-first-apply"), "{error}");
}

#[test]
fn refuses_configurations_that_do_not_match_the_schema() {
    let refused = |config: Value| {
        applied(None, &config, "a", Conflicts::Refuse)
            .unwrap_err()
            .to_string()
    };
    let prefix = "failed to create typed patch object: ";
    assert_eq!(
        refused(json!({"spec": {"replica": 1}})),
        format!("{prefix}.spec.replica: field not declared in schema")
    );
    let twice =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "c"}, {"name": "c"}]}}}});
    assert_eq!(
        refused(twice),
        format!("{prefix}.spec.template.spec.containers: duplicate entries for key [name=\"c\"]")
    );
    let unnamed = json!({"spec": {"template": {"spec": {"containers": [{"image": "i"}]}}}});
    assert!(refused(unnamed).contains("omits key field \"name\""));
    assert_eq!(
        refused(json!({"metadata": {"managedFields": [{}]}})),
        "metadata.managedFields must be nil"
    );
}

/// With kube-apiserver's rules, except that a newer kube-apiserver orders some elements differently
/// than the library that the other test compares with.
#[test]
fn list_elements_have_the_order_of_the_configuration() {
    let spec = |names: &[&str]| json!({"spec": {"template": {"spec": {"containers": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()}}}});
    let names = |object: &Value| -> Vec<String> {
        let containers = object["spec"]["template"]["spec"]["containers"]
            .as_array()
            .unwrap();
        containers
            .iter()
            .map(|container| container["name"].as_str().unwrap().to_owned())
            .collect()
    };
    for (live, config, expected) in [
        (&["a", "b", "c"][..], &["c", "a"][..], &["b", "c", "a"][..]),
        (&["x", "a", "b"], &["b", "a"], &["x", "b", "a"]),
        (&["a", "x", "b"], &["a", "n", "b"], &["a", "x", "n", "b"]),
        (&["a"], &["n"], &["a", "n"]),
    ] {
        let live = track(
            deployment(),
            None,
            &spec(live),
            &writer("u", &FieldSet::default()),
        );
        let applied = applied(Some(&live), &spec(config), "a", Conflicts::Refuse).unwrap();
        assert_eq!(names(&applied.object), expected, "{config:?}");
    }
}

/// The JSON patch with which kube-rs adds a finalizer.
#[test]
fn json_patch_tests_a_missing_field_as_null() {
    let add = |tested: Value| {
        json!([
            {"op": "test", "path": "/metadata/finalizers", "value": tested},
            {"op": "add", "path": "/metadata/finalizers", "value": ["a"]},
        ])
    };
    let finalized = json!({"metadata": {"finalizers": ["a"]}});
    let patched = patch::json(json!({"metadata": {}}), add(Value::Null));
    assert_eq!(patched, Ok(finalized.clone()));
    for (document, tested) in [
        (json!({"metadata": {}}), json!([])),
        (finalized, Value::Null),
        (json!({}), Value::Null),
    ] {
        let patched = patch::json(document.clone(), add(tested));
        assert!(
            matches!(patched, Err(PatchError::Unprocessable(_))),
            "{document}"
        );
    }
}

#[test]
fn json_patches_have_limits() {
    let many: Value = (0..10_001)
        .map(|_| json!({"op": "test", "path": "/a", "value": 1}))
        .collect();
    assert!(matches!(
        patch::json(json!({"a": 1}), many),
        Err(PatchError::TooLarge(_))
    ));
    let doubling: Value = (0..40)
        .map(|index| json!({"op": "copy", "from": "", "path": format!("/{index}")}))
        .collect();
    assert!(matches!(
        patch::json(json!({"a": "some text"}), doubling),
        Err(PatchError::TooLarge(_))
    ));
    assert!(matches!(
        patch::json(json!({}), json!({"op": "add"})),
        Err(PatchError::Malformed(_))
    ));
    assert!(matches!(
        patch::merge(json!({}), json!([])),
        Err(PatchError::Malformed(_))
    ));
}

/// A body of a megabyte must not keep a server busy: no operation takes quadratic time.
#[test]
fn long_lists_do_not_take_quadratic_time() {
    let names =
        |kind: &str| -> Vec<String> { (0..20_000).map(|index| format!("{kind}{index}")).collect() };
    let containers = |names: Vec<String>| -> Value {
        names
            .into_iter()
            .map(|name| json!({"name": name}))
            .collect()
    };
    let started = std::time::Instant::now();
    let ty = Type::of::<Pod>().unwrap();
    for patch in [
        json!({"metadata": {"finalizers": names("b")}, "spec": {"containers": containers(names("b"))}}),
        json!({"metadata": {"$setElementOrder/finalizers": names("b"), "finalizers": names("b")},
            "spec": {"$setElementOrder/containers": [], "containers": containers(names("b"))}}),
        json!({"metadata": {"$deleteFromPrimitiveList/finalizers": names("a")},
            "spec": {"containers": names("a").iter().map(|name| json!({"name": name, "$patch": "delete"})).collect::<Value>()}}),
    ] {
        let object = json!({"metadata": {"finalizers": names("a")}, "spec": {"containers": containers(names("a"))}});
        patch::strategic(ty, object.clone(), patch).unwrap();
    }
    assert!(started.elapsed().as_secs() < 100, "{:?}", started.elapsed());
}

/// Any JSON, with the keywords of patches.
fn anything() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec![
        "$patch",
        "$retainKeys",
        "$setElementOrder/containers",
        "$setElementOrder/finalizers",
        "$deleteFromPrimitiveList/finalizers",
        "$setElementOrder",
        "metadata",
        "finalizers",
        "spec",
        "containers",
        "volumes",
        "name",
        "ports",
        "containerPort",
        "delete",
        "replace",
        "managedFields",
        "fieldsV1",
        "f:spec",
        "k:{\"name\":\"a\"}",
        "operation",
        "Apply",
        "op",
        "add",
        "path",
        "/spec",
        "nodeSelector",
        "tolerations",
        "data",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(words.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn patching_never_panics(object in anything(), patch in anything()) {
        for (group, version, kind) in [("", "v1", "Pod"), ("apps", "v1", "Deployment"), ("apps", "v1", "ControllerRevision")] {
            let ty = Type::of_kind(group, version, kind).unwrap();
            let _ = patch::json(object.clone(), patch.clone());
            let _ = patch::merge(object.clone(), patch.clone());
            let _ = patch::strategic(ty, object.clone(), patch.clone());
            let none = FieldSet::default();
            let writer = writer("m", &none);
            let _ = apply(ty, Some(&object), &patch, &writer, Conflicts::Refuse);
            let _ = apply(ty, Some(&object), &patch, &writer, Conflicts::Take);
            let _ = track(ty, Some(&object), &patch, &writer);
        }
    }

    #[test]
    fn a_merge_patch_is_idempotent(object in anything(), patch in anything()) {
        if let Ok(once) = patch::merge(object, patch.clone()) {
            prop_assert_eq!(patch::merge(once.clone(), patch), Ok(once));
        }
    }

    /// A set of fields survives a round trip through `fieldsV1`.
    #[test]
    fn field_sets_round_trip(seed: u64) {
        let ty = Type::of::<Pod>().unwrap();
        let object = RandomDocuments::new(seed).configuration(ty);
        let tracked = track(ty, None, &object, &writer("m", &FieldSet::default()));
        if let Some(fields) = tracked.pointer("/metadata/managedFields/0/fieldsV1") {
            prop_assert_eq!(&FieldSet::from_fields_v1(fields).to_fields_v1(), fields);
        }
    }

    /// Applying a configuration again changes neither the object nor its owners.
    #[test]
    fn an_apply_is_idempotent(seed: u64) {
        let ty = Type::of::<Pod>().unwrap();
        let mut random = RandomDocuments::new(seed);
        let (live, config) = (random.configuration(ty), random.configuration(ty));
        let none = FieldSet::default();
        let live = track(ty, None, &live, &writer("u", &none));
        let once = apply(ty, Some(&live), &config, &writer("m", &none), Conflicts::Take).unwrap();
        let later = Writer { now: Timestamp::MAX, ..writer("m", &none) };
        let twice = apply(ty, Some(&once.object), &config, &later, Conflicts::Refuse).unwrap();
        prop_assert!(!twice.changed);
        prop_assert_eq!(twice.object, once.object);
    }

    /// Every leaf of the configuration is in the object.
    #[test]
    fn applied_leaves_are_in_the_object(seed: u64) {
        let ty = Type::of::<Pod>().unwrap();
        let mut random = RandomDocuments::new(seed);
        let (live, config) = (random.configuration(ty), random.configuration(ty));
        let none = FieldSet::default();
        let live = track(ty, None, &live, &writer("u", &none));
        let applied = apply(ty, Some(&live), &config, &writer("m", &none), Conflicts::Take).unwrap().object;
        // It owns nothing that differs: a second manager with the same configuration has no
        // conflict.
        let other = apply(ty, Some(&applied), &config, &writer("n", &none), Conflicts::Refuse);
        prop_assert!(other.is_ok_and(|other| !other.changed));
    }
}

//! Owners and dependents of custom kinds: what is deleted with an owner, before it, and not.

use podplane_tests::kubectl::{Kubectl, KubectlCase};
use serde_json::{Value, json};

pub(super) const CASES: &[KubectlCase] = &[
    ("delete a custom owner", delete_background),
    (
        "delete --cascade=foreground a custom owner",
        delete_foreground,
    ),
    ("delete --cascade=orphan a custom owner", delete_orphan),
    ("delete the owner of a custom object", delete_dependent),
    ("delete the definition of owners", delete_definition),
    ("serve another version of owners", change_version),
];

/// Defines a kind of the case's own, and returns its group.
fn define(kubectl: &Kubectl, case: &str) -> String {
    let group = format!("{}.example.com", kubectl.own(case));
    serve(kubectl, &group, "v1");
    group
}

/// Defines the kind in two versions, of which one is served, and stored.
fn serve(kubectl: &Kubectl, group: &str, served: &str) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let versions = ["v1", "v2"].map(|name| {
        let is_served = name == served;
        json!({"name": name, "served": is_served, "storage": is_served, "schema": {"openAPIV3Schema": schema}})
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("gadgets.{group}")},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"},
            "versions": versions,
        },
    });
    kubectl.apply(&definition.to_string());
    let wait = format!("wait --for=condition=Established crd/gadgets.{group}");
    kubectl.run(&wait).ok();
}

fn end(kubectl: &Kubectl, group: &str) {
    let delete = format!("delete crd gadgets.{group} --timeout=60s");
    kubectl.run(&delete).ok();
}

/// Creates an object with an owner, and returns the reference that names the object as an owner.
fn create(
    kubectl: &Kubectl,
    version: &str,
    kind: &str,
    name: &str,
    owner: Option<&Value>,
) -> Value {
    let owners: Vec<_> = owner.into_iter().collect();
    let object = json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "ownerReferences": owners},
    });
    kubectl.apply(&object.to_string());
    reference(kubectl, version, kind, name)
}

/// The reference that names an object as an owner.
fn reference(kubectl: &Kubectl, version: &str, kind: &str, name: &str) -> Value {
    let resource = match version.split_once('/') {
        Some((group, version)) => format!("{kind}.{version}.{group}"),
        None => kind.to_owned(),
    };
    let stored = kubectl.json(&format!("{resource} {name}"));
    json!({
        "apiVersion": version,
        "kind": kind,
        "name": name,
        "uid": stored["metadata"]["uid"],
        "blockOwnerDeletion": true,
    })
}

/// A gadget that owns a ConfigMap and a gadget, which owns another ConfigMap.
fn family(kubectl: &Kubectl, group: &str) {
    let version = format!("{group}/v1");
    let parent = create(kubectl, &version, "Gadget", "parent", None);
    create(kubectl, "v1", "ConfigMap", "map", Some(&parent));
    let child = create(kubectl, &version, "Gadget", "child", Some(&parent));
    create(kubectl, "v1", "ConfigMap", "grandchild", Some(&child));
}

/// The names of all gadgets, and of the family's ConfigMaps.
fn left(kubectl: &Kubectl, group: &str) -> Vec<String> {
    let named = "-o jsonpath={.items[*].metadata.name}";
    let gadgets = kubectl.run(&format!("get gadgets.{group} {named}")).ok();
    let maps = kubectl.run(&format!("get configmaps {named}")).ok();
    let names = gadgets.split(' ').chain(maps.split(' '));
    let names = names.filter(|name| !["", "kube-root-ca.crt"].contains(name));
    names.map(str::to_owned).collect()
}

fn delete_background(kubectl: &Kubectl) {
    let group = define(kubectl, "background");
    family(kubectl, &group);
    kubectl.run(&format!("delete gadget.{group} parent")).ok();
    kubectl.until("get configmaps -o name", |seen| {
        let is_gone = |name: &str| !seen.stdout.contains(name);
        seen.code == Some(0) && is_gone("map/map") && is_gone("map/grandchild")
    });
    assert_eq!(left(kubectl, &group), [""; 0]);
    end(kubectl, &group);
}

fn delete_foreground(kubectl: &Kubectl) {
    let group = define(kubectl, "foreground");
    family(kubectl, &group);
    let delete = format!("delete gadget.{group} parent --cascade=foreground --timeout=60s");
    kubectl.run(&delete).ok();
    // When it is gone, all that it owned is gone.
    assert_eq!(left(kubectl, &group), [""; 0]);
    end(kubectl, &group);
}

fn delete_orphan(kubectl: &Kubectl) {
    let group = define(kubectl, "orphan");
    family(kubectl, &group);
    let delete = format!("delete gadget.{group} parent --cascade=orphan --timeout=60s");
    kubectl.run(&delete).ok();
    assert_eq!(left(kubectl, &group), ["child", "grandchild", "map"]);
    let owners = "-o jsonpath={.metadata.ownerReferences}";
    for orphan in [format!("gadget.{group} child"), "configmap map".to_owned()] {
        let owners = kubectl.run(&format!("get {orphan} {owners}")).ok();
        assert_eq!(owners, "", "{orphan}");
    }
    kubectl
        .run(&format!(
            "delete gadget.{group} child --cascade=foreground --timeout=60s"
        ))
        .ok();
    kubectl.run("delete configmap map").ok();
    end(kubectl, &group);
}

fn delete_dependent(kubectl: &Kubectl) {
    let group = define(kubectl, "dependent");
    let map = create(kubectl, "v1", "ConfigMap", "map", None);
    create(
        kubectl,
        &format!("{group}/v1"),
        "Gadget",
        "child",
        Some(&map),
    );
    kubectl
        .run("delete configmap map --cascade=foreground --timeout=60s")
        .ok();
    assert_eq!(left(kubectl, &group), [""; 0]);
    end(kubectl, &group);
}

/// The objects of a definition go with it, and what they own after them.
fn delete_definition(kubectl: &Kubectl) {
    let group = define(kubectl, "definition");
    family(kubectl, &group);
    end(kubectl, &group);
    kubectl.until("get configmaps -o name", |seen| {
        let is_gone = |name: &str| !seen.stdout.contains(name);
        seen.code == Some(0) && is_gone("map/map") && is_gone("map/grandchild")
    });
}

/// An object that is not served for a moment still owns its dependents.
fn change_version(kubectl: &Kubectl) {
    let group = define(kubectl, "version");
    family(kubectl, &group);
    for version in ["v2", "v1", "v2"] {
        serve(kubectl, &group, version);
        // What was queued before is done when a later owner's dependent is gone.
        let path = format!("{group}/{version}");
        let object = json!({"apiVersion": path, "kind": "Gadget", "metadata": {"name": "later"}});
        let file = kubectl.file("later.json", &object.to_string());
        // The version is served a moment after it is written.
        kubectl.until(&format!("create -f {}", file.display()), |seen| {
            seen.code == Some(0)
        });
        let later = reference(kubectl, &path, "Gadget", "later");
        create(kubectl, "v1", "ConfigMap", "of-later", Some(&later));
        let delete = format!("delete gadget.{version}.{group} later --timeout=60s");
        kubectl.run(&delete).ok();
        kubectl.until("get configmaps -o name", |seen| {
            seen.code == Some(0) && !seen.stdout.contains("of-later")
        });
        let names = left(kubectl, &format!("{version}.{group}"));
        assert_eq!(names, ["child", "parent", "grandchild", "map"], "{version}");
    }
    end(kubectl, &group);
}

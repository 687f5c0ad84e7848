//! The dependency policy: which crate may know which, whose code we link, and under which licence.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use toml::{Table, Value};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Of the platforms that `deny.toml` has: what is built for others alone is not linked.
fn metadata() -> Metadata {
    let deny: Table = read("deny.toml").parse().unwrap();
    let targets = deny["graph"]["targets"].as_array().unwrap();
    let platforms = targets
        .iter()
        .map(|target| format!("--filter-platform={}", target.as_str().unwrap()));
    MetadataCommand::new()
        .current_dir(ROOT)
        .other_options(platforms.collect::<Vec<_>>())
        .exec()
        .expect("cargo metadata")
}

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("{ROOT}/{file}"))
        .unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn strings(value: &Value) -> BTreeSet<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item.as_str().unwrap())
        .collect()
}

/// The block after "Allowed edges".
fn allowed_edges() -> Table {
    let text = read("ARCHITECTURE.md");
    let section = text
        .split("### Allowed edges")
        .nth(1)
        .expect("a section on allowed edges");
    let block = section
        .split("```toml")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a toml block");
    block.parse().expect("the edges are TOML")
}

#[test]
fn no_edge_but_those_of_the_architecture() {
    let metadata = metadata();
    let allowed = allowed_edges();
    let members: Vec<&Package> = metadata.workspace_packages();
    let names: BTreeSet<&str> = members
        .iter()
        .map(|package| package.name.as_str())
        .collect();
    assert_eq!(
        names,
        allowed.keys().map(String::as_str).collect(),
        "ARCHITECTURE.md lists the members of the workspace"
    );
    for package in &members {
        let of_ours = package
            .dependencies
            .iter()
            .filter(|d| d.kind == DependencyKind::Normal && names.contains(d.name.as_str()));
        let edges: BTreeSet<&str> = of_ours.map(|dependency| dependency.name.as_str()).collect();
        let may = strings(&allowed[package.name.as_str()]);
        let more: Vec<_> = edges.difference(&may).collect();
        assert!(
            more.is_empty(),
            "{} must not depend on {more:?}; or say so in ARCHITECTURE.md",
            package.name
        );
    }
}

#[test]
fn processes_do_not_know_each_other_even_in_tests() {
    let processes = [
        "podplane-apiserver",
        "podplane-controller-manager",
        "podplane-ipam-controller",
        "podplane-scheduler",
        "podplane-kubelet",
    ];
    for package in metadata().workspace_packages() {
        let others = package
            .dependencies
            .iter()
            .filter(|d| processes.contains(&d.name.as_str()) && d.name != package.name.as_str());
        let others: Vec<_> = others.map(|dependency| &dependency.name).collect();
        assert!(
            others.is_empty() || package.name == "podplane-cli",
            "{} depends on {others:?}",
            package.name
        );
    }
}

#[test]
fn every_version_stands_in_the_workspace() {
    for package in metadata().workspace_packages() {
        let manifest: Table = std::fs::read_to_string(&package.manifest_path)
            .unwrap()
            .parse()
            .unwrap();
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for (name, dependency) in manifest
                .get(section)
                .and_then(Value::as_table)
                .into_iter()
                .flatten()
            {
                let inherited = dependency.get("workspace").and_then(Value::as_bool) == Some(true);
                assert!(
                    inherited,
                    "{}: {name} has a version of its own",
                    package.name
                );
            }
        }
    }
}

#[test]
fn only_the_wrapper_knows_an_engine() {
    let deny: Table = read("deny.toml").parse().unwrap();
    let metadata = metadata();
    let users = users(&metadata);
    for rule in deny["bans"]["deny"].as_array().unwrap() {
        let name = rule["crate"].as_str().unwrap();
        let wrappers = rule.get("wrappers").map(strings).unwrap_or_default();
        let more: Vec<_> = users
            .get(name)
            .into_iter()
            .flatten()
            .filter(|user| !wrappers.contains(**user))
            .collect();
        assert!(more.is_empty(), "{name} is used by {more:?}");
    }
}

/// Who depends on each package, dev-dependencies left out.
fn users(metadata: &Metadata) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut users = BTreeMap::<&str, BTreeSet<&str>>::new();
    for node in &metadata.resolve.as_ref().unwrap().nodes {
        for dependency in node.deps.iter().filter(|d| {
            d.dep_kinds
                .iter()
                .any(|k| k.kind != DependencyKind::Development)
        }) {
            users
                .entry(metadata[&dependency.pkg].name.as_str())
                .or_default()
                .insert(metadata[&node.id].name.as_str());
        }
    }
    users
}

#[test]
fn every_licence_and_source_is_allowed() {
    let deny: Table = read("deny.toml").parse().unwrap();
    let allowed = strings(&deny["licenses"]["allow"]);
    for package in metadata().packages {
        let licence = package
            .license
            .as_deref()
            .unwrap_or_else(|| panic!("{} names no licence", package.name));
        assert!(is_allowed(licence, &allowed), "{}: {licence}", package.name);
        let source = package.source.map(|source| source.repr);
        let registry = source
            .as_deref()
            .is_none_or(|source| source.starts_with("registry+"));
        assert!(registry, "{} comes from {source:?}", package.name);
    }
}

/// Whether one side of every `AND` is met by one alternative of its `OR`s. Enough for the expressions that occur; `cargo deny`
/// reads them in full.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let terms = expression.replace(['(', ')'], "").replace('/', " OR ");
    terms.split(" AND ").all(|term| {
        term.split(" OR ")
            .any(|licence| allowed.contains(licence.trim()))
    })
}

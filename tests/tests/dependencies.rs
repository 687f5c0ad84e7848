//! The dependency policy: the allowed edges between crates, the allowed sources of linked code, and
//! its licences.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use toml::{Table, Value};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The metadata for the platforms in `deny.toml`: dependencies of other platforms are not linked.
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

/// The edges of docs/edges.toml.
fn allowed_edges() -> Table {
    read("docs/edges.toml").parse().expect("the edges are TOML")
}

#[test]
fn edges_are_those_of_the_architecture() {
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
        "docs/edges.toml lists the members of the workspace"
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
            "{} must not depend on {more:?}; or say so in docs/edges.toml",
            package.name
        );
        let unused: Vec<_> = may.difference(&edges).collect();
        assert!(
            unused.is_empty(),
            "{} does not depend on {unused:?}: remove the edge from docs/edges.toml",
            package.name
        );
    }
}

/// Dependencies that occur in generated code alone.
const GENERATED: [(&str, &str); 3] = [
    ("podplane-etcd", "prost"),
    ("podplane-etcd", "tonic-prost"),
    ("podplane-proto", "tonic-prost"),
];

/// Packages whose library has another name.
const LIBRARIES: [(&str, &str); 1] = [("rustls-webpki", "webpki")];

#[test]
fn every_dependency_is_used() {
    let metadata = metadata();
    let members = metadata.workspace_packages();
    let dirs: Vec<&Path> = members.iter().map(|package| dir(package)).collect();
    let mut unused = Vec::new();
    for package in &members {
        let mut sources = Vec::new();
        read_sources(dir(package), &dirs, &mut sources);
        // Its tests include the bodies of fuzz targets.
        if sources
            .iter()
            .any(|source| source.contains("/fuzz/bodies/"))
        {
            let bodies = metadata.workspace_root.as_std_path().join("fuzz/bodies");
            read_sources(&bodies, &[], &mut sources);
        }
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name);
            let is_generated = GENERATED.contains(&(package.name.as_str(), name.as_str()));
            let library = LIBRARIES.iter().find(|(package, _)| package == name);
            let name = library.map_or(name.as_str(), |(_, library)| library);
            let name = name.replace('-', "_");
            if !is_generated && !sources.iter().any(|source| names_crate(source, &name)) {
                unused.push(format!("{}: {name} ({})", package.name, dependency.kind));
            }
        }
    }
    let root: Table = read("Cargo.toml").parse().unwrap();
    let shared = root["workspace"]["dependencies"].as_table().unwrap();
    for name in shared.keys() {
        let mut dependencies = members.iter().flat_map(|package| &package.dependencies);
        if !dependencies.any(|dependency| dependency.name == *name) {
            unused.push(format!("the workspace: {name}"));
        }
    }
    assert!(
        unused.is_empty(),
        "remove from Cargo.toml what no source file names: {unused:#?}"
    );
}

/// Where `doctest = false` saves a run of rustdoc, no example may be skipped by it.
#[test]
fn examples_in_documentation_are_run() {
    let metadata = metadata();
    let members = metadata.workspace_packages();
    let dirs: Vec<&Path> = members.iter().map(|package| dir(package)).collect();
    for package in &members {
        let mut libraries = package.targets.iter().filter(|target| target.is_lib());
        let Some(library) = libraries.next() else {
            continue;
        };
        let mut sources = Vec::new();
        read_sources(&dir(package).join("src"), &dirs, &mut sources);
        let has_examples = sources.iter().any(|source| has_example(source));
        assert_eq!(
            library.doctest, has_examples,
            "[lib] of {}: `doctest = false` is for crates without examples",
            package.name
        );
    }
}

/// True for a text with a code block in documentation that is not marked as another language.
fn has_example(source: &str) -> bool {
    let documentation = source.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///")
            .or_else(|| line.strip_prefix("//!"))
    });
    let fences = documentation.filter_map(|line| line.trim_start().strip_prefix("```"));
    fences.step_by(2).any(|language| language != "text")
}

fn dir(package: &Package) -> &Path {
    let manifest = package.manifest_path.as_std_path();
    manifest.parent().expect("a manifest is in a directory")
}

/// The texts of the Rust files below `dir`, without those of other packages.
fn read_sources(dir: &Path, packages: &[&Path], sources: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !packages.contains(&path.as_path()) && !path.ends_with("target") {
            read_sources(&path, packages, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push(fs::read_to_string(&path).unwrap());
        }
    }
}

/// True for a text with `name::`, `name as` or `name;` where a path begins.
fn names_crate(source: &str, name: &str) -> bool {
    source.match_indices(name).any(|(at, _)| {
        let is_start = !source[..at].ends_with(|c: char| c.is_alphanumeric() || "_:.".contains(c));
        let rest = &source[at + name.len()..];
        let in_use = source[..at].ends_with("use ") || source[..at].ends_with("extern crate ");
        is_start && (rest.starts_with("::") || in_use && rest.starts_with([';', ' ']))
    })
}

#[test]
fn processes_do_not_depend_on_each_other_even_in_tests() {
    let processes = [
        "podplane-apiserver",
        "podplane-controller-manager",
        "podplane-ipam-controller",
        "podplane-scheduler",
        "podplane-kubelet",
        "podplane-node-agent",
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
fn every_version_is_declared_in_the_workspace() {
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
fn only_wrappers_depend_on_fenced_crates() {
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

/// The users of each package, without dev-dependencies.
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

/// Returns true if each side of every `AND` has an allowed alternative among its `OR`s. That is
/// enough for the expressions that occur; `cargo deny` reads them in full.
fn is_allowed(expression: &str, allowed: &BTreeSet<&str>) -> bool {
    let terms = expression.replace(['(', ')'], "").replace('/', " OR ");
    terms.split(" AND ").all(|term| {
        term.split(" OR ")
            .any(|licence| allowed.contains(licence.trim()))
    })
}

/// The processes and what they are made of, which reach the outside world through `podplane-host`
/// alone (ADR 0037).
const BEHIND_THE_SEAM: [&str; 19] = [
    "apiserver",
    "cloud",
    "cni",
    "cni/host-local",
    "controller-manager",
    "crates/client",
    "crates/cluster",
    "crates/etcd",
    "crates/pki",
    "crates/request-audit",
    "crates/service-runtime",
    "crates/store",
    "crates/tokens",
    "crates/tui",
    "ipam-controller",
    "kubelet-sim",
    "node-agent",
    "scheduler",
    "webhook",
];

/// Clippy holds the seam in each crate whose own `clippy.toml` is the seam's.
#[test]
fn clippy_holds_the_seam_in_every_process() {
    let seam = read("crates/host/seam.toml");
    let users: BTreeSet<String> = metadata()
        .workspace_packages()
        .iter()
        .filter(|package| {
            let mut dependencies = package.dependencies.iter();
            dependencies.any(|dependency| {
                dependency.name == "podplane-host" && dependency.kind == DependencyKind::Normal
            })
        })
        .map(|package| {
            let root = Path::new(ROOT).canonicalize().unwrap();
            let dir = dir(package).strip_prefix(root).unwrap();
            dir.to_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(users, BEHIND_THE_SEAM.map(str::to_owned).into());
    for dir in BEHIND_THE_SEAM {
        assert_eq!(read(&format!("{dir}/clippy.toml")), seam, "of {dir}");
    }
    let of_all: Table = read("clippy.toml").parse().unwrap();
    let of_processes: Table = seam.parse().unwrap();
    for (key, value) in &of_all {
        let own = &of_processes[key];
        match value.as_array() {
            Some(items) => {
                let own = own.as_array().unwrap();
                assert!(items.iter().all(|item| own.contains(item)), "{key}");
            }
            None => assert_eq!(own, value, "{key}"),
        }
    }
}

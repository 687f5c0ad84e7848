//! Writes the published OpenAPI definitions of the kinds that podplane serves: fields,
//! descriptions, list kinds and patch keys.
//!
//! The source is Kubernetes' own `swagger.json` of the version that `k8s-openapi` is set to, as the
//! Python package `kubernetes-validate` contains it. That package has converted it to JSON schemas,
//! which is reversed here: every type may be null, references have another prefix, and the kind and
//! version of an object are an `enum`. Definitions that no served kind refers to are left out. ADR
//! 0011 explains the choice of the source.
//!
//! ClusterCIDR is no longer in Kubernetes: its definition is that of the last version with it,
//! under the group that serves it since.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use podplane_api::{
    kinds::{self, KindVisitor},
    strategy::Strategy,
};
use serde::Serialize as _;
use serde_json::{
    Map, Value, json,
    ser::{PrettyFormatter, Serializer},
};

const PACKAGE: &str = "kubernetes-validate==1.37.0 --hash=sha256:85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9";
pub(crate) const VERSION: &str = "1.36";
const OUTPUT: &str = "crates/api/schema/kubernetes.json";

/// The last version that defines ClusterCIDR, in `networking.k8s.io/v1alpha1`.
const MOVED_VERSION: &str = "1.28";
const MOVED_FROM: &str = "io.k8s.api.networking.v1alpha1.";
/// The names of definitions as a server of the custom resource, which
/// sigs.k8s.io/node-ipam-controller made of it, has them.
const MOVED_TO: &str = "io.x-k8s.networking.v1.";
const MOVED: [&str; 3] = ["ClusterCIDR", "ClusterCIDRList", "ClusterCIDRSpec"];
const MOVED_OUTPUT: &str = "crates/api/schema/cluster-cidr.json";

/// The list item keys that an item may omit and that have no default: an item without the key is
/// refused where items are matched by keys.
const WITHOUT_DEFAULT: [(&str, &str); 2] = [
    ("io.k8s.api.core.v1.ObjectReference", "name"),
    ("io.k8s.api.resource.v1.AllocatedDeviceStatus", "shareID"),
];

/// The definitions to keep, with all that they refer to, besides those of stored kinds.
const ROOTS: &[&str] = &[
    "io.k8s.api.authentication.v1.SelfSubjectReview",
    "io.k8s.api.authentication.v1.TokenRequest",
    "io.k8s.api.authentication.v1.TokenReview",
    "io.k8s.api.authorization.v1.SelfSubjectAccessReview",
    "io.k8s.api.authorization.v1.SelfSubjectRulesReview",
    "io.k8s.api.autoscaling.v1.Scale",
    "io.k8s.api.core.v1.Binding",
    "io.k8s.api.events.v1.Event",
    "io.k8s.api.events.v1.EventList",
    "io.k8s.api.policy.v1.Eviction",
    "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Status",
    "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent",
];

/// The names of the definitions to keep, by the list of stored kinds, from all definitions.
pub(crate) fn roots(all: &Map<String, Value>) -> Result<Vec<String>> {
    struct DefinitionNames<'a>(&'a Map<String, Value>, Result<Vec<String>>);

    impl KindVisitor for DefinitionNames<'_> {
        fn visit<K: Strategy>(&mut self) {
            let Self(all, Ok(names)) = self else {
                return;
            };
            if MOVED.contains(&K::KIND) {
                return;
            }
            let list = format!("{}List", K::KIND);
            for kind in [K::KIND, &list] {
                match name(all, K::GROUP, K::VERSION, kind) {
                    Ok(name) => names.push(name),
                    Err(error) => {
                        self.1 = Err(error);
                        return;
                    }
                }
            }
        }
    }

    let own = ROOTS.iter().map(|&root| root.to_owned()).collect();
    let mut named = DefinitionNames(all, Ok(own));
    kinds::visit(&mut named);
    named.1
}

/// The name of the definition of a kind.
pub(crate) fn name(
    all: &Map<String, Value>,
    group: &str,
    version: &str,
    kind: &str,
) -> Result<String> {
    let wanted = json!({"group": group, "kind": kind, "version": version});
    let is_wanted = |schema: &Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.contains(&wanted))
    };
    let mut all = all.iter();
    all.find_map(|(name, schema)| is_wanted(schema).then(|| name.clone()))
        .with_context(|| format!("missing definition of {kind}"))
}

/// The definitions named, with all that they refer to.
pub(crate) fn reachable(
    all: &Map<String, Value>,
    mut wanted: Vec<String>,
) -> Result<BTreeMap<String, Value>> {
    let mut found = BTreeMap::new();
    while let Some(name) = wanted.pop() {
        if found.contains_key(&name) {
            continue;
        }
        let definition = all
            .get(&name)
            .with_context(|| format!("missing definition {name}"))?;
        let mut references = BTreeSet::new();
        let definition = restore(definition, &mut references);
        found.insert(name, definition);
        wanted.extend(references);
    }
    Ok(found)
}

/// Writes the files.
pub(crate) fn generate() -> Result<()> {
    let package = fetch()?;
    let all = read(&package, VERSION)?;
    let mut kept = reachable(&all, roots(&all)?)?;
    for name in kept.keys().cloned().collect::<Vec<_>>() {
        let defaults = key_defaults(&kept[&name], &kept).with_context(|| name.clone())?;
        for (item, key, default) in defaults {
            kept.get_mut(&item)
                .context("missing definition of the item")?["properties"][key]["default"] = default;
        }
    }
    write(OUTPUT, VERSION, json!(kept))?;
    write(
        MOVED_OUTPUT,
        MOVED_VERSION,
        cluster_cidr_definitions(&read(&package, MOVED_VERSION)?)?.into(),
    )
}

/// The definitions of ClusterCIDR, renamed. The other definitions that they refer to are in the
/// other file.
fn cluster_cidr_definitions(all: &Map<String, Value>) -> Result<Map<String, Value>> {
    let mut kept = Map::new();
    for name in MOVED {
        let old = format!("{MOVED_FROM}{name}");
        let definition = all
            .get(&old)
            .with_context(|| format!("missing definition {old}"))?;
        let restored = restore(definition, &mut BTreeSet::new()).to_string();
        let mut renamed: Value = serde_json::from_str(&restored.replace(MOVED_FROM, MOVED_TO))?;
        for kind in renamed["x-kubernetes-group-version-kind"]
            .as_array_mut()
            .into_iter()
            .flatten()
        {
            kind["group"] = "networking.x-k8s.io".into();
            kind["version"] = "v1".into();
        }
        kept.insert(format!("{MOVED_TO}{name}"), renamed);
    }
    Ok(kept)
}

fn write(output: &str, version: &str, schemas: Value) -> Result<()> {
    let document = json!({
        "openapi": "3.0.0",
        "info": {
            "title": "Kubernetes",
            "version": format!("v{version}.0"),
            "description": "Generated by `cargo xtask definitions` from Kubernetes' published API definitions. Do not edit.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "components": {"schemas": schemas},
    });
    let mut text = Vec::new();
    let narrow = PrettyFormatter::with_indent(b" ");
    document.serialize(&mut Serializer::with_formatter(&mut text, narrow))?;
    text.push(b'\n');
    fs::write(crate::root().join(output), text).with_context(|| format!("failed to write {output}"))
}

/// Downloads the package with pip, which checks its hash, and unpacks it.
fn fetch() -> Result<PathBuf> {
    let directory = crate::root().join("target/definitions");
    fs::create_dir_all(&directory)?;
    let requirements = directory.join("requirements.txt");
    fs::write(&requirements, PACKAGE)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
    ]);
    pip.args(["--only-binary", ":all:", "--dest"]);
    run(pip.arg(&directory).arg("--requirement").arg(&requirements))?;
    let version = PACKAGE
        .split(['=', ' '])
        .nth(2)
        .context("missing version")?;
    let wheel = directory.join(format!("kubernetes_validate-{version}-py3-none-any.whl"));
    let unpacked = directory.join("unpacked");
    let mut unzip = Command::new("python3");
    run(unzip
        .args(["-m", "zipfile", "-e"])
        .arg(&wheel)
        .arg(&unpacked))?;
    Ok(unpacked)
}

/// The definitions of a version of Kubernetes.
fn read(package: &Path, version: &str) -> Result<Map<String, Value>> {
    let file =
        format!("kubernetes_validate/kubernetes-json-schema/v{version}.0-local/_definitions.json");
    let file = package.join(file);
    let text = fs::read(&file).with_context(|| format!("failed to read {}", file.display()))?;
    let mut source: Value =
        serde_json::from_slice(&text).context("failed to read the definitions")?;
    match source["$defs"].take() {
        Value::Object(all) => Ok(all),
        _ => bail!("missing $defs in {}", file.display()),
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("failed to start {command:?}"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

/// Restores the schema as Kubernetes publishes it. Collects the definitions that it refers to.
fn restore(schema: &Value, references: &mut BTreeSet<String>) -> Value {
    match schema {
        Value::Array(items) => items.iter().map(|item| restore(item, references)).collect(),
        Value::Object(fields) => restore_object(fields, references),
        scalar => scalar.clone(),
    }
}

fn restore_object(fields: &Map<String, Value>, references: &mut BTreeSet<String>) -> Value {
    let mut out = Map::new();
    let mut reference = None;
    for (key, value) in fields {
        match (key.as_str(), value) {
            ("$ref", Value::String(target)) => {
                let name = target.rsplit('/').next().unwrap_or_default().to_owned();
                reference = Some(json!({"$ref": format!("#/components/schemas/{name}")}));
                references.insert(name);
            }
            ("type", Value::Array(types)) => {
                let named = types.iter().find(|name| *name != "null");
                out.insert(key.clone(), named.cloned().unwrap_or_default());
            }
            ("enum", _) => {}
            ("properties", Value::Object(properties)) => {
                let restored = properties
                    .iter()
                    .map(|(name, property)| (name.clone(), restore(property, references)));
                out.insert(key.clone(), restored.collect::<Map<_, _>>().into());
            }
            _ => {
                out.insert(key.clone(), restore(value, references));
            }
        }
    }
    match reference {
        // OpenAPI 3.0 ignores fields beside a reference.
        Some(reference) if out.is_empty() => return reference,
        Some(reference) => {
            out.insert("allOf".into(), json!([reference]));
        }
        None => {}
    }
    let int_or_string = json!([{"type": "string"}, {"type": "integer"}]);
    if out.get("oneOf") == Some(&int_or_string) {
        out.insert("format".into(), "int-or-string".into());
    }
    Value::Object(out)
}

/// The defaults of list item keys that an item may omit, as (definition of the item, key, default).
/// Version 2 of OpenAPI, which the source uses, has defaults only in descriptions.
fn key_defaults(
    definition: &Value,
    all: &BTreeMap<String, Value>,
) -> Result<Vec<(String, String, Value)>> {
    let mut found = Vec::new();
    let properties = definition.get("properties").and_then(Value::as_object);
    for property in properties.into_iter().flat_map(Map::values) {
        let Some(keys) = property.get("x-kubernetes-list-map-keys") else {
            continue;
        };
        let item = property["items"]["$ref"]
            .as_str()
            .and_then(|reference| reference.rsplit('/').next())
            .context("missing reference of the items")?;
        let required = all[item]["required"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        for key in keys.as_array().into_iter().flatten() {
            if !required.contains(key) {
                let key = key.as_str().context("a key is not a string")?;
                if WITHOUT_DEFAULT.contains(&(item, key)) {
                    continue;
                }
                let default = described_default(&all[item]["properties"][key])
                    .with_context(|| format!("missing default for {item}.{key}"))?;
                found.push((item.to_owned(), key.to_owned(), default));
            }
        }
    }
    Ok(found)
}

/// Parses `… Defaults to "TCP".` or `… Default is TCP.` at the end of a description; or the empty
/// string for a name that old clients omit.
fn described_default(property: &Value) -> Result<Value> {
    let description = property["description"].as_str().unwrap_or_default();
    for words in ["Defaults to \"", "Default is "] {
        if let Some((_, rest)) = description.rsplit_once(words) {
            let value = rest.trim_end_matches(['.', '"']);
            ensure!(value.chars().all(char::is_alphanumeric), "{rest:?}");
            return Ok(value.into());
        }
    }
    if description.contains("backwards compatibility is allowed to be empty") {
        return Ok("".into());
    }
    bail!("missing default in the description: {description}")
}

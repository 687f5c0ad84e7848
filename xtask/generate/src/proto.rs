//! Writes the messages and services of Kubernetes' objects as `.proto` files.
//!
//! The source is the JSON schema that `k8s-openapi` carries, itself generated from the published API definitions: nothing about an
//! object is typed in by hand. Each message maps to proto3 JSON exactly as Kubernetes writes the object. Field numbers
//! are a promise to clients: those in the files of today are kept, new fields get the next number, and the number of a field that went away is
//! never used again. Run `cargo xtask proto` after raising the version of `k8s-openapi`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use k8s_openapi::{
    Resource,
    api::{
        apps::v1::{ControllerRevision, Deployment, ReplicaSet},
        coordination::v1::Lease,
        core::v1::{Event, Namespace, Node, Pod, Service},
    },
    apimachinery::pkg::apis::meta::v1::{ListMeta, Preconditions},
};
use prost_types::FileDescriptorSet;
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value};

use crate::definitions;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/proto");

/// A package of generated messages.
#[derive(Debug, PartialEq)]
struct Package {
    /// Its name: `podplane.core.v1`.
    name: &'static str,
    /// Its directory below [`ROOT`].
    directory: &'static str,
    /// How the names of the definitions begin that are its messages.
    definitions: &'static [&'static str],
    /// The packages that its messages refer to.
    uses: &'static [&'static Package],
}

impl Package {
    fn types(&self) -> String {
        format!("{}/types.proto", self.directory)
    }

    fn services(&self) -> String {
        format!("{}/services.proto", self.directory)
    }
}

static META: Package = Package {
    name: "podplane.meta.v1",
    directory: "podplane/meta/v1",
    definitions: &["io.k8s.apimachinery.pkg.apis.meta.v1."],
    uses: &[],
};
static CORE: Package = Package {
    name: "podplane.core.v1",
    directory: "podplane/core/v1",
    definitions: &["io.k8s.api.core.v1.", "io.k8s.api.coordination.v1."],
    uses: &[&META],
};
static APPS: Package = Package {
    name: "podplane.apps.v1",
    directory: "podplane/apps/v1",
    definitions: &["io.k8s.api.apps.v1."],
    uses: &[&META, &CORE],
};
static NETWORKING: Package = Package {
    name: "podplane.networking.v1",
    directory: "podplane/networking/v1",
    definitions: &[definitions::MOVED_TO],
    uses: &[&META, &CORE],
};
static PACKAGES: [&Package; 4] = [&META, &CORE, &APPS, &NETWORKING];

/// A served kind: what the service template needs to know of it.
struct Served {
    kind: &'static str,
    plural: String,
    namespaced: bool,
    extra: &'static [Method],
}

/// A narrow write beside the uniform methods.
struct Method {
    name: &'static str,
    doc: &'static str,
    /// Fields of the request, in proto syntax, numbered from 1.
    fields: &'static [&'static str],
}

const POD_METHODS: &[Method] = &[Method {
    name: "BindPod",
    doc: "Assigns a pod to a node, once: the write of `spec.nodeName` and the PodScheduled condition that only a scheduler makes. \
          ABORTED if the pod is bound to another node, is being deleted, or is not the one meant.",
    fields: &[
        "// Empty: default.\n  string namespace",
        "string name",
        "// The pod must have this UID, unless empty.\n  string uid",
        "string node_name",
        "// The pod must be at this revision, unless empty.\n  string resource_version",
    ],
}];
const NODE_METHODS: &[Method] = &[Method {
    name: "AssignPodCIDRs",
    doc: "Gives a node its blocks, once: the write of `spec.podCIDR` and `spec.podCIDRs` that only an IPAM controller makes. \
          ABORTED if the node is not the one meant, has changed, or has other blocks already.",
    fields: &[
        "string name",
        "// The node must have this UID, unless empty.\n  string uid",
        "// The node must be at this revision, unless empty.\n  string resource_version",
        "repeated string pod_cidrs = N [json_name = \"podCIDRs\"]",
    ],
}];

fn served<K: Resource>(namespaced: bool, extra: &'static [Method]) -> Served {
    let plural = K::URL_PATH_SEGMENT;
    // `pods` with the capitals of its kind: `Pods`. Leases are the one kind whose plural is not the kind and an s, and
    // "Lease" + "s" is right for it too.
    let plural = format!("{}{}", K::KIND, &plural[K::KIND.len()..]);
    Served {
        kind: K::KIND,
        plural,
        namespaced,
        extra,
    }
}

/// Writes all generated files.
pub(crate) fn generate() -> Result<()> {
    let mut generator = SchemaSettings::openapi3().into_generator();
    for add in [
        subschema::<Pod>,
        subschema::<Node>,
        subschema::<Namespace>,
        subschema::<Event>,
        subschema::<Lease>,
        subschema::<Service>,
        subschema::<Deployment>,
        subschema::<ReplicaSet>,
        subschema::<ControllerRevision>,
        subschema::<ListMeta>,
        subschema::<Preconditions>,
    ] {
        add(&mut generator);
    }
    let mut definitions = generator.take_definitions(true);
    definitions.extend(cluster_cidr()?);
    let numbers = Numbers::read()?;
    let mut files = BTreeMap::new();
    for package in PACKAGES {
        let used: Vec<_> = package.uses.iter().map(|used| used.types()).collect();
        let imports = [
            "google/protobuf/struct.proto",
            "google/protobuf/timestamp.proto",
        ];
        let imports = imports.into_iter().chain(used.iter().map(String::as_str));
        files.insert(package.types(), header(package.name, imports));
    }
    for (name, schema) in &definitions {
        let Some((package, message)) = place(name)? else {
            continue;
        };
        let out = files
            .get_mut(&package.types())
            .context("a file for every package")?;
        write_message(out, &numbers, package, message, schema).with_context(|| name.clone())?;
    }
    let meta = files.get_mut(&META.types()).context("the meta file")?;
    meta.push_str(WATCH_EVENT_TYPE);
    let core = [
        served::<Pod>(true, POD_METHODS),
        served::<Node>(false, NODE_METHODS),
        served::<Namespace>(false, &[]),
        served::<Event>(true, &[]),
        served::<Lease>(true, &[]),
        served::<Service>(true, &[]),
    ];
    let apps = [
        served::<Deployment>(true, &[]),
        served::<ReplicaSet>(true, &[]),
        served::<ControllerRevision>(true, &[]),
    ];
    // Not a kind of `k8s-openapi`.
    let networking = [Served {
        kind: "ClusterCIDR",
        plural: "ClusterCIDRs".to_owned(),
        namespaced: false,
        extra: &[],
    }];
    files.insert(CORE.services(), services(&CORE, &core)?);
    files.insert(APPS.services(), services(&APPS, &apps)?);
    files.insert(NETWORKING.services(), services(&NETWORKING, &networking)?);
    for (file, text) in files {
        let path = Path::new(ROOT).join(&file);
        fs::create_dir_all(path.parent().context("a file in a directory")?)?;
        fs::write(path, text).with_context(|| format!("write {file}"))?;
    }
    Ok(())
}

/// The definitions that `cargo xtask definitions` wrote of ClusterCIDR. Lists have no message of their kind.
fn cluster_cidr() -> Result<Map<String, Value>> {
    let file = crate::root().join(definitions::MOVED_OUTPUT);
    let text = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
    let mut document: Value = serde_json::from_slice(&text)?;
    match document["components"]["schemas"].take() {
        Value::Object(mut all) => {
            all.retain(|name, _| !name.ends_with("List"));
            Ok(all)
        }
        _ => bail!("no schemas in {}", file.display()),
    }
}

fn subschema<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// The package and the name of a definition's message; `None` for those that are scalars on the wire.
fn place(definition: &str) -> Result<Option<(&'static Package, &str)>> {
    if scalar(definition).is_some() {
        return Ok(None);
    }
    for package in PACKAGES {
        let mut prefixes = package.definitions.iter();
        if let Some(message) = prefixes.find_map(|prefix| definition.strip_prefix(prefix)) {
            return Ok(Some((package, message)));
        }
    }
    bail!("no proto package for this definition")
}

/// Definitions whose JSON form is not an object of their own fields.
fn scalar(definition: &str) -> Option<&'static str> {
    Some(match definition.rsplit_once('.')?.1 {
        "Quantity" => "string",
        "Time" | "MicroTime" => "google.protobuf.Timestamp",
        "IntOrString" | "RawExtension" => "google.protobuf.Value",
        "FieldsV1" => "google.protobuf.Struct",
        _ => return None,
    })
}

fn header<'a>(package: &str, imports: impl IntoIterator<Item = &'a str>) -> String {
    let mut out = String::from(
        "// Code generated by `cargo xtask proto` from Kubernetes' API definitions. Do not edit.\n\nsyntax = \"proto3\";\n\n",
    );
    let _ = writeln!(out, "package {package};\n");
    for import in imports {
        let _ = writeln!(out, "import \"{import}\";");
    }
    out
}

fn write_message(
    out: &mut String,
    numbers: &Numbers,
    package: &'static Package,
    message: &str,
    schema: &Value,
) -> Result<()> {
    let empty = Map::new();
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let name = format!("{}.{message}", package.name);
    let (numbered, reserved) = numbers.assign(&name, properties.keys());
    out.push('\n');
    comment(out, "", schema);
    let _ = writeln!(out, "message {message} {{");
    if !reserved.is_empty() {
        let list: Vec<_> = reserved.iter().map(ToString::to_string).collect();
        let _ = writeln!(out, "  reserved {};", list.join(", "));
    }
    for (number, json) in numbered {
        let property = &properties[json];
        let kind = field_type(property, package).with_context(|| json.clone())?;
        comment(out, "  ", property);
        let _ = writeln!(
            out,
            "  {kind} {} = {number} [json_name = \"{json}\"];",
            snake(json)
        );
    }
    out.push_str("}\n");
    Ok(())
}

fn comment(out: &mut String, indent: &str, schema: &Value) {
    for line in schema
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .lines()
    {
        let _ = writeln!(out, "{}", format!("{indent}// {line}").trim_end());
    }
}

/// The proto type of a property, with its label. Scalars are `optional`, so that an explicit zero is told from an absent field.
fn field_type(property: &Value, package: &'static Package) -> Result<String> {
    match property.get("type").and_then(Value::as_str) {
        Some("array") => Ok(format!(
            "repeated {}",
            bare_type(&property["items"], package)?
        )),
        Some("object") if property.get("additionalProperties").is_some() => Ok(format!(
            "map<string, {}>",
            bare_type(&property["additionalProperties"], package)?
        )),
        Some(_) => Ok(format!("optional {}", bare_type(property, package)?)),
        None => {
            let bare = bare_type(property, package)?;
            Ok(if bare == "string" {
                format!("optional {bare}")
            } else {
                bare
            })
        }
    }
}

fn bare_type(schema: &Value, package: &'static Package) -> Result<String> {
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    Ok(match (text("type"), text("format")) {
        (Some("string"), Some("byte")) => "bytes".into(),
        (Some("string"), _) => "string".into(),
        (Some("boolean"), _) => "bool".into(),
        (Some("integer"), Some(format @ ("int32" | "int64"))) => format.into(),
        (None, _) => {
            let reference =
                text("$ref").or_else(|| schema.pointer("/allOf/0/$ref").and_then(Value::as_str));
            let definition = reference
                .and_then(|r| r.rsplit('/').next())
                .context("a reference")?;
            match (scalar(definition), place(definition)?) {
                (Some(scalar), _) => scalar.into(),
                (None, Some((home, message))) if home == package => message.into(),
                (None, Some((home, message))) => format!("{}.{message}", home.name),
                (None, None) => bail!("{definition} is neither scalar nor message"),
            }
        }
        other => bail!("no proto type for {other:?}"),
    })
}

/// `podIPs` → `pod_ips`, `hostPID` → `host_pid`, `clientIPConfig` → `client_ip_config`.
fn snake(json: &str) -> String {
    let chars: Vec<char> = json.chars().collect();
    let upper = |i: usize| chars.get(i).is_some_and(char::is_ascii_uppercase);
    let lower = |i: usize| chars.get(i).is_some_and(char::is_ascii_lowercase);
    let plural = |i: usize| chars.get(i) == Some(&'s') && !lower(i + 1);
    let mut out = String::new();
    for (i, c) in chars.iter().enumerate() {
        let starts_word = upper(i) && i > 0 && (!upper(i - 1) || (lower(i + 1) && !plural(i + 1)));
        if starts_word {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// The field numbers that the files of today have given away: message → JSON name → number.
struct Numbers(BTreeMap<String, BTreeMap<String, i32>>);

impl Numbers {
    fn read() -> Result<Self> {
        let root = Path::new(ROOT);
        let mut files: Vec<_> = PACKAGES.iter().map(|package| package.types()).collect();
        files.retain(|file| root.join(file).exists());
        let FileDescriptorSet { file } = protox::compile(files, [root])?;
        let mut numbers = BTreeMap::<String, BTreeMap<String, i32>>::new();
        for (package, message) in file
            .iter()
            .flat_map(|f| f.message_type.iter().map(|m| (f.package(), m)))
        {
            let known = numbers
                .entry(format!("{package}.{}", message.name()))
                .or_default();
            known.extend(
                message
                    .field
                    .iter()
                    .map(|f| (f.json_name().to_owned(), f.number())),
            );
            for range in &message.reserved_range {
                known.extend((range.start()..range.end()).map(|n| (format!("reserved {n}"), n)));
            }
        }
        Ok(Self(numbers))
    }

    /// Each property with its number, in numbers' order, and the numbers that must not be used again.
    fn assign<'a>(
        &self,
        message: &str,
        properties: impl Iterator<Item = &'a String>,
    ) -> (BTreeMap<i32, &'a String>, BTreeSet<i32>) {
        let none = BTreeMap::new();
        let known = self.0.get(message).unwrap_or(&none);
        let mut next = known.values().max().copied().unwrap_or(0) + 1;
        let mut assigned = BTreeMap::new();
        for json in properties {
            let number = known.get(json).copied().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            assigned.insert(number, json);
        }
        let reserved = known
            .values()
            .filter(|n| !assigned.contains_key(n))
            .copied()
            .collect();
        (assigned, reserved)
    }
}

const WATCH_EVENT_TYPE: &str = "
// What happened to the object of a watch event.
enum WatchEventType {
  WATCH_EVENT_TYPE_UNSPECIFIED = 0;
  // The object came into being, or began to match the selectors.
  ADDED = 1;
  // The object changed.
  MODIFIED = 2;
  // The object is gone, or no longer matches. The event has its last state.
  DELETED = 3;
  // Nothing happened up to the object's metadata.resourceVersion, which alone is set.
  BOOKMARK = 4;
}
";

fn services(package: &Package, kinds: &[Served]) -> Result<String> {
    let imports = [package.types(), META.types()];
    let mut out = header(package.name, imports.iter().map(String::as_str));
    for kind in kinds {
        write_service(&mut out, kind)?;
    }
    Ok(out)
}

fn write_service(out: &mut String, served: &Served) -> Result<()> {
    let Served {
        kind,
        plural,
        namespaced,
        extra,
    } = served;
    let field = snake(&format!("{}{}", kind[..1].to_lowercase(), &kind[1..]));
    let (namespace, everywhere) = match namespaced {
        true => (
            "  // Empty: default.\n  string namespace = 1;\n",
            "  // Empty: all namespaces.\n  string namespace = 1;\n",
        ),
        false => ("", ""),
    };
    writeln!(out, "
// Reads and writes {kind} objects. Errors carry google.rpc.ErrorInfo, whose reason is Kubernetes' (NotFound, AlreadyExists, Conflict,
// Invalid, Expired), and google.rpc.BadRequest with the path of each offending field.
service {kind}Service {{
  // Stores a new object and returns it as stored, defaults and metadata included.
  rpc Create{kind}(Create{kind}Request) returns ({kind});
  // Returns the object, as new as every acknowledged write.
  rpc Get{kind}(Get{kind}Request) returns ({kind});
  // Returns the objects that match, at one revision.
  rpc List{plural}(List{plural}Request) returns ({kind}List);
  // Sends every change after a revision, once and in order. OUT_OF_RANGE (Expired) if that revision is too old: list again.
  rpc Watch{plural}(Watch{plural}Request) returns (stream {kind}WatchEvent);
  // Replaces the object but for its status. ABORTED (Conflict) unless metadata.resourceVersion, where given, is the current one.
  rpc Update{kind}(Update{kind}Request) returns ({kind});
  // Replaces only the status, under the same condition.
  rpc Update{kind}Status(Update{kind}StatusRequest) returns ({kind});
  // Deletes the object, or begins to: what has finalizers or a grace period is marked, and goes when those are done.
  rpc Delete{kind}(Delete{kind}Request) returns ({kind});")?;
    for Method { name, doc, .. } in *extra {
        wrapped(out, "  // ", doc);
        writeln!(out, "  rpc {name}({name}Request) returns ({kind});")?;
    }
    writeln!(
        out,
        "}}

message Create{kind}Request {{
  {kind} {field} = 1;
}}

message Get{kind}Request {{
{namespace}  string name = 2;
}}

message List{plural}Request {{
{everywhere}  // For example `app=web,tier!=db`.
  string label_selector = 2;
  // For example `metadata.name=a,spec.nodeName=n`.
  string field_selector = 3;
  // At most so many items; 0 means all.
  int64 limit = 4;
  // The token of the previous page, for the next one at the same revision.
  string continue = 5;
  // How new the list has to be. Empty: as new as every acknowledged write; 0: any; else at this revision or later.
  string resource_version = 6;
  // `NotOlderThan`, or `Exact` for a list at resource_version itself.
  string resource_version_match = 7;
}}

message {kind}List {{
  // Has the list's resourceVersion, to watch from, and the token of the next page.
  podplane.meta.v1.ListMeta metadata = 1;
  repeated {kind} items = 2;
}}

message Watch{plural}Request {{
{everywhere}  string label_selector = 2;
  string field_selector = 3;
  // Changes after this revision. Empty: all present objects as ADDED first, then changes.
  string resource_version = 4;
  // Whether to send BOOKMARK events, which say how far the watch has come when nothing else does.
  bool allow_watch_bookmarks = 5;
}}

message {kind}WatchEvent {{
  podplane.meta.v1.WatchEventType type = 1;
  {kind} object = 2;
}}

message Update{kind}Request {{
  {kind} {field} = 1;
}}

message Update{kind}StatusRequest {{
  {kind} {field} = 1;
}}

message Delete{kind}Request {{
{namespace}  string name = 2;
  // Seconds until the object is removed; absent: the kind's default, 0: at once.
  optional int64 grace_period_seconds = 3;
  // What the object must be to be deleted; else ABORTED (Conflict).
  podplane.meta.v1.Preconditions preconditions = 4;
  // What becomes of the objects that it owns: Background (the default), Foreground or Orphan.
  optional string propagation_policy = 5;
}}"
    )?;
    for Method { name, fields, .. } in *extra {
        writeln!(out, "\nmessage {name}Request {{")?;
        for (number, field) in (1..).zip(*fields) {
            match field.split_once(" = N") {
                Some((field, options)) => writeln!(out, "  {field} = {number}{options};")?,
                None => writeln!(out, "  {field} = {number};")?,
            }
        }
        out.push_str("}\n");
    }
    Ok(())
}

fn wrapped(out: &mut String, prefix: &str, text: &str) {
    let mut line = String::from(prefix);
    for word in text.split_whitespace() {
        if line.len() + word.len() > 110 {
            let _ = writeln!(out, "{}", line.trim_end());
            line = String::from(prefix);
        }
        line.push_str(word);
        line.push(' ');
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

#[cfg(test)]
mod tests {
    use super::snake;

    #[test]
    fn names_keep_their_acronyms_together() {
        for (json, want) in [
            ("podIPs", "pod_ips"),
            ("podCIDR", "pod_cidr"),
            ("hostPID", "host_pid"),
            ("clientIPConfig", "client_ip_config"),
            ("setHostnameAsFQDN", "set_hostname_as_fqdn"),
            ("nodeName", "node_name"),
            ("targetWWNs", "target_wwns"),
        ] {
            assert_eq!(snake(json), want);
        }
    }
}

//! Writes the messages and services of Kubernetes' objects as `.proto` files.
//!
//! The source is the published API definitions of the kinds in `podplane_api::kinds`, which `cargo
//! xtask definitions` writes: no object is described by hand. Each message maps to proto3 JSON
//! exactly as Kubernetes writes the object. Field numbers must stay compatible: those in the present
//! files are kept, new fields get the next number, and the number of a removed field is never used
//! again.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::{Context, Result, bail};
use podplane_api::{
    Scope,
    kinds::{self, KindVisitor},
    schema::definitions,
    strategy::Strategy,
};
use prost_types::FileDescriptorSet;
use serde_json::{Map, Value};

use crate::definitions;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/proto");

const META: &str = "podplane.meta.v1";
/// The prefix of the definitions in [`META`].
const META_DEFINITIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
/// The definitions in [`META`] that requests and lists use, besides those of objects.
const META_ROOTS: [&str; 2] = ["ListMeta", "Preconditions"];

/// The files of a package: `podplane/core/v1/types.proto`.
fn file(package: &str, name: &str) -> String {
    format!("{}/{name}.proto", package.replace('.', "/"))
}

/// A served kind, as the service template needs it.
struct ServedKind {
    /// The package of its messages and its service: `podplane.core.v1`.
    package: &'static str,
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    /// The plural with the capitals of the kind: `Pods`.
    plural: String,
    namespaced: bool,
    extra: &'static [Method],
}

/// A narrow write besides the uniform methods.
struct Method {
    name: &'static str,
    doc: &'static str,
    /// The fields of the request, in proto syntax, numbered from 1.
    fields: &'static [&'static str],
}

const POD_METHODS: &[Method] = &[
    Method {
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
    },
    Method {
        name: "EvictPod",
        doc: "Deletes a pod unless its PodDisruptionBudget forbids that, as the subresource `pods/eviction` does. \
          RESOURCE_EXHAUSTED (TooManyRequests) if the budget allows no disruption now: try again later.",
        fields: &[
            "// Empty: default.\n  string namespace",
            "string name",
            "// Seconds until the object is removed; absent: the kind's default, 0: at once.\n  optional int64 grace_period_seconds",
            "// The required state of the object; else ABORTED (Conflict).\n  podplane.meta.v1.Preconditions preconditions",
            "// The handling of the objects that it owns: Background (the default), Foreground or Orphan.\n  optional string propagation_policy",
        ],
    },
];
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

const CERTIFICATE_REQUEST_METHODS: &[Method] = &[Method {
    name: "UpdateCertificateSigningRequestApproval",
    doc: "Approves or denies a request, once: takes the conditions of its status, as the subresource `approval` does. \
          ABORTED (Conflict) unless metadata.resourceVersion, where given, is the current one.",
    fields: &["CertificateSigningRequest certificate_signing_request"],
}];

/// Collects the kinds of the list.
struct ServedKinds(Vec<ServedKind>);

impl KindVisitor for ServedKinds {
    fn visit<K: Strategy>(&mut self) {
        let package = K::SERVICE
            .rsplit_once('.')
            .map_or("", |(package, _)| package);
        self.0.push(ServedKind {
            package,
            group: K::GROUP,
            version: K::VERSION,
            kind: K::KIND,
            plural: K::camel_plural(),
            namespaced: K::SCOPE == Scope::Namespaced,
            extra: match K::KIND {
                "Pod" => POD_METHODS,
                "Node" => NODE_METHODS,
                "CertificateSigningRequest" => CERTIFICATE_REQUEST_METHODS,
                _ => &[],
            },
        });
    }
}

/// Writes all generated files.
pub(crate) fn generate() -> Result<()> {
    let mut kinds = ServedKinds(Vec::new());
    kinds::visit(&mut kinds);
    let ServedKinds(kinds) = kinds;
    let all = definitions();
    let mut wanted: Vec<String> = META_ROOTS
        .iter()
        .map(|name| format!("{META_DEFINITIONS}{name}"))
        .collect();
    let mut packages = Packages(vec![(META_DEFINITIONS.to_owned(), META)]);
    for served in &kinds {
        let name = definitions::name(&all, served.group, served.version, served.kind)?;
        let prefix = name
            .strip_suffix(served.kind)
            .context("name without its kind")?;
        packages.0.push((prefix.to_owned(), served.package));
        wanted.push(name);
    }
    let numbers = FieldNumbers::read(&packages)?;
    let mut files = BTreeMap::new();
    for (name, schema) in &definitions::reachable(&all, wanted)? {
        let Some((package, message)) = packages.place(name)? else {
            continue;
        };
        let types = files.entry(package).or_insert_with(|| Types {
            uses: BTreeSet::new(),
            messages: String::new(),
        });
        write_message(types, &packages, &numbers, package, message, schema)
            .with_context(|| name.clone())?;
    }
    let meta = files.get_mut(META).context("missing meta file")?;
    meta.messages.push_str(WATCH_EVENT_TYPE);
    meta.messages.push_str(PATCH_TYPE);
    for (package, types) in files {
        let used = types.uses.iter().map(|used| file(used, "types"));
        let imports = [
            "google/protobuf/struct.proto".to_owned(),
            "google/protobuf/timestamp.proto".to_owned(),
        ];
        let mut text = header(package, imports.into_iter().chain(used));
        text.push_str(&types.messages);
        write(&file(package, "types"), &text)?;
        let own: Vec<_> = kinds
            .iter()
            .filter(|kind| kind.package == package)
            .collect();
        if !own.is_empty() {
            write(&file(package, "services"), &services(package, &own)?)?;
        }
    }
    Ok(())
}

fn write(file: &str, text: &str) -> Result<()> {
    let path = Path::new(ROOT).join(file);
    fs::create_dir_all(path.parent().context("path without a directory")?)?;
    fs::write(path, text).with_context(|| format!("failed to write {file}"))
}

/// The messages of a package.
struct Types {
    /// The packages that they refer to.
    uses: BTreeSet<&'static str>,
    messages: String,
}

/// Prefixes of definitions' names, with the package of their messages.
struct Packages(Vec<(String, &'static str)>);

impl Packages {
    /// The package and the name of a definition's message; `None` for those that are scalars on the
    /// wire.
    fn place<'a>(&self, definition: &'a str) -> Result<Option<(&'static str, &'a str)>> {
        if scalar(definition).is_some() {
            return Ok(None);
        }
        for (prefix, package) in &self.0 {
            if let Some(message) = definition.strip_prefix(prefix.as_str()) {
                return Ok(Some((package, message)));
            }
        }
        bail!("no proto package for this definition")
    }
}

/// The wire type of definitions whose JSON form is not an object of their own fields.
fn scalar(definition: &str) -> Option<&'static str> {
    Some(match definition.rsplit_once('.')?.1 {
        "Quantity" => "string",
        "Time" | "MicroTime" => "google.protobuf.Timestamp",
        "IntOrString" | "RawExtension" | "JSON" => "google.protobuf.Value",
        // Each is one of two things.
        "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray" => {
            "google.protobuf.Value"
        }
        "FieldsV1" => "google.protobuf.Struct",
        _ => return None,
    })
}

fn header(package: &str, imports: impl IntoIterator<Item = String>) -> String {
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
    types: &mut Types,
    packages: &Packages,
    numbers: &FieldNumbers,
    package: &'static str,
    message: &str,
    schema: &Value,
) -> Result<()> {
    let empty = Map::new();
    let properties = schema
        .get("properties")
        .and_then(Value::as_object)
        .unwrap_or(&empty);
    let name = format!("{package}.{message}");
    let Types {
        uses,
        messages: out,
    } = types;
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
        let kind = field_type(property, packages, package, uses).with_context(|| json.clone())?;
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

/// The proto type of a property, with its label. Scalars are `optional`, to distinguish an explicit
/// zero from an absent field.
fn field_type(
    property: &Value,
    packages: &Packages,
    package: &'static str,
    uses: &mut BTreeSet<&'static str>,
) -> Result<String> {
    let mut bare_type = |schema| bare_type(schema, packages, package, uses);
    match property.get("type").and_then(Value::as_str) {
        Some("array") => Ok(format!("repeated {}", bare_type(&property["items"])?)),
        Some("object") if property.get("additionalProperties").is_some() => Ok(format!(
            "map<string, {}>",
            bare_type(&property["additionalProperties"])?
        )),
        Some(_) => Ok(format!("optional {}", bare_type(property)?)),
        None => {
            let bare = bare_type(property)?;
            Ok(if bare == "string" {
                format!("optional {bare}")
            } else {
                bare
            })
        }
    }
}

fn bare_type(
    schema: &Value,
    packages: &Packages,
    package: &'static str,
    uses: &mut BTreeSet<&'static str>,
) -> Result<String> {
    let text = |key: &str| schema.get(key).and_then(Value::as_str);
    Ok(match (text("type"), text("format")) {
        (Some("string"), Some("byte")) => "bytes".into(),
        (Some("string"), _) => "string".into(),
        (Some("boolean"), _) => "bool".into(),
        (Some("number"), Some("double")) => "double".into(),
        (Some("integer"), Some(format @ ("int32" | "int64"))) => format.into(),
        // A map's values cannot be repeated. This one is a list in JSON too.
        (Some("array"), _) => "google.protobuf.ListValue".into(),
        (None, _) => {
            let reference =
                text("$ref").or_else(|| schema.pointer("/allOf/0/$ref").and_then(Value::as_str));
            let definition = reference
                .and_then(|r| r.rsplit('/').next())
                .context("missing reference")?;
            match (scalar(definition), packages.place(definition)?) {
                (Some(scalar), _) => scalar.into(),
                (None, Some((home, message))) if home == package => message.into(),
                (None, Some((home, message))) => {
                    uses.insert(home);
                    format!("{home}.{message}")
                }
                (None, None) => bail!("{definition} is neither scalar nor message"),
            }
        }
        other => bail!("no proto type for {other:?}"),
    })
}

/// `podIPs` → `pod_ips`, `hostPID` → `host_pid`, `clientIPConfig` → `client_ip_config`, `$ref` →
/// `ref`.
fn snake(json: &str) -> String {
    let json = json.trim_start_matches('$').replace('-', "_");
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

/// The field numbers in the present files: message → JSON name → number.
struct FieldNumbers(BTreeMap<String, BTreeMap<String, i32>>);

impl FieldNumbers {
    fn read(packages: &Packages) -> Result<Self> {
        let root = Path::new(ROOT);
        let packages: BTreeSet<_> = packages.0.iter().map(|(_, package)| *package).collect();
        let mut files: Vec<_> = packages
            .iter()
            .map(|package| file(package, "types"))
            .collect();
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

    /// Assigns a number to each property; returns them by number, and the numbers that must not be
    /// used again.
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
// The kind of a change that a watch event reports.
enum WatchEventType {
  WATCH_EVENT_TYPE_UNSPECIFIED = 0;
  // The object was created, or began to match the selectors.
  ADDED = 1;
  // The object changed.
  MODIFIED = 2;
  // The object was deleted, or no longer matches. The event has its last state.
  DELETED = 3;
  // No other change up to the object's metadata.resourceVersion, which is the only field set.
  BOOKMARK = 4;
}
";

const PATCH_TYPE: &str = "
// The meaning of a patch, as in Kubernetes' API.
enum PatchType {
  PATCH_TYPE_UNSPECIFIED = 0;
  // A list of operations (RFC 6902).
  JSON_PATCH = 1;
  // The changed fields; null removes one, and a list replaces the whole list (RFC 7386).
  MERGE_PATCH = 2;
  // The changed fields, where lists of the kind merge by their keys.
  STRATEGIC_MERGE_PATCH = 3;
  // The fields that a manager wants to own (server-side apply).
  APPLY = 4;
}
";

fn services(package: &str, kinds: &[&ServedKind]) -> Result<String> {
    let imports = [package, META].map(|package| file(package, "types"));
    let mut out = header(package, imports);
    for kind in kinds {
        write_service(&mut out, kind)?;
    }
    Ok(out)
}

fn write_service(out: &mut String, served: &ServedKind) -> Result<()> {
    let ServedKind {
        kind,
        plural,
        namespaced,
        extra,
        ..
    } = served;
    let field = snake(&format!("{}{}", kind[..1].to_lowercase(), &kind[1..]));
    let (namespace, everywhere) = match namespaced {
        true => (
            "  // Empty: default.\n  string namespace = 1;\n",
            "  // Empty: all namespaces.\n  string namespace = 1;\n",
        ),
        false => ("", ""),
    };
    let patches = ["", "Status"].map(|part| {
        format!(
            "message Patch{kind}{part}Request {{
{namespace}  string name = 2;
  podplane.meta.v1.PatchType type = 3;
  // The patch as JSON text, for APPLY also as YAML. An unknown or repeated field is refused
  // (Invalid).
  string patch = 4;
  // The writer of the fields that metadata.managedFields records. Required for APPLY; empty: none.
  string field_manager = 5;
  // Whether APPLY takes fields over from other managers instead of failing with a conflict.
  bool force = 6;
}}

"
        )
    });
    let patches = patches.concat();
    writeln!(
        out,
        "
// Reads and writes {kind} objects. Errors carry google.rpc.ErrorInfo, whose reason is Kubernetes'
// (NotFound, AlreadyExists, Conflict, Invalid, Expired), and google.rpc.BadRequest with the path of
// each offending field.
service {kind}Service {{
  // Stores a new object and returns it as stored, defaults and metadata included.
  rpc Create{kind}(Create{kind}Request) returns ({kind});
  // Returns the object, as new as every acknowledged write.
  rpc Get{kind}(Get{kind}Request) returns ({kind});
  // Returns the objects that match, at one revision.
  rpc List{plural}(List{plural}Request) returns ({kind}List);
  // Sends every change after a revision, once and in order. OUT_OF_RANGE (Expired) if that revision
  // is too old: list again.
  rpc Watch{plural}(Watch{plural}Request) returns (stream {kind}WatchEvent);
  // Replaces the object except its status. ABORTED (Conflict) unless metadata.resourceVersion,
  // where given, is the current one.
  rpc Update{kind}(Update{kind}Request) returns ({kind});
  // Replaces only the status, under the same condition.
  rpc Update{kind}Status(Update{kind}StatusRequest) returns ({kind});
  // Changes the fields that a patch names, at whatever revision the object is; ABORTED (Conflict) if
  // the patch names another revision, or applies fields that other managers own. An applied object
  // that does not exist is created.
  rpc Patch{kind}(Patch{kind}Request) returns ({kind});
  // Changes fields of the status in the same way.
  rpc Patch{kind}Status(Patch{kind}StatusRequest) returns ({kind});
  // Deletes the object. One with finalizers or a grace period is only marked, and is removed when
  // those are done.
  rpc Delete{kind}(Delete{kind}Request) returns ({kind});"
    )?;
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
  // The most items to return; 0 means all.
  int64 limit = 4;
  // The token of the previous page, for the next one at the same revision.
  string continue = 5;
  // The required age of the list. Empty: as new as every acknowledged write; 0: any; else at this
  // revision or later.
  string resource_version = 6;
  // `NotOlderThan`, or `Exact` for a list at resource_version itself.
  string resource_version_match = 7;
}}

message {kind}List {{
  // Has the list's resourceVersion, from which to watch, and the token of the next page.
  podplane.meta.v1.ListMeta metadata = 1;
  repeated {kind} items = 2;
}}

message Watch{plural}Request {{
{everywhere}  string label_selector = 2;
  string field_selector = 3;
  // Only changes after this revision. Empty: all existing objects as ADDED first, then changes.
  string resource_version = 4;
  // True to send BOOKMARK events, which report progress while there are no changes.
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

{patches}message Delete{kind}Request {{
{namespace}  string name = 2;
  // Seconds until the object is removed; absent: the kind's default, 0: at once.
  optional int64 grace_period_seconds = 3;
  // The required state of the object; else ABORTED (Conflict).
  podplane.meta.v1.Preconditions preconditions = 4;
  // The handling of the objects that it owns: Background (the default), Foreground or Orphan.
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
            ("$ref", "ref"),
            ("x-kubernetes-list-type", "x_kubernetes_list_type"),
        ] {
            assert_eq!(snake(json), want);
        }
    }
}

//! Writes the `.proto` files of Kubernetes' own protobuf encoding, which Go clients send and
//! request.
//!
//! The source is a stock `kubectl`, which contains the descriptors of every `generated.proto` of
//! its version, options included. The last one to contain them is that of 1.34. What Kubernetes has
//! added since, and the two groups that no kubectl knows, is in `supplement`: a message there that
//! kubectl has too adds fields to it. A test compares the result with the definitions. Messages
//! that no served kind refers to are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Read as _,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use prost::Message as _;
use prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use prost_types::{
    DescriptorProto, FieldDescriptorProto,
    field_descriptor_proto::{Label, Type},
};
use protox::file::File;
use serde_json::Value;

use crate::definitions;

const ROOT: &str = "proto/proto";
const OPTIONS: &str = "github.com/gogo/protobuf/gogoproto/gogo.proto";
const NULLABLE: &str = "gogoproto.nullable";

/// The last version whose kubectl contains descriptors.
const DESCRIPTORS: &str = "1.34";

/// The messages and fields that a kubectl of [`DESCRIPTORS`] does not have.
const SUPPLEMENT: [(&str, &str); 6] = [
    (
        "apiextensions.proto",
        include_str!("../supplement/apiextensions.proto"),
    ),
    (
        "apiregistration.proto",
        include_str!("../supplement/apiregistration.proto"),
    ),
    ("core.proto", include_str!("../supplement/core.proto")),
    ("meta.proto", include_str!("../supplement/meta.proto")),
    (
        "resource.proto",
        include_str!("../supplement/resource.proto"),
    ),
    ("storage.proto", include_str!("../supplement/storage.proto")),
];

/// The prefix of every gzip stream.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// The envelope, which is not an API type and not in the OpenAPI definitions.
const ENVELOPE: &str = "k8s.io.apimachinery.pkg.runtime.Unknown";

/// A message as it is written.
#[derive(Default)]
struct Message {
    package: String,
    /// The fields by number.
    fields: BTreeMap<i32, Field>,
}

struct Field {
    /// The declaration.
    line: String,
    /// The full name of the message that it refers to.
    target: Option<String>,
}

/// Writes the files.
pub(crate) fn generate(kubectl: &Path) -> Result<()> {
    check_version(kubectl)?;
    let mut all = BTreeMap::new();
    let pool = descriptors(kubectl)?;
    let own = |message: &MessageDescriptor| message.full_name().starts_with("k8s.io.");
    for message in pool.all_messages().filter(own) {
        all.insert(message.full_name().to_owned(), described(&message)?);
    }
    for (name, source) in SUPPLEMENT {
        supplement(name, source, &mut all).with_context(|| format!("supplement {name}"))?;
    }
    let roots = definitions::roots(&podplane_api::schema::definitions())?;
    let roots = roots
        .iter()
        .map(|name| name.replacen("io.k8s.", "k8s.io.", 1).replace('-', "_"));
    let mut wanted: Vec<_> = roots.chain([ENVELOPE.to_owned()]).collect();
    let mut files = BTreeMap::<_, BTreeMap<_, _>>::new();
    while let Some(name) = wanted.pop() {
        let message = all.get(&name);
        let message = message.with_context(|| format!("there is no message {name}"))?;
        let file = files.entry(file(&message.package));
        if file.or_default().insert(name, message).is_none() {
            wanted.extend(message.targets().map(str::to_owned));
        }
    }
    for (file, messages) in files {
        let path = crate::root().join(ROOT).join(&file);
        fs::create_dir_all(path.parent().context("path without a directory")?)?;
        fs::write(&path, text(&file, &messages)?)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

impl Message {
    fn targets(&self) -> impl Iterator<Item = &str> {
        self.fields
            .values()
            .filter_map(|field| field.target.as_deref())
    }
}

/// The file of a package: `k8s.io/api/core/v1/generated.proto`.
fn file(package: &str) -> String {
    let path = package.replace('.', "/").replacen("k8s/io", "k8s.io", 1);
    format!("{}/generated.proto", path.replace('_', "-"))
}

fn check_version(kubectl: &Path) -> Result<()> {
    let mut command = Command::new(kubectl);
    let output = command
        .args(["version", "--client", "--output=json"])
        .output();
    let output = output.with_context(|| format!("failed to start {}", kubectl.display()))?;
    let answer: Value =
        serde_json::from_slice(&output.stdout).context("failed to parse the version of kubectl")?;
    let version = answer["clientVersion"]["gitVersion"].as_str();
    let version = version.context("missing gitVersion")?;
    ensure!(
        version.starts_with(&format!("v{DESCRIPTORS}.")),
        "{} is {version}, and the supplement is of v{DESCRIPTORS}",
        kubectl.display()
    );
    Ok(())
}

/// All descriptors that are registered with kubectl's protobuf library.
fn descriptors(kubectl: &Path) -> Result<DescriptorPool> {
    /// `google.protobuf.FileDescriptorSet` with encoded files: decoded ones would lose options that
    /// are extensions.
    #[derive(prost::Message)]
    struct Files {
        #[prost(bytes = "vec", repeated, tag = "1")]
        files: Vec<Vec<u8>>,
    }

    let program =
        fs::read(kubectl).with_context(|| format!("failed to read {}", kubectl.display()))?;
    let options = protox::compile([OPTIONS], [crate::root().join(ROOT)])?;
    let mut files: Vec<_> = options
        .file
        .iter()
        .map(prost::Message::encode_to_vec)
        .collect();
    for at in memchr::memmem::find_iter(&program, &GZIP) {
        let mut file = Vec::new();
        let unpacked = GzDecoder::new(&program[at..]).read_to_end(&mut file);
        let Ok(descriptor) = prost_types::FileDescriptorProto::decode(file.as_slice()) else {
            continue;
        };
        if unpacked.is_ok() && descriptor.name().ends_with("/generated.proto") {
            files.push(file);
        }
    }
    let set = Files { files }.encode_to_vec();
    DescriptorPool::decode(set.as_slice()).context("failed to decode the descriptors in kubectl")
}

/// A message of kubectl.
fn described(message: &MessageDescriptor) -> Result<Message> {
    let fields = message.fields().map(|field| {
        let target = match field.kind() {
            Kind::Message(entry) if entry.is_map_entry() => {
                entry.map_entry_value_field().kind().as_message().cloned()
            }
            kind => kind.as_message().cloned(),
        };
        let target = target.map(|target| target.full_name().to_owned());
        let line = line(&field)?;
        Ok((i32::try_from(field.number())?, Field { line, target }))
    });
    Ok(Message {
        package: message.package_name().to_owned(),
        fields: fields.collect::<Result<_>>()?,
    })
}

fn line(field: &FieldDescriptor) -> Result<String> {
    let (name, number) = (field.name(), field.number());
    if let Kind::Message(entry) = field.kind()
        && entry.is_map_entry()
    {
        let key = type_name(&entry.map_entry_key_field().kind())?;
        let value = type_name(&entry.map_entry_value_field().kind())?;
        return Ok(format!("map<{key}, {value}> {name} = {number};"));
    }
    let label = match field.cardinality() {
        Cardinality::Repeated => "repeated",
        Cardinality::Optional | Cardinality::Required => "optional",
    };
    let nullable = field
        .parent_pool()
        .get_extension_by_name(NULLABLE)
        .context("missing gogo.proto")?;
    let pointer = !field.options().has_extension(&nullable);
    let option = match pointer || field.is_list() {
        true => String::new(),
        false => format!(" [({NULLABLE}) = false]"),
    };
    let kind = type_name(&field.kind())?;
    Ok(format!("{label} {kind} {name} = {number}{option};"))
}

fn type_name(kind: &Kind) -> Result<String> {
    Ok(match kind {
        Kind::String => "string".to_owned(),
        Kind::Bytes => "bytes".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::Int32 => "int32".to_owned(),
        Kind::Int64 => "int64".to_owned(),
        Kind::Message(message) => format!(".{}", message.full_name()),
        other => bail!("unsupported type of a field: {other:?}"),
    })
}

/// Adds the messages and fields of a file of the supplement.
fn supplement(name: &str, source: &str, all: &mut BTreeMap<String, Message>) -> Result<()> {
    let parsed = File::from_source(name, source)?;
    let parsed = parsed.file_descriptor_proto();
    let package = parsed.package();
    for message in &parsed.message_type {
        let full_name = format!("{package}.{}", message.name());
        let known = all.entry(full_name).or_default();
        package.clone_into(&mut known.package);
        for field in &message.field {
            let (line, target) = supplemented(field, message).context(field.name().to_owned())?;
            let before = known.fields.insert(field.number(), Field { line, target });
            ensure!(before.is_none(), "{} is in kubectl too", field.name());
        }
    }
    Ok(())
}

/// The declaration of a field of the supplement, and the message that it refers to.
fn supplemented(
    field: &FieldDescriptorProto,
    message: &DescriptorProto,
) -> Result<(String, Option<String>)> {
    let (name, number) = (field.name(), field.number());
    let mut entries = message.nested_type.iter();
    if let Some(entry) = entries.find(|entry| entry.name() == field.type_name()) {
        let [key, value] = &entry.field[..] else {
            bail!("not an entry of a map");
        };
        let (key, value) = (parsed_type(key)?, parsed_type(value)?);
        let target = value.strip_prefix('.').map(str::to_owned);
        return Ok((format!("map<{key}, {value}> {name} = {number};"), target));
    }
    let label = match field.label() {
        Label::Repeated => "repeated",
        Label::Optional | Label::Required => "optional",
    };
    let options = field.options.iter();
    let option = match options.flat_map(|all| &all.uninterpreted_option).next() {
        Some(_) => format!(" [({NULLABLE}) = false]"),
        None => String::new(),
    };
    let kind = parsed_type(field)?;
    let target = kind.strip_prefix('.').map(str::to_owned);
    Ok((format!("{label} {kind} {name} = {number}{option};"), target))
}

fn parsed_type(field: &FieldDescriptorProto) -> Result<String> {
    if let Some(name) = &field.type_name {
        ensure!(name.starts_with('.'), "{name} is not a full name");
        return Ok(name.clone());
    }
    Ok(match field.r#type() {
        Type::String => "string",
        Type::Bytes => "bytes",
        Type::Bool => "bool",
        Type::Int32 => "int32",
        Type::Int64 => "int64",
        Type::Double => "double",
        other => bail!("unsupported type of a field: {other:?}"),
    }
    .to_owned())
}

fn text(file_name: &str, messages: &BTreeMap<String, &Message>) -> Result<String> {
    let package = &messages.values().next().context("no messages")?.package;
    let targets = messages.values().flat_map(|message| message.targets());
    let mut imports: BTreeSet<_> = targets
        .filter_map(|target| Some(file(target.rsplit_once('.')?.0)))
        .filter(|import| import != file_name)
        .collect();
    imports.insert(OPTIONS.to_owned());
    let mut out = format!(
        "// Kubernetes v{}, Apache-2.0: as in its `{file_name}`, but for what podplane does not serve.\n\
         // Generated by `cargo xtask kubernetes`. Do not edit.\nsyntax = \"proto2\";\n\n\
         package {package};\n\n",
        definitions::VERSION
    );
    for import in imports {
        writeln!(out, "import \"{import}\";")?;
    }
    for (name, message) in messages {
        let name = name.rsplit('.').next().unwrap_or_default();
        writeln!(out, "\nmessage {name} {{")?;
        for field in message.fields.values() {
            writeln!(out, "  {}", field.line)?;
        }
        writeln!(out, "}}")?;
    }
    Ok(out)
}

//! Writes the `.proto` files of Kubernetes' own protobuf encoding, which Go clients send and
//! request.
//!
//! The source is a stock `kubectl`, which contains the descriptors of every `generated.proto` of
//! its version, options included. Messages that no served kind refers to are left out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    io::Read as _,
    path::Path,
    process::Command,
};

use anyhow::{Context, Result, ensure};
use flate2::read::GzDecoder;
use prost::Message as _;
use prost_reflect::{Cardinality, DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;

use crate::definitions;

const ROOT: &str = "proto/proto";
const OPTIONS: &str = "github.com/gogo/protobuf/gogoproto/gogo.proto";
const NULLABLE: &str = "gogoproto.nullable";

/// The prefix of every gzip stream.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];

/// The envelope, which is not an API type and not in the OpenAPI definitions.
const ENVELOPE: &str = "k8s.io.apimachinery.pkg.runtime.Unknown";

/// Writes the files.
pub(crate) fn generate(kubectl: &Path) -> Result<()> {
    let version = version(kubectl)?;
    let pool = descriptors(kubectl)?;
    let roots = definitions::roots(&podplane_api::schema::definitions())?;
    let roots = roots
        .iter()
        .map(|name| name.replacen("io.k8s.", "k8s.io.", 1));
    let mut wanted: Vec<_> = roots.chain([ENVELOPE.to_owned()]).collect();
    let mut files = BTreeMap::<_, BTreeMap<_, _>>::new();
    while let Some(name) = wanted.pop() {
        let message = pool.get_message_by_name(&name);
        let message = message.with_context(|| format!("kubectl does not contain {name}"))?;
        let file = files.entry(message.parent_file().name().to_owned());
        if file.or_default().insert(name, message.clone()).is_none() {
            wanted.extend(references(&message).map(|target| target.full_name().to_owned()));
        }
    }
    for (file, messages) in files {
        let path = crate::root().join(ROOT).join(&file);
        fs::create_dir_all(path.parent().context("path without a directory")?)?;
        fs::write(&path, text(&version, &file, &messages)?)
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    Ok(())
}

fn version(kubectl: &Path) -> Result<String> {
    let mut command = Command::new(kubectl);
    let output = command
        .args(["version", "--client", "--output=json"])
        .output();
    let output = output.with_context(|| format!("failed to start {}", kubectl.display()))?;
    let answer: Value =
        serde_json::from_slice(&output.stdout).context("failed to parse the version of kubectl")?;
    let version = answer["clientVersion"]["gitVersion"].as_str();
    let version = version.context("missing gitVersion")?.to_owned();
    let wanted = format!("v{}.", definitions::VERSION);
    ensure!(
        version.starts_with(&wanted),
        "{} is {version}, and the OpenAPI definitions are of {wanted}",
        kubectl.display()
    );
    Ok(version)
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

fn references(message: &MessageDescriptor) -> impl Iterator<Item = MessageDescriptor> {
    let targets = message.fields().filter_map(|field| match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => {
            entry.map_entry_value_field().kind().as_message().cloned()
        }
        Kind::Message(target) => Some(target),
        _ => None,
    });
    targets.collect::<Vec<_>>().into_iter()
}

fn text(
    version: &str,
    file: &str,
    messages: &BTreeMap<String, MessageDescriptor>,
) -> Result<String> {
    let package = messages
        .values()
        .next()
        .context("file without messages")?
        .package_name()
        .to_owned();
    let mut imports: BTreeSet<_> = messages
        .values()
        .flat_map(references)
        .map(|target| target.parent_file().name().to_owned())
        .filter(|import| import != file)
        .collect();
    imports.insert(OPTIONS.to_owned());
    let mut out = format!(
        "// Kubernetes {version}, Apache-2.0: as in its `{file}`, but for what podplane does not serve.\n\
         // Generated by `cargo xtask kubernetes`. Do not edit.\nsyntax = \"proto2\";\n\n\
         package {package};\n\n"
    );
    for import in imports {
        writeln!(out, "import \"{import}\";")?;
    }
    for message in messages.values() {
        writeln!(out, "\nmessage {} {{", message.name())?;
        for field in message.fields() {
            writeln!(out, "  {}", line(&field)?)?;
        }
        writeln!(out, "}}")?;
    }
    Ok(out)
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
        other => anyhow::bail!("unsupported type of a field: {other:?}"),
    })
}

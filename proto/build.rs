//! Compiles the `.proto` files with protox, so that no protoc is needed.
//!
//! Kubernetes' objects are in the descriptor set, which reflection serves and the codec reads, but
//! get no Rust code: in Rust they are the types of `podplane-api`. For the rest, tonic generates
//! code.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;
use prost_types::{FileDescriptorProto, field_descriptor_proto::Type};

const GENERATED: &[&str] = &[
    "podplane/authentication/v1/authentication.proto",
    "podplane/authorization/v1/authorization.proto",
    "podplane/cloud/v1/cloud.proto",
    "podplane/cluster/v1/cluster.proto",
    "podplane/ipam/v1/blocks.proto",
    "podplane/ipam/v1/ipam.proto",
    "podplane/node/v1/node.proto",
    "podplane/scheduler/v1/scheduler.proto",
    "podplane/store/v1/store.proto",
    "podplane/trace/v1/trace.proto",
    "runtime/v1/api.proto",
];
/// Messages of HTTP answers, which no service has and reflection does not describe.
const OF_ANSWERS: &str = "openapi/v2/openapi.proto";
/// Kubernetes' own encoding, for `src/kubernetes.rs`. None of our services uses it.
const KUBERNETES: &str = "k8s.io";
/// The services of Kubernetes' objects, one file for each package.
const DESCRIBED: &str = "podplane";

/// The files called `name` below a directory of `proto`, in order.
fn files(directory: &str, name: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let mut found = Vec::new();
    let mut directories = vec![PathBuf::from("proto").join(directory)];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.ends_with(name) {
                let path = path.strip_prefix("proto")?.to_str().ok_or("not UTF-8")?;
                found.push(path.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Makes Kubernetes' objects bytes in generated code. A nested message is encoded as its bytes, so
/// the wire is the same (see `src/wire.rs`), and reflection keeps the message.
fn objects_as_bytes(file: &mut FileDescriptorProto) {
    file.dependency
        .retain(|file| !file.ends_with("/types.proto"));
    for field in file.message_type.iter_mut().flat_map(|one| &mut one.field) {
        if field.type_name().starts_with(".podplane.core.v1.") {
            field.set_type(Type::Bytes);
            field.type_name = None;
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut all = files(DESCRIBED, "services.proto")?;
    all.extend(GENERATED.iter().map(|&file| file.to_owned()));
    let all = protox::compile(all, ["proto"])?;
    fs::write(out.join("descriptors.bin"), all.encode_to_vec())?;
    let mut bare = all;
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    fs::write(out.join("bare.bin"), bare.encode_to_vec())?;
    let mut kubernetes = protox::Compiler::new(["proto"])?;
    kubernetes
        .include_imports(true)
        .open_files(files(KUBERNETES, "generated.proto")?)?;
    // Encoded by protox, which keeps options that are extensions.
    let kubernetes = kubernetes.encode_file_descriptor_set();
    fs::write(out.join("kubernetes.bin"), kubernetes)?;
    let generated = GENERATED.iter().chain([&OF_ANSWERS]);
    let mut generated = protox::compile(generated, ["proto"])?;
    generated
        .file
        .retain(|file| !file.name().ends_with("/types.proto"));
    generated.file.iter_mut().for_each(objects_as_bytes);
    tonic_prost_build::configure().compile_fds(generated)?;
    Ok(())
}

//! Compiles the `.proto` files with protox, so that no protoc is needed.
//!
//! Kubernetes' objects are in the descriptor set, which reflection serves and the codec reads, but get no Rust code: in Rust they are the
//! types of `podplane-api`. The rest gets tonic's code.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const GENERATED: &[&str] = &[
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
/// Kubernetes' own encoding, for `src/kubernetes.rs`. No service of ours knows it.
const KUBERNETES: &[&str] = &[
    "k8s.io/api/apps/v1/generated.proto",
    "k8s.io/api/authentication/v1/generated.proto",
    "k8s.io/api/authorization/v1/generated.proto",
    "k8s.io/api/autoscaling/v1/generated.proto",
    "k8s.io/api/coordination/v1/generated.proto",
    "k8s.io/api/core/v1/generated.proto",
    "k8s.io/api/events/v1/generated.proto",
    "k8s.io/api/policy/v1/generated.proto",
    "k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto",
    "k8s.io/apimachinery/pkg/runtime/generated.proto",
];
const DESCRIBED: &[&str] = &[
    "podplane/apps/v1/services.proto",
    "podplane/core/v1/services.proto",
    "podplane/networking/v1/services.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let all = protox::compile([DESCRIBED, GENERATED].concat(), ["proto"])?;
    fs::write(out.join("descriptors.bin"), all.encode_to_vec())?;
    let mut bare = all;
    for file in &mut bare.file {
        file.source_code_info = None;
    }
    fs::write(out.join("bare.bin"), bare.encode_to_vec())?;
    let mut kubernetes = protox::Compiler::new(["proto"])?;
    kubernetes.include_imports(true).open_files(KUBERNETES)?;
    // Encoded by protox, which keeps options that are extensions.
    let kubernetes = kubernetes.encode_file_descriptor_set();
    fs::write(out.join("kubernetes.bin"), kubernetes)?;
    let generated = protox::compile(GENERATED, ["proto"])?;
    tonic_prost_build::configure().compile_fds(generated)?;
    Ok(())
}

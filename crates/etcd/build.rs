//! Generates the client from etcd's `.proto` files with protox, so that no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let mut files = protox::compile(["etcd/api/etcdserverpb/rpc.proto"], ["proto"])?;
    for file in &mut files.file {
        // Comments are not in the form of rustdoc.
        file.source_code_info = None;
    }
    tonic_prost_build::configure()
        .build_server(std::env::var_os("CARGO_FEATURE_SERVER").is_some())
        // Values are handed on without a copy.
        .bytes(".")
        .compile_fds(files)?;
    Ok(())
}

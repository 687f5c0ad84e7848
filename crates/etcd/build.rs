//! Generates the client from etcd's `.proto` files with protox, so that no protoc is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = protox::compile(["etcd/api/etcdserverpb/rpc.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        // Values are handed on without a copy.
        .bytes(".")
        // Theirs are not in the form of rustdoc.
        .disable_comments(["."])
        .compile_fds(files)?;
    Ok(())
}

//! Builds the crate again when an asset is added or changes: the macro that reads the directory
//! does not tell the compiler.

fn main() {
    println!("cargo::rerun-if-changed=assets");
}

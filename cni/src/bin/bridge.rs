//! The CNI plugin `bridge`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni::bridge::BridgePlugin)
}

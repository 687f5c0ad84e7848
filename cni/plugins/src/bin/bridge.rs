//! The CNI plugin `bridge`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::bridge::BridgePlugin)
}

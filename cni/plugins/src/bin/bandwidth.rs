//! The CNI plugin `bandwidth`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::bandwidth::Bandwidth)
}

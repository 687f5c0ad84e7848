//! The CNI plugin `loopback`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::loopback::Loopback)
}

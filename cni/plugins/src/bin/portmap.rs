//! The CNI plugin `portmap`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::portmap::Portmap)
}

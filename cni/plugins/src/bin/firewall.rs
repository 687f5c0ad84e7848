//! The CNI plugin `firewall`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::firewall::Firewall)
}

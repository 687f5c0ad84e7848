//! The CNI plugin `static`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::static_ipam::StaticIpam)
}

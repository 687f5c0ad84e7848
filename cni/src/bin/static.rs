//! The CNI plugin `static`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni::static_ipam::StaticIpam)
}

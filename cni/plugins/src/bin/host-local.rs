//! The CNI plugin `host-local`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_host_local::HostLocal)
}

//! The CNI plugin `ptp`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::ptp::Ptp)
}

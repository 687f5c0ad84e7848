//! The CNI plugin `tuning`.

fn main() -> std::process::ExitCode {
    podplane_cni::skel::main(&podplane_cni_plugins::tuning::Tuning)
}

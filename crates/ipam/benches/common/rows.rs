//! Shared code of the benches. Rows are arguments; each prints one line of JSON: its name and the
//! measurements. `cargo xtask bench ipam` knows the targets.

use std::process::ExitCode;

use podplane_ipam::{ClusterRange, Owner, RangeConfig};

/// The name of a row and the function that measures it.
pub(crate) type MeasuredRow = (&'static str, fn() -> Vec<f64>);

/// Measures the named rows, or all.
#[expect(clippy::print_stdout, reason = "output of the program")]
pub(crate) fn measure(rows: &[MeasuredRow]) -> ExitCode {
    // cargo adds `--bench`.
    let args = std::env::args().skip(1);
    let wanted: Vec<String> = args.filter(|arg| !arg.starts_with("--")).collect();
    for (row, measure) in rows {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == row) {
            println!(
                "{}",
                serde_json::json!({"line": row, "ours": measure(), "theirs": []})
            );
        }
    }
    ExitCode::SUCCESS
}

pub(crate) fn cluster(cidrs: &[(&str, u8)]) -> RangeConfig {
    let range = |(cidr, mask): &(&str, u8)| {
        ClusterRange::new(cidr.parse().expect("a prefix"), *mask).expect("a range")
    };
    RangeConfig {
        ranges: cidrs.iter().map(range).collect(),
        service_ranges: Vec::new(),
        notices: Vec::new(),
    }
}

/// A node with a UID as the API server generates it: random except for the version and variant
/// bits.
pub(crate) fn owner(number: u32) -> Owner {
    let mut bits = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    bits ^= bits >> 71;
    let uid = uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid();
    Owner::new(&uid.to_string(), &format!("worker-{number:06}"))
}

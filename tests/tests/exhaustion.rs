//! `podplane demo exhaustion`. Story A itself, with every policy and mask, is in
//! `tests/scenarios/a`.

use podplane_tests::{
    Network, peers,
    programs::{finish, podplane},
};

fn demo(network: Network, mask: u8, policy: &str, claim: &str) {
    if network == Network::Kernel && !peers::root() {
        return;
    }
    let (mask, network) = (mask.to_string(), network.as_str());
    let args = [
        "demo",
        "exhaustion",
        "--node-cidr-mask-size",
        &mask,
        "--ip-policy",
        policy,
        "--network",
        network,
    ];
    let told = finish(&mut podplane(args)).ok();
    assert!(told.contains("all claims hold"), "{told}");
    assert!(told.contains(&format!("✓ {claim}")), "{claim} in {told}");
    // The table has all pods, and those with an address.
    let pods = told
        .lines()
        .filter(|line| line.starts_with("  web-"))
        .count();
    assert_eq!(pods, 8, "{told}");
}

#[test]
fn the_demo_uses_the_ranges_of_its_flags() {
    let flags = [
        "--cluster-cidr",
        "10.77.0.0/24",
        "--service-cluster-ip-range",
        "10.78.0.0/24",
        "--network",
        "ledger",
        "--node-cidr-mask-size",
        "29",
    ];
    let told = finish(podplane(["demo", "exhaustion"]).args(flags)).ok();
    assert!(told.contains("10.77.0."), "{told}");
}

macro_rules! demos {
    ($($name:ident: $network:ident, $mask:literal, $policy:literal, $claim:literal;)*) => {
        $(#[test] fn $name() { demo(Network::$network, $mask, $policy, $claim); })*
    };
}

demos! {
    off_30_kernel: Kernel, 30, "off", "all are bound to the node; the sandboxes of 8 fail there";
    pod_cidr_29_ledger: Ledger, 29, "pod-cidr", "6 wait, and are told that there are too many pods";
    resource_30_kernel: Kernel, 30, "resource", "exactly one pod that waited runs in its stead";
    resource_29_ledger: Ledger, 29, "resource", "4 wait, and are told that an address is missing";
}

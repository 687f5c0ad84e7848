//! `podplane demo exhaustion`. Story A itself, with every policy and mask, is in
//! `tests/scenarios/a`.

use podplane_tests::{
    Network, peers,
    programs::{finish, podplane},
};

fn demo(network: Network, mask: u8, policy: &str) {
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
    finish(&mut podplane(args)).ok();
}

#[test]
fn the_demo_uses_the_ranges_of_its_flags() {
    let flags = [
        "--cluster-cidr",
        "10.77.0.0/24",
        "--service-cidr",
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
    ($($name:ident: $network:ident, $mask:literal, $policy:literal;)*) => {
        $(#[test] fn $name() { demo(Network::$network, $mask, $policy); })*
    };
}

demos! {
    off_30_kernel: Kernel, 30, "off";
    pod_cidr_29_ledger: Ledger, 29, "pod-cidr";
    resource_30_kernel: Kernel, 30, "resource";
    resource_29_ledger: Ledger, 29, "resource";
}

//! Which network a dump is taken for, and that a repair of podCIDRs is refused for the others.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs::File, path::Path};

use podplane_audit::{Collector, Dump, Expected, Flags, IpamChoice, Keep, Repair, Severity, audit};

fn read(name: &str, flags: &Flags) -> Dump {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut collector = Collector::new(Keep::Nodes);
    collector
        .read(File::open(data.join(name)).unwrap())
        .unwrap();
    collector.finish(flags)
}

fn flags() -> Flags {
    Flags {
        cluster_cidr: Some("10.244.0.0/16".into()),
        node_cidr_mask_size: Some(24),
        ..Flags::default()
    }
}

/// The refusal, or nothing.
fn refusal(dump: &Dump, flags: &Flags) -> Option<String> {
    let expected = Expected::new(flags, dump).unwrap();
    let report = audit(dump, &expected);
    let repair = Repair::new(dump, &expected, &report, Severity::Info);
    repair.err().map(|error| error.to_string())
}

#[test]
fn names_the_network_and_refuses_repairs_that_do_not_fit() {
    for (file, name, reason) in [
        (
            "clean.yaml",
            "podCIDR",
            "1 of 1 pod addresses lie in the podCIDRs of their nodes",
        ),
        (
            "networks/cilium-kubernetes.yaml",
            "podCIDR",
            "2 of 2 pod addresses",
        ),
        (
            "networks/whereabouts.yaml",
            "podCIDR",
            "3 of 3 pod addresses",
        ),
        (
            "networks/virtual-kubelet.yaml",
            "podCIDR",
            "1 of 1 pod addresses lie in the podCIDRs of their nodes; rules on blocks leave out 2 virtual nodes",
        ),
    ] {
        for file in [file, &file.replace(".yaml", "-faults.yaml")] {
            if file == "clean-faults.yaml" {
                continue;
            }
            let dump = read(file, &flags());
            assert_eq!(dump.network().name, name, "{file}");
            assert!(dump.network().uses_pod_cidr(), "{file}");
            assert_eq!(refusal(&dump, &flags()), None, "{file}");
        }
        let found = read(file, &flags()).network().reason.clone();
        assert!(found.starts_with(reason), "{file}: {found}");
    }
    for (file, name) in [
        ("networks/eks.yaml", "Amazon VPC CNI"),
        ("networks/aks.yaml", "Azure CNI"),
        ("networks/aks-overlay.yaml", "Azure CNI (overlay)"),
        ("networks/aks-flat.yaml", "own addresses"),
        ("networks/cilium-cluster-pool.yaml", "Cilium (cluster-pool)"),
        ("networks/cilium-multi-pool.yaml", "Cilium (multi-pool)"),
        ("networks/calico.yaml", "Calico"),
        ("networks/calico-no-crds.yaml", "Calico"),
        ("networks/ovn.yaml", "OVN-Kubernetes"),
        ("networks/gke.yaml", "podCIDR (ranges of GKE instances)"),
    ] {
        for file in [file, &file.replace(".yaml", "-faults.yaml")] {
            if matches!(
                file,
                "networks/aks-flat-faults.yaml" | "networks/calico-no-crds-faults.yaml"
            ) {
                continue;
            }
            let flags = Flags::default();
            let dump = read(file, &flags);
            assert_eq!(dump.network().name, name, "{file}: {:?}", dump.network());
            assert!(refusal(&dump, &flags).is_some(), "{file}");
        }
    }
}

#[test]
fn refusals_say_why() {
    let of = |file| refusal(&read(file, &Flags::default()), &Flags::default()).unwrap();
    let calico = of("networks/calico.yaml");
    assert!(
        calico.contains("(Calico) does not take pod addresses from them: 4 of 4 pod addresses lie in blocks that IPAMBlocks record"),
        "{calico}"
    );
    let gke = of("networks/gke.yaml");
    assert!(gke.contains("ranges of their instances"), "{gke}");
}

#[test]
fn the_flag_overrides_the_detection() {
    for (choice, name) in [
        (IpamChoice::PodCidr, "podCIDR"),
        (IpamChoice::Own, "own addresses"),
    ] {
        let flags = Flags {
            ipam: Some(choice),
            ..flags()
        };
        let dump = read("networks/calico.yaml", &flags);
        assert_eq!(dump.network().name, name);
        assert_eq!(refusal(&dump, &flags).is_some(), choice == IpamChoice::Own);
    }
}

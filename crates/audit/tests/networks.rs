//! Detection of the network of a dump, and refusal to repair podCIDRs of networks that do not use
//! them.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{fs::File, path::Path};

use podplane_audit::{
    ControllerFlags, Dump, DumpCollector, DumpScope, ExpectedBlocks, IpamChoice, Repair, Severity,
    audit,
};

fn read(name: &str, flags: &ControllerFlags) -> Dump {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut collector = DumpCollector::new(DumpScope::Nodes);
    collector
        .read(File::open(data.join(name)).unwrap())
        .unwrap();
    collector.finish(flags)
}

fn flags() -> ControllerFlags {
    ControllerFlags {
        cluster_cidr: Some("10.244.0.0/16".into()),
        node_cidr_mask_size: Some(24),
        ..ControllerFlags::default()
    }
}

/// The refusal, or `None`.
fn refusal(dump: &Dump, flags: &ControllerFlags) -> Option<String> {
    let expected = ExpectedBlocks::new(flags, dump).unwrap();
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
            "1 of 1 pod addresses lie in the podCIDRs of their nodes; rules on blocks leave out",
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
        ("networks/aks-flat.yaml", "addresses of an Azure network"),
        ("networks/cilium-cluster-pool.yaml", "Cilium (cluster-pool)"),
        ("networks/cilium-multi-pool.yaml", "Cilium (multi-pool)"),
        ("networks/calico.yaml", "Calico"),
        ("networks/calico-no-crds.yaml", "Calico"),
        ("networks/ovn.yaml", "OVN-Kubernetes"),
        ("networks/gke.yaml", "podCIDR (ranges of GKE instances)"),
        (
            "networks/cilium-eni.yaml",
            "Cilium (addresses of the cloud)",
        ),
        ("networks/aks-blocks.yaml", "Azure CNI (blocks)"),
        ("networks/cilium-blocks.yaml", "Cilium (cluster-pool)"),
        ("networks/eks-hybrid.yaml", "Cilium (cluster-pool)"),
        ("networks/eks-hybrid-calico.yaml", "Calico"),
    ] {
        for file in [file, &file.replace(".yaml", "-faults.yaml")] {
            if matches!(
                file,
                "networks/aks-flat-faults.yaml" | "networks/calico-no-crds-faults.yaml"
            ) {
                continue;
            }
            let flags = ControllerFlags::default();
            let dump = read(file, &flags);
            assert_eq!(dump.network().name, name, "{file}: {:?}", dump.network());
            assert!(refusal(&dump, &flags).is_some(), "{file}");
        }
    }
}

#[test]
fn refusals_name_the_reason() {
    let of = |file| {
        refusal(
            &read(file, &ControllerFlags::default()),
            &ControllerFlags::default(),
        )
        .unwrap()
    };
    let calico = of("networks/calico.yaml");
    assert!(
        calico.contains("(Calico) does not take pod addresses from them: 4 of 4 pod addresses lie in blocks that IPAMBlocks record"),
        "{calico}"
    );
    let gke = of("networks/gke.yaml");
    assert!(gke.contains("ranges of their instances"), "{gke}");
}

/// The name, the evidence and the refusal of a repair.
fn detected(file: &str, cluster_cidr: &str) -> (String, String, Option<String>) {
    let flags = ControllerFlags {
        cluster_cidr: Some(cluster_cidr.into()),
        ..flags()
    };
    let dump = read(file, &flags);
    let network = dump.network();
    let refusal = refusal(&dump, &flags);
    (network.name.clone(), network.reason.clone(), refusal)
}

#[test]
fn a_cluster_cidr_is_not_evidence_for_pod_cidrs() {
    for (file, cluster_cidr, name, reason) in [
        (
            "networks/aks-flat-range.yaml",
            "10.224.0.0/16",
            "addresses of an Azure network",
            "no node has a podCIDR, and pods have 3 addresses",
        ),
        (
            "networks/by-chance.yaml",
            "10.100.0.0/16",
            "own addresses",
            "1 of 4 pod addresses lie in the podCIDRs of their nodes",
        ),
        (
            "networks/same-range.yaml",
            "10.244.0.0/16",
            "Cilium",
            "2 of 4 pod addresses lie in the podCIDRs of their nodes",
        ),
    ] {
        let (found, why, refusal) = detected(file, cluster_cidr);
        assert_eq!((found.as_str(), why.as_str()), (name, reason), "{file}");
        let refusal = refusal.unwrap_or_default();
        assert!(refusal.contains("does not take pod addresses"), "{refusal}");
    }
}

#[test]
fn refuses_a_repair_of_several_networks_and_of_one_that_is_not_sure() {
    let (name, reason, refusal) = detected("networks/migration.yaml", "10.244.0.0/16");
    assert_eq!(name, "podCIDR");
    assert_eq!(
        reason,
        "3 of 5 pod addresses lie in the podCIDRs of their nodes; 1 of 4 nodes has another network (Cilium)"
    );
    assert!(refusal.unwrap().contains("not the only one of the cluster"));

    let (name, reason, refusal) = detected("pods.json", "10.244.0.0/16");
    assert_eq!(name, "podCIDR");
    assert_eq!(
        reason,
        "2 of 4 pod addresses lie in the podCIDRs of their nodes, too few to be sure"
    );
    assert!(refusal.unwrap().contains("may not take pod addresses"));
}

#[test]
fn the_flag_overrides_the_detection() {
    for (choice, name) in [
        (IpamChoice::PodCidr, "podCIDR"),
        (IpamChoice::Own, "own addresses"),
    ] {
        let flags = ControllerFlags {
            ipam: Some(choice),
            ..flags()
        };
        let dump = read("networks/calico.yaml", &flags);
        assert_eq!(dump.network().name, name);
        assert_eq!(refusal(&dump, &flags).is_some(), choice == IpamChoice::Own);
    }
}

//! Nodes that are in another network than most of the cluster.
//!
//! Hybrid nodes of EKS run Cilium or Calico beside EC2 instances with the VPC's addresses; a
//! cluster that is migrated node by node has both networks for days. The rules of one network say
//! nothing of the nodes of another.

use std::collections::{BTreeMap, BTreeSet};

use super::{BlockPlace, Evidence, Marker, NetworkKind, System};
use crate::dump::DumpedNode;

/// The network of each node that is in another one than `network`.
pub(super) fn others(
    evidence: &Evidence,
    network: &NetworkKind,
    nodes: &[DumpedNode],
) -> BTreeMap<String, BlockPlace> {
    let main = network.ipam;
    if main == BlockPlace::Own {
        return BTreeMap::new();
    }
    let machines = || nodes.iter().filter(|node| !node.is_virtual);
    let is_covered = |node: &DumpedNode| match main {
        BlockPlace::PodCidr => !node.pod_cidr_claims().is_empty() || !node.pod_ranges.is_empty(),
        _ => evidence.covers(main, &node.name),
    };
    let covered: Vec<&DumpedNode> = machines().filter(|node| is_covered(node)).collect();
    let has_records = main != BlockPlace::PodCidr;
    let is_minority = has_records && covered.len() * 2 < machines().count();
    let clouds: BTreeSet<Marker> = covered
        .iter()
        .flat_map(|node| evidence.markers_of(&node.name))
        .filter(|marker| marker.is_cloud())
        .collect();
    let is_foreign = |node: &DumpedNode| {
        let mut markers = evidence.markers_of(&node.name);
        (is_minority && evidence.has_addresses(&node.name))
            || markers.any(|marker| match marker {
                Marker::VpcCni | Marker::KubeOvn | Marker::Weave => true,
                Marker::AzureCni => has_records && !is_of_azure(main),
                Marker::Aws | Marker::Azure => {
                    has_records && !covered.is_empty() && !clouds.contains(&marker)
                }
                _ => false,
            })
    };
    let mut others = BTreeMap::new();
    for node in machines() {
        if evidence.explains_any(main, &node.name) {
            continue;
        }
        if let Some(ipam) = evidence.explanation_of_all(&node.name) {
            others.insert(node.name.clone(), ipam);
        } else if !is_covered(node) && is_foreign(node) {
            others.insert(node.name.clone(), BlockPlace::Own);
        }
    }
    others
}

const fn is_of_azure(ipam: BlockPlace) -> bool {
    matches!(
        ipam,
        BlockPlace::NodeBlocks(System::Azure) | BlockPlace::NodeAddresses(System::Azure)
    )
}

/// The nodes of other networks, for people: `3 of 5 nodes have another network (Amazon VPC CNI)`.
pub(super) fn described(
    others: &BTreeMap<String, BlockPlace>,
    evidence: &Evidence,
    machines: usize,
) -> String {
    let mut names = BTreeSet::new();
    for (node, ipam) in others {
        let own = || {
            let mut markers = evidence.markers_of(node);
            let marker = markers.find(|marker| marker.never_uses_pod_cidr());
            marker.map_or("own addresses", Marker::name)
        };
        names.insert(match ipam {
            BlockPlace::PodCidr => "podCIDR",
            BlockPlace::NodeBlocks(system) | BlockPlace::NodeAddresses(system) => system.name(),
            BlockPlace::SharedBlocks => System::Calico.name(),
            BlockPlace::Own => own(),
        });
    }
    let names: Vec<_> = names.into_iter().collect();
    format!(
        "{} of {machines} nodes {} another network ({})",
        others.len(),
        if others.len() == 1 { "has" } else { "have" },
        names.join(", ")
    )
}

//! The network of the cluster: where it keeps the blocks of nodes, and so which rules apply.
//!
//! A dump does not name its network. [`Network::detect`] goes by where the addresses of live pods
//! lie: in podCIDRs, in blocks or addresses that a network has recorded, or in none of these.

mod evidence;

use podplane_ipam::audit::PodKey;
use serde::Serialize;

use crate::{
    dump::Node,
    finding::Code,
    records::{Records, System},
};

pub(crate) use evidence::Evidence;

/// Source of pods' addresses, as the user states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpamChoice {
    /// Blocks in `spec.podCIDRs` of nodes.
    PodCidr,
    /// Anything else: no rule on blocks of nodes applies.
    Own,
}

/// Place of the blocks of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipam {
    /// In `spec.podCIDRs` of nodes.
    PodCidr,
    /// In records of the nodes.
    NodeBlocks(System),
    /// In blocks that several nodes may take addresses from.
    SharedBlocks,
    /// Nowhere: nodes have single addresses.
    NodeAddresses(System),
    /// Unknown, but not in podCIDRs.
    Own,
}

/// The network of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Network {
    /// Its name, for people.
    pub name: String,
    /// The evidence for it, in one sentence.
    pub reason: String,
    #[serde(skip)]
    pub(crate) ipam: Ipam,
    /// Set if nodes get further blocks when theirs are full.
    #[serde(skip)]
    pub(crate) grows: bool,
    /// Set if podCIDRs are ranges of cloud instances, which only the cloud can change.
    #[serde(skip)]
    pub(crate) is_of_cloud: bool,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            name: "podCIDR".into(),
            reason: String::new(),
            ipam: Ipam::PodCidr,
            grows: false,
            is_of_cloud: false,
        }
    }
}

/// Software that is recognised by what it leaves in Nodes and Pods; the first that is there names
/// the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Marker {
    Cilium,
    Calico,
    OvnKubernetes,
    KubeOvn,
    Weave,
    Antrea,
    AzureCni,
    VpcCni,
    Aws,
}

impl Marker {
    /// Prefixes of the names of DaemonSet pods.
    const AGENTS: [(&str, Self); 8] = [
        ("cilium-", Self::Cilium),
        ("calico-node-", Self::Calico),
        ("ovnkube-node-", Self::OvnKubernetes),
        ("kube-ovn-cni-", Self::KubeOvn),
        ("weave-net-", Self::Weave),
        ("antrea-agent-", Self::Antrea),
        ("azure-cns-", Self::AzureCni),
        ("aws-node-", Self::VpcCni),
    ];

    /// The network whose agent the pod is.
    pub(crate) fn of_agent(pod: &PodKey) -> Option<Self> {
        let found = Self::AGENTS
            .iter()
            .find(|(prefix, _)| pod.name.starts_with(prefix));
        found.map(|(_, marker)| *marker)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Cilium => "Cilium",
            Self::Calico => "Calico",
            Self::OvnKubernetes => "OVN-Kubernetes",
            Self::KubeOvn => "Kube-OVN",
            Self::Weave => "Weave Net",
            Self::Antrea => "Antrea",
            Self::AzureCni => "Azure CNI",
            Self::VpcCni => "Amazon VPC CNI",
            Self::Aws => "addresses of an AWS VPC",
        }
    }

    /// True for networks that always have addresses of their own.
    const fn never_uses_pod_cidr(self) -> bool {
        matches!(self, Self::VpcCni | Self::KubeOvn | Self::Weave | Self::Aws)
    }
}

impl System {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cilium => "Cilium",
            Self::Calico => "Calico",
            Self::Ovn => "OVN-Kubernetes",
            Self::Azure => "Azure CNI",
            Self::Aws => "Amazon VPC CNI",
            Self::Whereabouts => "Whereabouts",
        }
    }

    /// The objects in which it records the blocks of nodes.
    const fn place(self) -> &'static str {
        match self {
            Self::Cilium => "CiliumNodes",
            Self::Calico => "IPAMBlocks",
            Self::Ovn => "annotations k8s.ovn.org/node-subnets",
            Self::Azure => "NodeNetworkConfigs",
            Self::Aws => "CNINodes",
            Self::Whereabouts => "Whereabouts' IPPools",
        }
    }
}

impl Network {
    /// The network whose blocks explain most addresses of live pods.
    pub(crate) fn detect(
        evidence: &Evidence,
        nodes: &[Node],
        records: &Records,
        choice: Option<IpamChoice>,
    ) -> Self {
        let network = match choice {
            Some(IpamChoice::PodCidr) => Self::chosen(Ipam::PodCidr, "pod-cidr"),
            Some(IpamChoice::Own) => Self::chosen(Ipam::Own, "own"),
            None => Self::from_records(evidence, records)
                .unwrap_or_else(|| Self::from_addresses(evidence)),
        };
        let is_gke = nodes.iter().any(|node| node.is_gke);
        let virtual_nodes = nodes.iter().filter(|node| node.is_virtual).count();
        let mut network = Self {
            is_of_cloud: is_gke && network.ipam == Ipam::PodCidr,
            ..network
        };
        if network.is_of_cloud {
            network.name = "podCIDR (ranges of GKE instances)".into();
        }
        if virtual_nodes > 0 {
            let nodes = if virtual_nodes == 1 { "node" } else { "nodes" };
            network.reason = format!(
                "{}; rules on blocks leave out {virtual_nodes} virtual {nodes}",
                network.reason
            );
        }
        network
    }

    fn chosen(ipam: Ipam, flag: &str) -> Self {
        let name = match ipam {
            Ipam::PodCidr => "podCIDR",
            _ => "own addresses",
        };
        Self {
            name: name.into(),
            reason: format!("--ipam {flag} says so"),
            ipam,
            ..Self::default()
        }
    }

    /// The network with the records that explain most addresses, unless podCIDRs explain more.
    fn from_records(evidence: &Evidence, records: &Records) -> Option<Self> {
        let (ipam, explained) = evidence.best_records()?;
        // A few pods with wrong addresses must not hide whose records these are.
        const FEW: usize = 3;
        if explained < evidence.in_pod_cidr || (explained == 0 && evidence.total >= FEW) {
            return None;
        }
        let total = evidence.total;
        let (system, what) = match ipam {
            Ipam::NodeBlocks(system) => (system, "blocks of their nodes"),
            Ipam::NodeAddresses(system) => (system, "addresses of their nodes"),
            _ => (System::Calico, "blocks"),
        };
        let has_pools = records
            .blocks
            .iter()
            .any(|block| block.system == system && block.pool.is_some());
        let name = match ipam {
            Ipam::NodeBlocks(System::Cilium) if has_pools => "Cilium (multi-pool)".into(),
            Ipam::NodeBlocks(System::Cilium) => "Cilium (cluster-pool)".into(),
            Ipam::NodeAddresses(System::Cilium) => "Cilium (addresses of the cloud)".into(),
            Ipam::NodeBlocks(System::Azure) => "Azure CNI (overlay)".into(),
            _ => system.name().to_owned(),
        };
        let place = system.place();
        let reason = match total {
            0 => format!("the input has {place} with {what}, and no pod has an address"),
            _ => format!("{explained} of {total} pod addresses lie in {what} that {place} record"),
        };
        Some(Self {
            name,
            reason,
            ipam,
            grows: has_pools,
            is_of_cloud: false,
        })
    }

    /// Without records: podCIDR, unless most addresses lie elsewhere.
    fn from_addresses(evidence: &Evidence) -> Self {
        let Evidence {
            total,
            in_pod_cidr,
            elsewhere,
            with_pod_cidr,
            ..
        } = evidence;
        let marker = evidence.markers.first().copied();
        let is_own = match marker {
            Some(marker) if *total == 0 => marker.never_uses_pod_cidr() && *with_pod_cidr == 0,
            // That machines are of AWS says nothing of their network.
            Some(Marker::Aws) | None => *in_pod_cidr == 0 && elsewhere * 2 > *total,
            Some(_) => in_pod_cidr * 2 < *total,
        };
        let reason = match (total, with_pod_cidr) {
            (0, 0) => "no pod has an address, and no node has a podCIDR".to_owned(),
            (0, nodes) => format!("{nodes} nodes have a podCIDR, and no pod has an address"),
            _ => {
                format!("{in_pod_cidr} of {total} pod addresses lie in the podCIDRs of their nodes")
            }
        };
        if is_own {
            let name = marker.map_or("own addresses", Marker::name);
            return Self {
                name: name.into(),
                reason,
                ipam: Ipam::Own,
                ..Self::default()
            };
        }
        Self {
            reason,
            ..Self::default()
        }
    }

    /// True if the blocks of nodes are their podCIDRs.
    #[must_use]
    pub fn uses_pod_cidr(&self) -> bool {
        self.ipam == Ipam::PodCidr
    }

    /// The object that has a node's block.
    pub(crate) fn holder(&self, node: &str) -> String {
        match self.ipam {
            Ipam::NodeBlocks(System::Cilium) => format!("CiliumNode/{node}"),
            Ipam::NodeBlocks(System::Azure) => format!("NodeNetworkConfig/{node}"),
            _ => format!("Node/{node}"),
        }
    }

    /// The reason for which a rule does not apply; `None` if it does.
    pub(crate) fn excludes(&self, code: Code) -> Option<String> {
        use Code::{
            ForeignPodCidr, IpCapacity, MissingPodCidr, PodCidrMismatch, PodOutsideBlock,
            ServiceRangeOverlap, WrongFamilyPodCidr, WrongSizePodCidr,
        };
        let has_node_blocks = matches!(self.ipam, Ipam::PodCidr | Ipam::NodeBlocks(_));
        let has_blocks = has_node_blocks || self.ipam == Ipam::SharedBlocks;
        let applies = match code {
            PodCidrMismatch => self.uses_pod_cidr(),
            MissingPodCidr => has_node_blocks,
            WrongSizePodCidr | WrongFamilyPodCidr | IpCapacity => has_node_blocks && !self.grows,
            ForeignPodCidr | ServiceRangeOverlap => has_blocks,
            PodOutsideBlock => self.ipam != Ipam::Own,
            _ => true,
        };
        (!applies).then(|| {
            let why = if !has_node_blocks {
                "nodes have no blocks of their own"
            } else if self.uses_pod_cidr() || code == PodCidrMismatch {
                "it does not use podCIDRs"
            } else {
                "nodes get further blocks when they need them"
            };
            format!("off: {}: {why}", self.name)
        })
    }

    /// Advice on giving a node another block.
    pub(crate) fn another_block(&self) -> &'static str {
        match self.ipam {
            Ipam::PodCidr if self.is_of_cloud => {
                "replace the instance of one of the nodes: its block is a range of the instance, and a Node object with another block would not move it"
            }
            Ipam::NodeBlocks(System::Cilium) => {
                "drain one of the nodes, delete its CiliumNode, and restart the Cilium agent there: the operator gives it another block"
            }
            Ipam::NodeBlocks(System::Ovn) => {
                "drain one of the nodes, delete its Node object, and restart its kubelet and ovnkube-node: it is given another subnet"
            }
            Ipam::NodeBlocks(System::Azure) => {
                "drain one of the nodes and replace its instance: Azure gives it another block"
            }
            Ipam::NodeBlocks(_) | Ipam::SharedBlocks | Ipam::NodeAddresses(_) | Ipam::Own => {
                "drain one of the nodes, and change the configuration of its IPAM plugin"
            }
            Ipam::PodCidr => "give the node another block: --repair DIR writes how",
        }
    }

    /// The reason for which no repair can be written; `None` if one can.
    pub(crate) fn refuses_repair(&self) -> Option<String> {
        if self.is_of_cloud {
            return Some(
                "podCIDRs of GKE nodes are ranges of their instances: a Node object with another block would not move them. Replace the node's instance instead"
                    .into(),
            );
        }
        (!self.uses_pod_cidr()).then(|| {
            format!(
                "a repair gives nodes other podCIDRs, and this network ({}) does not take pod addresses from them: {}. The findings say what to do; --ipam pod-cidr overrides the detection",
                self.name, self.reason
            )
        })
    }
}

//! Software that is recognised by what it leaves in Nodes and Pods.

use podplane_ipam::invariants::PodKey;

use crate::{
    dump::POD_IPS,
    item::{LenientValue, RawObject},
};

/// Software of a network; the first of a cluster names its network.
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
    Azure,
    Flannel,
    Podplane,
}

impl Marker {
    /// Prefixes of the names of DaemonSet pods.
    const AGENTS: [(&str, Self); 9] = [
        ("cilium-", Self::Cilium),
        ("calico-node-", Self::Calico),
        ("ovnkube-node-", Self::OvnKubernetes),
        ("kube-ovn-cni-", Self::KubeOvn),
        ("weave-net-", Self::Weave),
        ("antrea-agent-", Self::Antrea),
        ("azure-cns-", Self::AzureCni),
        ("aws-node-", Self::VpcCni),
        ("kube-flannel-", Self::Flannel),
    ];

    /// The network whose agent the pod is.
    pub(crate) fn of_agent(pod: &PodKey) -> Option<Self> {
        let found = Self::AGENTS
            .iter()
            .find(|(prefix, _)| pod.name.starts_with(prefix));
        found.map(|(_, marker)| *marker)
    }

    /// The software that has left something in a Node.
    pub(crate) fn of_node(item: &RawObject<'_>) -> impl Iterator<Item = Self> {
        let LenientValue(annotations) = &item.metadata.0.annotations;
        let LenientValue(status) = &item.status;
        let provider = item.spec.0.provider_id.as_str();
        let has_pod_ips = status.capacity.0.0.contains_key(POD_IPS);
        let marked = [
            (annotations.calico_address.is_set(), Self::Calico),
            (annotations.cilium_host.is_set(), Self::Cilium),
            (annotations.kube_ovn_allocated.is_set(), Self::KubeOvn),
            (annotations.flannel_address.is_set(), Self::Flannel),
            (provider.starts_with("aws://"), Self::Aws),
            (provider.starts_with("azure://"), Self::Azure),
            (has_pod_ips, Self::Podplane),
        ];
        let set = marked.into_iter().filter(|(is_set, _)| *is_set);
        set.map(|(_, marker)| marker)
    }

    pub(super) const fn name(self) -> &'static str {
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
            Self::Azure => "addresses of an Azure network",
            Self::Flannel => "flannel",
            Self::Podplane => "podplane",
        }
    }

    /// True for a cloud whose machines may have any network.
    pub(super) const fn is_cloud(self) -> bool {
        matches!(self, Self::Aws | Self::Azure)
    }

    /// True for software that takes addresses of podCIDRs and of nothing else.
    pub(super) const fn always_uses_pod_cidr(self) -> bool {
        matches!(self, Self::Flannel | Self::Podplane)
    }

    /// True for networks that always have addresses of their own.
    pub(super) const fn never_uses_pod_cidr(self) -> bool {
        matches!(self, Self::VpcCni | Self::KubeOvn | Self::Weave) || self.is_cloud()
    }
}

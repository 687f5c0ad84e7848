//! The flags about pod addresses.

use podplane_ipam::IpPolicy;

use super::PodIpResource;

/// The flags about pod addresses, which the API server, the scheduler and the kubelets have in
/// common.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct PodIpFlags {
    /// Limit the pods of a node by its pod addresses
    ///
    /// With resource the scheduler and the API server count the addresses that nodes report. With
    /// resource and pod-cidr the kubelet rejects a pod without hostNetwork for which no address is
    /// free, with OutOfpodIPs; with off it admits the pod, and its sandbox fails and is retried, as
    /// in Kubernetes.
    #[arg(
        long,
        env = "PODPLANE_IP_POLICY",
        value_enum,
        default_value_t,
        value_name = "POLICY"
    )]
    pub ip_policy: IpPolicy,

    /// Report and count pod addresses as this extended resource of nodes
    ///
    /// Each pod without hostNetwork needs one, or as many as it requests. The API server, the
    /// scheduler and the kubelets must have the same name.
    #[arg(
        long,
        env = "PODPLANE_POD_IP_RESOURCE",
        default_value_t,
        value_name = "NAME"
    )]
    pub pod_ip_resource: PodIpResource,
}

//! The plugins of the decision, each in a module with its rule.

use crate::{
    config::{IpPolicy, PlacementPolicy},
    framework::Plugin,
};

pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_balanced;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod pod_ips;
pub mod pod_topology_spread;
pub mod taint_toleration;
pub mod unsupported_fields;

#[cfg(test)]
mod tests;

/// The plugins in the reference's order, and ours after its resources.
pub(crate) fn all(policy: PlacementPolicy) -> Vec<Box<dyn Plugin>> {
    let PlacementPolicy {
        scheduler_name: _,
        ips,
        pod_ip_resource,
        pod_ips_weight,
        seed: _,
    } = policy;
    let mut plugins: Vec<Box<dyn Plugin>> = vec![
        Box::new(unsupported_fields::UnsupportedFields),
        Box::new(node_unschedulable::NodeUnschedulable),
        Box::new(node_name::NodeName),
        Box::new(taint_toleration::TaintToleration),
        Box::new(node_affinity::NodeAffinity),
        Box::new(node_ports::NodePorts),
        Box::new(node_resources_fit::Fit::new(ips, pod_ip_resource)),
    ];
    match ips {
        IpPolicy::Resource => plugins.push(Box::new(pod_ips::PodIps::new(pod_ips_weight))),
        IpPolicy::PodCidr | IpPolicy::Off => {}
    }
    plugins.push(Box::new(pod_topology_spread::PodTopologySpread));
    plugins.push(Box::new(inter_pod_affinity::InterPodAffinity));
    plugins.push(Box::new(node_resources_balanced::BalancedAllocation));
    plugins.push(Box::new(image_locality::ImageLocality));
    plugins
}

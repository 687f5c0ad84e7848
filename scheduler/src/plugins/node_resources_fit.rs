//! The node has the requested resources: a place for a pod, cpu, memory, storage, and extended
//! ones. The node with more of them left is better.

use std::borrow::Cow;

use podplane_api::pod_ips::PodIpResource;
use podplane_ipam::{parse_cidr, pool::kubenet_allowed_pods};

use crate::{
    config::IpPolicy,
    framework::{
        CycleInput, MAX_SCORE, NodeFilter, NodeScorer, NodeShortage, Plugin, PluginEvent,
        PreFilter, Refusal, Resolvability,
    },
    node::{NodeChange, NodeInfo},
    pod::PodInfo,
    remedy::Remedy,
    resources::{Resources, amount_text},
};

/// The plugin `NodeResourcesFit`.
#[derive(Debug)]
pub struct Fit {
    policy: IpPolicy,
    pod_ip_resource: PodIpResource,
}

impl Fit {
    /// With [`IpPolicy::PodCidr`] a node's block bounds the number of its pods. With
    /// [`IpPolicy::Resource`] another plugin counts the resource of pod addresses, for every pod.
    pub fn new(policy: IpPolicy, pod_ip_resource: PodIpResource) -> Self {
        Self {
            policy,
            pod_ip_resource,
        }
    }
}

// The bits of a refusal's code: one for each shortage.
const PODS: u64 = 1;
const CPU: u64 = 1 << 1;
const MEMORY: u64 = 1 << 2;
const EPHEMERAL_STORAGE: u64 = 1 << 3;
/// The place of the bit of the first extended resource. Those for which there is no bit share the
/// last one.
const FIRST_EXTENDED: usize = 4;

impl Plugin for Fit {
    fn name(&self) -> &'static str {
        "NodeResourcesFit"
    }

    fn pre_filter<'a>(&'a self, input: CycleInput<'a>) -> PreFilter<'a> {
        let is_counted =
            |name: &str| self.policy != IpPolicy::Resource || name != self.pod_ip_resource.as_str();
        let extended = input.pod.needs.requests.extended();
        PreFilter::Filter(Box::new(FitState {
            policy: self.policy,
            wanted: &input.pod.needs.requests,
            extended: extended.filter(|(name, _)| is_counted(name)).collect(),
        }))
    }

    fn pre_score<'a>(
        &'a self,
        input: CycleInput<'a>,
        _feasible: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScorer + 'a>> {
        Some(Box::new(LeastAllocated(&input.pod.needs.scoring_requests)))
    }

    fn weight(&self) -> i64 {
        1
    }

    /// Every pod that leaves makes room for another. A block that arrives never allows more pods
    /// than its absence did.
    fn heeds(&self, _pod: &PodInfo, event: &PluginEvent<'_>) -> bool {
        matches!(
            event,
            PluginEvent::NodeChanged(NodeChange::Allocatable) | PluginEvent::PodFreed(_)
        )
    }
}

#[derive(Debug)]
struct FitState<'a> {
    policy: IpPolicy,
    wanted: &'a Resources,
    extended: Vec<(&'a str, i64)>,
}

impl FitState<'_> {
    fn allowed_pods(&self, node: &NodeInfo) -> i64 {
        let allowed = node.allowed_pods();
        match self.policy {
            IpPolicy::Resource | IpPolicy::Off => allowed,
            IpPolicy::PodCidr => {
                // That policy uses `podCIDR` alone, the block of the node's first family.
                let block = node.pod_cidrs().first();
                let block = block.and_then(|cidr| parse_cidr(cidr).ok());
                let allowed = u64::try_from(allowed).unwrap_or(0);
                i64::try_from(kubenet_allowed_pods(block, allowed)).unwrap_or(i64::MAX)
            }
        }
    }
}

/// A resource of which a node has too little.
#[derive(Debug)]
struct Shortage<'a> {
    resource: &'a str,
    requested: i64,
    free: i64,
    allocatable: i64,
}

impl FitState<'_> {
    /// The resources, other than places for pods, of which the node has too little.
    fn shortages(&self, node: &NodeInfo) -> impl Iterator<Item = Shortage<'_>> {
        let native = ["cpu", "memory", "ephemeral-storage"];
        let native = native.map(|name| (name, self.wanted.get(name)));
        let wanted = native.into_iter().chain(self.extended.iter().copied());
        wanted.filter_map(|(resource, requested)| {
            let allocatable = node.allocatable.get(resource);
            let free = allocatable - node.pods().requested().get(resource);
            (requested > 0 && requested > free).then_some(Shortage {
                resource,
                requested,
                free,
                allocatable,
            })
        })
    }

    fn has_too_many_pods(&self, node: &NodeInfo) -> bool {
        let pods = i64::try_from(node.pods().len()).unwrap_or(i64::MAX);
        pods >= self.allowed_pods(node)
    }
}

impl NodeFilter for FitState<'_> {
    /// Reports all shortages, not only the first.
    fn filter(&self, node: &NodeInfo) -> Result<(), Refusal> {
        let (wanted, allocatable) = (self.wanted, &node.allocatable);
        let requested = node.pods().requested();
        let mut code = 0;
        let mut resolvable = Resolvability::ByPreemption;
        let mut check = |wanted: i64, allocatable: i64, requested: i64, bit: u64| {
            if wanted > 0 && wanted > allocatable - requested {
                code |= bit;
            }
            if wanted > allocatable {
                resolvable = Resolvability::Never;
            }
        };
        let (memory, storage) = (allocatable.memory, allocatable.ephemeral_storage);
        check(wanted.cpu, allocatable.cpu, requested.cpu, CPU);
        check(wanted.memory, memory, requested.memory, MEMORY);
        let used = requested.ephemeral_storage;
        check(wanted.ephemeral_storage, storage, used, EPHEMERAL_STORAGE);
        for (at, (name, wanted)) in self.extended.iter().enumerate() {
            let offered = allocatable.extended_amount(name);
            let used = requested.extended_amount(name);
            check(*wanted, offered, used, 1 << (FIRST_EXTENDED + at).min(63));
        }
        if self.has_too_many_pods(node) {
            code |= PODS;
        }
        match code {
            0 => Ok(()),
            code => Err(Refusal { code, resolvable }),
        }
    }

    fn reasons(&self, refusal: Refusal, _node: &NodeInfo) -> Vec<Cow<'static, str>> {
        let native = [
            (PODS, "Too many pods"),
            (CPU, "Insufficient cpu"),
            (MEMORY, "Insufficient memory"),
            (EPHEMERAL_STORAGE, "Insufficient ephemeral-storage"),
        ];
        let native = native.map(|(bit, text)| (bit, Cow::Borrowed(text)));
        let extended = self.extended.iter().enumerate().take(64 - FIRST_EXTENDED);
        let extended = extended.map(|(at, (name, _))| {
            let text = Cow::Owned(format!("Insufficient {name}"));
            (1 << (FIRST_EXTENDED + at), text)
        });
        let short = native.into_iter().chain(extended);
        let short = short.filter(|(bit, _)| refusal.code & bit != 0);
        short.map(|(_, text)| text).collect()
    }

    fn detail(&self, node: &NodeInfo) -> Option<NodeShortage> {
        let pods = self.has_too_many_pods(node).then(|| {
            let (pods, allowed) = (node.pods().len(), self.allowed_pods(node));
            format!("{pods} of {allowed} pods")
        });
        let short = self.shortages(node).map(|short| {
            let text = |amount: i64| amount_text(short.resource, amount);
            let (free, offered) = (text(short.free), text(short.allocatable));
            let (resource, requested) = (short.resource, text(short.requested));
            format!("{free} of {offered} {resource} free, {requested} requested")
        });
        let texts: Vec<_> = pods.into_iter().chain(short).collect();
        (!texts.is_empty()).then(|| NodeShortage {
            text: texts.join("; "),
            is_in_message: false,
        })
    }

    fn remedies(&self, node: &NodeInfo) -> Vec<Remedy> {
        let pods = self.has_too_many_pods(node).then(|| {
            Remedy::at_node(match self.allowed_pods(node) {
                0 => "allow pods (status.allocatable.pods) on",
                _ => "delete a pod on",
            })
        });
        let short = self.shortages(node).map(|short| Remedy::Request {
            resource: short.resource.to_owned(),
            requested: short.requested,
            free: short.free,
            allocatable: short.allocatable,
        });
        pods.into_iter().chain(short).collect()
    }
}

/// The free part of the node with the pod on it: the mean over cpu and memory of the free
/// percentage, each division an integer one as in the reference. A resource that the node does not
/// have is left out; an over-committed one counts 0.
#[derive(Debug)]
struct LeastAllocated<'a>(&'a Resources);

impl NodeScorer for LeastAllocated<'_> {
    fn score(&self, node: &NodeInfo) -> i64 {
        let (requested, offered) = (node.pods().scoring_requested(), &node.allocatable);
        let cpu = free_percentage(offered.cpu, requested.cpu + self.0.cpu);
        let memory = free_percentage(offered.memory, requested.memory + self.0.memory);
        match (cpu, memory) {
            (Some(cpu), Some(memory)) => (cpu + memory) / 2,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => 0,
        }
    }
}

/// The part of a capacity that is left beside `requested`; `None` without a capacity.
pub fn free_percentage(capacity: i64, requested: i64) -> Option<i64> {
    match capacity {
        0 => None,
        _ if requested > capacity => Some(0),
        _ => Some((capacity - requested) * MAX_SCORE / capacity),
    }
}

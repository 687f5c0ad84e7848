//! Single addresses that networks have allocated, compared with one another and with the pods.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
};

use podplane_ipam::invariants::{Pod, PodKey};

use super::{JoinedList, node as node_object, pod as pod_object};
use crate::{
    dump::Dump,
    finding::{Code, Finding, Severity},
    network::BlockPlace,
    prefixes::Prefixes,
    records::{
        AddressOwner, AllocationRecord, AttachmentRecord, CILIUM_INTERNAL, RESERVATION, System,
    },
};

pub(super) fn findings(dump: &Dump) -> Vec<Finding> {
    let index = AllocationIndex::new(dump);
    let mut findings = index.duplicates();
    let (wrong, wrong_addresses) = index.wrong_owners();
    findings.extend(wrong);
    findings.extend(index.leaks(&wrong_addresses));
    findings.extend(index.reservations());
    findings.extend(index.missing());
    findings.extend(index.shared_attachments());
    findings.extend(index.addresses_of_several_nodes());
    findings.extend(index.outside_node_addresses());
    findings
}

struct AllocationIndex<'a> {
    dump: &'a Dump,
    /// Addresses of pods that use the pods' network and are on a machine.
    live_addresses: Vec<(&'a Pod, IpAddr)>,
    /// Addresses on further networks, by pod.
    attachments: BTreeMap<&'a PodKey, Vec<IpAddr>>,
    /// The only namespace with pods in the input, if there is one: then nothing is known of others.
    only_namespace: Option<&'a str>,
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "pod {pod}"),
            Self::Node(node) => write!(f, "node {node}"),
            Self::Other(text) if text.is_empty() => f.write_str("an unknown owner"),
            Self::Other(text) => write!(f, "{text:?}"),
        }
    }
}

fn owner_object(owner: &AddressOwner) -> Option<String> {
    match owner {
        AddressOwner::Pod(pod) => Some(pod_object(pod)),
        AddressOwner::Node(node) => Some(node_object(node)),
        AddressOwner::Other(_) => None,
    }
}

/// A finding of an address without a user.
fn leaked(one: &AllocationRecord, message: String) -> Finding {
    Finding {
        prefixes: vec![one.ip.into()],
        code: Code::LeakedAllocation,
        severity: Severity::Warning,
        objects: vec![one.object.clone()],
        message,
        repair: release(one.system).into(),
    }
}

const fn release(system: System) -> &'static str {
    match system {
        System::Calico => {
            "check it with calicoctl ipam check, then free it: calicoctl ipam release --ip ADDRESS"
        }
        System::Whereabouts => {
            "run Whereabouts' reconciler (ip-reconciler), or remove the entry from the object"
        }
        System::Cilium => "restart the Cilium agent of the node, which writes the object again",
        System::Azure | System::Aws | System::Ovn => {
            "restart the network's agent on the node, which writes the object again"
        }
    }
}

impl<'a> AllocationIndex<'a> {
    fn new(dump: &'a Dump) -> Self {
        let mut attachments = BTreeMap::<&PodKey, Vec<IpAddr>>::new();
        for attachment in &dump.records.attachments {
            attachments
                .entry(&attachment.pod)
                .or_default()
                .push(attachment.ip);
        }
        let mut namespaces = dump.world.pods.iter().map(|pod| pod.namespace.as_str());
        let first = namespaces.next();
        let is_only = namespaces.all(|namespace| Some(namespace) == first);
        let pods = dump.world.pods.iter().filter(|pod| pod.uses_pod_network());
        let on_machines = pods.filter(|pod| {
            let node = pod.node.as_deref().and_then(|name| dump.node_named(name));
            node.is_some_and(|node| !node.is_virtual)
        });
        let live_addresses = on_machines.flat_map(|pod| pod.ips.iter().map(move |ip| (pod, *ip)));
        Self {
            dump,
            live_addresses: live_addresses.collect(),
            attachments,
            only_namespace: first.filter(|_| is_only),
        }
    }

    fn live_addresses(&self) -> impl Iterator<Item = (&'a Pod, IpAddr)> {
        self.live_addresses.iter().copied()
    }

    fn allocations(&self) -> &'a [AllocationRecord] {
        &self.dump.records.allocations
    }

    /// True if the owner is a live pod that reports the address.
    fn reports(&self, owner: &AddressOwner, ip: IpAddr) -> bool {
        let AddressOwner::Pod(key) = owner else {
            return false;
        };
        let pod = self.dump.pod_named(key);
        pod.is_some_and(|pod| pod.uses_pod_network() && pod.ips.contains(&ip))
    }

    /// One address that is allocated several times in one scope.
    fn duplicates(&self) -> Vec<Finding> {
        let same = |a: &AllocationRecord, b: &AllocationRecord| {
            (a.system, &a.scope, a.ip) == (b.system, &b.scope, b.ip)
        };
        let groups = self
            .allocations()
            .chunk_by(same)
            .filter(|group| group.len() > 1);
        // Pods that report one address have a finding already.
        let is_new = |group: &&[AllocationRecord]| {
            !group
                .iter()
                .all(|one| one.is_primary && self.reports(&one.owner, one.ip))
        };
        let finding = |group: &[AllocationRecord]| {
            let each: Vec<_> = group
                .iter()
                .map(|one| format!("{} for {}", one.object, one.owner))
                .collect();
            let objects = group.iter().map(|one| one.object.clone());
            let owners = group.iter().filter_map(|one| owner_object(&one.owner));
            let objects: BTreeSet<String> = objects.chain(owners).collect();
            Finding {
                prefixes: vec![group[0].ip.into()],
                code: Code::DuplicateAllocation,
                severity: Severity::Error,
                objects: objects.into_iter().collect(),
                message: format!(
                    "address {} is allocated {} times: {}",
                    group[0].ip,
                    group.len(),
                    JoinedList(&each)
                ),
                repair: "find out which of them uses the address, and delete the others' pods"
                    .into(),
            }
        };
        groups.filter(is_new).map(finding).collect()
    }

    /// Addresses of live pods that are allocated to others.
    fn wrong_owners(&self) -> (Vec<Finding>, BTreeSet<IpAddr>) {
        let is_main = |one: &&AllocationRecord| {
            one.is_primary
                && matches!(
                    one.scope.as_str(),
                    "IPAMBlock" | "CiliumNode" | CILIUM_INTERNAL
                )
        };
        let mut owners = BTreeMap::<IpAddr, Vec<&AllocationRecord>>::new();
        for allocation in self.allocations().iter().filter(is_main) {
            owners.entry(allocation.ip).or_default().push(allocation);
        }
        let (mut findings, mut addresses) = (Vec::new(), BTreeSet::new());
        for (pod, ip) in self.live_addresses() {
            let Some(records) = owners.get(&ip) else {
                continue;
            };
            let key = pod.key();
            let is_own = |one: &&AllocationRecord| match &one.owner {
                AddressOwner::Pod(owner) => *owner == key,
                AddressOwner::Node(_) => false,
                // An unknown owner is not a contradiction.
                AddressOwner::Other(_) => true,
            };
            if records.iter().any(is_own) || records.iter().any(|one| self.reports(&one.owner, ip))
            {
                continue;
            }
            addresses.insert(ip);
            let of = records[0];
            let objects: BTreeSet<String> = [of.object.clone(), pod_object(&key)]
                .into_iter()
                .chain(owner_object(&of.owner))
                .collect();
            findings.push(Finding {
                prefixes: vec![ip.into()],
                code: Code::DuplicateAllocation,
                severity: Severity::Error,
                objects: objects.into_iter().collect(),
                message: format!(
                    "address {ip} of pod {key} is allocated to {} in {}",
                    of.owner, of.object
                ),
                repair: "delete the pod, so that its owner makes another, which gets an address of its own"
                    .into(),
            });
        }
        (findings, addresses)
    }

    /// Addresses allocated to pods and nodes that do not exist or have other ones.
    fn leaks(&self, except: &BTreeSet<IpAddr>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for one in self.allocations() {
            let is_told_elsewhere = matches!(one.scope.as_str(), RESERVATION | CILIUM_INTERNAL)
                || (except.contains(&one.ip) && one.is_primary);
            if is_told_elsewhere {
                continue;
            }
            let Some(why) = self.leak(one) else { continue };
            let message = format!(
                "address {} in {} is kept for {}, {why}",
                one.ip, one.object, one.owner
            );
            findings.push(leaked(one, message));
        }
        findings
    }

    fn leak(&self, one: &AllocationRecord) -> Option<&'static str> {
        let key = match &one.owner {
            AddressOwner::Pod(key) => key,
            AddressOwner::Node(node) => {
                let is_gone = !self.dump.nodes.is_empty() && !self.dump.has_node(node);
                return is_gone.then_some("which does not exist");
            }
            AddressOwner::Other(_) => return None,
        };
        if self
            .only_namespace
            .is_some_and(|only| only != key.namespace)
        {
            return None;
        }
        let Some(pod) = self.dump.pod_named(key) else {
            return Some("which does not exist");
        };
        let further = self
            .attachments
            .get(key)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let known = match one.is_primary {
            true => &pod.ips[..],
            false => further,
        };
        // A pod that reports nothing yet may be about to get it; a finished one is being cleaned
        // up.
        let has = pod.ips.contains(&one.ip) || further.contains(&one.ip);
        // [`Self::missing`] reports an annotation that differs from the status.
        (!pod.released && !known.is_empty() && !has && one.system != System::Ovn)
            .then_some("which has other addresses")
    }

    /// Whereabouts' reservations that differ from its pools.
    fn reservations(&self) -> Vec<Finding> {
        let whereabouts = || {
            self.allocations()
                .iter()
                .filter(|one| one.system == System::Whereabouts)
        };
        let mut pooled = BTreeMap::<IpAddr, Vec<&AllocationRecord>>::new();
        for one in whereabouts().filter(|one| one.scope != RESERVATION) {
            pooled.entry(one.ip).or_default().push(one);
        }
        let has_pools = !self.dump.records.secondary_ranges.is_empty();
        let reserved = whereabouts()
            .filter(|one| one.scope == RESERVATION && (has_pools || self.leak(one).is_some()));
        let finding = |one: &AllocationRecord| match pooled.get(&one.ip) {
            None => {
                let why = self.leak(one).unwrap_or("and no pool has allocated it");
                let message = format!(
                    "{} reserves {} for {}, {why}",
                    one.object, one.ip, one.owner
                );
                Some(leaked(one, message))
            }
            Some(pools) if pools.iter().any(|pool| pool.owner == one.owner) => None,
            Some(pools) => {
                let mut objects = vec![one.object.clone(), pools[0].object.clone()];
                objects.extend(
                    [&one.owner, &pools[0].owner]
                        .into_iter()
                        .filter_map(owner_object),
                );
                objects.sort_unstable();
                Some(Finding {
                    prefixes: vec![one.ip.into()],
                    code: Code::DuplicateAllocation,
                    severity: Severity::Error,
                    objects,
                    message: format!(
                        "address {} is allocated to {} in {}, and reserved for {} in {}",
                        one.ip, pools[0].owner, pools[0].object, one.owner, one.object
                    ),
                    repair: "find out which pod uses the address, and delete the other".into(),
                })
            }
        };
        reserved.filter_map(finding).collect()
    }

    /// Addresses of live pods that the network may assign to others.
    fn missing(&self) -> Vec<Finding> {
        let mut findings = self.missing_in_blocks();
        findings.extend(self.missing_in_annotations());
        findings.extend(self.missing_in_ranges());
        findings
    }

    /// Returns whether the node has that network.
    fn is_in(&self, pod: &Pod, ipam: BlockPlace) -> bool {
        let node = pod.node.as_deref().unwrap_or_default();
        self.dump.network.ipam_of(node) == ipam
    }

    fn missing_in_blocks(&self) -> Vec<Finding> {
        let calico = || {
            self.dump
                .records
                .blocks
                .iter()
                .filter(|one| one.system == System::Calico)
        };
        let blocks = Prefixes::from_iter(calico().map(|one| one.block));
        let has_ipam_blocks = calico().any(|one| one.object.starts_with("IPAMBlock/"));
        let allocated: BTreeSet<IpAddr> = self.allocations().iter().map(|one| one.ip).collect();
        let finding = |(pod, ip): (&Pod, IpAddr)| {
            if !self.is_in(pod, BlockPlace::SharedBlocks) {
                return None;
            }
            let key = pod.key();
            let (code, message) = if !blocks.contains(ip) {
                let message = format!("pod {key} has address {ip}, which is in no block of Calico");
                (Code::PodOutsideBlock, message)
            } else if has_ipam_blocks && !allocated.contains(&ip) && !pod.deleting {
                let message = format!(
                    "pod {key} has address {ip}, which is not allocated in its IPAMBlock: another pod can get it"
                );
                (Code::MissingAllocation, message)
            } else {
                return None;
            };
            Some(self.delete_pod(code, &key, ip, message))
        };
        self.live_addresses().filter_map(finding).collect()
    }

    /// OVN-Kubernetes uses the pod's annotation, whatever the status says.
    fn missing_in_annotations(&self) -> Vec<Finding> {
        let ovn = self.allocations().iter();
        let ovn = ovn.filter(|one| one.system == System::Ovn && one.is_primary);
        let mut annotated = BTreeMap::<&str, Vec<IpAddr>>::new();
        for one in ovn {
            annotated.entry(&one.object).or_default().push(one.ip);
        }
        if annotated.is_empty() {
            return Vec::new();
        }
        let finding = |(pod, ip): (&Pod, IpAddr)| {
            let key = pod.key();
            let known = annotated.get(pod_object(&key).as_str())?;
            (!known.contains(&ip)).then(|| {
                let message = format!(
                    "pod {key} has address {ip}, and its annotation k8s.ovn.org/pod-networks says {}",
                    JoinedList(known)
                );
                self.delete_pod(Code::MissingAllocation, &key, ip, message)
            })
        };
        self.live_addresses().filter_map(finding).collect()
    }

    /// Addresses of interfaces that Whereabouts may assign to the next pod.
    fn missing_in_ranges(&self) -> Vec<Finding> {
        let records = &self.dump.records;
        let ranges = Prefixes::from_iter(records.secondary_ranges.iter().copied());
        let whereabouts = self.allocations().iter();
        let whereabouts = whereabouts.filter(|one| one.system == System::Whereabouts);
        let allocated: BTreeSet<IpAddr> = whereabouts.map(|one| one.ip).collect();
        let mut networks = BTreeMap::<&str, Vec<&AttachmentRecord>>::new();
        for one in records
            .attachments
            .iter()
            .filter(|one| ranges.contains(one.ip))
        {
            networks.entry(&one.network).or_default().push(one);
        }
        // Addresses excluded from a range may be another plugin's.
        let is_of_ranges = |attachments: &Vec<&AttachmentRecord>| {
            attachments.len() == 1 || attachments.iter().any(|one| allocated.contains(&one.ip))
        };
        let attachments = networks.into_values().filter(is_of_ranges).flatten();
        let finding = |one: &AttachmentRecord| {
            let pod = self.dump.pod_named(&one.pod)?;
            let is_missing = pod.uses_pod_network() && !pod.deleting;
            (is_missing && !allocated.contains(&one.ip)).then(|| {
                let message = format!(
                    "pod {} has address {} of network {}, which no IPPool of Whereabouts has allocated: another pod can get it",
                    one.pod, one.ip, one.network
                );
                self.delete_pod(Code::MissingAllocation, &one.pod, one.ip, message)
            })
        };
        attachments.filter_map(finding).collect()
    }

    fn delete_pod(&self, code: Code, pod: &PodKey, ip: IpAddr, message: String) -> Finding {
        Finding {
            prefixes: vec![ip.into()],
            code,
            severity: Severity::Error,
            objects: vec![pod_object(pod)],
            message,
            repair:
                "delete the pod, so that its owner makes another, which gets an address of its own"
                    .into(),
        }
    }

    /// Several live pods with one address of a Whereabouts range on one network. Other plugins may
    /// assign the same addresses on each node.
    fn shared_attachments(&self) -> Vec<Finding> {
        let ranges = Prefixes::from_iter(self.dump.records.secondary_ranges.iter().copied());
        let mut users = BTreeMap::<(&str, IpAddr), BTreeSet<&PodKey>>::new();
        let attachments = self.dump.records.attachments.iter();
        for one in attachments.filter(|one| ranges.contains(one.ip)) {
            users
                .entry((&one.network, one.ip))
                .or_default()
                .insert(&one.pod);
        }
        let shared = users.into_iter().filter(|(_, pods)| pods.len() > 1);
        let finding = |((network, ip), pods): ((&str, IpAddr), BTreeSet<&PodKey>)| {
            let pods: Vec<_> = pods.into_iter().collect();
            Finding {
                prefixes: vec![ip.into()],
                code: Code::DuplicatePodIp,
                severity: Severity::Error,
                objects: pods.iter().map(|pod| pod_object(pod)).collect(),
                message: format!(
                    "address {ip} of network {network} is assigned to {} pods: {}",
                    pods.len(),
                    JoinedList(&pods)
                ),
                repair: "delete all of them but one".into(),
            }
        };
        shared.map(finding).collect()
    }

    /// Addresses that the agents of several nodes may assign.
    fn addresses_of_several_nodes(&self) -> Vec<Finding> {
        let mut nodes = BTreeMap::<(System, IpAddr), BTreeSet<&str>>::new();
        for one in &self.dump.records.node_addresses {
            nodes
                .entry((one.system, one.ip))
                .or_default()
                .insert(&one.object);
        }
        let shared = nodes.into_iter().filter(|(_, objects)| objects.len() > 1);
        let finding = |((_, ip), objects): ((System, IpAddr), BTreeSet<&str>)| {
            let objects: Vec<String> = objects.into_iter().map(str::to_owned).collect();
            Finding {
                prefixes: vec![ip.into()],
                code: Code::DuplicateAllocation,
                severity: Severity::Error,
                message: format!("address {ip} is assigned to several nodes: {}", JoinedList(&objects)),
                objects,
                repair: "find out whose interface has the address; drain the other nodes and replace their instances".into(),
            }
        };
        shared.map(finding).collect()
    }

    /// Pods with addresses that their node does not have.
    fn outside_node_addresses(&self) -> Vec<Finding> {
        let records = self.dump.records.node_addresses.iter();
        let known: BTreeSet<(&str, IpAddr)> = records
            .filter(|one| {
                self.dump.network.ipam_of(&one.node) == BlockPlace::NodeAddresses(one.system)
            })
            .map(|one| (one.node.as_str(), one.ip))
            .collect();
        let nodes: BTreeSet<&str> = known.iter().map(|(node, _)| *node).collect();
        let finding = |(pod, ip): (&Pod, IpAddr)| {
            let node = pod.node.as_deref().filter(|node| nodes.contains(node))?;
            let key = pod.key();
            (!known.contains(&(node, ip))).then(|| {
                let message = format!(
                    "pod {key} has address {ip}, which is not one of those of its node {node}"
                );
                let mut finding = self.delete_pod(Code::PodOutsideBlock, &key, ip, message);
                finding.objects.insert(0, node_object(node));
                finding
            })
        };
        self.live_addresses().filter_map(finding).collect()
    }
}

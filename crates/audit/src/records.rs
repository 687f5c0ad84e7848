//! Blocks, pools and addresses that networks record in objects of their own, in one form for all
//! networks.
//!
//! [`read`](Records::read) takes the objects of Cilium, Calico, Azure's and Amazon's CNI and
//! Whereabouts; [`read_node`](Records::read_node) and [`read_pod`](Records::read_pod) take the
//! annotations of OVN-Kubernetes and Multus.

mod whereabouts;

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use podplane_ipam::{invariants::PodKey, parse_cidr};
use serde_json::Value;

pub(crate) use whereabouts::RESERVATION;

use crate::item::{LenientValue, RawObject};

/// The software that wrote a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum System {
    Cilium,
    Calico,
    Ovn,
    Azure,
    Aws,
    Whereabouts,
}

/// A block of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockRecord {
    pub(crate) system: System,
    /// Blocks are compared within a scope: a pool or a network. Empty for the pods' main network.
    pub(crate) scope: String,
    pub(crate) block: IpNet,
    /// The holder; `None` for a block that no node has at present.
    pub(crate) node: Option<String>,
    /// The object of the record.
    pub(crate) object: String,
    /// The pool that it was cut from, where the record names it.
    pub(crate) pool: Option<String>,
}

/// A range that blocks are cut from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolRecord {
    pub(crate) system: System,
    pub(crate) name: String,
    pub(crate) object: String,
    pub(crate) cidr: IpNet,
    /// Prefix length of its blocks.
    pub(crate) mask: Option<u8>,
}

/// The owner of an address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AddressOwner {
    Pod(PodKey),
    Node(String),
    /// Something without an object, such as Cilium's router address.
    Other(String),
}

/// An address that is allocated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AllocationRecord {
    pub(crate) system: System,
    /// Within a scope an address can be allocated once.
    pub(crate) scope: String,
    pub(crate) ip: IpAddr,
    pub(crate) owner: AddressOwner,
    pub(crate) object: String,
    /// Set if the address is one of `status.podIPs` of the pod that has it.
    pub(crate) is_primary: bool,
}

/// An address that a node's agent may give to pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeAddressRecord {
    pub(crate) system: System,
    pub(crate) ip: IpAddr,
    pub(crate) node: String,
    pub(crate) object: String,
}

/// An object that belongs to the Node of its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeObject {
    pub(crate) system: System,
    pub(crate) node: String,
    pub(crate) object: String,
}

/// An address of a pod on a further network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttachmentRecord {
    pub(crate) pod: PodKey,
    pub(crate) network: String,
    pub(crate) ip: IpAddr,
}

/// Everything that networks have recorded; sorted, and without repetition, after
/// [`settle`](Records::settle).
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) blocks: Vec<BlockRecord>,
    pub(crate) pools: Vec<PoolRecord>,
    pub(crate) allocations: Vec<AllocationRecord>,
    pub(crate) node_addresses: Vec<NodeAddressRecord>,
    pub(crate) node_objects: Vec<NodeObject>,
    pub(crate) attachments: Vec<AttachmentRecord>,
    /// Ranges of Whereabouts' pools.
    pub(crate) secondary_ranges: Vec<IpNet>,
    /// Values that should be addresses or CIDRs and are not: object and text.
    pub(crate) invalid: BTreeSet<(String, String)>,
}

/// The scope of addresses that a Cilium agent keeps for itself.
pub(crate) const CILIUM_INTERNAL: &str = "CiliumInternalIP";

/// The scope of OVN-Kubernetes' main network.
const OVN_DEFAULT: &str = "default";

impl Records {
    /// Reads an object of a network. Returns whether its kind is one of a network's.
    pub(crate) fn read(&mut self, kind: &str, item: &RawObject<'_>) -> bool {
        match kind {
            "CiliumNode" => self.cilium_node(item),
            "CiliumPodIPPool" => self.cilium_pool(item),
            "CiliumEndpoint" => self.cilium_endpoint(item),
            "IPAMBlock" => self.calico_block(item),
            "BlockAffinity" => self.calico_affinity(item),
            "IPPool" if item.spec.0.range.is_set() => self.whereabouts_pool(item),
            "IPPool" if item.spec.0.cidr.is_set() => self.calico_pool(item),
            "OverlappingRangeIPReservation" => self.whereabouts_reservation(item),
            "NodeNetworkConfig" => self.azure_node(item),
            "CNINode" => {
                self.node_object(System::Aws, "CNINode", item);
            }
            _ => return false,
        }
        true
    }

    /// Sorts, and drops objects that were read twice.
    pub(crate) fn settle(&mut self) {
        fn set<T: Ord>(list: &mut Vec<T>) {
            list.sort_unstable();
            list.dedup();
        }
        set(&mut self.blocks);
        set(&mut self.pools);
        set(&mut self.allocations);
        set(&mut self.node_addresses);
        set(&mut self.node_objects);
        set(&mut self.attachments);
        set(&mut self.secondary_ranges);
    }

    fn node_object(&mut self, system: System, kind: &str, item: &RawObject<'_>) -> NodeObject {
        let node = item.metadata.0.name.as_str().to_owned();
        let object = NodeObject {
            system,
            object: format!("{kind}/{node}"),
            node,
        };
        self.node_objects.push(object.clone());
        object
    }

    fn cidr(&mut self, object: &str, text: &str) -> Option<IpNet> {
        let parsed = parse_cidr(text).ok();
        if parsed.is_none() {
            self.invalid.insert((object.to_owned(), text.to_owned()));
        }
        Some(parsed?.trunc())
    }

    fn address(&mut self, object: &str, text: &str) -> Option<IpAddr> {
        let parsed = text.parse().ok();
        if parsed.is_none() {
            self.invalid.insert((object.to_owned(), text.to_owned()));
        }
        parsed
    }

    fn cilium_node(&mut self, item: &RawObject<'_>) {
        let NodeObject { node, object, .. } = self.node_object(System::Cilium, "CiliumNode", item);
        let ipam = &item.spec.0.ipam;
        let single = texts(&ipam["podCIDRs"]).map(|cidr| (None, cidr));
        let pooled = list(&ipam["pools"]["allocated"]).flat_map(|of_pool| {
            let pool = of_pool["pool"].as_str().map(str::to_owned);
            cidrs(&of_pool["cidrs"]).map(move |cidr| (pool.clone(), cidr))
        });
        for (pool, cidr) in single.chain(pooled).collect::<Vec<_>>() {
            let Some(block) = self.cidr(&object, cidr) else {
                continue;
            };
            self.blocks.push(BlockRecord {
                system: System::Cilium,
                scope: String::new(),
                block,
                node: Some(node.clone()),
                object: object.clone(),
                pool,
            });
        }
        for (text, _) in entries(&ipam["pool"]) {
            if let Some(ip) = self.address(&object, text) {
                self.node_addresses.push(NodeAddressRecord {
                    system: System::Cilium,
                    ip,
                    node: node.clone(),
                    object: object.clone(),
                });
            }
        }
        for (text, used) in entries(&item.status.0.ipam["used"]) {
            if let Some(ip) = self.address(&object, text) {
                self.allocations.push(AllocationRecord {
                    system: System::Cilium,
                    scope: "CiliumNode".into(),
                    ip,
                    owner: cilium_owner(used["owner"].as_str().unwrap_or_default(), &node),
                    object: object.clone(),
                    is_primary: true,
                });
            }
        }
        // The agent's own addresses in the pods' ranges.
        let internal = list(&item.spec.0.addresses)
            .filter(|one| one["type"] == "CiliumInternalIP")
            .map(|one| &one["ip"]);
        let health = [&item.spec.0.health["ipv4"], &item.spec.0.health["ipv6"]];
        for text in internal.chain(health).filter_map(Value::as_str) {
            if let Some(ip) = self.address(&object, text) {
                self.allocations.push(AllocationRecord {
                    system: System::Cilium,
                    scope: CILIUM_INTERNAL.into(),
                    ip,
                    owner: AddressOwner::Node(node.clone()),
                    object: object.clone(),
                    is_primary: true,
                });
            }
        }
    }

    fn cilium_pool(&mut self, item: &RawObject<'_>) {
        let name = item.metadata.0.name.as_str().to_owned();
        let object = format!("CiliumPodIPPool/{name}");
        for family in [&item.spec.0.ipv4, &item.spec.0.ipv6] {
            let mask = family["maskSize"].as_u64();
            for text in cidrs(&family["cidrs"]) {
                if let Some(cidr) = self.cidr(&object, text) {
                    self.pools.push(PoolRecord {
                        system: System::Cilium,
                        name: name.clone(),
                        object: object.clone(),
                        cidr,
                        mask: mask.and_then(|mask| u8::try_from(mask).ok()),
                    });
                }
            }
        }
    }

    fn cilium_endpoint(&mut self, item: &RawObject<'_>) {
        let pod = key(item);
        let object = format!("CiliumEndpoint/{pod}");
        let addressing = list(&item.status.0.networking["addressing"]);
        let each = addressing.flat_map(|pair| [&pair["ipv4"], &pair["ipv6"]]);
        for text in each
            .filter_map(Value::as_str)
            .filter(|text| !text.is_empty())
        {
            if let Some(ip) = self.address(&object, text) {
                self.allocations.push(AllocationRecord {
                    system: System::Cilium,
                    scope: "CiliumEndpoint".into(),
                    ip,
                    owner: AddressOwner::Pod(pod.clone()),
                    object: object.clone(),
                    is_primary: true,
                });
            }
        }
    }

    fn calico_pool(&mut self, item: &RawObject<'_>) {
        let name = item.metadata.0.name.as_str().to_owned();
        let object = format!("IPPool/{name}");
        let Some(cidr) = self.cidr(&object, item.spec.0.cidr.as_str()) else {
            return;
        };
        let default = if cidr.addr().is_ipv4() { 26 } else { 122 };
        self.pools.push(PoolRecord {
            system: System::Calico,
            name,
            object,
            cidr,
            mask: item
                .spec
                .0
                .block_size
                .as_str()
                .parse()
                .ok()
                .or(Some(default)),
        });
    }

    /// A block with an entry for each address: `null`, or which of `attributes` tells the owner.
    fn calico_block(&mut self, item: &RawObject<'_>) {
        let object = format!("IPAMBlock/{}", item.metadata.0.name.as_str());
        let spec = &item.spec.0;
        let Some(block) = self.cidr(&object, spec.cidr.as_str()) else {
            return;
        };
        if spec.deleted.as_str() == "true" {
            return;
        }
        self.blocks.push(BlockRecord {
            system: System::Calico,
            scope: String::new(),
            block,
            node: spec
                .affinity
                .as_str()
                .strip_prefix("host:")
                .map(str::to_owned),
            object: object.clone(),
            pool: None,
        });
        for (ordinal, attribute) in list(&spec.allocations).enumerate() {
            let Some(attribute) = attribute
                .as_u64()
                .and_then(|index| usize::try_from(index).ok())
            else {
                continue;
            };
            let Some(ip) = nth(block, ordinal) else {
                continue;
            };
            self.allocations.push(AllocationRecord {
                system: System::Calico,
                scope: "IPAMBlock".into(),
                ip,
                owner: calico_owner(&spec.attributes[attribute]),
                object: object.clone(),
                is_primary: true,
            });
        }
    }

    fn calico_affinity(&mut self, item: &RawObject<'_>) {
        let object = format!("BlockAffinity/{}", item.metadata.0.name.as_str());
        let spec = &item.spec.0;
        // A claim that was not confirmed is withdrawn by its author.
        let is_claim = matches!(spec.state.as_str(), "pending" | "pendingDeletion");
        // Blocks of load balancers' addresses are not a node's.
        let is_virtual = spec.kind.as_str() == "virtual";
        if is_claim || is_virtual || spec.deleted.as_str() == "true" {
            return;
        }
        if let Some(block) = self.cidr(&object, spec.cidr.as_str()) {
            self.blocks.push(BlockRecord {
                system: System::Calico,
                scope: String::new(),
                block,
                node: spec.node.is_set().then(|| spec.node.as_str().to_owned()),
                object,
                pool: None,
            });
        }
    }

    fn azure_node(&mut self, item: &RawObject<'_>) {
        let NodeObject { node, object, .. } =
            self.node_object(System::Azure, "NodeNetworkConfig", item);
        for container in list(&item.status.0.network_containers) {
            // With an overlay network the primary address is the node's block.
            let primary = container["primaryIP"].as_str().unwrap_or_default();
            if primary.contains('/') {
                self.azure_block(&node, &object, primary);
            }
            for assigned in list(&container["ipAssignments"]) {
                let text = assigned["ip"].as_str().unwrap_or_default();
                // With blocks of a virtual network (`vnetblock`) each is a CIDR.
                let ip = match text.contains('/') {
                    true => self.azure_block(&node, &object, text),
                    false => self.address(&object, text),
                };
                if let Some(ip) = ip {
                    self.node_addresses.push(NodeAddressRecord {
                        system: System::Azure,
                        ip,
                        node: node.clone(),
                        object: object.clone(),
                    });
                }
            }
        }
    }

    /// Records a block; returns the address instead if it is a single one.
    fn azure_block(&mut self, node: &str, object: &str, text: &str) -> Option<IpAddr> {
        let block = self.cidr(object, text)?;
        if block.prefix_len() == block.max_prefix_len() {
            return Some(block.addr());
        }
        self.blocks.push(BlockRecord {
            system: System::Azure,
            scope: String::new(),
            block,
            node: Some(node.to_owned()),
            object: object.to_owned(),
            pool: None,
        });
        None
    }

    /// Reads the annotations of a Node.
    pub(crate) fn read_node(&mut self, item: &RawObject<'_>) {
        let node = item.metadata.0.name.as_str();
        let object = format!("Node/{node}");
        let LenientValue(annotations) = &item.metadata.0.annotations;
        let hybrid = annotations.ovn_hybrid_subnet.as_str();
        if !hybrid.is_empty()
            && let Some(block) = self.cidr(&object, hybrid)
        {
            self.blocks.push(BlockRecord {
                system: System::Ovn,
                scope: String::new(),
                block,
                node: Some(node.to_owned()),
                object: object.clone(),
                pool: None,
            });
        }
        let subnets = json(annotations.ovn_node_subnets.as_str());
        for (network, subnets) in entries(&subnets) {
            let scope = if network == OVN_DEFAULT { "" } else { network };
            for text in texts_or_text(subnets) {
                if let Some(block) = self.cidr(&object, text) {
                    self.blocks.push(BlockRecord {
                        system: System::Ovn,
                        scope: scope.to_owned(),
                        block,
                        node: Some(node.to_owned()),
                        object: object.clone(),
                        pool: None,
                    });
                }
            }
        }
    }

    /// Reads the annotations of a Pod that has its addresses still.
    pub(crate) fn read_pod(&mut self, item: &RawObject<'_>) {
        let LenientValue(annotations) = &item.metadata.0.annotations;
        if annotations.ovn_pod_networks.is_set() {
            self.ovn_pod(item, &json(annotations.ovn_pod_networks.as_str()));
        }
        if annotations.network_status.is_set() {
            self.network_status(item, &json(annotations.network_status.as_str()));
        }
    }

    fn ovn_pod(&mut self, item: &RawObject<'_>, networks: &Value) {
        let pod = key(item);
        let object = format!("Pod/{pod}");
        for (network, of_network) in entries(networks) {
            let several = texts(&of_network["ip_addresses"]);
            let each: Vec<&str> = several.chain(of_network["ip_address"].as_str()).collect();
            for text in each {
                let bare = text.split('/').next().unwrap_or_default();
                if let Some(ip) = self.address(&object, bare) {
                    self.allocations.push(AllocationRecord {
                        system: System::Ovn,
                        scope: network.to_owned(),
                        ip,
                        owner: AddressOwner::Pod(pod.clone()),
                        object: object.clone(),
                        is_primary: network == OVN_DEFAULT,
                    });
                }
            }
        }
    }

    fn network_status(&mut self, item: &RawObject<'_>, interfaces: &Value) {
        let pod = key(item);
        // The default network's addresses are those of the pod's status.
        let further = list(interfaces).filter(|one| one["default"] != Value::Bool(true));
        for interface in further {
            let network = interface["name"].as_str().unwrap_or_default();
            for ip in texts(&interface["ips"]).filter_map(|text| text.parse().ok()) {
                self.attachments.push(AttachmentRecord {
                    pod: pod.clone(),
                    network: network.to_owned(),
                    ip,
                });
            }
        }
    }
}

/// The owner of an address of a `CiliumNode`, as the node's agent names it.
fn cilium_owner(text: &str, node: &str) -> AddressOwner {
    // The agent adds this when it starts again and finds the pod's endpoint.
    let text = text.strip_suffix(" [restored]").unwrap_or(text);
    if matches!(text, "router" | "health" | "ingress") {
        return AddressOwner::Node(node.to_owned());
    }
    pod_key(text).map_or_else(|| AddressOwner::Other(text.to_owned()), AddressOwner::Pod)
}

/// The owner of an address of a Calico block, from the attributes that the plugin wrote.
fn calico_owner(attribute: &Value) -> AddressOwner {
    let secondary = &attribute["secondary"];
    let text = |name: &str| secondary[name].as_str().filter(|text| !text.is_empty());
    match (text("namespace"), text("pod"), text("node"), text("type")) {
        (Some(namespace), Some(name), _, _) => AddressOwner::Pod(PodKey {
            namespace: namespace.into(),
            name: name.into(),
        }),
        // Addresses of tunnels are the node's.
        (_, None, Some(node), Some(_)) => AddressOwner::Node(node.into()),
        _ => AddressOwner::Other(attribute["handle_id"].as_str().unwrap_or_default().into()),
    }
}

fn key(item: &RawObject<'_>) -> PodKey {
    PodKey {
        namespace: item.metadata.0.namespace.as_str().into(),
        name: item.metadata.0.name.as_str().into(),
    }
}

/// `NAMESPACE/NAME`.
fn pod_key(text: &str) -> Option<PodKey> {
    let (namespace, name) = text.split_once('/')?;
    let key = PodKey {
        namespace: namespace.into(),
        name: name.into(),
    };
    (!namespace.is_empty() && !name.is_empty()).then_some(key)
}

/// The address at an offset of a block, if it is in it.
fn nth(block: IpNet, offset: usize) -> Option<IpAddr> {
    let offset = u128::try_from(offset).ok()?;
    let ip = match block.network() {
        IpAddr::V4(first) => {
            let ip = u32::from(first).checked_add(u32::try_from(offset).ok()?)?;
            IpAddr::V4(ip.into())
        }
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(offset)?.into()),
    };
    block.contains(&ip).then_some(ip)
}

/// An annotation's JSON; `null` if it is not JSON.
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    list(value).filter_map(Value::as_str)
}

/// A list of texts, or a single one, as older versions write it.
fn texts_or_text(value: &Value) -> impl Iterator<Item = &str> {
    texts(value).chain(value.as_str())
}

/// CIDRs, each a text or an object with the field `cidr`.
fn cidrs(value: &Value) -> impl Iterator<Item = &str> {
    list(value).filter_map(|each| each.as_str().or_else(|| each["cidr"].as_str()))
}

fn entries(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let entries = value.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.as_str(), value))
}

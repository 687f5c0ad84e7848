//! The plan of a node's network, from what nodes publish: the routes and tunnels to the pods of the
//! others, and the blocks that it does not reach, with the reason.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipnet::IpNet;

use super::{
    NetworkBackend,
    annotations::{Peer, VtepMac},
};

/// The way to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockHop {
    /// Through the node at this address.
    Node(IpAddr),
    /// Through a tunnel.
    Tunnel {
        /// The address of the node at its other end.
        remote: IpAddr,
        /// The hardware address of the device there.
        mac: VtepMac,
    },
}

/// The node network of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeNetworkPlan {
    /// The ways to the blocks of others.
    pub hops: BTreeMap<IpNet, BlockHop>,
    /// The blocks that are not reached, by node.
    pub unreached: Vec<UnreachedBlock>,
}

/// A block of another node that a node does not reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreachedBlock {
    /// The other node.
    pub node: String,
    /// Its block.
    pub net: IpNet,
    /// The reason.
    pub reason: UnreachedReason,
}

/// The reason why a block of another node is not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnreachedReason {
    /// The two nodes have different backends.
    Backend {
        /// The backend of the node that is to reach the other.
        own: NetworkBackend,
        /// The backend of the other node.
        other: String,
    },
    /// The other node publishes no backend.
    Unpublished,
    /// The other node does not publish its end of a tunnel.
    NoVtep,
    /// The other node is in another virtual network.
    Vni {
        /// The VNI of the node that is to reach the other.
        own: u32,
        /// The VNI of the other node.
        other: u32,
    },
    /// The other node has no address of that family.
    NoAddress,
    /// The block is also one of the node's own.
    OwnBlock,
    /// A third node has the same block, and is reached instead.
    Duplicate {
        /// The third node.
        of: String,
    },
}

impl UnreachedReason {
    /// The kind of fault, in a few words.
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Backend { .. } => "mixed backends",
            Self::Vni { .. } => "mixed VNIs",
            Self::OwnBlock | Self::Duplicate { .. } => "duplicate block",
            Self::Unpublished | Self::NoVtep | Self::NoAddress => "incomplete node",
        }
    }
}

impl fmt::Display for UnreachedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, net, reason } = self;
        match reason {
            // In the words of flannel's vxlan backend.
            UnreachedReason::Backend { own, other } => {
                write!(f, "ignoring non-{} subnet({net}): type={other}", own.name())
            }
            UnreachedReason::Unpublished => {
                write!(f, "ignoring subnet({net}): {node} publishes no backend")
            }
            UnreachedReason::NoVtep => write!(
                f,
                "ignoring subnet({net}): {node} publishes no valid VtepMAC"
            ),
            UnreachedReason::Vni { own, other } => {
                write!(f, "ignoring subnet({net}): VNI {other}, want {own}")
            }
            UnreachedReason::NoAddress => {
                write!(
                    f,
                    "ignoring subnet({net}): {node} has no address of its family"
                )
            }
            UnreachedReason::OwnBlock => {
                write!(
                    f,
                    "ignoring subnet({net}): it is this node's own block, too"
                )
            }
            UnreachedReason::Duplicate { of } => {
                write!(
                    f,
                    "ignoring subnet({net}): {of} has it, too, and is reached instead"
                )
            }
        }
    }
}

/// Plans the ways that a node with this backend needs. If several nodes have the same block, the
/// plan has the first by name that can be reached. A node that publishes no backend counts as one
/// of host-gw, since other kubelets may keep no annotations.
pub fn plan(own: &Peer, backend: NetworkBackend, others: &[Peer]) -> NodeNetworkPlan {
    let mut plan = NodeNetworkPlan::default();
    let mut owners: BTreeMap<IpNet, &str> = BTreeMap::new();
    let mut others: Vec<_> = others.iter().filter(|peer| peer.name != own.name).collect();
    others.sort_by(|a, b| a.name.cmp(&b.name));
    for peer in others {
        for net in &peer.nets {
            let hop = match (hop(own, backend, peer, net), owners.get(net)) {
                (Ok(_), _) if own.nets.contains(net) => Err(UnreachedReason::OwnBlock),
                (Ok(_), Some(of)) => Err(UnreachedReason::Duplicate {
                    of: (*of).to_owned(),
                }),
                (hop, _) => hop,
            };
            match hop {
                Ok(hop) => {
                    owners.insert(*net, &peer.name);
                    plan.hops.insert(*net, hop);
                }
                Err(reason) => plan.unreached.push(UnreachedBlock {
                    node: peer.name.clone(),
                    net: *net,
                    reason,
                }),
            }
        }
    }
    plan
}

/// The way from one node to a block of another.
fn hop(
    own: &Peer,
    backend: NetworkBackend,
    peer: &Peer,
    net: &IpNet,
) -> Result<BlockHop, UnreachedReason> {
    match (&peer.backend, backend) {
        (Some(other), _) if other != backend.name() => {
            return Err(UnreachedReason::Backend {
                own: backend,
                other: other.clone(),
            });
        }
        (None, NetworkBackend::Vxlan) => return Err(UnreachedReason::Unpublished),
        _ => {}
    }
    let family = net.addr();
    let remote = peer
        .addresses
        .of(family)
        .ok_or(UnreachedReason::NoAddress)?;
    if backend == NetworkBackend::HostGw {
        return Ok(BlockHop::Node(remote));
    }
    let vtep = peer.vteps.of(family).ok_or(UnreachedReason::NoVtep)?;
    match own.vteps.of(family) {
        Some(own) if own.vni != vtep.vni => Err(UnreachedReason::Vni {
            own: own.vni,
            other: vtep.vni,
        }),
        _ => Ok(BlockHop::Tunnel {
            remote,
            mac: vtep.mac,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::node_network::annotations::{PerFamily, Vtep};

    /// A node `number`: at 172.16.0.number and fd70::number, with the device 02:00:00:00:00:number.
    fn peer(name: &str, backend: &str, number: u8, nets: &[&str]) -> Peer {
        let vtep = Vtep {
            vni: 1,
            mac: VtepMac([2, 0, 0, 0, 0, number]),
        };
        let vtep = (backend == "vxlan").then_some(vtep);
        Peer {
            name: name.to_owned(),
            backend: Some(backend.to_owned()).filter(|name| !name.is_empty()),
            addresses: PerFamily {
                v4: Some(IpAddr::from([172, 16, 0, number])),
                v6: Some(format!("fd70::{number}").parse().unwrap()),
            },
            vteps: PerFamily { v4: vtep, v6: vtep },
            nets: nets.iter().map(|net| net.parse().unwrap()).collect(),
        }
    }

    fn tunnel(remote: &str, number: u8) -> BlockHop {
        BlockHop::Tunnel {
            remote: remote.parse().unwrap(),
            mac: VtepMac([2, 0, 0, 0, 0, number]),
        }
    }

    fn hops(plan: &NodeNetworkPlan) -> Vec<(String, BlockHop)> {
        let each = plan.hops.iter();
        each.map(|(net, hop)| (net.to_string(), *hop)).collect()
    }

    fn unreached(plan: &NodeNetworkPlan) -> Vec<String> {
        plan.unreached.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn host_gw_routes_each_block_through_its_node() {
        let mut without_address = peer("d", "host-gw", 4, &["10.0.3.0/24"]);
        without_address.addresses = PerFamily::default();
        let nodes = [
            peer("a", "host-gw", 1, &["10.0.0.0/24"]),
            peer("b", "host-gw", 2, &["10.0.1.0/24", "fd00:1::/64"]),
            peer("c", "host-gw", 3, &["10.0.1.0/24"]),
            without_address,
            peer("e", "", 5, &["10.0.5.0/24"]),
            peer("f", "host-gw", 6, &["10.0.0.0/24"]),
            peer("g", "host-gw", 7, &[]),
        ];
        let plan = plan(&nodes[0], NetworkBackend::HostGw, &nodes);
        let via = |text: &str| BlockHop::Node(text.parse().unwrap());
        let want = [
            ("10.0.1.0/24", via("172.16.0.2")),
            ("10.0.5.0/24", via("172.16.0.5")),
            ("fd00:1::/64", via("fd70::2")),
        ];
        assert_eq!(hops(&plan), want.map(|(net, hop)| (net.to_owned(), hop)));
        assert_eq!(
            unreached(&plan),
            [
                "ignoring subnet(10.0.1.0/24): b has it, too, and is reached instead",
                "ignoring subnet(10.0.3.0/24): d has no address of its family",
                "ignoring subnet(10.0.0.0/24): it is this node's own block, too",
            ]
        );
    }

    #[test]
    fn vxlan_tunnels_to_vxlan_nodes_in_both_families() {
        let nodes = [
            peer("a", "vxlan", 1, &["10.0.0.0/24", "fd00::/64"]),
            peer("b", "vxlan", 2, &["10.0.1.0/24", "fd00:1::/64"]),
        ];
        let plan = plan(&nodes[0], NetworkBackend::Vxlan, &nodes);
        let want = [
            ("10.0.1.0/24", tunnel("172.16.0.2", 2)),
            ("fd00:1::/64", tunnel("fd70::2", 2)),
        ];
        assert_eq!(hops(&plan), want.map(|(net, hop)| (net.to_owned(), hop)));
        assert!(plan.unreached.is_empty());
    }

    #[test]
    fn nodes_of_different_backends_ignore_each_other() {
        let nodes = [
            peer("a", "vxlan", 1, &["10.240.30.0/24"]),
            peer("b", "host-gw", 2, &["10.240.31.0/24"]),
            peer("c", "wireguard", 3, &["10.240.32.0/24"]),
            peer("d", "", 4, &["10.240.33.0/24"]),
        ];
        let from_a = plan(&nodes[0], NetworkBackend::Vxlan, &nodes);
        assert!(from_a.hops.is_empty());
        assert_eq!(
            unreached(&from_a),
            [
                "ignoring non-vxlan subnet(10.240.31.0/24): type=host-gw",
                "ignoring non-vxlan subnet(10.240.32.0/24): type=wireguard",
                "ignoring subnet(10.240.33.0/24): d publishes no backend",
            ]
        );
        let from_b = plan(&nodes[1], NetworkBackend::HostGw, &nodes);
        assert_eq!(
            unreached(&from_b)[0],
            "ignoring non-host-gw subnet(10.240.30.0/24): type=vxlan"
        );
        assert_eq!(from_b.unreached[0].reason.cause(), "mixed backends");
    }

    /// A block that two nodes have leads to the one of the same backend, whatever their names.
    #[test]
    fn routes_a_duplicate_block_to_the_first_reachable_node() {
        let nodes = [
            peer("a", "vxlan", 1, &["10.0.0.0/24"]),
            peer("b", "host-gw", 2, &["10.0.1.0/24"]),
            peer("c", "vxlan", 3, &["10.0.1.0/24"]),
            peer("d", "vxlan", 4, &["10.0.1.0/24"]),
        ];
        let plan = plan(&nodes[0], NetworkBackend::Vxlan, &nodes);
        let to_c = ("10.0.1.0/24".to_owned(), tunnel("172.16.0.3", 3));
        assert_eq!(hops(&plan), [to_c]);
        let causes = plan.unreached.iter().map(|each| each.reason.cause());
        assert_eq!(
            causes.collect::<Vec<_>>(),
            ["mixed backends", "duplicate block"]
        );
    }

    #[test]
    fn ignores_peers_with_another_vni_or_an_invalid_mac() {
        let mut other_network = peer("b", "vxlan", 2, &["10.0.1.0/24"]);
        other_network.vteps.v4.as_mut().unwrap().vni = 2;
        let mut broken = peer("c", "vxlan", 3, &["10.0.2.0/24"]);
        broken.vteps.v4 = None;
        let own = peer("a", "vxlan", 1, &["10.0.0.0/24"]);
        let plan = plan(&own, NetworkBackend::Vxlan, &[other_network, broken]);
        assert!(plan.hops.is_empty());
        assert_eq!(
            unreached(&plan),
            [
                "ignoring subnet(10.0.1.0/24): VNI 2, want 1",
                "ignoring subnet(10.0.2.0/24): c publishes no valid VtepMAC",
            ]
        );
    }
}

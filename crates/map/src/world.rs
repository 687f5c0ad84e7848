//! The facts of a [`World`], which audits, recordings, simulations and test clusters have.

use podplane_ipam::invariants::{Sandbox, World};

use crate::{
    name::Name,
    parts::{AddressClaim, BlockState, Holder, NodeBlock, SpaceError},
    space::SpaceParts,
};

impl SpaceParts {
    /// The blocks and addresses of a cluster that was observed for its invariants. Networks, the
    /// rule about pods and numbers of orphans are not part of it.
    ///
    /// An allocation file without a sandbox is an orphan, as it is for
    /// [`invariants::check`](podplane_ipam::invariants::check).
    ///
    /// # Errors
    ///
    /// [`SpaceError::EmptyName`] if a node or the owner of a file has no name.
    pub fn of_world(world: &World) -> Result<Self, SpaceError> {
        let mut parts = Self::default();
        for node in &world.nodes {
            for cidr in &node.pod_cidrs {
                // Host bits are legal in `spec.podCIDRs`.
                let block = NodeBlock::new(cidr.trunc(), BlockState::Assigned, Some(&node.name))?;
                parts.blocks.push(block);
            }
        }
        for old in &world.draining {
            let block = NodeBlock::new(old.block.trunc(), BlockState::Draining, Some(&old.node))?;
            parts.blocks.push(block);
        }
        for pod in world.pods.iter().filter(|pod| pod.uses_pod_network()) {
            let name = Name::from(pod.key().to_string());
            let node = pod.node.as_deref().map(Name::from);
            for ip in &pod.ips {
                let holder = Holder::Pod {
                    name: name.clone(),
                    node: node.clone(),
                };
                parts.claims.push(AddressClaim::new(*ip, holder)?);
            }
        }
        for file in &world.allocations {
            let sandbox = Sandbox {
                node: file.node.clone(),
                id: file.owner.clone(),
            };
            let node = Some(Name::from(file.node.as_str()));
            let name = Name::from(file.owner.as_str());
            let holder = match world.sandboxes.contains(&sandbox) {
                true => Holder::Sandbox { name, node },
                false => Holder::Orphan { name, node },
            };
            parts.claims.push(AddressClaim::new(file.ip, holder)?);
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use podplane_ipam::invariants::{self, Allocation, DrainingBlock, Node, Pod, Violation};

    use super::*;
    use crate::{AddressSpace, AddressState, NetworkRole};

    fn pod(name: &str, node: &str, ip: &str) -> Pod {
        Pod {
            namespace: "default".into(),
            name: name.into(),
            uid: String::new(),
            node: Some(node.into()),
            host_network: false,
            released: false,
            deleting: false,
            ips: vec![ip.parse().unwrap()],
        }
    }

    /// The map and the checker of invariants agree about each address.
    #[test]
    fn faults_are_those_of_the_invariants() {
        let node = |name: &str, cidr: &str| Node {
            name: name.into(),
            uid: String::new(),
            pod_cidrs: vec![cidr.parse().unwrap()],
            ip_capacity: None,
        };
        let mut done = pod("done", "a", "10.0.1.9");
        done.released = true;
        let world = World {
            nodes: vec![node("a", "10.0.1.7/24"), node("b", "10.0.2.0/24")],
            pods: vec![
                pod("one", "a", "10.0.1.5"),
                pod("two", "b", "10.0.1.5"),
                pod("three", "a", "10.0.1.6"),
                pod("four", "b", "10.0.3.4"),
                pod("five", "b", "10.0.9.4"),
                done,
            ],
            draining: vec![DrainingBlock {
                node: "b".into(),
                block: "10.0.3.0/24".parse().unwrap(),
            }],
            allocations: vec![
                Allocation {
                    node: "a".into(),
                    ip: "10.0.1.8".parse().unwrap(),
                    owner: "gone".into(),
                },
                Allocation {
                    node: "a".into(),
                    ip: "10.0.1.6".parse().unwrap(),
                    owner: "there".into(),
                },
            ],
            sandboxes: [Sandbox {
                node: "a".into(),
                id: "there".into(),
            }]
            .into(),
            ..World::default()
        };
        let space = AddressSpace::new(SpaceParts::of_world(&world).unwrap());
        for violation in invariants::check(&world) {
            let (ip, want) = match violation {
                Violation::DuplicateAddress { ip, .. } => (ip, AddressState::Duplicate),
                // A duplicate address may be outside, too.
                Violation::OutsideBlock { ip, pod, .. } if pod.name == "two" => {
                    (ip, AddressState::Duplicate)
                }
                Violation::OutsideBlock { ip, .. } => (ip, AddressState::Outside),
                Violation::LeakedAddress(file) => (file.ip, AddressState::Orphaned),
                other => panic!("{other}"),
            };
            assert_eq!(space.state(NetworkRole::Pods, ip), want, "{ip}");
        }
        let all = "10.0.0.0/16".parse().unwrap();
        assert_eq!(space.faults(&all).count(), 3);
        let state = |ip: &str| space.state(NetworkRole::Pods, ip.parse().unwrap());
        assert_eq!(state("10.0.1.6"), AddressState::Pod);
        assert_eq!(state("10.0.3.4"), AddressState::Draining);
        assert_eq!(state("10.0.1.9"), AddressState::Free, "released");
    }
}

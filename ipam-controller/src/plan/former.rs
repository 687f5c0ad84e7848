//! Blocks of deleted nodes that are not free yet.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_api::jiff::Timestamp;

use super::FormerBlocks;

/// The progress of a deleted node's block towards release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleasePhase {
    /// Its addresses may be in use.
    Draining,
    /// It is held for the node's sandboxes: until the given time, or without one until the hold is
    /// ended.
    Held(Option<Timestamp>),
    /// It is out of use, and kept back until this time.
    Quarantined(Timestamp),
}

/// Blocks of deleted nodes, by the node's name and UID.
#[derive(Debug, Default)]
pub(super) struct FormerNodes(BTreeMap<String, BTreeMap<String, BTreeMap<IpNet, ReleasePhase>>>);

impl FormerNodes {
    /// Records the deletion of a node. The content of its records comes later.
    pub(super) fn add(&mut self, name: &str, uid: &str, nets: &[IpNet]) {
        for net in nets {
            self.of(name, uid)
                .entry(*net)
                .or_insert(ReleasePhase::Draining);
        }
    }

    /// Sets the phase of a block according to its record. Returns the previous phase.
    pub(super) fn set_phase(
        &mut self,
        name: &str,
        uid: &str,
        net: IpNet,
        phase: ReleasePhase,
    ) -> Option<ReleasePhase> {
        self.of(name, uid).insert(net, phase)
    }

    /// Ends the holds whose record, by UID and prefix, is no longer stored: another client has
    /// released the block. The block drains until the server confirms that. Returns the names of
    /// the nodes.
    pub(super) fn end_holds_not_in(&mut self, stored: &BTreeSet<(&str, IpNet)>) -> Vec<String> {
        let mut ended = Vec::new();
        for (name, uids) in &mut self.0 {
            let of_name = uids.iter_mut();
            let phases = of_name.flat_map(|(uid, nets)| {
                let nets = nets.iter_mut();
                nets.filter(|(net, _)| !stored.contains(&(uid.as_str(), **net)))
            });
            for (_, phase) in phases.filter(|(_, phase)| matches!(phase, ReleasePhase::Held(_))) {
                *phase = ReleasePhase::Draining;
                ended.push(name.clone());
            }
        }
        ended
    }

    /// Handles the removal of a record. Returns whether it was the last one of the node.
    pub(super) fn remove(&mut self, name: &str, uid: &str, net: IpNet) -> bool {
        let Some(uids) = self.0.get_mut(name) else {
            return false;
        };
        let Some(nets) = uids.get_mut(uid) else {
            return false;
        };
        nets.remove(&net);
        let last = nets.is_empty();
        if last {
            uids.remove(uid);
        }
        if uids.is_empty() {
            self.0.remove(name);
        }
        last
    }

    /// The UIDs of deleted nodes of that name, with their blocks.
    pub(super) fn named(&self, name: &str) -> Vec<(String, Vec<(IpNet, ReleasePhase)>)> {
        let uids = self.0.get(name).into_iter().flatten();
        uids.map(|(uid, nets)| {
            let nets = nets.iter().map(|(net, phase)| (*net, *phase)).collect();
            (uid.clone(), nets)
        })
        .collect()
    }

    /// Returns whether any block is held.
    pub(super) fn any_held(&self) -> bool {
        self.iter()
            .any(|(_, _, phase)| matches!(phase, ReleasePhase::Held(_)))
    }

    /// The held blocks.
    pub(super) fn held_blocks(&self) -> impl Iterator<Item = FormerBlocks> {
        let all = self.0.iter().flat_map(|(name, uids)| {
            let of_name = uids.iter();
            of_name.flat_map(move |(uid, nets)| {
                nets.iter().map(move |(net, phase)| (name, uid, net, phase))
            })
        });
        let held = all.filter(|(.., phase)| matches!(phase, ReleasePhase::Held(_)));
        held.map(|(node, uid, net, _)| FormerBlocks {
            node: node.clone(),
            uid: uid.clone(),
            pod_cidrs: vec![*net],
        })
    }

    pub(super) fn phase(&self, name: &str, uid: &str, net: IpNet) -> Option<ReleasePhase> {
        self.0.get(name)?.get(uid)?.get(&net).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, IpNet, ReleasePhase)> {
        self.0.iter().flat_map(|(name, uids)| {
            let nets = uids.values().flatten();
            nets.map(move |(net, phase)| (name.as_str(), *net, *phase))
        })
    }

    fn of(&mut self, name: &str, uid: &str) -> &mut BTreeMap<IpNet, ReleasePhase> {
        self.0
            .entry(name.to_owned())
            .or_default()
            .entry(uid.to_owned())
            .or_default()
    }
}

//! What nodes that are gone have left: blocks that are not free yet.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use podplane_api::jiff::Timestamp;

use super::Remains;

/// How far a block of a gone node is on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its addresses may be in use.
    Draining,
    /// An instance of the node holds it for its sandboxes: until then, if there is a time, else
    /// until that is ended.
    Held(Option<Timestamp>),
    /// Nothing uses it, and it is kept back until then.
    Quarantined(Timestamp),
}

/// Blocks of gone nodes, by the node's name and UID.
#[derive(Debug, Default)]
pub(super) struct Formers(BTreeMap<String, BTreeMap<String, BTreeMap<IpNet, Phase>>>);

impl Formers {
    /// The node is gone. What its records say will be learned.
    pub(super) fn add(&mut self, name: &str, uid: &str, nets: &[IpNet]) {
        for net in nets {
            self.of(name, uid).entry(*net).or_insert(Phase::Draining);
        }
    }

    /// What a record says. Returns what was known of the block.
    pub(super) fn learn(
        &mut self,
        name: &str,
        uid: &str,
        net: IpNet,
        phase: Phase,
    ) -> Option<Phase> {
        self.of(name, uid).insert(net, phase)
    }

    /// Ends the holds whose record, by UID and prefix, is not stored any more: somebody else has
    /// released the block. It drains until the server has confirmed that. Returns the names of the
    /// nodes.
    pub(super) fn end_holds_without(&mut self, stored: &BTreeSet<(&str, IpNet)>) -> Vec<String> {
        let mut ended = Vec::new();
        for (name, uids) in &mut self.0 {
            let of_name = uids.iter_mut();
            let phases = of_name.flat_map(|(uid, nets)| {
                let nets = nets.iter_mut();
                nets.filter(|(net, _)| !stored.contains(&(uid.as_str(), **net)))
            });
            for (_, phase) in phases.filter(|(_, phase)| matches!(phase, Phase::Held(_))) {
                *phase = Phase::Draining;
                ended.push(name.clone());
            }
        }
        ended
    }

    /// The record is gone. Returns whether it was the last of the node.
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

    /// The UIDs of gone nodes of that name, with their blocks.
    pub(super) fn named(&self, name: &str) -> Vec<(String, Vec<(IpNet, Phase)>)> {
        let uids = self.0.get(name).into_iter().flatten();
        uids.map(|(uid, nets)| {
            let nets = nets.iter().map(|(net, phase)| (*net, *phase)).collect();
            (uid.clone(), nets)
        })
        .collect()
    }

    /// Whether sandboxes are known to hold any.
    pub(super) fn any_held(&self) -> bool {
        self.iter()
            .any(|(_, _, phase)| matches!(phase, Phase::Held(_)))
    }

    /// Those that instances of their nodes hold.
    pub(super) fn held(&self) -> impl Iterator<Item = Remains> {
        let all = self.0.iter().flat_map(|(name, uids)| {
            let of_name = uids.iter();
            of_name.flat_map(move |(uid, nets)| {
                nets.iter().map(move |(net, phase)| (name, uid, net, phase))
            })
        });
        let held = all.filter(|(.., phase)| matches!(phase, Phase::Held(_)));
        held.map(|(node, uid, net, _)| Remains {
            node: node.clone(),
            uid: uid.clone(),
            pod_cidrs: vec![*net],
        })
    }

    pub(super) fn phase(&self, name: &str, uid: &str, net: IpNet) -> Option<Phase> {
        self.0.get(name)?.get(uid)?.get(&net).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, IpNet, Phase)> {
        self.0.iter().flat_map(|(name, uids)| {
            let nets = uids.values().flatten();
            nets.map(move |(net, phase)| (name.as_str(), *net, *phase))
        })
    }

    fn of(&mut self, name: &str, uid: &str) -> &mut BTreeMap<IpNet, Phase> {
        self.0
            .entry(name.to_owned())
            .or_default()
            .entry(uid.to_owned())
            .or_default()
    }
}

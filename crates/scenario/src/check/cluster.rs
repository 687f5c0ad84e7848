//! The cluster.

use std::{cmp::Reverse, collections::BTreeSet};

use super::Checker;
use crate::{
    document::Path,
    format::{Cluster, Network, NodeSpec, Nodes, Several},
    plan::Case,
};

impl Checker<'_> {
    pub(super) fn cluster(&mut self, path: &Path, case: &Case) {
        let Cluster {
            nodes,
            cni_bin_dir,
            extra_config,
            ..
        } = &case.cluster;
        let names = match nodes {
            Some(Nodes::Named(nodes)) => nodes.iter().map(|node| node.name.clone()).collect(),
            Some(Nodes::Number(number)) => numbered(*number),
            None => numbered(3),
        };
        self.nodes = Some(names);
        if self.document.is_damaged(&Path::default()) || self.document.is_damaged_inside(path) {
            // What was taken out may have said something else.
            self.nodes = None;
            self.network = Network::Auto;
        }
        if let Some(Nodes::Named(nodes)) = nodes {
            let mut seen = BTreeSet::new();
            for (index, NodeSpec { name, network, .. }) in nodes.iter().enumerate() {
                let path = path.key("nodes").index(index);
                if !seen.insert(name) {
                    self.wrong(&path.key("name"), format!("there are two nodes {name:?}"));
                }
                if self.network == Network::Ledger && *network == Some(Network::Kernel) {
                    self.wrong(&path.key("network"), "a cluster in ledger mode has no nodes of the other: set cluster.network to kernel");
                }
            }
        }
        for dir in cni_bin_dir.iter().flat_map(|Several(dirs)| dirs) {
            let dir = case.resolve(dir);
            if !dir.is_dir() {
                let message = format!("there is no directory {}", dir.display());
                self.wrong(&path.key("cniBinDir"), message);
            }
        }
        for (service, flags) in extra_config {
            let path = path.key("extraConfig").key(service);
            if !self.catalog.flags.contains_key(service) {
                let message = self.unknown_service(service);
                self.wrong_key(&path, message);
                continue;
            }
            for (flag, value) in flags {
                self.flag(&path, service, flag, value);
            }
        }
        let flags = case.cluster.flags();
        if self.document.is_damaged(path) {
            return;
        }
        if let Err(message) = (self.catalog.up)(&flags) {
            // Told at the flag that it names first.
            let named = flags.iter().filter_map(|flag| {
                let place = message.find(flag.name)?;
                Some((place, Reverse(flag.name.len()), flag.key))
            });
            let path = named.min().map_or(path.clone(), |(.., key)| path.key(key));
            self.wrong(&path, message);
        }
    }
}

fn numbered(number: u32) -> BTreeSet<String> {
    (0..number).map(|index| format!("node-{index}")).collect()
}

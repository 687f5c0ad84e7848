//! Checks of the cluster.

use std::{cmp::Reverse, collections::BTreeSet};

use podplane_cluster::settings::Settings;

use super::Checker;
use crate::{
    document::Path,
    format::{Cluster, Network, NetworkBackend, NodeSpec, Nodes, Several},
    plan::PlannedCase,
};

impl Checker<'_> {
    pub(super) fn cluster(&mut self, path: &Path, case: &PlannedCase) {
        let Cluster {
            nodes,
            cni_bin_dir,
            extra_config,
            ..
        } = &case.cluster;
        let names = match nodes {
            Some(Nodes::Named(nodes)) => nodes.iter().map(|node| node.name.clone()).collect(),
            Some(Nodes::Number(number)) => numbered(*number),
            None => numbered(Settings::default().nodes),
        };
        self.nodes = Some(names);
        if self.document.is_damaged(&Path::default()) || self.document.is_damaged_inside(path) {
            // The part that was taken out may have named other nodes, or another network.
            self.nodes = None;
            self.network = Network::Auto;
        }
        if let Some(Nodes::Named(nodes)) = nodes {
            let mut seen = BTreeSet::new();
            for (index, node) in nodes.iter().enumerate() {
                let NodeSpec { name, network, .. } = node;
                let path = path.key("nodes").index(index);
                if !seen.insert(name) {
                    self.wrong(&path.key("name"), format!("there are two nodes {name:?}"));
                }
                if self.network == Network::Ledger && *network == Some(Network::Kernel) {
                    self.wrong(&path.key("network"), "a ledger-mode cluster cannot have kernel-mode nodes: set cluster.network to kernel");
                }
                self.backend(&path, *network, node.node_network_backend);
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
            // The problem is reported at the flag that the message names first.
            let named = flags.iter().filter_map(|flag| {
                let place = message.find(flag.name)?;
                Some((place, Reverse(flag.name.len()), flag.key))
            });
            let path = named.min().map_or(path.clone(), |(.., key)| path.key(key));
            self.wrong(&path, message);
        }
    }
}

impl Checker<'_> {
    /// Reports a backend of a node in ledger mode, which has no node network.
    pub(super) fn backend(
        &mut self,
        path: &Path,
        network: Option<Network>,
        backend: Option<NetworkBackend>,
    ) {
        let mode = match self.network {
            Network::Ledger => Network::Ledger,
            mode => network.unwrap_or(mode),
        };
        if backend.is_some() && mode == Network::Ledger {
            let message = "nodeNetworkBackend requires kernel mode: set network to kernel";
            self.wrong(&path.key("nodeNetworkBackend"), message);
        }
    }
}

fn numbered(number: u32) -> BTreeSet<String> {
    (0..number).map(|index| format!("node-{index}")).collect()
}

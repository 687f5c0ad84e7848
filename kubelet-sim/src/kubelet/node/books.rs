//! The addresses of a node: its ranges, who has one, and how many are left.

use std::{collections::BTreeSet, time::Duration};

use podplane_api::{
    Object as _,
    pod_ips::{self, PodIpResource, is_host_network},
};
use podplane_host::task;
use podplane_host_local::Lease;
use podplane_ipam::capacity::NodeCapacity;

use super::{
    super::{ipam_report::ReportState, plan::Sandbox},
    NodeContext, NodeError,
};
use crate::{
    NodeDir,
    ipam::{AddressUsage, NetworkAddresses},
};

/// The quarters of a node's addresses that may be in use while it counts as roomy. A node whose
/// last report was roomy may report later changes with a delay, since nobody waits for them.
const ROOMY: i64 = 3;

/// The addresses of a node at one time.
#[derive(Clone, Debug, Default)]
pub struct AddressBooks {
    /// The configured ranges, or what the IPAM plugin reports; `None` without a configuration or
    /// where another plugin than host-local reports nothing.
    pub ipam: Option<NetworkAddresses>,
    /// host-local's reason to refuse the configuration: it gives no address then.
    pub refused: Option<String>,
    /// The state of the IPAM plugin's reports.
    pub reported: ReportState,
    /// The IPAM plugin; empty without a configuration.
    pub plugin: String,
    /// True if the ranges are the node's blocks.
    pub uses_pod_cidr: bool,
    /// Every allocation file.
    pub leases: Vec<Lease>,
    /// Every sandbox, listed after the files were read: a lease of none of them is leaked, or just
    /// being released.
    pub sandboxes: Vec<Sandbox>,
    /// UIDs of pods whose sandboxes have an address or may have one, if host-local's files do not
    /// tell.
    pub presumed: BTreeSet<String>,
}

impl AddressBooks {
    /// The sandbox that has a lease.
    pub fn owner(&self, lease: &Lease) -> Option<&Sandbox> {
        self.sandbox(&lease.container_id)
    }

    fn sandbox(&self, id: &str) -> Option<&Sandbox> {
        let found = self
            .sandboxes
            .binary_search_by(|sandbox| sandbox.id.as_str().cmp(id));
        found.ok().and_then(|at| self.sandboxes.get(at))
    }

    /// The allocation files of the ranges as they are configured now.
    pub fn current(&self) -> impl Iterator<Item = &Lease> {
        let ipam = self.ipam.as_ref();
        let leases = self.leases.iter();
        leases.filter(move |lease| ipam.is_some_and(|ipam| ipam.gives(lease.ip)))
    }

    /// Returns true if host-local's files have the given addresses.
    pub fn has_files(&self) -> bool {
        self.ipam.as_ref().is_some_and(NetworkAddresses::has_files)
    }

    /// Returns true if the given addresses are known.
    pub fn knows_leases(&self) -> bool {
        self.ipam
            .as_ref()
            .is_some_and(NetworkAddresses::knows_leases)
    }

    /// UIDs of pods that have an address, or may have one.
    pub fn holders(&self) -> BTreeSet<String> {
        let owners = self.current().filter_map(|lease| self.owner(lease));
        let owners = owners.map(|sandbox| sandbox.uid.clone());
        owners.chain(self.presumed.iter().cloned()).collect()
    }

    /// The counts; `None` without a configuration. Where the leases are not known, each pod with a
    /// sandbox counts as one.
    pub fn usage(&self) -> Option<AddressUsage> {
        let is_known = |id: &str| self.sandbox(id).is_some();
        match &self.ipam {
            Some(ipam) if ipam.knows_leases() => {
                Some(AddressUsage::count(ipam.capacity, self.current(), is_known))
            }
            _ if self.plugin.is_empty() => None,
            ipam => {
                let reported = ipam.as_ref().map(|ipam| ipam.capacity.pods());
                let refused = self.refused.as_ref().map(|_| 0);
                Some(AddressUsage {
                    capacity: reported
                        .or(refused)
                        .map(|pods| i64::try_from(pods).unwrap_or(i64::MAX)),
                    allocated: i64::try_from(self.presumed.len()).unwrap_or(i64::MAX),
                    leaked: 0,
                })
            }
        }
    }
}

impl NodeContext {
    /// Reads the allocation files or the IPAM plugin's report, then lists the sandboxes.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub async fn books(&self) -> Result<AddressBooks, NodeError> {
        self.books_within(Duration::ZERO).await
    }

    /// As [`NodeContext::books`], but with a report that is not older than `max_age` if there is
    /// one.
    ///
    /// # Errors
    ///
    /// [`NodeError`].
    pub(in crate::kubelet) async fn books_within(
        &self,
        max_age: Duration,
    ) -> Result<AddressBooks, NodeError> {
        let object = self.object();
        let blocks = object.map(|node| pod_ips::pod_cidrs(&node).to_vec());
        let reported = self.reports.get(blocks.unwrap_or_default(), max_age).await;
        let dir = self.dir.clone();
        let read = move || read_books(&dir, reported);
        let mut books = task::spawn_blocking(read).await??;
        let listed = self.runtime.list().await;
        books.sandboxes = listed.map_err(NodeError::runtime("list sandboxes"))?;
        if !books.has_files() && !books.plugin.is_empty() {
            books.presumed = self.presumed_uids(&books.sandboxes);
        }
        Ok(books)
    }

    /// UIDs of the pods of these sandboxes, except for pods that share the node's network.
    fn presumed_uids(&self, sandboxes: &[Sandbox]) -> BTreeSet<String> {
        let shares = |sandbox: &Sandbox| {
            let pod = self.pods.get(&sandbox.pod);
            pod.is_some_and(|pod| pod.uid() == sandbox.uid && is_host_network(&pod))
        };
        let own = sandboxes.iter().filter(|sandbox| !shares(sandbox));
        own.map(|sandbox| sandbox.uid.clone()).collect()
    }

    /// The number of pods that the node has addresses for; `None` while it waits for its block.
    pub(super) fn capacity(&self, usage: Option<&AddressUsage>) -> Option<i64> {
        if let Some(reported) = usage.and_then(|usage| usage.capacity) {
            return Some(reported);
        }
        let node = self.object()?;
        match PodIpResource::of_node(&node).capacity(&node) {
            NodeCapacity::AwaitsBlock => None,
            NodeCapacity::Pods { count, .. } => Some(i64::try_from(count).unwrap_or(i64::MAX)),
        }
    }

    /// Returns true if the node has addresses for many more pods.
    pub(super) fn is_roomy(&self, usage: &AddressUsage) -> bool {
        self.capacity(Some(usage))
            .is_some_and(|capacity| usage.allocated <= capacity / 4 * ROOMY)
    }
}

/// The books but for the sandboxes. It blocks.
fn read_books(dir: &NodeDir, reported: ReportState) -> std::io::Result<AddressBooks> {
    // Without a configuration that can be read there is no network, and no address.
    let list = dir.network().ok();
    let plugin = list.as_ref().and_then(NetworkAddresses::plugin);
    let mut books = AddressBooks {
        plugin: plugin.unwrap_or_default().to_owned(),
        uses_pod_cidr: dir.uses_pod_cidr(),
        ..AddressBooks::default()
    };
    books.ipam = match (&reported, list.as_ref().map(NetworkAddresses::of)) {
        (ReportState::Good(good), _) => Some(NetworkAddresses::reported(&good.report)),
        (_, Some(Ok(ipam))) => ipam,
        (_, Some(Err(error))) => {
            books.refused = Some(error.to_string());
            None
        }
        (_, None) => None,
    };
    books.leases = match &books.ipam {
        Some(ipam) => ipam.leases()?,
        None => Vec::new(),
    };
    books.reported = reported;
    Ok(books)
}

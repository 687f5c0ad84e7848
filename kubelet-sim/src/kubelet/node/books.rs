//! The addresses of a node: its ranges, who has one, and how many are left.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use podplane_api::{
    Object as _,
    pod_ips::{self, is_host_network},
};
use podplane_host::task;
use podplane_host_local::Lease;
use podplane_ipam::{
    NodeAddresses,
    capacity::{Basis, NodeCapacity},
};

use super::{
    super::{ipam_report::ReportState, plan::Sandbox},
    NodeContext, NodeError,
};
use crate::{
    NodeDir,
    ipam::{AddressUsage, LeaseOwner, NetworkAddresses},
};

/// The quarters of a node's addresses that may be in use while it counts as roomy. A node whose
/// last report was roomy may report later changes with a delay, since nobody waits for them.
const ROOMY: u64 = 3;

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
    /// Every sandbox, listed after the files were read. A lease of none of them is leaked: where
    /// there are files, those without a sandbox have been read again.
    pub sandboxes: Vec<Sandbox>,
    /// UIDs of pods whose sandboxes have an address or may have one, if host-local's files do not
    /// tell.
    pub presumed: BTreeSet<String>,
    /// The addresses that each pod holds which is bound to the node, by UID.
    pub held: BTreeMap<String, u64>,
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

    /// The pods bound to the node that have an address, or may have one: what each of them holds,
    /// by UID. Addresses of other pods are orphaned.
    pub fn holders(&self) -> BTreeMap<String, u64> {
        let owners = self.current().filter_map(|lease| self.owner(lease));
        let owners = owners.map(|sandbox| &sandbox.uid).chain(&self.presumed);
        let held = owners.filter_map(|uid| Some((uid.clone(), *self.held.get(uid)?)));
        held.collect()
    }

    fn kind_of_owner(&self, lease: &Lease) -> LeaseOwner {
        match self.owner(lease) {
            Some(sandbox) if self.held.contains_key(&sandbox.uid) => LeaseOwner::BoundPod,
            Some(_) => LeaseOwner::GonePod,
            None => LeaseOwner::Nobody,
        }
    }

    /// Drops the leases without a sandbox that are not among those that were read later: their
    /// sandboxes were removed after the first reading, with their files.
    pub fn confirm_leaked(&mut self, later: &[Lease]) {
        let mut leases = std::mem::take(&mut self.leases);
        leases.retain(|lease| self.owner(lease).is_some() || later.contains(lease));
        self.leases = leases;
    }

    /// The counts; `None` without a configuration. Where the leases are not known, each pod with a
    /// sandbox counts as one.
    pub fn usage(&self) -> Option<AddressUsage> {
        match &self.ipam {
            Some(ipam) if ipam.knows_leases() => {
                let owner = |lease: &Lease| self.kind_of_owner(lease);
                Some(AddressUsage::count(ipam.capacity, self.current(), owner))
            }
            _ if self.plugin.is_empty() => None,
            ipam => {
                let reported = ipam.as_ref().map(|ipam| ipam.capacity.pods());
                let refused = self.refused.as_ref().map(|_| 0);
                let is_orphaned = |uid: &&String| !self.held.contains_key(*uid);
                let orphaned = self.presumed.iter().filter(is_orphaned).count();
                Some(AddressUsage {
                    capacity: reported
                        .or(refused)
                        .map(|pods| i64::try_from(pods).unwrap_or(i64::MAX)),
                    allocated: i64::try_from(self.presumed.len()).unwrap_or(i64::MAX),
                    leaked: 0,
                    orphaned: i64::try_from(orphaned).unwrap_or(i64::MAX),
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
        let held_before = self.held();
        let reported = self.reports.get(blocks.unwrap_or_default(), max_age).await;
        let dir = self.dir.clone();
        let read = move || read_books(&dir, reported);
        let mut books = task::spawn_blocking(read).await??;
        let listed = self.runtime.list().await;
        books.sandboxes = listed.map_err(NodeError::runtime("list sandboxes"))?;
        if books.has_files() && books.leases.iter().any(|it| books.owner(it).is_none()) {
            let ipam = books.ipam.clone();
            let read = move || ipam.map_or(Ok(Vec::new()), |ipam| ipam.leases());
            books.confirm_leaked(&task::spawn_blocking(read).await??);
        }
        // A pod that came or went in the meantime has no orphaned address: its sandbox was created
        // after the pod was seen, and a pod that ends in order goes after its sandbox.
        books.held = self.held();
        books.held.extend(held_before);
        if !books.has_files() && !books.plugin.is_empty() {
            books.presumed = self.presumed_uids(&books).await;
        }
        Ok(books)
    }

    /// The addresses that each pod of this node holds, by UID.
    fn held(&self) -> BTreeMap<String, u64> {
        let pods = self.own_pods();
        let each = pods
            .iter()
            .map(|pod| (pod.uid(), self.machine.pod_ips.addresses_held(pod)));
        let holding = each.filter(|(_, held)| *held > 0);
        holding.map(|(uid, held)| (uid.to_owned(), held)).collect()
    }

    /// UIDs of the pods whose sandboxes have an address or may have one: those of pods that hold
    /// one, and of other pods if the runtime does not deny it. A pod on the node's network has none.
    async fn presumed_uids(&self, books: &AddressBooks) -> BTreeSet<String> {
        let mut uids = BTreeSet::new();
        for sandbox in &books.sandboxes {
            let uid = sandbox.uid.as_str();
            let has_address = books.held.contains_key(uid)
                || match self.pods.get(&sandbox.pod) {
                    Some(pod) if pod.uid() == uid && is_host_network(&pod) => false,
                    _ => {
                        let asked = self.addresses_of(&sandbox.id).await;
                        asked.map_or(true, |addresses| !addresses.is_empty())
                    }
                };
            if has_address {
                uids.insert(uid.to_owned());
            }
        }
        uids
    }

    /// The number of pods that the node has addresses for: what the IPAM plugin reports, else what
    /// the Node object says.
    pub(super) fn capacity(&self, usage: Option<&AddressUsage>) -> NodeCapacity {
        match usage.and_then(|usage| usage.capacity) {
            Some(reported) => NodeCapacity::Pods {
                count: u64::try_from(reported).unwrap_or(0),
                basis: Basis::Report,
            },
            None => self.object().map_or(NodeCapacity::AwaitsBlock, |node| {
                self.machine.pod_ips.capacity(&node)
            }),
        }
    }

    /// The use of the node's addresses by the pods that are bound to it.
    pub(super) fn addresses(&self, usage: &AddressUsage) -> NodeAddresses {
        NodeAddresses {
            capacity: self.capacity(Some(usage)),
            held: self.held().into_values().sum(),
            orphaned: u64::try_from(usage.orphaned).unwrap_or(0),
        }
    }

    /// Returns true if the node has addresses for many more pods.
    pub(super) fn is_roomy(&self, usage: &AddressUsage) -> bool {
        let used = u64::try_from(usage.allocated.saturating_add(usage.leaked)).unwrap_or(0);
        used <= self.capacity(Some(usage)).count() / 4 * ROOMY
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

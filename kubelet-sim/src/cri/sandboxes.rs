//! Creates, stops and removes the sandboxes of a node. Each operation is idempotent.
//!
//! | from | operation | to |
//! |---|---|---|
//! | none | `run` | `Creating`, until the plugins have succeeded |
//! | `Creating` | `run` succeeds | `Ready` |
//! | `Creating` | `run` fails; or recovery, after a crash during `run` | none |
//! | `Ready` | `stop`; or recovery, if the namespace is gone | `NotReady` |
//! | any | `remove` | none |
//! | any | the plugins' DEL fails during one of these | `NotReady`, still attached |
//!
//! The record of a sandbox with a network is on disk before its plugins are executed, and is
//! deleted after their DEL. A sandbox that stays attached is detached by the next `stop` or
//! `remove`. Resources without a record, for example because it was damaged, are garbage-collected.
//!
//! All operations block, so an asynchronous caller needs a thread for blocking work.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    io,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::UNIX_EPOCH,
};

use ipnet::IpNet;
use podplane_cni::types::{ConfigError, NetworkConfigList};
use podplane_error_chain::one_line;
use podplane_host::{clock, fs, task};
use podplane_service_runtime::files::write_volatile;
use serde_json::{Map, Value};

use super::{
    capabilities,
    claims::{Claims, LeaseRestoration},
    cni_result,
    network::{AttachError, DetachError, IFNAME, SandboxNetworks},
    record::{
        Dns, PodNetwork, SandboxId, SandboxMetadata, SandboxRecord, SandboxRecords, SandboxState,
    },
    template::{NetworkTemplate, TemplateContext},
};
use crate::{NodeDir, NodeName, PodCidrs, ipam::NetworkAddresses};

/// The largest number of attempts to get an address that no other sandbox has.
const MAX_ADD_ATTEMPTS: usize = 4;
/// Threads that recover sandboxes when a server starts.
const RECOVERY_THREADS: usize = 8;

/// The reason why an operation on a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// No sandbox has that id. The text follows containerd's.
    #[error("an error occurred when try to find sandbox: sandbox {0:?} not found")]
    NotFound(String),
    /// The sandbox is not ready, so that it can have no containers.
    #[error("sandbox \"{0}\" is not ready: remove it, and run another attempt")]
    NotReady(SandboxId),
    /// The pod's sandbox of that attempt exists and is not ready.
    #[error(
        "failed to reserve sandbox name \"{}_{}_{}_{}\": it is reserved for \"{id}\", which is stopped: remove that one or make another attempt",
        metadata.name, metadata.namespace, metadata.uid, metadata.attempt
    )]
    Exists {
        /// The existing sandbox.
        id: SandboxId,
        /// Its pod and attempt.
        metadata: SandboxMetadata,
    },
    /// Its network could not be set up. The sandbox was removed again, if that was possible.
    #[error("failed to setup network for sandbox \"{id}\"")]
    Attach {
        /// The sandbox that was not created.
        id: SandboxId,
        /// The reason.
        source: Box<AttachError>,
    },
    /// Its network could not be torn down. The operation can be repeated.
    #[error("failed to destroy network for sandbox \"{id}\"")]
    Detach {
        /// The sandbox.
        id: SandboxId,
        /// The reason.
        source: Box<DetachError>,
    },
    /// A file could not be written or read.
    #[error("failed to {step}")]
    Disk {
        /// The failed step.
        step: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// A client's request for a sandbox.
#[derive(Clone, Debug)]
pub struct SandboxSpec {
    /// Its pod and attempt.
    pub metadata: SandboxMetadata,
    /// Labels, kept for the client.
    pub labels: BTreeMap<String, String>,
    /// Annotations, kept for the client.
    pub annotations: BTreeMap<String, String>,
    /// The runtime handler, kept for the client.
    pub runtime_handler: String,
    /// The host name inside; empty for the machine's.
    pub hostname: String,
    /// The resolver's configuration; absent for the machine's.
    pub dns: Option<Dns>,
    /// Capability arguments of CNI plugins.
    pub runtime_config: Map<String, Value>,
    /// Kernel settings of the network namespace, by their path below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// The network that it is on.
    pub network: NetworkMode,
}

/// The network that a sandbox is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// A network of its own.
    Pod,
    /// Its node's network (`hostNetwork`).
    Node,
}

/// The sandboxes of one node.
#[derive(Debug)]
pub struct NodeSandboxes {
    dir: NodeDir,
    template: NetworkTemplate,
    network: SandboxNetworks,
    records: SandboxRecords,
    /// Every sandbox, from its reservation until its record is deleted. No other lock is taken
    /// while the table is locked.
    table: Mutex<BTreeMap<SandboxId, SandboxEntry>>,
    claims: Claims,
}

#[derive(Debug)]
struct SandboxEntry {
    record: Arc<SandboxRecord>,
    /// Locked during an operation on the sandbox, before any other lock.
    operation: Arc<Mutex<()>>,
}

impl NodeSandboxes {
    /// Reads the records of `dir` and recovers from a crash or a reboot.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Disk`] if the records cannot be read.
    pub fn open(
        dir: NodeDir,
        template: NetworkTemplate,
        network: SandboxNetworks,
    ) -> Result<Self, SandboxError> {
        let failed = |source| SandboxError::Disk {
            step: "read the records of sandboxes",
            source,
        };
        let records = SandboxRecords::open(dir.sandboxes()).map_err(failed)?;
        let loaded = records.load().map_err(failed)?;
        let claims = Claims::of(&loaded);
        let table = loaded
            .into_iter()
            .map(|record| (record.id.clone(), SandboxEntry::new(record)));
        let sandboxes = Self {
            dir,
            template,
            network,
            records,
            table: Mutex::new(table.collect()),
            claims,
        };
        sandboxes.recover();
        Ok(sandboxes)
    }

    /// Removes the sandboxes that were being created when the last server ended, stops those whose
    /// namespace is gone, and collects garbage. Failures are logged, since a node with one broken
    /// sandbox must serve the others; the client's next Stop or Remove tries again.
    fn recover(&self) {
        // In parallel: after a reboot every sandbox has lost its namespace and is stopped, and
        // plugins are slow if executed one at a time.
        let records = self.list();
        let threads = records.len().min(RECOVERY_THREADS);
        let records = Mutex::new(records.into_iter());
        let next = || lock(&records).next();
        thread::scope(|scope| {
            for _ in 0..threads {
                let recover = || {
                    while let Some(record) = next() {
                        self.recover_sandbox(&record);
                    }
                };
                task::scoped_thread(scope, recover).expect("a thread can be started");
            }
        });
        self.collect_garbage();
    }

    fn recover_sandbox(&self, record: &SandboxRecord) {
        let outcome = match record.state {
            SandboxState::Creating => self.remove(record.id.as_str()),
            SandboxState::Ready if record.attached().is_some_and(|n| !self.network.is_live(n)) => {
                tracing::info!(sandbox = %record.id, pod = record.metadata.name, "network namespace is gone; the sandbox is not ready");
                self.stop(record.id.as_str())
            }
            SandboxState::Ready | SandboxState::NotReady => Ok(()),
        };
        if let Err(error) = outcome {
            tracing::warn!(sandbox = %record.id, error = %one_line(&error), "failed to reconcile the sandbox");
        }
    }

    /// Restores the allocation files of live sandboxes. Failures are logged, and tried again by the
    /// next call.
    fn restore_leases(&self) {
        for LeaseRestoration { dir, outcome } in self.claims.restore() {
            let (node, dir) = (self.node(), dir.display());
            match outcome {
                Ok(restored) => {
                    self.network
                        .metrics()
                        .restored
                        .inc_by(restored.len() as u64);
                    for lease in restored {
                        tracing::warn!(%node, network = %dir, ip = %lease.ip, sandbox = lease.container_id,
                            "allocation file of a live sandbox was missing or damaged; wrote it again");
                    }
                }
                Err(error) => {
                    tracing::warn!(%node, network = %dir, error = %one_line(&error), "failed to restore allocation files of live sandboxes");
                }
            }
        }
    }

    /// Reclaims addresses, namespaces and cached results that belong to no sandbox. Failures are
    /// logged, and tried again by the next call.
    ///
    /// Safe while sandboxes are created: a sandbox enters the table before its first resource is
    /// created, and each step here lists resources first and looks up their sandboxes after that.
    /// So a resource without an entry is garbage, or its sandbox has just been removed.
    pub fn collect_garbage(&self) {
        self.restore_leases();
        let is_known = |id: &str| self.table().contains_key(id);
        for error in self.network.collect_garbage(is_known) {
            tracing::warn!(error = %one_line(&error), "failed to collect garbage");
        }
        if let Err(error) = self.reclaim_addresses(is_known) {
            tracing::warn!(%error, "failed to reclaim addresses");
        }
    }

    /// Reclaims addresses in all networks of the node's own directory, since an earlier
    /// configuration may have had another name. A directory of the whole machine is left alone:
    /// others have addresses there, too.
    fn reclaim_addresses(&self, is_known: impl Fn(&str) -> bool) -> io::Result<()> {
        let networks = match fs::read_dir(self.dir.networks()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            networks => networks?,
        };
        for network in networks {
            let path = network?.path();
            let reclaimed =
                podplane_host_local::reclaim(&path, |lease| is_known(&lease.container_id))?;
            if !reclaimed.is_empty() {
                let addresses = reclaimed.len();
                tracing::info!(addresses, network = %path.display(), "reclaimed addresses that no sandbox had");
            }
        }
        Ok(())
    }

    /// Checks that pods can have a network now.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] if there is no configuration, or an invalid one.
    pub fn network_ready(&self) -> Result<(), ConfigError> {
        self.dir.network().map(drop)
    }

    /// Writes the node's network configuration from the template. Existing sandboxes keep theirs.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Disk`].
    pub fn configure(&self, cidrs: &PodCidrs) -> Result<(), SandboxError> {
        let write = || {
            let context = TemplateContext {
                host_ports: self.network.host_ports(),
                mtu: self.dir.pod_mtu()?,
            };
            let text = self.template.render(cidrs, context)?;
            let net_d = self.dir.net_d();
            fs::create_dir_all(&net_d)?;
            let path = net_d.join(self.template.file_name());
            if fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
                return Ok(());
            }
            let previous = self.dir.network().ok();
            // Not synced to the disk: after a power failure the client sends the blocks again.
            write_volatile(&path, text.as_bytes())?;
            // Remove the file of the other template, which an earlier server may have written: of
            // several files, the first by name is the network.
            for other in NetworkTemplate::ALL
                .iter()
                .filter(|other| **other != self.template)
            {
                match fs::remove_file(net_d.join(other.file_name())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            tracing::info!(podcidr = %cidrs, path = %path.display(), "wrote the network configuration");
            self.remove_stale_bridge(previous.as_ref());
            Ok(())
        };
        write().map_err(|source| SandboxError::Disk {
            step: "write the network configuration",
            source,
        })
    }

    /// Creates the sandbox, or returns the pod's existing sandbox of this attempt.
    ///
    /// Concurrent calls for one pod and attempt get the same entry: the first to lock it creates
    /// the sandbox, and the others wait for the lock and return its id. If the first call
    /// failed and removed the entry, the next one reserves a new entry.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Exists`] if the existing sandbox is `NotReady`. After any other error the
    /// sandbox has been removed again. If the removal fails too, the sandbox stays until
    /// [`remove`](Self::remove) succeeds, `NotReady` if its network could not be torn down.
    pub fn run(&self, spec: &SandboxSpec) -> Result<SandboxId, SandboxError> {
        loop {
            let (id, operation) = self.reserve(spec);
            let _operation = lock(&operation);
            // Read under the lock: an earlier operation may have changed the state.
            match self.get(id.as_str()) {
                // The call that held the lock failed and removed the entry: reserve a new one.
                Err(_) => {}
                Ok(record) => match record.state {
                    SandboxState::Ready => return Ok(id),
                    SandboxState::Creating => {
                        return self.create_or_roll_back(Arc::unwrap_or_clone(record), spec);
                    }
                    SandboxState::NotReady => {
                        return Err(SandboxError::Exists {
                            id,
                            metadata: record.metadata.clone(),
                        });
                    }
                },
            }
        }
    }

    /// Tears down the sandbox's network. Succeeds if the sandbox is stopped already or unknown.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Detach`] or [`SandboxError::Disk`]; the call can be repeated.
    pub fn stop(&self, id: &str) -> Result<(), SandboxError> {
        self.stop_after(id, |_| Ok(()))
    }

    /// As [`stop`](Self::stop), and does `first` before: what the sandbox has must end first.
    ///
    /// # Errors
    ///
    /// Those of `stop`; those of `first`, and then nothing else was done.
    pub fn stop_after<E: From<SandboxError>>(
        &self,
        id: &str,
        first: impl FnOnce(&SandboxId) -> Result<(), E>,
    ) -> Result<(), E> {
        self.end_after(id, first, Self::stop_locked)
    }

    /// Does `first` and then `end` for an existing sandbox, with its operation locked.
    fn end_after<E: From<SandboxError>>(
        &self,
        id: &str,
        first: impl FnOnce(&SandboxId) -> Result<(), E>,
        end: impl FnOnce(&Self, SandboxRecord) -> Result<(), SandboxError>,
    ) -> Result<(), E> {
        let Some(operation) = self.operation(id) else {
            return Ok(());
        };
        let _operation = lock(&operation);
        let Ok(record) = self.get(id) else {
            return Ok(());
        };
        first(&record.id)?;
        Ok(end(self, Arc::unwrap_or_clone(record))?)
    }

    /// Does `work` for a ready sandbox, which stays ready until it is done.
    ///
    /// # Errors
    ///
    /// [`SandboxError::NotFound`] and [`SandboxError::NotReady`]; those of `work`.
    pub fn while_ready<T, E: From<SandboxError>>(
        &self,
        id: &str,
        work: impl FnOnce(&SandboxRecord) -> Result<T, E>,
    ) -> Result<T, E> {
        let missing = || SandboxError::NotFound(id.to_owned());
        let operation = self.operation(id).ok_or_else(missing)?;
        let _operation = lock(&operation);
        let record = self.get(id)?;
        match record.state {
            SandboxState::Ready => work(&record),
            SandboxState::Creating | SandboxState::NotReady => {
                Err(SandboxError::NotReady(record.id.clone()).into())
            }
        }
    }

    /// Stops the sandbox and deletes its record. Succeeds if the sandbox is unknown.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Detach`] or [`SandboxError::Disk`]; the call can be repeated.
    pub fn remove(&self, id: &str) -> Result<(), SandboxError> {
        self.remove_after(id, |_| Ok(()))
    }

    /// As [`remove`](Self::remove), and does `first` before.
    ///
    /// # Errors
    ///
    /// Those of `remove`; those of `first`, and then nothing else was done.
    pub fn remove_after<E: From<SandboxError>>(
        &self,
        id: &str,
        first: impl FnOnce(&SandboxId) -> Result<(), E>,
    ) -> Result<(), E> {
        self.end_after(id, first, Self::remove_locked)
    }

    /// The sandbox of an id, or of a prefix that no other id has.
    ///
    /// # Errors
    ///
    /// [`SandboxError::NotFound`].
    pub fn get(&self, id: &str) -> Result<Arc<SandboxRecord>, SandboxError> {
        let table = self.table();
        let entry = find(&table, id).ok_or_else(|| SandboxError::NotFound(id.to_owned()))?;
        Ok(entry.record.clone())
    }

    /// The plugins' results for a sandbox, in containerd's form; `None` while it has no network of
    /// its own.
    pub(super) fn cni_result(&self, record: &SandboxRecord) -> Option<Value> {
        let results = self.network.results(&record.id, record.attached()?);
        (!results.is_empty()).then(|| cni_result::joined(&results, IFNAME))
    }

    /// Returns true if sandboxes have namespaces of their own, and not addresses alone.
    pub(super) fn has_namespaces(&self) -> bool {
        self.network.has_namespaces()
    }

    /// The node's blocks, as last configured.
    fn blocks(&self) -> Vec<IpNet> {
        let path = self.dir.net_d().join(self.template.file_name());
        let config = NetworkConfigList::load_file(&path).ok();
        let ipam = config.and_then(|list| NetworkAddresses::of(&list).ok().flatten());
        ipam.map(|ipam| ipam.subnets).unwrap_or_default()
    }

    /// The node of these sandboxes.
    pub(super) fn node(&self) -> &NodeName {
        self.network.node()
    }

    /// All sandboxes, by id.
    pub fn list(&self) -> Vec<Arc<SandboxRecord>> {
        let table = self.table();
        table.values().map(|entry| entry.record.clone()).collect()
    }

    /// The number of ready sandboxes, and of all others.
    pub(super) fn count(&self) -> (u64, u64) {
        let table = self.table();
        let all = table.values().map(|entry| entry.record.state);
        all.fold((0, 0), |(ready, not_ready), state| match state {
            SandboxState::Ready => (ready + 1, not_ready),
            SandboxState::Creating | SandboxState::NotReady => (ready, not_ready + 1),
        })
    }

    /// The sandbox of this pod and attempt; if it is missing, enters a new one as `Creating`. The
    /// new one is not on disk yet, and has no resources.
    fn reserve(&self, spec: &SandboxSpec) -> (SandboxId, Arc<Mutex<()>>) {
        let mut table = self.table();
        let is_same = |entry: &&SandboxEntry| {
            let metadata = &entry.record.metadata;
            (&metadata.uid, metadata.attempt) == (&spec.metadata.uid, spec.metadata.attempt)
        };
        if let Some(entry) = table.values().find(is_same) {
            return (entry.record.id.clone(), entry.operation.clone());
        }
        let SandboxSpec {
            metadata,
            labels,
            annotations,
            runtime_handler,
            hostname,
            dns,
            runtime_config: _,
            sysctls: _,
            network: _,
        } = spec.clone();
        let entry = SandboxEntry::new(SandboxRecord {
            id: SandboxId::random(),
            metadata,
            state: SandboxState::Creating,
            created_at: now_nanos(),
            labels,
            annotations,
            runtime_handler,
            hostname,
            dns,
            network: None,
        });
        let reserved = (entry.record.id.clone(), entry.operation.clone());
        table.insert(entry.record.id.clone(), entry);
        reserved
    }

    /// Creates a reserved sandbox, or removes it if that fails. The caller has locked its
    /// operation.
    fn create_or_roll_back(
        &self,
        mut record: SandboxRecord,
        spec: &SandboxSpec,
    ) -> Result<SandboxId, SandboxError> {
        let id = record.id.clone();
        match self.create(&mut record, spec) {
            Ok(()) => Ok(id),
            Err(error) => {
                if let Err(error) = self.remove_locked(record) {
                    tracing::warn!(sandbox = %id, error = %one_line(&error), "failed to undo the sandbox; it stays, not ready");
                }
                Err(error)
            }
        }
    }

    /// Records the planned network, sets it up, and records the sandbox as `Ready`.
    fn create(&self, record: &mut SandboxRecord, spec: &SandboxSpec) -> Result<(), SandboxError> {
        let id = record.id.clone();
        let failed = |source| SandboxError::Attach {
            id: id.clone(),
            source: Box::new(source),
        };
        if spec.network == NetworkMode::Node {
            return self.set_state(record, SandboxState::Ready);
        }
        let list = self
            .dir
            .network()
            .map_err(|error| failed(AttachError::Config(error)))?;
        let mut planned = self.network.plan(&id, &list);
        planned.runtime_config = spec.runtime_config.clone();
        capabilities::add_ranges(&mut planned.runtime_config, &self.blocks());
        planned.sysctls = spec.sysctls.clone();
        record.network = Some(planned.clone());
        self.set_state(record, SandboxState::Creating)?;
        let attached = self.attach_and_claim(&id, &record.metadata, planned, &list);
        record.network = Some(attached.map_err(failed)?);
        record.created_at = now_nanos();
        self.set_state(record, SandboxState::Ready)
    }

    /// Attaches a sandbox, and claims its addresses. If the plugins gave an address of another
    /// sandbox, detaches it and tries again, [`MAX_ADD_ATTEMPTS`] times in all.
    fn attach_and_claim(
        &self,
        id: &SandboxId,
        metadata: &SandboxMetadata,
        mut network: PodNetwork,
        list: &NetworkConfigList,
    ) -> Result<PodNetwork, AttachError> {
        self.restore_leases();
        let mut tries = 0;
        loop {
            network.ips = self.network.attach(id, metadata, &network, list)?;
            let Err(conflict) = self.claims.claim(id, &network) else {
                return Ok(network);
            };
            tries += 1;
            self.network.metrics().duplicates.inc();
            tracing::warn!(node = %self.node(), sandbox = %id, ip = %conflict.ip, holder = %conflict.holder, tries,
                "the IPAM plugin gave an address that another sandbox has; giving it back");
            if let Err(source) = self.network.detach(id, metadata, &network) {
                return Err(AttachError::Undo { conflict, source });
            }
            // If the ADD overwrote the other sandbox's allocation file, the DEL has removed it:
            // write it again.
            self.restore_leases();
            if tries == MAX_ADD_ATTEMPTS {
                return Err(AttachError::Duplicate { conflict, tries });
            }
        }
    }

    /// Removes a bridge that has the address of an earlier block, once no sandbox is attached.
    /// Every ADD fails while it exists. `previous` is an earlier configuration of the node, with
    /// which the bridge may have been made.
    fn remove_stale_bridge(&self, previous: Option<&NetworkConfigList>) {
        let is_idle = |entry: &SandboxEntry| entry.record.attached().is_none();
        if !self.table().values().all(is_idle) {
            return;
        }
        let Ok(list) = self.dir.network() else {
            return;
        };
        if let Err(error) = self.network.remove_stale_bridges(&list, previous) {
            tracing::warn!(error = %one_line(&error), "failed to remove the bridge of an earlier block");
        }
    }

    /// Detaches the sandbox if it is attached, and records it as `NotReady`. The caller has locked
    /// its operation.
    fn stop_locked(&self, mut record: SandboxRecord) -> Result<(), SandboxError> {
        if record.attached().is_none() && record.state == SandboxState::NotReady {
            return Ok(());
        }
        self.tear_down(record.id.clone(), || {
            let previous = self.detach(&mut record)?;
            self.set_state(&mut record, SandboxState::NotReady)?;
            self.remove_stale_bridge(previous.as_ref());
            Ok(())
        })
    }

    /// Detaches the sandbox if it is attached, and deletes its record. The caller has locked its
    /// operation.
    fn remove_locked(&self, mut record: SandboxRecord) -> Result<(), SandboxError> {
        self.tear_down(record.id.clone(), || {
            let previous = self.detach(&mut record)?;
            self.delete_record(&record.id)?;
            self.remove_stale_bridge(previous.as_ref());
            Ok(())
        })
    }

    /// Runs `teardown`, which detaches the sandbox and records that. Releases the sandbox's claims
    /// only after it has succeeded, so that until then no other sandbox can get the addresses;
    /// keeps the claims if it fails.
    fn tear_down(
        &self,
        id: SandboxId,
        teardown: impl FnOnce() -> Result<(), SandboxError>,
    ) -> Result<(), SandboxError> {
        // The plugins look up in these files which addresses to free.
        self.restore_leases();
        self.claims.begin_teardown(&id);
        let result = teardown();
        match &result {
            Ok(()) => self.claims.release(&id),
            Err(_) => self.claims.cancel_teardown(&id),
        }
        result
    }

    /// Detaches the sandbox if it is attached. Returns the configuration with which it was
    /// attached. On success `record` is changed in memory only: the caller writes or deletes it.
    fn detach(
        &self,
        record: &mut SandboxRecord,
    ) -> Result<Option<NetworkConfigList>, SandboxError> {
        if let Some(network) = record.attached() {
            let detached = self.network.detach(&record.id, &record.metadata, network);
            if let Err(source) = detached {
                // Parts of the network may remain. The record says `NotReady` but still attached,
                // so that the next call executes the plugins again.
                self.set_state(record, SandboxState::NotReady)?;
                return Err(SandboxError::Detach {
                    id: record.id.clone(),
                    source: Box::new(source),
                });
            }
        }
        let Some(network) = &mut record.network else {
            return Ok(None);
        };
        network.attached = false;
        network.ips.clear();
        let config = network.config.to_string();
        Ok(NetworkConfigList::from_list(config.as_bytes()).ok())
    }

    /// Sets the state of a sandbox, and stores its record: on disk first, then in the table.
    fn set_state(
        &self,
        record: &mut SandboxRecord,
        state: SandboxState,
    ) -> Result<(), SandboxError> {
        record.state = state;
        self.records
            .write(record)
            .map_err(|source| SandboxError::Disk {
                step: "write the sandbox's record",
                source,
            })?;
        if let Some(entry) = self.table().get_mut(&record.id) {
            entry.record = Arc::new(record.clone());
        }
        Ok(())
    }

    /// Deletes the record of a sandbox: on disk first, then in the table.
    fn delete_record(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.records
            .remove(id.as_str())
            .map_err(|source| SandboxError::Disk {
                step: "remove the sandbox's record",
                source,
            })?;
        self.table().remove(id);
        Ok(())
    }

    fn operation(&self, id: &str) -> Option<Arc<Mutex<()>>> {
        find(&self.table(), id).map(|entry| entry.operation.clone())
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<SandboxId, SandboxEntry>> {
        lock(&self.table)
    }
}

impl SandboxEntry {
    fn new(record: SandboxRecord) -> Self {
        Self {
            record: Arc::new(record),
            operation: Arc::default(),
        }
    }
}

/// The entry of an id, or of a prefix that no other id has.
pub(super) fn find<'a, I: Borrow<str> + Ord, T>(
    table: &'a BTreeMap<I, T>,
    id: &str,
) -> Option<&'a T> {
    if id.is_empty() {
        return None;
    }
    let from = (Bound::Included(id), Bound::Unbounded);
    let mut matching = table
        .range::<str, _>(from)
        .take_while(|(key, _)| (*key).borrow().starts_with(id));
    let (_, found) = matching.next()?;
    matching.next().is_none().then_some(found)
}

/// Locks a mutex. The values are consistent between any two statements, so a panic elsewhere does
/// no harm.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time, in nanoseconds since 1970.
pub(super) fn now_nanos() -> i64 {
    let since = clock::system_time().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

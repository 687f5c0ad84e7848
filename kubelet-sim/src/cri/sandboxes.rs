//! The sandboxes of a node: made, stopped and removed in steps that can each be repeated.
//!
//! A record is written before anything is made and removed after everything is unmade, so whatever exists has a record, or is left from a crash
//! and reclaimed. Everything here blocks.

use std::{
    collections::BTreeMap,
    io,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{SystemTime, UNIX_EPOCH},
};

use ipnet::IpNet;
use podplane_cni::{
    host_local,
    types::{ConfigError, NetworkConfigList},
};
use serde_json::{Map, Value};

use super::{
    capabilities,
    claims::{Claims, Restored},
    cni_result,
    network::{AttachError, DetachError, IFNAME, Network},
    record::{Dns, Metadata, PodNetwork, Record, Records, SandboxId, State},
    template::Template,
};
use crate::{NodeDir, NodeName, PodCidrs, ipam::Ipam, node_dir::write_atomically};

/// How often an address is asked for when others have those that are given.
const ADD_TRIES: usize = 4;
/// Threads that put sandboxes right when a server starts.
const RECOVERY_THREADS: usize = 8;

/// Why an operation on a sandbox failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no sandbox of that id.
    #[error("an error occurred when try to find sandbox: sandbox {0:?} not found")]
    NotFound(String),
    /// The pod's sandbox of that attempt exists and is not ready.
    #[error(
        "failed to reserve sandbox name \"{}_{}_{}_{}\": it is reserved for \"{id}\", which is stopped: remove that one or make another attempt",
        metadata.name, metadata.namespace, metadata.uid, metadata.attempt
    )]
    Exists {
        /// The one that exists.
        id: SandboxId,
        /// Its pod and attempt.
        metadata: Metadata,
    },
    /// Its network could not be made; nothing of the sandbox is left.
    #[error("failed to setup network for sandbox \"{id}\"")]
    Attach {
        /// The sandbox that is not.
        id: SandboxId,
        /// Why.
        source: Box<AttachError>,
    },
    /// Its network could not be taken down; try again.
    #[error("failed to destroy network for sandbox \"{id}\"")]
    Detach {
        /// The sandbox.
        id: SandboxId,
        /// Why.
        source: Box<DetachError>,
    },
    /// A file could not be written or read.
    #[error("{step}")]
    Disk {
        /// What for.
        step: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// What the client wants of a sandbox.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Whose it is.
    pub metadata: Metadata,
    /// Kept for the client.
    pub labels: BTreeMap<String, String>,
    /// Kept for the client.
    pub annotations: BTreeMap<String, String>,
    /// Kept for the client.
    pub runtime_handler: String,
    /// The host name inside; empty for the machine's.
    pub hostname: String,
    /// Absent for the machine's.
    pub dns: Option<Dns>,
    /// Capability arguments of CNI plugins.
    pub runtime_config: Map<String, Value>,
    /// Kernel settings of the network namespace, by their path below `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// Which network it is on.
    pub network: NetworkMode,
}

/// Which network a sandbox is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkMode {
    /// One of its own.
    Pod,
    /// Its node's.
    Node,
}

/// The sandboxes of one node.
#[derive(Debug)]
pub struct Sandboxes {
    dir: NodeDir,
    template: Template,
    network: Network,
    records: Records,
    table: Mutex<BTreeMap<SandboxId, Entry>>,
    claims: Claims,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    /// Held by whoever makes or unmakes the sandbox: one at a time.
    turn: Arc<Mutex<()>>,
}

impl Sandboxes {
    /// Reads the records of `dir` and puts right what a crash or a reboot left.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Disk`] if the records cannot be read.
    pub fn open(dir: NodeDir, template: Template, network: Network) -> Result<Self, SandboxError> {
        let failed = |source| SandboxError::Disk {
            step: "read the records of sandboxes",
            source,
        };
        let records = Records::open(dir.sandboxes()).map_err(failed)?;
        let loaded = records.load().map_err(failed)?;
        let claims = Claims::of(&loaded);
        let table = loaded
            .into_iter()
            .map(|record| (record.id.clone(), Entry::new(record)));
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

    /// Takes back what was being made when the last server ended, releases the network of sandboxes whose namespace is gone, and collects garbage. Failures are
    /// logged, since a node with one broken sandbox must serve the others; the client's next Stop or Remove tries again.
    fn recover(&self) {
        // After a reboot every sandbox is without its namespace, and plugins are slow one at a time.
        let records = Mutex::new(self.list().into_iter());
        let next = || lock(&records).next();
        thread::scope(|scope| {
            for _ in 0..RECOVERY_THREADS {
                scope.spawn(|| {
                    while let Some(record) = next() {
                        self.put_right(&record);
                    }
                });
            }
        });
        self.collect_garbage();
    }

    fn put_right(&self, record: &Record) {
        let outcome = match record.state {
            State::Creating => self.remove(record.id.as_str()),
            State::Ready if record.attached().is_some_and(|n| !self.network.is_live(n)) => {
                tracing::info!(sandbox = %record.id, pod = record.metadata.name, "namespace is gone; sandbox is not ready");
                self.stop(record.id.as_str())
            }
            State::Ready | State::NotReady => Ok(()),
        };
        if let Err(error) = outcome {
            tracing::warn!(sandbox = %record.id, error = %chain(&error), "sandbox not put right");
        }
    }

    /// Puts the allocation files of live sandboxes right. What fails is logged and tried again by the next call.
    fn restore_leases(&self) {
        for Restored { dir, outcome } in self.claims.restore() {
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
                    tracing::warn!(%node, network = %dir, error = %chain(&error), "allocation files of live sandboxes not restored");
                }
            }
        }
    }

    /// Reclaims addresses, namespaces and cached results that no sandbox has. What fails is logged and tried again by the next call.
    ///
    /// Each step lists what there is and looks it up in the table after that. A sandbox is in the table before it has anything, so what is not there
    /// then was left behind, or has just been released.
    pub fn collect_garbage(&self) {
        self.restore_leases();
        let is_known = |id: &str| self.lock().contains_key(id);
        for error in self.network.collect_garbage(is_known) {
            tracing::warn!(error = %chain(&error), "garbage not collected");
        }
        if let Err(error) = self.reclaim_addresses(is_known) {
            tracing::warn!(%error, "addresses not reclaimed");
        }
    }

    /// Goes through all networks in the node's own directory, since an earlier configuration may have had another name. In a directory of the whole machine, others
    /// have addresses too.
    fn reclaim_addresses(&self, is_known: impl Fn(&str) -> bool) -> io::Result<()> {
        let networks = match std::fs::read_dir(self.dir.networks()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            networks => networks?,
        };
        for network in networks {
            let path = network?.path();
            let reclaimed = host_local::reclaim(&path, |lease| is_known(&lease.container_id))?;
            if !reclaimed.is_empty() {
                let addresses = reclaimed.len();
                tracing::info!(addresses, network = %path.display(), "reclaimed addresses that no sandbox had");
            }
        }
        Ok(())
    }

    /// Whether pods can have a network now.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]: there is no configuration, or a broken one.
    pub fn network_ready(&self) -> Result<(), ConfigError> {
        self.dir.network().map(drop)
    }

    /// Writes the node's network configuration from the template. Sandboxes that exist keep theirs.
    ///
    /// # Errors
    ///
    /// [`SandboxError::Disk`].
    pub fn configure(&self, cidrs: &PodCidrs) -> Result<(), SandboxError> {
        let write = || {
            let host_ports = self.network.host_ports();
            let text = self.template.render(cidrs, host_ports)?;
            let net_d = self.dir.net_d();
            std::fs::create_dir_all(&net_d)?;
            let path = net_d.join(self.template.file_name());
            if std::fs::read(&path).is_ok_and(|old| old == text.as_bytes()) {
                return Ok(());
            }
            let earlier = self.dir.network().ok();
            write_atomically(&path, text.as_bytes())?;
            // The template of an earlier start would come first, or stay as a second network.
            for other in Template::ALL
                .iter()
                .filter(|other| **other != self.template)
            {
                match std::fs::remove_file(net_d.join(other.file_name())) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            tracing::info!(podcidr = %cidrs, path = %path.display(), "wrote the network configuration");
            self.remove_stale_bridge(earlier.as_ref());
            Ok(())
        };
        write().map_err(|source| SandboxError::Disk {
            step: "write the network configuration",
            source,
        })
    }

    /// Makes the sandbox, or returns the one that the pod has of this attempt.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]; nothing of the sandbox is left then, unless its network could not be taken down: it then stays, not ready.
    pub fn run(&self, spec: &Spec) -> Result<SandboxId, SandboxError> {
        loop {
            let (id, turn) = self.reserve(spec);
            let _turn = lock(&turn);
            match self.get(id.as_str()) {
                // Whoever made it before us failed and has taken it back.
                Err(_) => {}
                Ok(record) => match record.state {
                    State::Ready => return Ok(id),
                    State::Creating => return self.create(record, spec),
                    State::NotReady => {
                        return Err(SandboxError::Exists {
                            id,
                            metadata: record.metadata,
                        });
                    }
                },
            }
        }
    }

    /// Takes the sandbox's network down. A sandbox that is stopped, or not there, is stopped already.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]: call again.
    pub fn stop(&self, id: &str) -> Result<(), SandboxError> {
        let Some(turn) = self.turn(id) else {
            return Ok(());
        };
        let _turn = lock(&turn);
        match self.get(id) {
            Ok(record) => self.take_down(record).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Stops and forgets the sandbox. One that is not there is removed already.
    ///
    /// # Errors
    ///
    /// [`SandboxError`]: call again.
    pub fn remove(&self, id: &str) -> Result<(), SandboxError> {
        let Some(turn) = self.turn(id) else {
            return Ok(());
        };
        let _turn = lock(&turn);
        match self.get(id) {
            Ok(record) => {
                let record = self.take_down(record)?;
                self.forget(&record.id)
            }
            Err(_) => Ok(()),
        }
    }

    /// The sandbox of an id, or of a prefix that no other id has.
    ///
    /// # Errors
    ///
    /// [`SandboxError::NotFound`].
    pub fn get(&self, id: &str) -> Result<Record, SandboxError> {
        let table = self.lock();
        let entry = find(&table, id).ok_or_else(|| SandboxError::NotFound(id.to_owned()))?;
        Ok(entry.record.clone())
    }

    /// What the plugins answered for a sandbox, as containerd shows it; `None` while it has no
    /// network of its own.
    pub(super) fn cni_result(&self, record: &Record) -> Option<Value> {
        let results = self.network.results(&record.id, record.attached()?);
        (!results.is_empty()).then(|| cni_result::joined(&results, IFNAME))
    }

    /// Whether sandboxes have namespaces of their own, and not addresses alone.
    pub(super) fn has_namespaces(&self) -> bool {
        self.network.has_namespaces()
    }

    /// The node's blocks, as it was told them last.
    fn blocks(&self) -> Vec<IpNet> {
        let path = self.dir.net_d().join(self.template.file_name());
        let told = NetworkConfigList::load_file(&path).ok();
        let ipam = told.and_then(|list| Ipam::of(&list).ok().flatten());
        ipam.map(|ipam| ipam.subnets).unwrap_or_default()
    }

    /// The node whose they are.
    pub(super) fn node(&self) -> &NodeName {
        self.network.node()
    }

    /// All sandboxes, by id.
    pub fn list(&self) -> Vec<Record> {
        let table = self.lock();
        table.values().map(|entry| entry.record.clone()).collect()
    }

    /// How many are ready, and how many are not.
    pub(super) fn count(&self) -> (u64, u64) {
        let table = self.lock();
        let all = table.values().map(|entry| entry.record.state);
        all.fold((0, 0), |(ready, not_ready), state| match state {
            State::Ready => (ready + 1, not_ready),
            State::Creating | State::NotReady => (ready, not_ready + 1),
        })
    }

    /// The sandbox of this pod and attempt, which is entered as one to be created if it is not there.
    fn reserve(&self, spec: &Spec) -> (SandboxId, Arc<Mutex<()>>) {
        let mut table = self.lock();
        let is_same = |entry: &&Entry| {
            let have = &entry.record.metadata;
            (&have.uid, have.attempt) == (&spec.metadata.uid, spec.metadata.attempt)
        };
        if let Some(entry) = table.values().find(is_same) {
            return (entry.record.id.clone(), entry.turn.clone());
        }
        let Spec {
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
        let entry = Entry::new(Record {
            id: SandboxId::random(),
            metadata,
            state: State::Creating,
            created_at: now(),
            labels,
            annotations,
            runtime_handler,
            hostname,
            dns,
            network: None,
        });
        let reserved = (entry.record.id.clone(), entry.turn.clone());
        table.insert(entry.record.id.clone(), entry);
        reserved
    }

    /// Makes a sandbox that is reserved. The caller has its turn.
    fn create(&self, mut record: Record, spec: &Spec) -> Result<SandboxId, SandboxError> {
        let id = record.id.clone();
        match self.make(&mut record, spec) {
            Ok(()) => Ok(id),
            Err(error) => {
                let undone = self
                    .take_down(record)
                    .and_then(|record| self.forget(&record.id));
                if let Err(error) = undone {
                    tracing::warn!(sandbox = %id, error = %chain(&error), "sandbox not taken back; it stays, not ready");
                }
                Err(error)
            }
        }
    }

    fn make(&self, record: &mut Record, spec: &Spec) -> Result<(), SandboxError> {
        let id = record.id.clone();
        let failed = |source| SandboxError::Attach {
            id: id.clone(),
            source: Box::new(source),
        };
        if spec.network == NetworkMode::Node {
            return self.settle(record, State::Ready);
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
        self.settle(record, State::Creating)?;
        let attached = self.attach(&id, &record.metadata, planned, &list);
        record.network = Some(attached.map_err(failed)?);
        record.created_at = now();
        self.settle(record, State::Ready)
    }

    /// Attaches a sandbox, and sees to it that no other one has its addresses. An address that another one has is given back and asked for anew.
    fn attach(
        &self,
        id: &SandboxId,
        metadata: &Metadata,
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
            // Where the plugin had written over the other's file, it is gone now.
            self.restore_leases();
            if tries == ADD_TRIES {
                return Err(AttachError::Duplicate { conflict, tries });
            }
        }
    }

    /// A bridge that has the address of an earlier block makes every ADD fail. While it has pods it stays, for them; without any it serves nobody, and goes.
    fn remove_stale_bridge(&self, earlier: Option<&NetworkConfigList>) {
        let is_idle = |entry: &Entry| entry.record.attached().is_none();
        if !self.lock().values().all(is_idle) {
            return;
        }
        let Ok(list) = self.dir.network() else {
            return;
        };
        if let Err(error) = self.network.remove_stale_bridges(&list, earlier) {
            tracing::warn!(error = %chain(&error), "bridge of an earlier block not removed");
        }
    }

    /// Detaches the sandbox if it is attached, and records that it is not ready. The caller has its turn.
    fn take_down(&self, record: Record) -> Result<Record, SandboxError> {
        let id = record.id.clone();
        // A plugin finds what it is to free by its files.
        self.restore_leases();
        self.claims.leave(&id);
        let taken = self.detach(record);
        match &taken {
            Ok(_) => self.claims.release(&id),
            Err(_) => self.claims.stay(&id),
        }
        taken
    }

    fn detach(&self, mut record: Record) -> Result<Record, SandboxError> {
        if let Some(network) = record.attached() {
            let detached = self.network.detach(&record.id, &record.metadata, network);
            if let Err(source) = detached {
                // It may hold half of its network, so it is not ready; the record goes on saying that it is attached.
                let id = record.id.clone();
                self.settle(&mut record, State::NotReady)?;
                let source = Box::new(source);
                return Err(SandboxError::Detach { id, source });
            }
        } else if record.state == State::NotReady {
            return Ok(record);
        }
        let mut earlier = None;
        if let Some(network) = &mut record.network {
            network.attached = false;
            network.ips.clear();
            let config = network.config.to_string();
            earlier = NetworkConfigList::from_list(config.as_bytes()).ok();
        }
        self.settle(&mut record, State::NotReady)?;
        self.remove_stale_bridge(earlier.as_ref());
        Ok(record)
    }

    /// Records a state, on disk first.
    fn settle(&self, record: &mut Record, state: State) -> Result<(), SandboxError> {
        record.state = state;
        self.records
            .write(record)
            .map_err(|source| SandboxError::Disk {
                step: "write the sandbox's record",
                source,
            })?;
        if let Some(entry) = self.lock().get_mut(&record.id) {
            entry.record = record.clone();
        }
        Ok(())
    }

    fn forget(&self, id: &SandboxId) -> Result<(), SandboxError> {
        self.records
            .remove(id)
            .map_err(|source| SandboxError::Disk {
                step: "remove the sandbox's record",
                source,
            })?;
        self.lock().remove(id);
        Ok(())
    }

    fn turn(&self, id: &str) -> Option<Arc<Mutex<()>>> {
        find(&self.lock(), id).map(|entry| entry.turn.clone())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Entry>> {
        lock(&self.table)
    }
}

impl Entry {
    fn new(record: Record) -> Self {
        Self {
            record,
            turn: Arc::default(),
        }
    }
}

fn find<'a>(table: &'a BTreeMap<SandboxId, Entry>, id: &str) -> Option<&'a Entry> {
    if id.is_empty() {
        return None;
    }
    let from = (Bound::Included(id), Bound::Unbounded);
    let mut matching = table
        .range::<str, _>(from)
        .take_while(|(key, _)| key.as_str().starts_with(id));
    let (_, found) = matching.next()?;
    matching.next().is_none().then_some(found)
}

/// What the mutexes guard is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
    })
}

/// An error with its sources, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

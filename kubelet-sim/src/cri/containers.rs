//! Creates, starts, stops and removes the containers of a node's sandboxes, with containerd's
//! behaviour as the model. `docs/cri.md` lists the settings of a container with their effects.
//!
//! | from | operation | to |
//! |---|---|---|
//! | none | `create`, in a ready sandbox | `Created` |
//! | `Created` | `start`, in a ready sandbox | `Running` |
//! | `Created` | `start` fails | `Exited`, code 128, reason StartError |
//! | `Running` | `stop`; its planned end; the stop of its sandbox | `Exited` |
//! | `Running` | recovery, if its sandbox is not ready any more, or its process is gone | `Exited`, code 255, reason Unknown |
//! | any | `remove`; the removal of its sandbox | none |
//!
//! A container is an entry in the table and a record on disk. With `--containers=pretend` no
//! process runs for it: it runs until it is stopped, or until the time that annotations of its pod say
//! ([`podplane_api::pod_exit`]). Since that is in the record, a server that starts again goes on
//! where the last one ended. With `--containers=process` it has a [`process`], which ends with the
//! server.
//!
//! All operations block, so an asynchronous caller needs a thread for blocking work. Locks are
//! taken in this order: the operation of the sandbox, that of the container, the table.

mod calls;
mod events;
pub mod log;
pub mod process;
pub mod record;
mod request;
mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use podplane_api::pod_exit::{InvalidExit, exit_of_container};
use podplane_error_chain::one_line;
use podplane_host::{clock, task};
use podplane_proto::cri::ContainerEventType;
use tokio::{sync::Notify, task::JoinError};
use tokio_util::sync::CancellationToken;

pub(super) use self::calls::EventStream;
use self::{
    events::ContainerEvents,
    log::{ContainerLog, LogStream},
    process::{ProcessError, Processes},
    record::{ContainerEnd, ContainerImage, ContainerRecord, ContainerResources, ContainerState},
    request::ContainerSpec,
};
use super::{
    id::{ContainerId, SandboxId},
    images::{reference::ReferenceError, store::ImageStore},
    record::SandboxState,
    record_dir::RecordDir,
    sandboxes::{NodeSandboxes, SandboxError, find, lock, now_nanos},
};
use crate::NodeDir;

/// The exit codes of a container that SIGTERM and SIGKILL have ended.
const TERMINATED: i32 = 128 + 15;
const KILLED: i32 = 128 + 9;
/// The exit code and the reason of a container that could not be started, as containerd's.
const START_FAILED: (i32, &str) = (128, "StartError");
/// The exit code and the reason of a container whose end nobody saw, as containerd's.
const UNKNOWN: (i32, &str) = (255, "Unknown");

/// The longest time without a look at planned ends: the clock of the machine may be set.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// The delay after an end that could not be recorded.
const RETRY: Duration = Duration::from_secs(1);

/// The containers of sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ContainerMode {
    /// Refuse images and containers: a pod is its sandbox
    #[default]
    None,
    /// Accept images and containers, and run nothing: a container is Running until it is stopped,
    /// or exits by its pod's annotations
    Pretend,
    /// Run programs of images that are unpacked on this machine, as unprivileged users in
    /// namespaces of their own
    Process,
}

/// The reason why an operation on a container failed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// No container has that id. The text follows containerd's.
    #[error("an error occurred when try to find container {0:?}: not found")]
    NotFound(String),
    /// The container's sandbox is missing or not ready, or could not be stopped.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The text names no image.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// The image was not pulled.
    #[error("image {0:?} is not present: pull it first")]
    ImageNotFound(String),
    /// The name, with the attempt, is that of another container of the pod.
    #[error("failed to reserve container name {name:?}: name {name:?} is reserved for \"{id}\"")]
    NameReserved {
        /// The container's name, with its pod and attempt.
        name: String,
        /// The other container.
        id: ContainerId,
    },
    /// The operation needs a container in another state.
    #[error("container \"{id}\" is in {state} state")]
    State {
        /// The container.
        id: ContainerId,
        /// Its state.
        state: &'static str,
    },
    /// An annotation that says how the container exits is invalid.
    #[error(transparent)]
    Annotation(#[from] InvalidExit),
    /// The log cannot be written.
    #[error("failed to write the container's log {}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The process could not be started or stopped.
    #[error("failed to {action} the process of the container")]
    Process {
        /// The verb.
        action: &'static str,
        /// Why.
        source: ProcessError,
    },
    /// A volume of the container is not its pod's.
    #[error(transparent)]
    Mount(ProcessError),
    /// A record could not be written or read.
    #[error("failed to {step}")]
    Disk {
        /// The failed step.
        step: &'static str,
        /// The operating system's reason.
        source: io::Error,
    },
}

/// The containers of one node.
#[derive(Debug)]
pub struct NodeContainers {
    sandboxes: Arc<NodeSandboxes>,
    images: Arc<ImageStore>,
    /// `None` if no process runs for a container.
    processes: Option<Arc<Processes>>,
    records: RecordDir<ContainerRecord>,
    /// Every container, from its reservation until its record is deleted. No other lock is taken
    /// while the table is locked.
    table: Mutex<BTreeMap<ContainerId, ContainerEntry>>,
    /// Notified when a container was started that has a planned end.
    planned: Notify,
    events: ContainerEvents,
}

#[derive(Debug)]
struct ContainerEntry {
    record: Arc<ContainerRecord>,
    /// Locked during an operation on the container.
    operation: Arc<Mutex<()>>,
}

impl NodeContainers {
    /// Reads the records of `dir` and recovers from a crash or a reboot. The sandboxes have
    /// recovered before.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Disk`] if the records cannot be read.
    pub fn open(
        dir: &NodeDir,
        sandboxes: Arc<NodeSandboxes>,
        images: Arc<ImageStore>,
        processes: Option<Processes>,
    ) -> Result<Self, ContainerError> {
        let failed = |source| ContainerError::Disk {
            step: "read the records of containers",
            source,
        };
        let records = RecordDir::<ContainerRecord>::open(dir.containers()).map_err(failed)?;
        let loaded = records.load().map_err(failed)?;
        let table = loaded
            .into_iter()
            .map(|record| (record.id.clone(), ContainerEntry::new(record)));
        let containers = Self {
            sandboxes,
            images,
            processes: processes.map(Arc::new),
            records,
            table: Mutex::new(table.collect()),
            planned: Notify::new(),
            events: ContainerEvents::default(),
        };
        containers.recover();
        Ok(containers)
    }

    /// Removes the containers of sandboxes that are gone, and ends those whose sandbox is not
    /// ready. Failures are logged, since a node with one broken record must serve the others.
    fn recover(&self) {
        let sandboxes = self.sandboxes.list();
        let known: BTreeSet<_> = sandboxes.iter().map(|sandbox| &sandbox.id).collect();
        let is_ready = |id: &SandboxId| {
            let sandbox = self.sandboxes.get(id.as_str());
            sandbox.is_ok_and(|sandbox| sandbox.state == SandboxState::Ready)
        };
        for record in self.list() {
            let outcome = match &record.state {
                _ if !known.contains(&record.sandbox) => self.delete(&record),
                // A process has ended with the server that started it.
                ContainerState::Running { .. }
                    if !is_ready(&record.sandbox)
                        || record.process.is_some()
                        || self.processes.is_some() =>
                {
                    self.set_ended(&record, now_nanos(), UNKNOWN)
                }
                _ => Ok(()),
            };
            if let Err(error) = outcome {
                tracing::warn!(container = %record.id, error = %one_line(&error), "failed to reconcile the container");
            }
        }
    }

    /// Creates a container in a ready sandbox.
    ///
    /// # Errors
    ///
    /// [`ContainerError::NameReserved`] if the pod has a container of that name and attempt: CRI
    /// leaves it to the client not to repeat a call that succeeded. [`ContainerError::Sandbox`],
    /// [`ContainerError::ImageNotFound`], [`ContainerError::Annotation`]; nothing was created then.
    pub fn create(&self, spec: ContainerSpec) -> Result<ContainerId, ContainerError> {
        let sandbox = spec.sandbox.clone();
        self.sandboxes.while_ready(&sandbox, |sandbox| {
            let found = self.images.find(&spec.image)?;
            let image = found.ok_or_else(|| ContainerError::ImageNotFound(spec.image.clone()))?;
            let exit = match &self.processes {
                // The process says how it exits.
                Some(processes) => {
                    let mounts = processes.mounts(&spec.mounts, &sandbox.metadata.uid);
                    mounts.map_err(ContainerError::Mount)?;
                    None
                }
                None => {
                    let mut annotations = sandbox.annotations.clone();
                    annotations.extend(spec.annotations.clone());
                    exit_of_container(&annotations, &spec.name)?
                }
            };
            let ContainerSpec {
                sandbox: _,
                name,
                attempt,
                image: image_name,
                user_specified_image,
                labels,
                annotations,
                mounts,
                log_path,
                resources,
                process,
            } = spec;
            let record = ContainerRecord {
                id: ContainerId::random(),
                sandbox: sandbox.id.clone(),
                pod: sandbox.metadata.clone(),
                name,
                attempt,
                state: ContainerState::Created,
                created_at: now_nanos(),
                labels,
                annotations,
                image: ContainerImage {
                    image: image_name,
                    user_specified_image,
                    id: image.id.clone(),
                    repo_digest: image.repo_digest.clone(),
                },
                mounts,
                log_path,
                resources,
                exit: exit.map(Into::into),
                process,
            };
            self.insert(record)
        })
    }

    /// Reserves the name of a new container, and stores it.
    fn insert(&self, record: ContainerRecord) -> Result<ContainerId, ContainerError> {
        let (id, name) = (record.id.clone(), record.unique_name());
        {
            let mut table = self.table();
            let is_same = |entry: &&ContainerEntry| entry.record.has_name_of(&record);
            if let Some(entry) = table.values().find(is_same) {
                return Err(ContainerError::NameReserved {
                    name,
                    id: entry.record.id.clone(),
                });
            }
            table.insert(id.clone(), ContainerEntry::new(record.clone()));
        }
        if let Err(error) = self.store(record) {
            self.table().remove(&id);
            return Err(error);
        }
        self.notify(&id, ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    /// Starts a created container.
    ///
    /// # Errors
    ///
    /// [`ContainerError::State`] if it was started before; [`ContainerError::Sandbox`];
    /// [`ContainerError::Log`], and the container has exited then.
    pub fn start(&self, id: &str) -> Result<(), ContainerError> {
        let sandbox = self.get(id)?.sandbox.clone();
        self.sandboxes.while_ready(sandbox.as_str(), |sandbox| {
            let operation = self.operation(id)?;
            let _operation = lock(&operation);
            let record = self.get(id)?;
            if record.state != ContainerState::Created {
                return Err(state_error(&record));
            }
            // Before the process, which may end at once.
            let started_at = now_nanos();
            if let Err(error) = self.begin(&record, sandbox) {
                let end = ContainerEnd {
                    message: one_line(&error).to_string(),
                    ..end_of(&record, now_nanos(), START_FAILED)
                };
                self.set_state(&record, ContainerState::Exited(end))?;
                return Err(error);
            }
            let state = ContainerState::Running { started_at };
            self.set_state(&record, state)?;
            self.notify(&record.id, ContainerEventType::ContainerStartedEvent);
            self.planned.notify_one();
            Ok(())
        })
    }

    /// Stops a running container. Succeeds if it does not run, or is unknown.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Process`] and [`ContainerError::Disk`]; the call can be repeated.
    pub fn stop(&self, id: &str, grace: Duration) -> Result<(), ContainerError> {
        // Without a lock: a later call may have less patience.
        if let Ok(record) = self.get(id)
            && let Some(process) = self.process(&record)
        {
            let stopped = process.stop(grace);
            stopped.map_err(|source| ContainerError::Process {
                action: "stop",
                source,
            })?;
        }
        let Ok(operation) = self.operation(id) else {
            return Ok(());
        };
        let _operation = lock(&operation);
        match self.get(id) {
            // It would obey SIGTERM at once, if it were asked to.
            Ok(record) if grace.is_zero() => self.end_if_running(&record, KILLED),
            Ok(record) => self.end_if_running(&record, TERMINATED),
            Err(_) => Ok(()),
        }
    }

    /// Removes a container; ends it first if it runs. Succeeds if it is unknown.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Disk`]; the call can be repeated.
    pub fn remove(&self, id: &str) -> Result<(), ContainerError> {
        let Ok(operation) = self.operation(id) else {
            return Ok(());
        };
        let _operation = lock(&operation);
        let Ok(record) = self.get(id) else {
            return Ok(());
        };
        self.end_if_running(&record, KILLED)?;
        self.delete(&record)?;
        self.notify_of(&record, ContainerEventType::ContainerDeletedEvent);
        Ok(())
    }

    /// Ends all containers of a sandbox, and stops it.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Disk`] and [`ContainerError::Sandbox`]; the call can be repeated.
    pub fn stop_sandbox(&self, id: &str) -> Result<(), ContainerError> {
        self.sandboxes.stop_after(id, |sandbox| {
            let containers = self.of_sandbox(sandbox);
            // All of them, whichever fails.
            let stop =
                |record: &Arc<ContainerRecord>| self.stop(record.id.as_str(), Duration::ZERO);
            let stopped: Vec<_> = containers.iter().map(stop).collect();
            stopped.into_iter().collect()
        })
    }

    /// Removes all containers of a sandbox, and the sandbox.
    ///
    /// # Errors
    ///
    /// [`ContainerError::Disk`] and [`ContainerError::Sandbox`]; the call can be repeated.
    pub fn remove_sandbox(&self, id: &str) -> Result<(), ContainerError> {
        self.sandboxes.remove_after(id, |sandbox| {
            let containers = self.of_sandbox(sandbox);
            let remove = |record: &Arc<ContainerRecord>| self.remove(record.id.as_str());
            let removed: Vec<_> = containers.iter().map(remove).collect();
            removed.into_iter().collect()
        })
    }

    /// Remembers the limits that a container is to have.
    ///
    /// # Errors
    ///
    /// [`ContainerError::NotFound`], [`ContainerError::Disk`], and [`ContainerError::State`] if it
    /// has exited.
    pub fn update_resources(
        &self,
        id: &str,
        resources: ContainerResources,
    ) -> Result<(), ContainerError> {
        let operation = self.operation(id)?;
        let _operation = lock(&operation);
        let record = self.get(id)?;
        match record.state {
            ContainerState::Exited(_) => Err(state_error(&record)),
            ContainerState::Created | ContainerState::Running { .. } => {
                let record = Arc::unwrap_or_clone(record);
                self.store(ContainerRecord {
                    resources,
                    ..record
                })
            }
        }
    }

    /// Makes the log's file again, which the client has moved away.
    ///
    /// # Errors
    ///
    /// [`ContainerError::NotFound`], [`ContainerError::Log`], and [`ContainerError::State`] if the
    /// container does not run.
    pub fn reopen_log(&self, id: &str) -> Result<(), ContainerError> {
        let record = self.running(id)?;
        match (&record.log_path, self.process(&record)) {
            (Some(path), Some(process)) => {
                let reopened = process.output().reopen();
                reopened.map_err(|source| ContainerError::Log {
                    path: path.clone(),
                    source,
                })
            }
            // It is opened for each line.
            (Some(path), None) => open_log(path).map(drop),
            (None, _) => Ok(()),
        }
    }

    /// The running container of an id, or of a prefix that no other id has.
    ///
    /// # Errors
    ///
    /// [`ContainerError::NotFound`] and [`ContainerError::State`].
    pub fn running(&self, id: &str) -> Result<Arc<ContainerRecord>, ContainerError> {
        let record = self.get(id)?;
        match record.state {
            ContainerState::Running { .. } => Ok(record),
            ContainerState::Created | ContainerState::Exited(_) => Err(state_error(&record)),
        }
    }

    /// The container of an id, or of a prefix that no other id has.
    ///
    /// # Errors
    ///
    /// [`ContainerError::NotFound`].
    pub fn get(&self, id: &str) -> Result<Arc<ContainerRecord>, ContainerError> {
        let table = self.table();
        let entry = find(&table, id).ok_or_else(|| ContainerError::NotFound(id.to_owned()))?;
        Ok(entry.record.clone())
    }

    /// All containers, by id.
    pub fn list(&self) -> Vec<Arc<ContainerRecord>> {
        let table = self.table();
        table.values().map(|entry| entry.record.clone()).collect()
    }

    /// The containers of a sandbox, by id.
    fn of_sandbox(&self, sandbox: &SandboxId) -> Vec<Arc<ContainerRecord>> {
        let mut containers = self.list();
        containers.retain(|record| record.sandbox == *sandbox);
        containers
    }

    /// Ends containers at the times that were planned for them, until `stop`.
    ///
    /// # Errors
    ///
    /// The panic of a step.
    pub async fn run_planned_ends(
        self: Arc<Self>,
        stop: CancellationToken,
    ) -> Result<(), JoinError> {
        loop {
            let containers = Arc::clone(&self);
            let ended = task::spawn_blocking(move || containers.end_due()).await?;
            let wait = match ended {
                Ok(()) => self.next_end().unwrap_or(MAX_WAIT).min(MAX_WAIT),
                Err(error) => {
                    tracing::warn!(node = %self.sandboxes.node(), error = %one_line(&error), retry_in = ?RETRY,
                        "failed to record the exit of a container; trying again");
                    RETRY
                }
            };
            // Losing any of these waits loses nothing: a notification is kept for the next one.
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = self.planned.notified() => {}
                () = clock::sleep(wait) => {}
            }
        }
    }

    /// The time until the next planned end.
    fn next_end(&self) -> Option<Duration> {
        let (table, now) = (self.table(), now_nanos());
        let ends = table
            .values()
            .filter_map(|entry| planned_end(&entry.record));
        let wait = ends.map(|(at, _)| at).min()?.saturating_sub(now);
        Some(Duration::from_nanos(u64::try_from(wait).unwrap_or(0)))
    }

    /// Ends the containers whose time has come.
    fn end_due(&self) -> Result<(), ContainerError> {
        let now = now_nanos();
        let is_due =
            |record: &Arc<ContainerRecord>| planned_end(record).is_some_and(|(at, _)| at <= now);
        for record in self.list().iter().filter(|record| is_due(record)) {
            let Ok(operation) = self.operation(record.id.as_str()) else {
                continue;
            };
            let _operation = lock(&operation);
            // Another call may have stopped it.
            if let Ok(record) = self.get(record.id.as_str())
                && let Some((at, code)) = planned_end(&record)
            {
                self.set_ended(&record, at, (code, ""))?;
            }
        }
        Ok(())
    }

    /// Ends a container if it runs. The caller has locked its operation.
    fn end_if_running(&self, record: &ContainerRecord, code: i32) -> Result<(), ContainerError> {
        if let Some(process) = self.process(record)
            && let ContainerState::Running { .. } = record.state
        {
            let exit = process.stop(Duration::ZERO);
            let exit = exit.map_err(|source| ContainerError::Process {
                action: "kill",
                source,
            })?;
            return self.set_ended(record, exit.at, (exit.code, ""));
        }
        match (&record.state, planned_end(record)) {
            // Its end has passed, and was not recorded yet.
            (_, Some((at, code))) if at <= now_nanos() => self.set_ended(record, at, (code, "")),
            (ContainerState::Running { .. }, _) => self.set_ended(record, now_nanos(), (code, "")),
            (ContainerState::Created | ContainerState::Exited(_), _) => Ok(()),
        }
    }

    /// Records the end of a container. The caller has locked its operation, or nobody else knows
    /// the container yet.
    fn set_ended(
        &self,
        record: &ContainerRecord,
        at: i64,
        end: (i32, &str),
    ) -> Result<(), ContainerError> {
        let end = end_of(record, at, end);
        let text = format!("exited with code {}", end.exit_code);
        tracing::debug!(container = %record.id, name = record.name, pod = record.pod.name, code = end.exit_code, "container exited");
        self.set_state(record, ContainerState::Exited(end))?;
        // The log of a process is its own. One that cannot be written keeps no container alive: its
        // directory may be gone.
        if record.process.is_none()
            && let Err(error) = write_log(record, &text)
        {
            tracing::debug!(container = %record.id, error = %one_line(&error), "failed to log the exit");
        }
        self.notify(&record.id, ContainerEventType::ContainerStoppedEvent);
        Ok(())
    }

    fn set_state(
        &self,
        record: &ContainerRecord,
        state: ContainerState,
    ) -> Result<(), ContainerError> {
        let record = record.clone();
        self.store(ContainerRecord { state, ..record })
    }

    /// Stores a record: on disk first, then in the table.
    fn store(&self, record: ContainerRecord) -> Result<(), ContainerError> {
        let written = self.records.write(&record);
        written.map_err(|source| ContainerError::Disk {
            step: "write the container's record",
            source,
        })?;
        if let Some(entry) = self.table().get_mut(&record.id) {
            entry.record = Arc::new(record);
        }
        Ok(())
    }

    /// Deletes a record: on disk first, then in the table.
    fn delete(&self, record: &ContainerRecord) -> Result<(), ContainerError> {
        let removed = self.records.remove(record.id.as_str());
        removed.map_err(|source| ContainerError::Disk {
            step: "remove the container's record",
            source,
        })?;
        self.table().remove(&record.id);
        Ok(())
    }

    fn notify(&self, id: &ContainerId, kind: ContainerEventType) {
        if let Ok(record) = self.get(id.as_str()) {
            self.notify_of(&record, kind);
        }
    }

    fn notify_of(&self, record: &ContainerRecord, kind: ContainerEventType) {
        self.events.send(record.id.as_str(), kind, now_nanos(), || {
            self.pod_of(&record.sandbox)
        });
    }

    fn operation(&self, id: &str) -> Result<Arc<Mutex<()>>, ContainerError> {
        let found = find(&self.table(), id).map(|entry| entry.operation.clone());
        found.ok_or_else(|| ContainerError::NotFound(id.to_owned()))
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, ContainerEntry>> {
        lock(&self.table)
    }
}

impl ContainerEntry {
    fn new(record: ContainerRecord) -> Self {
        Self {
            record: Arc::new(record),
            operation: Arc::default(),
        }
    }
}

fn state_error(record: &ContainerRecord) -> ContainerError {
    ContainerError::State {
        id: record.id.clone(),
        state: wire::wire_state(&record.state).as_str_name(),
    }
}

/// The time at which a running container ends by itself, in nanoseconds since 1970, and its exit
/// code.
fn planned_end(record: &ContainerRecord) -> Option<(i64, i32)> {
    let ContainerState::Running { started_at } = record.state else {
        return None;
    };
    let exit = record.exit?;
    let after = i64::try_from(exit.after.as_nanos()).unwrap_or(i64::MAX);
    Some((started_at.saturating_add(after), exit.code))
}

/// The end of a container at `at`.
fn end_of(record: &ContainerRecord, at: i64, (exit_code, reason): (i32, &str)) -> ContainerEnd {
    let started_at = match &record.state {
        ContainerState::Created => 0,
        ContainerState::Running { started_at } => *started_at,
        ContainerState::Exited(end) => end.started_at,
    };
    ContainerEnd {
        started_at,
        finished_at: at,
        exit_code,
        reason: reason.to_owned(),
        message: String::new(),
    }
}

fn open_log(path: &std::path::Path) -> Result<ContainerLog, ContainerError> {
    ContainerLog::open(path).map_err(|source| ContainerError::Log {
        path: path.to_owned(),
        source,
    })
}

/// Writes a line about the container to its log, if it has one.
fn write_log(record: &ContainerRecord, event: &str) -> Result<(), ContainerError> {
    let Some(path) = &record.log_path else {
        return Ok(());
    };
    let line = format!("podplane: container {} {event}", record.name);
    let written = open_log(path)?.line(LogStream::Stdout, &line);
    written.map_err(|source| ContainerError::Log {
        path: path.clone(),
        source,
    })
}

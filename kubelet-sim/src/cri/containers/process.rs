//! Containers with processes (`--containers=process`): programs of images on this machine, as
//! unprivileged users, in namespaces of their own. [ADR 0065] has the reasons.
//!
//! A process lives as long as this server: its helper kills it when the server ends, however that
//! happens. So what runs is in memory, in [`Processes`], and a record that says Running without a
//! process is one whose server has ended.
//!
//! [ADR 0065]: ../../../../docs/adr/0065-containers-with-processes.md

pub mod exec;
pub mod io;
pub mod launch;
mod life;
pub mod output;
pub mod request;
mod spec;
pub mod stats;

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use podplane_container_init::{Channel, LaunchRequest, ProcessSpec};
use podplane_host::clock;
use podplane_netlink::netns::{self, NetnsError};
use rustix::process::{Signal, pidfd_send_signal};
use tokio::{
    net::unix::pipe,
    process::Child,
    runtime::Handle,
    sync::{mpsc, watch},
};

use self::{
    io::{OwnStreams, StreamChoice},
    launch::LaunchFailure,
    output::ContainerOutput,
};
use super::record::ContainerRecord;
use crate::cri::{
    id::ContainerId,
    images::roots::ImageLookupError,
    record::SandboxRecord,
    sandboxes::{lock, now_nanos},
};

/// The longest wait for a process that was killed: the kernel may be in the way of its end.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// The exit code of a helper that is gone without one.
const LOST: i32 = 255;

/// The parts of this machine that containers need.
#[derive(Clone, Debug)]
pub struct ProcessConfig {
    /// The program that starts containers: see [`podplane_container_init::run`].
    pub init: PathBuf,
    /// The directory in which a kubelet keeps a directory for each pod, by its UID. A container has
    /// mounts of its pod's alone.
    pub pods_dir: PathBuf,
    /// An empty directory.
    pub scratch: PathBuf,
}

/// The reason why a process was not started, or not reached.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The container was created without a process.
    #[error("the container was created by a server without processes (--containers=pretend)")]
    NoRequest,
    /// The pod is in its node's network.
    #[error(
        "the pod is in the network of its node (hostNetwork), which --containers=process refuses: \
         drop hostNetwork"
    )]
    HostNetwork,
    /// A volume is not the pod's.
    #[error(
        "mount {target}: {host_path} is not beneath {}, the directory of the pod's volumes: \
         --containers=process refuses hostPath volumes (--kubelet-pods-dir)", dir.display()
    )]
    HostPath {
        /// The path in the container.
        target: String,
        /// The path on the machine.
        host_path: String,
        /// The directory of the pod.
        dir: PathBuf,
    },
    /// Neither the container nor its image has a command.
    #[error("no command specified: neither the container nor the image has one")]
    NoCommand,
    /// The image is gone.
    #[error(transparent)]
    Image(#[from] ImageLookupError),
    /// The sandbox's network cannot be entered.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The program was not started.
    #[error(transparent)]
    Launch(#[from] LaunchFailure),
    /// A pipe, a log or a signal failed.
    #[error("failed to {step}")]
    Io {
        /// The failed step.
        step: &'static str,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// The process has ended.
    #[error("the process of the container has ended")]
    Ended,
    /// The process did not end.
    #[error("the process was killed and has not ended yet")]
    Stuck,
}

impl ProcessError {
    fn io(step: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { step, source }
    }
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessExit {
    /// The time, in nanoseconds since 1970.
    pub at: i64,
    /// The exit code; 128 and the number of a signal that ended it.
    pub code: i32,
}

/// A process of a container that was started.
#[derive(Debug)]
pub struct ContainerProcess {
    pid: i32,
    pidfd: OwnedFd,
    spec: ProcessSpec,
    output: Arc<ContainerOutput>,
    terminal: Option<OwnedFd>,
    /// Taken by an attached client while it writes. Closed for good if it is `None`.
    pub(in crate::cri) stdin: tokio::sync::Mutex<Option<pipe::Sender>>,
    pub(in crate::cri) closes_stdin: bool,
    stop_signal: Signal,
    exit: watch::Receiver<Option<ProcessExit>>,
}

/// The parts of a process that are watched until its end.
#[derive(Debug)]
struct WatchedProcess {
    id: ContainerId,
    helper: Child,
    control: Channel,
    streams: OwnStreams,
    output: Arc<ContainerOutput>,
    exit: watch::Sender<Option<ProcessExit>>,
}

/// The processes of a node.
#[derive(Debug)]
pub struct Processes {
    config: ProcessConfig,
    running: Mutex<BTreeMap<ContainerId, Arc<ContainerProcess>>>,
    /// Processes that nobody watches yet. There is room for all: containers are started one by one.
    started: mpsc::UnboundedSender<WatchedProcess>,
    unwatched: Mutex<Option<mpsc::UnboundedReceiver<WatchedProcess>>>,
}

impl Processes {
    /// No processes yet.
    pub fn new(config: ProcessConfig) -> Self {
        let (started, unwatched) = mpsc::unbounded_channel();
        Self {
            config,
            running: Mutex::default(),
            started,
            unwatched: Mutex::new(Some(unwatched)),
        }
    }

    /// The process of a container, if it runs.
    pub fn get(&self, id: &ContainerId) -> Option<Arc<ContainerProcess>> {
        lock(&self.running).get(id).cloned()
    }

    /// Forgets the process of a container, which has ended.
    pub(super) fn remove(&self, id: &ContainerId) {
        lock(&self.running).remove(id);
    }

    /// Starts the process of a container. Blocks until its program is executed.
    pub(super) fn start(
        &self,
        record: &ContainerRecord,
        sandbox: &SandboxRecord,
        image: &crate::cri::images::roots::UnpackedImage,
    ) -> Result<(), ProcessError> {
        let wanted = record.process.as_ref().ok_or(ProcessError::NoRequest)?;
        let network = sandbox.attached().ok_or(ProcessError::HostNetwork)?;
        let netns = netns::open_mounted(&network.netns)?;
        let process = spec::process(wanted, image, &sandbox.hostname)?;
        let container = self.container(record, sandbox, image)?;
        let output = ContainerOutput::open(record.log_path.clone())
            .map_err(ProcessError::io("open the container's log"))?;
        let output = Arc::new(output);
        let choice = StreamChoice {
            stdin: wanted.stdin,
            terminal: wanted.tty,
        };
        let (of_program, own) =
            io::streams(choice).map_err(ProcessError::io("make the standard streams"))?;
        let request = LaunchRequest::Create(Box::new(container), process.clone());
        let launched = launch::launch(&self.config.init, &request, &of_program, &netns.into())?;
        drop(of_program);
        let step = "open the standard streams";
        let streams = own.with_terminal(&launched, choice);
        let mut streams = streams.map_err(ProcessError::io(step))?;
        let stdin = streams.take_input().map_err(ProcessError::io(step))?;
        let (exit, seen) = watch::channel(None);
        let started = ContainerProcess {
            pid: launched.pid,
            pidfd: launched.pidfd,
            spec: process,
            output: output.clone(),
            terminal: launched.terminal,
            stdin: tokio::sync::Mutex::new(stdin),
            closes_stdin: wanted.stdin_once,
            stop_signal: spec::stop_signal(image),
            exit: seen,
        };
        lock(&self.running).insert(record.id.clone(), Arc::new(started));
        let watched = WatchedProcess {
            id: record.id.clone(),
            helper: launched.helper,
            control: launched.control,
            streams,
            output,
            exit,
        };
        // Without a watcher the server is stopping: the process is dropped, and killed.
        self.started.send(watched).map_err(|_| {
            self.remove(&record.id);
            ProcessError::Ended
        })
    }
}

impl ContainerProcess {
    /// Its id on this machine.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Its output.
    pub fn output(&self) -> &ContainerOutput {
        &self.output
    }

    /// Waits for its end.
    pub async fn ended(&self) -> ProcessExit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await;
        let lost = ProcessExit {
            at: now_nanos(),
            code: LOST,
        };
        ended.ok().and_then(|ended| *ended).unwrap_or(lost)
    }

    /// Sets the size of its terminal, if it has one.
    pub fn resize(&self, size: exec::TerminalSize) {
        if let Some(terminal) = &self.terminal {
            size.apply(terminal);
        }
    }

    /// Asks it to end, and kills it after `grace`. Blocks until it has ended.
    ///
    /// # Errors
    ///
    /// [`ProcessError::Stuck`].
    pub(super) fn stop(&self, grace: Duration) -> Result<ProcessExit, ProcessError> {
        // A process that has ended already takes no signal.
        let signal = |signal| pidfd_send_signal(&self.pidfd, signal).unwrap_or_default();
        let runtime = Handle::current();
        if !grace.is_zero() {
            signal(self.stop_signal);
            let waited = runtime.block_on(async { clock::timeout(grace, self.ended()).await });
            if let Ok(ended) = waited {
                return Ok(ended);
            }
        }
        signal(Signal::KILL);
        let waited = runtime.block_on(async { clock::timeout(KILL_WAIT, self.ended()).await });
        waited.map_err(|_| ProcessError::Stuck)
    }
}

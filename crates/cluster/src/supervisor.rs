//! The process on which a cluster depends: it creates the network, keeps the services running, and
//! takes commands on a socket.
//!
//! It is started by `up` ([`crate::launch`]), reports its progress in lines of JSON on standard
//! output, and then goes on alone. All services are its direct children and die with it; their
//! network namespaces are in its mount namespace and end with that.

use std::{
    io::{self, Write as _},
    net::Ipv4Addr,
    path::PathBuf,
    pin::pin,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use backon::{ConstantBuilder, Retryable as _};
use futures::FutureExt as _;
use podplane_api::node::NetworkBackend;
use podplane_host::{
    clock,
    fs::{File, TryLockError},
};
use podplane_proto::{DESCRIPTORS, cluster::cluster_service_server::ClusterServiceServer};
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    logging::{self, LogConfig, LogFormat},
    server::{Listen, Listener},
    serving::ServingFlags,
    shutdown,
};
use rustix::{
    io::FdFlags,
    process::{Signal, getppid, set_parent_process_death_signal, setsid},
};
use serde::{Deserialize, Serialize};
use tokio::{net::unix::pipe, sync::mpsc};
use tokio_util::sync::CancellationToken;

use crate::{
    control::{Control, ControlCommand},
    data_dir::{ClusterRecord, DataDir, SupervisorRecord},
    fabric::KernelNeeds,
    instance::ClusterInstance,
    lifeline,
    mode::Mode,
    remains,
    services::ServiceCatalog,
    settings::Settings,
};

/// The time that processes of a killed cluster have to end.
const REMAINS_DEADLINE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(2);
/// The time that clients have to read the last answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// The order with which a supervisor is started: the argument of the hidden flag `up --supervise`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SuperviseOrder {
    pub data_dir: PathBuf,
    pub settings: Settings,
    /// The directory of the sockets that others serve between the services, if they do.
    pub links: Option<PathBuf>,
    /// The process to die with: until the cluster serves, or for ever.
    pub parent: i32,
    pub detach: bool,
    /// The behaviour at the end of standard input; `None` to ignore it.
    pub until_eof: Option<EofOptions>,
}

/// The options of ending with standard input.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EofOptions {
    /// True to remove the data directory too.
    pub purge: bool,
}

/// A line on standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SupervisorMessage {
    /// A step is done; for people.
    Progress(String),
    /// The cluster serves.
    Ready,
    /// Another supervisor was first.
    Taken,
    /// The cluster does not serve and never will: an error and its causes.
    Failed(Vec<String>),
}

impl SupervisorMessage {
    fn send(&self) {
        let line = serde_json::to_string(self).unwrap_or_default();
        // Nobody reads if `up` was killed, and then the parent-death signal is on its way.
        _ = writeln!(io::stdout(), "{line}");
    }
}

pub fn progress(text: impl Into<String>) {
    SupervisorMessage::Progress(text.into()).send();
}

/// Runs the supervisor until it is asked to stop. The process must have one thread.
pub fn run(order: &str, services: &'static dyn ServiceCatalog) -> anyhow::Result<ExitCode> {
    let supervised = serde_json::from_str(order)
        .context("failed to read --supervise")
        .and_then(|order| supervise(order, services));
    if let Err(error) = &supervised {
        SupervisorMessage::Failed(error.chain().map(ToString::to_string).collect()).send();
    }
    supervised.map(|()| ExitCode::SUCCESS)
}

fn supervise(order: SuperviseOrder, services: &'static dyn ServiceCatalog) -> anyhow::Result<()> {
    let SuperviseOrder {
        data_dir,
        settings,
        links,
        parent,
        detach,
        until_eof,
    } = order;
    set_parent_process_death_signal(Some(Signal::TERM))
        .context("failed to ask for a signal when `up` ends")?;
    let born_of = getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(
        born_of == Some(parent),
        "`up` ended before its cluster began"
    );
    // Ctrl-C goes to `up`, which then asks for an orderly end.
    _ = setsid();
    logging::init(&LogConfig {
        log: std::env::var("PODPLANE_LOG").unwrap_or_else(|_| "info".into()),
        log_format: LogFormat::Text,
    })?;

    let dir = DataDir::new(&data_dir)?;
    let Some(lock) = dir.lock()? else {
        SupervisorMessage::Taken.send();
        return Ok(());
    };
    dir.raise_format()?;
    dir.clear_running()?;
    let (record, gone) = ClusterRecord::next(dir.record_to_start()?, settings);
    let needs = match record.uses(NetworkBackend::Vxlan) {
        true => KernelNeeds::Vxlan,
        false => KernelNeeds::Nothing,
    };
    let kernel_nodes = record.kernel_nodes();
    let mode = Mode::choose(&record.settings, kernel_nodes, needs, &dir.run())?;
    progress(format!("network {}: {}", mode.name(), mode.reason()));
    let running = SupervisorRecord {
        client_certificate: None,
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        kernel: mode.is_kernel(),
        reason: mode.reason().into(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime.block_on(async {
        let members = wait_for_remains(&dir).await?;
        let cluster = ClusterInstance::new(dir.clone(), record, mode, links, services)?;
        dir.write_running(&running)?;
        let lifeline = until_eof.map(|_| lifeline::open()).transpose()?;
        let life = LifeConditions {
            dir: &dir,
            lock: &lock,
            detach,
            lifeline,
            services,
        };
        let ended = live(cluster, &gone, life).await;
        let is_over = until_eof.is_some_and(|at_eof| at_eof.purge) && lifeline::is_cut();
        let purged = if is_over && !dir.is_gone(&lock) {
            dir.purge_with_mounts()
        } else {
            Ok(())
        };
        remains::kill(&members);
        drop(members);
        ended.and(purged)
    })
}

/// Waits until no process of an earlier cluster is left, then takes the lock that all of ours
/// inherit.
async fn wait_for_remains(dir: &DataDir) -> anyhow::Result<File> {
    let file = dir.members()?;
    let looks =
        usize::try_from(REMAINS_DEADLINE.as_millis() / LOOK.as_millis()).unwrap_or(usize::MAX);
    let patience = ConstantBuilder::new()
        .with_delay(LOOK)
        .with_max_times(looks);
    let free = (async || file.try_lock()).retry(patience);
    match free
        .when(|error| matches!(error, TryLockError::WouldBlock))
        .await
    {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => anyhow::bail!(
            "processes of an earlier cluster in {} are still there after {} s",
            dir.path().display(),
            REMAINS_DEADLINE.as_secs()
        ),
        Err(TryLockError::Error(error)) => {
            return Err(error).context("failed to lock the members of the cluster");
        }
    }
    // The lock belongs to the open file, which every descendant of this process has.
    rustix::io::fcntl_setfd(&file, FdFlags::empty())
        .context("failed to share the lock of the members")?;
    Ok(file)
}

/// The conditions of a cluster's life.
struct LifeConditions<'a> {
    dir: &'a DataDir,
    /// The lock of the directory.
    lock: &'a File,
    detach: bool,
    lifeline: Option<pipe::Receiver>,
    services: &'static dyn ServiceCatalog,
}

/// Starts the cluster, serves its control socket, and stops it.
async fn live(
    mut cluster: ClusterInstance,
    gone: &[String],
    life: LifeConditions<'_>,
) -> anyhow::Result<()> {
    let LifeConditions {
        dir,
        lock,
        detach,
        lifeline,
        services,
    } = life;
    let mut removed = pin!(dir.gone(lock));
    let mut cut = pin!(lifeline::cut(lifeline));
    let mut signal = pin!(shutdown::requested());
    // Starting records everything in `cluster`, and `stop` takes it down however far it came.
    let started = tokio::select! {
        started = cluster.start(gone) => started,
        signal = &mut signal => Err(anyhow::anyhow!("interrupted by {}", signal.unwrap_or("a signal"))),
        () = &mut cut => Err(anyhow::anyhow!("interrupted by the end of standard input")),
        () = &mut removed => Err(dir.removed()),
    };
    let (sender, mut commands) = mpsc::channel(1);
    let interrupt = CancellationToken::new();
    let server = match started {
        Ok(()) => {
            let control = Control {
                view: cluster.view(),
                commands: sender,
                interrupt: interrupt.clone(),
                services,
                http_address: String::new(),
            };
            match cluster.serving("supervisor") {
                Ok(flags) => serve(dir, &flags, control).await,
                Err(error) => Err(error),
            }
        }
        Err(error) => Err(error),
    };
    let (mut serving, stop_serving) = match server {
        Ok(tasks) => {
            let stop = tasks.stop();
            (pin!(tasks.run().fuse()), stop)
        }
        Err(error) => {
            cluster.stop().await;
            // Another cluster may run where this one's directory was.
            if !dir.is_gone(lock) {
                dir.clear_running()?;
            }
            return Err(error);
        }
    };
    ready(detach)?;

    let farewell = loop {
        // Commands stay in the channel and signals are kept, so cancelling these waits loses
        // nothing; a server or an input that ends is not awaited again.
        let command = tokio::select! {
            command = commands.recv() => command,
            signal = &mut signal => {
                tracing::info!(signal = signal.unwrap_or("unknown"), "stopping");
                None
            }
            () = &mut cut => {
                tracing::info!("standard input has ended; stopping");
                None
            }
            ended = &mut serving => {
                tracing::error!(?ended, "the control socket is no longer served; stopping");
                None
            }
            () = &mut removed => None,
        };
        let work = match command {
            None => break None,
            Some(ControlCommand::Stop(farewell)) => break Some(farewell),
            Some(command) => execute(&mut cluster, command),
        };
        // Everything started is in `cluster`, and the client of an abandoned command learns that
        // the cluster is stopping.
        tokio::select! {
            () = work => {}
            () = interrupt.cancelled() => {}
            () = &mut cut => {
                tracing::info!("standard input has ended; stopping");
                break None;
            }
            signal = &mut signal => {
                tracing::info!(signal = signal.unwrap_or("unknown"), "stopping");
                break None;
            }
            () = &mut removed => break None,
        }
    };
    let is_removed = dir.is_gone(lock);
    if is_removed {
        tracing::error!(dir = %dir.path().display(), "the data directory was removed; stopping");
    }
    cluster.stop().await;
    if !is_removed {
        cluster.keep_record()?;
        dir.clear_running()?;
    }
    if let Some(farewell) = farewell {
        _ = farewell.send(());
    }
    stop_serving.cancel();
    _ = clock::timeout(FAREWELL, serving).await;
    tracing::info!("stopped");
    match is_removed {
        true => Err(dir.removed()),
        false => Ok(()),
    }
}

async fn execute(cluster: &mut ClusterInstance, command: ControlCommand) {
    match command {
        // The caller stops the cluster.
        ControlCommand::Stop(_) => {}
        ControlCommand::AddNodes {
            names,
            kind,
            answer,
        } => _ = answer.send(cluster.add_nodes(names, kind).await),
        ControlCommand::RemoveNode { name, answer } => {
            _ = answer.send(cluster.remove_node(&name).await);
        }
        ControlCommand::RebootNode { name, answer } => {
            _ = answer.send(cluster.reboot_node(&name).await);
        }
        ControlCommand::ConnectNode {
            name,
            connected,
            answer,
        } => _ = answer.send(cluster.connect_node(&name, connected).await),
        ControlCommand::Restart {
            services,
            flags,
            answer,
        } => _ = answer.send(cluster.restart(&services, *flags).await),
    }
}

/// The tasks that serve.
async fn serve(dir: &DataDir, flags: &ServingFlags, mut control: Control) -> anyhow::Result<Tasks> {
    let any_port = Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let http = flags.listeners(&any_port, AllowedHosts::default(), None);
    let http = http.await?;
    control.http_address = http
        .iter()
        .map(Listener::client_address)
        .next()
        .unwrap_or_default();
    let listener = Listener::bind(&Listen::Unix(dir.control_socket())).await?;
    let mut services = Services::default();
    services.add(ClusterServiceServer::new(control));
    let mut process = Process::new(DESCRIPTORS);
    process.serve(listener, services);
    for listener in http {
        process.serve_http(listener);
    }
    let mut tasks = Tasks::new(CancellationToken::new());
    process.start(&mut tasks).await;
    Ok(tasks)
}

/// Reports to `up`, which is not needed from here on. If it is still there, it gets one more
/// message: the reason if the cluster fails.
fn ready(detach: bool) -> anyhow::Result<()> {
    if detach {
        set_parent_process_death_signal(None).context("failed to detach from `up`")?;
    }
    SupervisorMessage::Ready.send();
    Ok(())
}

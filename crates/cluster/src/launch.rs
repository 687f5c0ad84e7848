//! Starts the supervisor for `up`, finds a running one, and stops it.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use backon::{ConstantBuilder, Retryable as _};
use podplane_host::{clock, process, task::spawn_blocking};
use podplane_proto::cluster::{GetStatusRequest, GetStatusResponse, StopRequest};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::{
    control,
    data_dir::{DataDir, SupervisorRecord},
    limits,
    service::last_lines,
    settings::Settings,
    supervisor::{EofOptions, SuperviseOrder, SupervisorMessage},
    trust,
};

/// The time that all services together have to stop: each has 7 s, and nodes with many pods have
/// work to do.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
const SLOW_LOOK: Duration = Duration::from_millis(100);

/// A supervisor that this process started.
#[derive(Debug)]
pub struct LaunchedSupervisor {
    child: Child,
    messages: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    serves: bool,
}

/// The outcome of starting a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchOutcome {
    /// Its cluster serves.
    Serves,
    /// Another supervisor was first, and this one has ended.
    Taken,
}

/// The lifetime of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until `down`.
    Detached,
    /// Until `down`, or the end of standard input.
    UntilEof { purge: bool },
    /// As long as its parent process.
    Attached,
}

/// Starts a supervisor.
///
/// Its parent, with which it may have to die, is the calling *thread*.
pub fn launch(
    dir: &DataDir,
    settings: Settings,
    links: Option<PathBuf>,
    lifetime: Lifetime,
) -> anyhow::Result<LaunchedSupervisor> {
    let order = SuperviseOrder {
        data_dir: dir.path().into(),
        settings,
        links,
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        detach: lifetime != Lifetime::Attached,
        until_eof: match lifetime {
            Lifetime::UntilEof { purge } => Some(EofOptions { purge }),
            Lifetime::Attached | Lifetime::Detached => None,
        },
    };
    let log_path = dir.log("supervisor");
    let log = trust::append(&log_path);
    let log = log.with_context(|| format!("failed to open {}", log_path.display()))?;
    let mut command =
        Command::new(std::env::current_exe().context("failed to find the program's own file")?);
    command
        .arg("up")
        .arg("--supervise")
        .arg(serde_json::to_string(&order).context("failed to encode the order")?)
        .stdin(match lifetime {
            Lifetime::UntilEof { .. } => Stdio::inherit(),
            Lifetime::Attached | Lifetime::Detached => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(log);
    let mut child = process::spawn_async(&mut command).context("failed to start the supervisor")?;
    let messages =
        BufReader::new(child.stdout.take().context("standard output is a pipe")?).lines();
    Ok(LaunchedSupervisor {
        child,
        messages,
        log: log_path,
        serves: false,
    })
}

/// Rebuilds an error from the texts of another process.
fn chained(chain: Vec<String>) -> anyhow::Error {
    let mut causes = chain.into_iter().rev();
    let innermost = anyhow::Error::msg(causes.next().unwrap_or_default());
    causes.fold(innermost, anyhow::Error::context)
}

impl LaunchedSupervisor {
    /// Waits until the cluster serves, and reports its progress, line by line.
    pub async fn serving(&mut self, progress: impl Fn(&str)) -> anyhow::Result<LaunchOutcome> {
        while let Some(line) = self
            .messages
            .next_line()
            .await
            .context("failed to read from the supervisor")?
        {
            match serde_json::from_str(&line)
                .with_context(|| format!("understand the supervisor: {line}"))?
            {
                SupervisorMessage::Progress(text) => progress(&text),
                SupervisorMessage::Ready => {
                    self.serves = true;
                    return Ok(LaunchOutcome::Serves);
                }
                SupervisorMessage::Taken => {
                    self.wait().await?;
                    return Ok(LaunchOutcome::Taken);
                }
                SupervisorMessage::Failed(chain) => {
                    self.wait().await?;
                    return Err(chained(chain));
                }
            }
        }
        Err(self.died().await)
    }

    /// Waits until the serving cluster ends by itself.
    ///
    /// # Errors
    ///
    /// The reason, unless it was asked to end.
    pub async fn end(&mut self) -> anyhow::Result<()> {
        while let Ok(Some(line)) = self.messages.next_line().await {
            if let Ok(SupervisorMessage::Failed(chain)) = serde_json::from_str(&line) {
                self.wait().await?;
                return Err(chained(chain));
            }
        }
        match self.wait().await? {
            status if status.success() => Ok(()),
            _ => Err(self.died().await),
        }
    }

    /// The error of a supervisor that ended without a reason.
    async fn died(&mut self) -> anyhow::Error {
        match self.wait().await {
            Ok(status) => anyhow::anyhow!(
                "the supervisor ended ({}); its log is {}{}",
                limits::described(status),
                self.log.display(),
                last_lines(&self.log).unwrap_or_default()
            ),
            Err(error) => error,
        }
    }

    /// Returns true once the cluster has served.
    pub fn serves(&self) -> bool {
        self.serves
    }

    /// Waits until the supervisor ends by itself.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child
            .wait()
            .await
            .context("failed to wait for the supervisor")
    }

    /// Stops the cluster in order, and returns when nothing of it is left.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self
            .child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).context("failed to ask the supervisor to end")?;
        }
        clock::timeout(STOP_DEADLINE, self.wait())
            .await
            .with_context(|| {
                format!(
                    "the cluster does not end within {} s",
                    STOP_DEADLINE.as_secs()
                )
            })??;
        Ok(())
    }
}

/// Waits for the cluster in a data directory to serve, and returns its status; `None` if none runs,
/// or it ends meanwhile.
pub async fn find(dir: &DataDir, deadline: Duration) -> anyhow::Result<Option<GetStatusResponse>> {
    let ask = async || -> anyhow::Result<Option<GetStatusResponse>> {
        if !dir.is_locked()? {
            return Ok(None);
        }
        let status = control::client(dir)?.get_status(GetStatusRequest {}).await;
        Ok(Some(
            status
                .context("failed to get the cluster's status")?
                .into_inner(),
        ))
    };
    ask.retry(patience(deadline)).await
}

/// Stops the cluster in a data directory, and returns when nothing of it is left. Returns false if
/// none ran.
pub async fn stop(dir: &DataDir) -> anyhow::Result<bool> {
    let running = settled(dir).await?;
    if let Some(SupervisorRecord { pid, .. }) = running {
        let process = Pid::from_raw(pid).context("the supervisor's process is not known")?;
        match pidfd_open(process, PidfdFlags::empty()) {
            Ok(process) => {
                let asked = async {
                    control::client(dir)?
                        .stop(StopRequest {})
                        .await
                        .context("failed to ask the cluster to end")
                };
                let asked = clock::timeout(STOP_DEADLINE, asked).await;
                if let Err(error) = asked.map_err(Into::into).flatten() {
                    // Nobody answers, as just after its start: it also handles signals.
                    tracing::debug!(error = format!("{error:#}"), "control socket");
                    pidfd_send_signal(&process, Signal::TERM)
                        .context("failed to ask the supervisor to end")?;
                }
                let is_gone = spawn_blocking(move || wait_for_end(&process)).await?;
                anyhow::ensure!(
                    is_gone.context("failed to wait for the supervisor's process")?,
                    "the cluster (process {pid}) does not end within {} s",
                    STOP_DEADLINE.as_secs()
                );
            }
            Err(Errno::SRCH) => {}
            Err(error) => return Err(error).context("failed to find the supervisor's process"),
        }
    }
    wait_for_members(dir).await?;
    dir.clear_running()?;
    Ok(running.is_some())
}

/// Waits until no cluster runs in a data directory: its supervisor keeps the lock to its end.
pub async fn ended(dir: &DataDir) -> anyhow::Result<()> {
    let mut looks = clock::interval(SLOW_LOOK);
    while dir.is_locked()? {
        looks.tick().await;
    }
    Ok(())
}

/// Returns true if a process ended in time, its namespaces included: a pidfd becomes readable only
/// then.
fn wait_for_end(process: &OwnedFd) -> rustix::io::Result<bool> {
    let deadline = Timespec::try_from(STOP_DEADLINE).ok();
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    loop {
        match rustix::event::poll(&mut polled, deadline.as_ref()) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// The supervisor, if there is one; waits for one that has just started to publish its pid.
async fn settled(dir: &DataDir) -> anyhow::Result<Option<SupervisorRecord>> {
    let look = async || match (dir.is_locked()?, dir.running()?) {
        (true, None) => anyhow::bail!(
            "another `podplane up` is starting in {}; its pid is not known yet",
            dir.path().display()
        ),
        (_, running) => Ok(running),
    };
    look.retry(patience(STOP_DEADLINE)).await
}

fn patience(deadline: Duration) -> ConstantBuilder {
    let looks = usize::try_from(deadline.as_millis() / LOOK.as_millis()).unwrap_or(usize::MAX);
    ConstantBuilder::new()
        .with_delay(LOOK)
        .with_max_times(looks)
}

/// Waits until no process of the cluster is left. They die with their supervisor, however it ended.
async fn wait_for_members(dir: &DataDir) -> anyhow::Result<()> {
    let file = dir.members()?;
    (async || file.try_lock())
        .retry(patience(STOP_DEADLINE))
        .await
        .with_context(|| {
            format!(
                "processes of the cluster in {} are still there",
                dir.path().display()
            )
        })
}

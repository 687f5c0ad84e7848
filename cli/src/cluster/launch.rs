//! What `up` does about the supervisor: starts one, or finds the one that runs, and ends it.

use std::{
    os::fd::OwnedFd,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::Context as _;
use backon::{ConstantBuilder, Retryable as _};
use podplane_proto::cluster::{GetStatusRequest, GetStatusResponse, StopRequest};
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    task::spawn_blocking,
};

use super::{
    control,
    data_dir::{DataDir, Running},
    limits,
    progress::Progress,
    service::last_lines,
    settings::Settings,
    supervisor::{AtEof, Message, Order},
    trust,
};

/// How long all services together may take to end: each has 7 s, and nodes with many pods have work to do.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
const SLOW_LOOK: Duration = Duration::from_millis(100);

/// A supervisor that was started here.
#[derive(Debug)]
pub(crate) struct Launched {
    child: Child,
    messages: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
    serves: bool,
}

/// What became of a supervisor that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its cluster serves.
    Serves,
    /// Another came first, and it has ended.
    Taken,
}

/// Whether the cluster goes on without the process that started it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Until `down`.
    Detached,
    /// Until `down`, or the end of standard input.
    UntilEof { purge: bool },
    /// As long as its parent.
    Attached,
}

/// Starts a supervisor.
///
/// Its parent, with which it may have to die, is the calling *thread*.
pub(crate) fn launch(
    dir: &DataDir,
    settings: Settings,
    links: Option<PathBuf>,
    lifetime: Lifetime,
) -> anyhow::Result<Launched> {
    let order = Order {
        data_dir: dir.path().into(),
        settings,
        links,
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        detach: lifetime != Lifetime::Attached,
        until_eof: match lifetime {
            Lifetime::UntilEof { purge } => Some(AtEof { purge }),
            Lifetime::Attached | Lifetime::Detached => None,
        },
    };
    let log_path = dir.log("supervisor");
    let log = trust::append(&log_path);
    let log = log.with_context(|| format!("open {}", log_path.display()))?;
    let mut child = Command::new(std::env::current_exe().context("find the program's own file")?)
        .arg("up")
        .arg("--supervise")
        .arg(serde_json::to_string(&order).context("encode the order")?)
        .stdin(match lifetime {
            Lifetime::UntilEof { .. } => Stdio::inherit(),
            Lifetime::Attached | Lifetime::Detached => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("start the supervisor")?;
    let messages =
        BufReader::new(child.stdout.take().context("standard output is a pipe")?).lines();
    Ok(Launched {
        child,
        messages,
        log: log_path,
        serves: false,
    })
}

/// An error that came in words from another process.
fn chained(chain: Vec<String>) -> anyhow::Error {
    let mut causes = chain.into_iter().rev();
    let innermost = anyhow::Error::msg(causes.next().unwrap_or_default());
    causes.fold(innermost, anyhow::Error::context)
}

impl Launched {
    /// Waits until the cluster serves, and tells how it gets on.
    pub(crate) async fn serving(&mut self, progress: &Progress) -> anyhow::Result<Outcome> {
        while let Some(line) = self
            .messages
            .next_line()
            .await
            .context("hear from the supervisor")?
        {
            match serde_json::from_str(&line)
                .with_context(|| format!("understand the supervisor: {line}"))?
            {
                Message::Progress(text) => progress.done(&text),
                Message::Ready => {
                    self.serves = true;
                    return Ok(Outcome::Serves);
                }
                Message::Taken => {
                    self.wait().await?;
                    return Ok(Outcome::Taken);
                }
                Message::Failed(chain) => {
                    self.wait().await?;
                    return Err(chained(chain));
                }
            }
        }
        Err(self.died().await)
    }

    /// Waits until the cluster that serves ends by itself.
    ///
    /// # Errors
    ///
    /// Why it ended, unless it was asked to.
    pub(crate) async fn end(&mut self) -> anyhow::Result<()> {
        while let Ok(Some(line)) = self.messages.next_line().await {
            if let Ok(Message::Failed(chain)) = serde_json::from_str(&line) {
                self.wait().await?;
                return Err(chained(chain));
            }
        }
        match self.wait().await? {
            status if status.success() => Ok(()),
            _ => Err(self.died().await),
        }
    }

    /// The error of a supervisor that ended and did not say why.
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

    /// Whether it came as far as that.
    pub(crate) fn serves(&self) -> bool {
        self.serves
    }

    /// Waits until the supervisor ends by itself.
    pub(crate) async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().await.context("wait for the supervisor")
    }

    /// Ends the cluster in order, and returns when nothing of it is left.
    pub(crate) async fn stop(&mut self) -> anyhow::Result<()> {
        let pid = self
            .child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(Pid::from_raw);
        if let Some(pid) = pid {
            kill_process(pid, Signal::TERM).context("ask the supervisor to end")?;
        }
        tokio::time::timeout(STOP_DEADLINE, self.wait())
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

/// The cluster that runs in a data directory, once it serves; absent if none runs, or it ends meanwhile.
pub(crate) async fn find(
    dir: &DataDir,
    deadline: Duration,
) -> anyhow::Result<Option<GetStatusResponse>> {
    let ask = async || -> anyhow::Result<Option<GetStatusResponse>> {
        if !dir.is_locked()? {
            return Ok(None);
        }
        let status = control::client(dir)?.get_status(GetStatusRequest {}).await;
        Ok(Some(
            status.context("ask the cluster how it is")?.into_inner(),
        ))
    };
    ask.retry(patience(deadline)).await
}

/// Ends the cluster that runs in a data directory, if one does, and returns when nothing of it is left. Whether one ran.
pub(crate) async fn stop(dir: &DataDir) -> anyhow::Result<bool> {
    let running = settled(dir).await?;
    if let Some(Running { pid, .. }) = running {
        let process = Pid::from_raw(pid).context("the supervisor's process is not known")?;
        match pidfd_open(process, PidfdFlags::empty()) {
            Ok(process) => {
                let asked = async {
                    control::client(dir)?
                        .stop(StopRequest {})
                        .await
                        .context("ask the cluster to end")
                };
                let asked = tokio::time::timeout(STOP_DEADLINE, asked).await;
                if let Err(error) = asked.map_err(Into::into).flatten() {
                    // Nobody answers, as when it is only just starting: it also listens to signals.
                    tracing::debug!(error = format!("{error:#}"), "control socket");
                    pidfd_send_signal(&process, Signal::TERM)
                        .context("ask the supervisor to end")?;
                }
                let is_gone = spawn_blocking(move || wait_for_end(&process)).await?;
                anyhow::ensure!(
                    is_gone.context("wait for the supervisor's process")?,
                    "the cluster (process {pid}) does not end within {} s",
                    STOP_DEADLINE.as_secs()
                );
            }
            Err(Errno::SRCH) => {}
            Err(error) => return Err(error).context("find the supervisor's process"),
        }
    }
    wait_for_members(dir).await?;
    dir.clear_running()?;
    Ok(running.is_some())
}

/// Waits until no cluster runs in a data directory: its supervisor has the lock to its end.
pub(crate) async fn ended(dir: &DataDir) -> anyhow::Result<()> {
    let mut looks = tokio::time::interval(SLOW_LOOK);
    while dir.is_locked()? {
        looks.tick().await;
    }
    Ok(())
}

/// Whether a process has ended in time, its namespaces included: a pidfd is readable only then.
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

/// The supervisor, if there is one; waits for one that has only just begun to say who it is.
async fn settled(dir: &DataDir) -> anyhow::Result<Option<Running>> {
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

/// Waits until no process of the cluster is left. They die with their supervisor, however that died.
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

//! `apiserver`, `ipam-controller`, `controller-manager`, `scheduler`, `webhook`, `kubelet`, `cri`,
//! `node-agent`, `cloud`: each runs one service in the foreground, until SIGINT, SIGTERM or SIGHUP.

use std::{error::Error, future::Future, pin::pin, process::ExitCode};

use anyhow::Context as _;
use podplane_service_runtime::{
    logging::{self, LogConfig},
    shutdown,
    trace::{self, TraceConfig},
};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use tokio::runtime;
use tokio_util::sync::CancellationToken;

/// The stack size of a process's first thread. Only the used part takes memory, and documents are
/// read by recursion.
const STACK_BYTES: usize = 8 << 20;

/// A service's own flags, and those that all services have.
#[derive(Debug, clap::Args)]
pub(crate) struct ServiceArgs<C: clap::Args> {
    #[command(flatten)]
    pub(crate) config: C,

    #[command(flatten)]
    log: LogConfig,

    #[command(flatten)]
    trace: TraceConfig,

    /// End when the process PID does, which must be the parent. How `up` starts services, so that
    /// its end is theirs
    #[arg(long, hide = true, value_name = "PID")]
    die_with_parent: Option<i32>,
}

/// Runs a service, given as the `run` of its crate.
pub(crate) fn run<C, E, F>(
    args: ServiceArgs<C>,
    service: impl FnOnce(C, CancellationToken) -> F,
) -> anyhow::Result<ExitCode>
where
    C: clap::Args,
    E: Error + Send + Sync + 'static,
    F: Future<Output = Result<(), E>>,
{
    let ServiceArgs {
        config,
        log,
        trace,
        die_with_parent,
    } = args;
    if let Some(parent) = die_with_parent {
        follow_parent(parent)?;
    }
    logging::init(&log)?;
    let runtime = runtime::Builder::new_multi_thread()
        .thread_stack_size(STACK_BYTES)
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    runtime.block_on(async {
        trace::init(&trace)?;
        let stop = CancellationToken::new();
        let mut serving = pin!(service(config, stop.clone()));
        // A service that ends by itself determines the result; a signal only asks it to stop.
        tokio::select! {
            ended = &mut serving => ended?,
            signal = shutdown::requested() => {
                tracing::info!(signal = signal.context("failed to listen for signals")?, "stopping");
                stop.cancel();
                serving.await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Asks for SIGTERM when the parent ends. The parent may have ended before: then another process is
/// the parent now.
fn follow_parent(parent: i32) -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .context("failed to request a signal for the end of the parent")?;
    let actual = getppid().map(|pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(
        actual == Some(parent),
        "invalid parent {parent}: the process is not the parent, or has ended"
    );
    Ok(())
}

//! A simulated cloud: instances and their ranges from a file, served as `podplane.cloud.v1`, with
//! faults of real clouds on request.
//!
//! It never writes to a node: the file says which instance has which range, and the IPAM controller
//! writes it to the node. Start reading at [`run`].

#![warn(missing_docs)]

pub mod instances;
mod service;
pub mod troubles;

use std::path::PathBuf;

use clap::Args;
use futures::future::BoxFuture;
use podplane_host::random;
use podplane_proto::{
    DESCRIPTORS,
    cloud::cloud_service_server::{CloudServiceServer, SERVICE_NAME},
};
use podplane_service_runtime::{
    Process, Services, Tasks,
    boundary::AllowedHosts,
    server::Listen,
    serving::{PortRights, ServiceCaller, ServingError, ServingFlags},
    tasks::TaskEnd,
};
use tokio_util::sync::CancellationToken;

use crate::{
    instances::{FileError, InstancesFile},
    service::RangeService,
    troubles::Troubles,
};

/// The users who may ask for ranges, besides those who may do everything.
const RIGHTS: PortRights = PortRights {
    callers: &[ServiceCaller {
        user: "system:podplane:ipam-controller",
        service: SERVICE_NAME,
    }],
    posts: &[],
};

/// Flags of the cloud.
#[derive(Args, Clone, Debug)]
pub struct CloudServiceConfig {
    /// Read the instances and their pod CIDRs from this YAML file, and again whenever it changes
    #[arg(long, env = "PODPLANE_CLOUD_FILE", value_name = "FILE")]
    pub file: PathBuf,

    /// Serve podplane.cloud.v1 at this address: IP:PORT (port 0: any free port) or unix:PATH
    #[arg(
        long,
        env = "PODPLANE_LISTEN",
        value_name = "ADDR",
        default_value = "127.0.0.1:0"
    )]
    pub listen: Listen,

    /// Host names that requests may be addressed to.
    #[command(flatten)]
    pub allowed_hosts: AllowedHosts,

    /// The clients of the address, and its TLS.
    #[command(flatten)]
    pub serving: ServingFlags,

    /// Write the listening address to this file, once it is served
    #[arg(long, env = "PODPLANE_ADDRESS_FILE", value_name = "FILE")]
    pub address_file: Option<PathBuf>,

    /// The simulated faults.
    #[command(flatten)]
    pub troubles: Troubles,
}

/// The reasons why the cloud does not run.
#[derive(Debug, thiserror::Error)]
pub enum CloudRunError {
    /// The file is invalid at the start. A later invalid change does not end the cloud.
    #[error(transparent)]
    File(#[from] FileError),
    /// The address to listen on cannot be served as the flags say.
    #[error("failed to start the server")]
    Listen(#[from] ServingError),
    /// A task of the cloud ended.
    #[error("failed to run the cloud")]
    Ended(#[from] TaskEnd),
}

/// Runs until `stop` is cancelled.
///
/// # Errors
///
/// Everything that [`CloudRunError`] names.
pub fn run(
    config: CloudServiceConfig,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), CloudRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, stop))
}

async fn run_until(
    config: CloudServiceConfig,
    stop: CancellationToken,
) -> Result<(), CloudRunError> {
    let CloudServiceConfig {
        file,
        listen,
        allowed_hosts,
        serving,
        address_file,
        troubles,
    } = config;
    let instances = InstancesFile::open(file)?;
    let seed = troubles.seed.unwrap_or_else(random::value);
    tracing::info!(instances = instances.len(), seed, "serving instances");
    let file = address_file.as_deref();
    let listeners = serving.listeners_for(RIGHTS, &listen, allowed_hosts, file);
    let listeners = listeners.await?;
    let mut services = Services::default();
    services.add(CloudServiceServer::new(RangeService::new(
        instances, troubles, seed,
    )));
    let mut process = Process::new(DESCRIPTORS);
    process.serve_at(listeners, services);
    let mut tasks = Tasks::new(stop);
    process.start(&mut tasks).await;
    Ok(tasks.run().await?)
}

//! The scheduler: gives each pod a node that can take it, an address included.
//!
//! It never binds a pod to a node that has no free address for it (unless told to, [`IpPolicy::Off`]), never binds a pod
//! twice, and keeps nothing that a successor could not read from the API server.
//!
//! Everything that decides is pure: [`scheduler::Scheduler`] is told what happened and when, and answers what to do; the
//! decision itself is [`plan::plan`]. What acts on it is around that: [`driver`] feeds it and binds, [`report`] tells people,
//! [`service`] answers questions. Start reading at [`scheduler`].

#![forbid(unsafe_code)]

use futures::future::BoxFuture;
use podplane_api::core::{Node, Pod};
use podplane_client::{Client, EventRecorder, ListParams, endpoint::EndpointError, reflector};
use podplane_proto::scheduler::scheduler_service_server::SchedulerServiceServer;
use podplane_telemetry::{
    Tasks,
    server::{Listener, ServeError},
    tasks::{Ended, TaskError},
};
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;

pub mod bind;
pub mod cache;
pub mod config;
pub mod driver;
pub mod event;
pub mod filters;
pub mod fit_error;
pub mod names;
pub mod node;
pub mod plan;
pub mod pod;
pub mod queue;
pub mod report;
pub mod resources;
pub mod scheduler;
pub mod score;
pub mod service;
#[cfg(test)]
mod testing;

pub use config::{Config, IpPolicy};

/// Why the scheduler ended though nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The API server's address cannot be used.
    #[error("prepare to talk to the API server")]
    Endpoint(#[from] EndpointError),
    /// Its own address cannot be had, or made known.
    #[error("offer the scheduler's service")]
    Serve(#[from] ServeError),
    /// One of its tasks ended.
    #[error("run the scheduler")]
    Task(#[from] Ended),
}

/// Schedules pods until `shutdown` is cancelled. An API server that cannot be reached is waited for.
///
/// # Errors
///
/// See [`RunError`].
pub fn run(
    config: Config,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), RunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, shutdown))
}

async fn run_until(config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let Config {
        server,
        listen,
        address_file,
        ip_policy,
    } = config;
    let client = Client::connect(&server)?;
    let listener = Listener::bind(&listen).await?;
    tracing::info!(%server, ?ip_policy, "scheduling");

    let mut tasks = Tasks::new(shutdown);
    let (pods, pods_driver) = reflector(client.all::<Pod>(), ListParams::default());
    let (nodes, nodes_driver) = reflector(client.all::<Node>(), ListParams::default());
    let (recorder, events_driver) = EventRecorder::new(client.clone(), pod::SCHEDULER_NAME, "");
    for (name, driver) in [
        ("pod reflector", Box::pin(pods_driver) as Background),
        ("node reflector", Box::pin(nodes_driver)),
        ("event recorder", Box::pin(events_driver)),
    ] {
        let stop = tasks.stop();
        // Losing the driver loses nothing: it keeps its state elsewhere, and the process ends.
        let until_stopped = async move {
            stop.run_until_cancelled(driver).await;
            Ok::<_, TaskError>(())
        };
        tasks.spawn(name, until_stopped);
    }

    let reporter = report::Reporter::new(client.clone(), recorder);
    tasks.spawn("reporter", reporter.clone().run(tasks.stop()));

    let (service, questions) = service::Service::new(pods.clone());
    let mut routes = RoutesBuilder::default();
    routes.add_service(SchedulerServiceServer::new(service));
    if let Some(path) = &address_file {
        listener.publish(path)?;
    }
    let names = [podplane_proto::scheduler::scheduler_service_server::SERVICE_NAME];
    let stop = tasks.stop();
    tasks.spawn("server", async move {
        listener
            .serve(routes, &names, podplane_proto::DESCRIPTORS, stop)
            .await
    });

    let driver = driver::Driver {
        client,
        pods,
        nodes,
        reporter,
        questions,
    };
    tasks.spawn("driver", driver.run(ip_policy, tasks.stop()));
    Ok(tasks.run().await?)
}

type Background = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

//! Admission webhooks for any Kubernetes cluster whose nodes publish their pod addresses.
//!
//! `/mutate-pods` adds a request for an address to new pods, so that a scheduler that counts
//! extended resources counts addresses. `/validate-bindings` refuses to bind a pod to a node that
//! has no address for it. podplane's own API server counts in the commit of the bind; for any other
//! one the leading webhook keeps reservations.
//!
//! It writes nothing but its Lease; if it manages its certificate, that Secret and `caBundle` of
//! its configurations; and, if a policy adds the requests, the ConfigMap of [`policy`]. It never
//! refuses a pod. Its failure is no refusal: the `failurePolicy` of the configurations decides
//! then.
//!
//! All decisions are pure: [`mutation::plan`] and [`guard::BindGuard`]. Around them, [`routes`] has
//! the HTTP paths, and [`driver`] feeds the guard. Start reading at [`guard`].

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod certificates;
pub mod config;
pub mod driver;
pub mod guard;
pub mod metrics;
pub mod mutation;
pub mod object_name;
pub mod pod;
pub mod policy;
pub mod review;
pub mod routes;
#[cfg(test)]
mod tests;

use futures::future::BoxFuture;
use podplane_api::core::{Node, Pod};
use podplane_client::{
    ListParams, Permission, ServerError, StartCheckError,
    leader::{LeaderError, Leadership},
    reflector, start_check, transforming_reflector,
};
use podplane_service_runtime::{
    Process, Services, Tasks,
    serving::{PortRights, ServingError},
    tasks::{TaskEnd, TaskError},
};
use tokio_util::sync::CancellationToken;

use certificates::ManagedCertificate;
pub use config::WebhookConfig;
use driver::GuardDriver;
use metrics::{UnpublishedNodes, WebhookMetrics};
use pod::PodAddresses;
use policy::PolicySwitch;
use routes::{MUTATE_PODS, VALIDATE_BINDINGS, Webhooks};

/// The name of the election.
const ELECTION: &str = "podplane-webhook";
/// API servers mostly have no credentials for webhooks.
const RIGHTS: PortRights = PortRights {
    callers: &[],
    posts: &[MUTATE_PODS, VALIDATE_BINDINGS],
};

/// Checked when the webhooks start, beside those on the Lease and the certificate.
const PERMISSIONS: &[Permission] = &[
    Permission::on("", "pods", &["get", "list", "watch"]),
    Permission::on("", "nodes", &["list", "watch"]),
];

/// The reasons why the webhooks ended without a request to stop.
#[derive(Debug, thiserror::Error)]
pub enum WebhookRunError {
    /// The API server's address is invalid.
    #[error("failed to prepare the connection to the API server")]
    Server(#[from] ServerError),
    /// The flags of the election are invalid.
    #[error(transparent)]
    Election(#[from] LeaderError),
    /// The webhooks' own address cannot be served as its flags say.
    #[error("failed to start the server")]
    Serve(#[from] ServingError),
    /// The API server is another one, or does not permit what is needed.
    #[error(transparent)]
    Check(#[from] StartCheckError),
    /// One of the tasks ended.
    #[error("failed to run the webhooks")]
    Task(#[from] TaskEnd),
}

/// Serves webhooks until `shutdown` is cancelled. Waits for an unreachable API server.
///
/// # Errors
///
/// See [`WebhookRunError`].
pub fn run(
    config: WebhookConfig,
    shutdown: CancellationToken,
) -> BoxFuture<'static, Result<(), WebhookRunError>> {
    // Boxed, so that it is compiled with this crate and not with each program that calls it.
    Box::pin(run_until(config, shutdown))
}

async fn run_until(
    config: WebhookConfig,
    shutdown: CancellationToken,
) -> Result<(), WebhookRunError> {
    let WebhookConfig {
        server,
        listen,
        allowed_hosts,
        mut serving,
        certificates,
        address_file,
        pod_ip_resource: resource,
        reservation_timeout,
        policy_params,
        leader_election,
    } = config;
    let client = server.connect().await?;
    let candidate = leader_election.candidate(client.clone(), ELECTION)?;
    let certificate = ManagedCertificate::new(client.clone(), certificates);
    let mut needed = [PERMISSIONS, &candidate.permissions()].concat();
    needed.extend(certificate.iter().flat_map(ManagedCertificate::permissions));
    needed.extend(policy_params.iter().flat_map(PolicySwitch::permissions));
    let mut tasks = Tasks::new(shutdown);
    let check = start_check(client.clone(), server.clone(), needed, tasks.stop());
    let mut check = Box::pin(check);
    if let Some(certificate) = &certificate {
        // Cancelling this loses nothing: another replica, or the next process, goes on. Without
        // rights on the Secret it would be tried for ever.
        tokio::select! {
            ended = &mut check => return Ok(ended?),
            () = certificate.obtain() => {}
        }
        serving.tls = certificate.tls(serving.tls);
    }
    let file = address_file.as_deref();
    let listeners = serving.listeners_for(RIGHTS, &listen, allowed_hosts, file);
    let listeners = listeners.await?;
    tracing::info!(%server, pod_ip_resource = %resource, ?reservation_timeout, "serving webhooks");

    let reader = resource.clone();
    let (pods, pods_driver) =
        transforming_reflector(client.all(), ListParams::default(), move |pod: Pod| {
            PodAddresses::of(&pod, &reader)
        });
    let (nodes, nodes_driver) = reflector(client.all::<Node>(), ListParams::default());
    tasks.follow("pod reflector", pods_driver);
    tasks.follow("node reflector", nodes_driver);
    if let Some(certificate) = &certificate {
        tasks.follow("certificate", certificate.clone().follow());
    }

    let mut process = Process::new(podplane_proto::DESCRIPTORS);
    let policy = PolicySwitch::new(policy_params, nodes.clone(), resource.clone());
    let metrics = WebhookMetrics::new(process.registry());
    candidate.register(process.registry());
    let unpublished = UnpublishedNodes::new(nodes.clone(), resource.clone());
    process.registry().register_collector(Box::new(unpublished));
    let caches = (pods.clone(), nodes.clone());
    tasks.spawn("start check", check);
    let driver = GuardDriver::new(
        client,
        resource.clone(),
        caches,
        reservation_timeout,
        metrics.clone(),
    );
    process.serve_at(listeners, Services::default());
    process.with_http(routes::routes(Webhooks {
        nodes: nodes.clone(),
        resource,
        guard: driver.handle(),
        metrics,
    }));
    process.ready_when("pods", pods.synced());
    process.ready_when("nodes", nodes.synced());
    // A Service routes to the leader alone.
    process.ready_when("leader", driver.leading());
    process.start(&mut tasks).await;

    let stop = tasks.stop();
    tasks.spawn("leader", async move {
        // A replica that lost the lead ends: its reservations are of no use later.
        let work = async |leading: Leadership| {
            let maintain = async {
                match &certificate {
                    Some(certificate) => certificate.maintain(&leading.client).await,
                    None => std::future::pending().await,
                }
            };
            let switch = async {
                match &policy {
                    Some(policy) => policy.maintain(&leading.client).await,
                    None => std::future::pending().await,
                }
            };
            // Neither maintenance ever ends, and each of their writes is whole.
            tokio::select! {
                () = driver.lead(&stop) => {}
                () = maintain => {}
                () = switch => {}
            }
        };
        Box::pin(candidate.lead(&stop, work)).await?;
        stop.cancelled().await;
        Ok::<_, TaskError>(())
    });
    Ok(tasks.run().await?)
}

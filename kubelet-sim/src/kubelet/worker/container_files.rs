//! The part of a pod's worker that fills in its containers, and writes the files of their volumes.

use std::{net::IpAddr, sync::Arc};

use podplane_api::{
    Object as _,
    authentication::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::{Container, Pod, ServiceAccountTokenProjection},
    jiff::{SignedDuration, Timestamp},
    pod_ips::is_host_network,
};
use podplane_error_chain::one_line;
use podplane_host::{clock, task};
use podplane_proto::cri;

use super::{
    super::{
        containers::{
            app_containers,
            config::{ConfigError, ContainerParts, config},
            env::PodFacts,
            init_containers,
            sources::PodSources,
            volumes::{self, PodDir, ProjectedTokens},
        },
        runtime::RuntimeImage,
        sandbox_config::pod_hostname,
        status::ReadySandbox,
    },
    Worker,
    containers::HeldContainer,
};

/// The time until tokens that could not be renewed are requested again.
const TOKEN_RETRY: SignedDuration = SignedDuration::from_secs(60);
/// The life of a token without one of its own in seconds, as in Kubernetes.
const TOKEN_SECONDS: i64 = 3600;

impl Worker {
    /// The files of the pod on the node.
    pub(super) fn pod_dir(&self) -> PodDir {
        PodDir::new(self.node.pod_files.join(&self.uid))
    }

    /// Removes the pod's files, if the runtime made its containers.
    pub(super) async fn remove_files(&self) {
        if !self.runs_containers() {
            return;
        }
        let dir = self.pod_dir();
        let removed = task::spawn_blocking(move || dir.remove()).await;
        if let Ok(Err(error)) = removed {
            tracing::debug!(node = self.node.name(), uid = self.uid, %error, "failed to remove the pod's files");
        }
    }

    /// The container for the runtime; its volumes are made.
    ///
    /// # Errors
    ///
    /// The reason why it waits.
    pub(super) async fn container_config(
        &mut self,
        pod: &Arc<Pod>,
        sandbox: &ReadySandbox,
        container: &Container,
        image: &RuntimeImage,
        attempt: u32,
        restarts: i32,
    ) -> Result<cri::ContainerConfig, HeldContainer> {
        let held = |error: ConfigError| HeldContainer::config(error.to_string());
        let (sources, mounts) = self.write_files(pod, sandbox, container).await?;
        let node = self.node.clone();
        config(ContainerParts {
            facts: facts(pod, sandbox, &node.machine.ips),
            container,
            attempt,
            restarts,
            image,
            sources: &sources,
            mounts,
        })
        .map_err(held)
    }

    /// Writes the files of the container's volumes. Returns the objects that they were made of, and
    /// the mounts.
    async fn write_files(
        &mut self,
        pod: &Arc<Pod>,
        sandbox: &ReadySandbox,
        container: &Container,
    ) -> Result<(PodSources, Vec<cri::Mount>), HeldContainer> {
        let held = |error: ConfigError| HeldContainer::config(error.to_string());
        let client = &self.node.client;
        let sources = PodSources::read(client, pod, container).await;
        let sources = sources.map_err(|error| HeldContainer::config(one_line(&error)))?;
        let tokens = self.tokens(pod, container).await?;
        let facts = facts(pod, sandbox, &self.node.machine.ips);
        let contents = volumes::contents(container, facts, &sources, &tokens).map_err(held)?;
        let hosts = volumes::hosts(facts, &pod_hostname(pod));
        let dir = self.pod_dir();
        let mounts = dir.mounts(container, &contents, hosts.is_some());
        let mounts = mounts.map_err(held)?;
        let name = container.name.clone();
        let write = move || dir.write(&name, &contents, hosts.as_deref());
        match task::spawn_blocking(write).await {
            Ok(written) => written.map_err(held)?,
            Err(error) => return Err(HeldContainer::config(error.to_string())),
        }
        Ok((sources, mounts))
    }

    /// Requests the tokens of the container's projected volumes, and notes when they are due again.
    async fn tokens(
        &mut self,
        pod: &Arc<Pod>,
        container: &Container,
    ) -> Result<ProjectedTokens, HeldContainer> {
        let mut tokens = ProjectedTokens::new();
        for (volume, projection) in projected_tokens(pod, container) {
            let requested = self.request_token(pod, projection).await?;
            let (token, renewal) = requested;
            let next = self
                .containers
                .next_write
                .filter(|next| *next > clock::timestamp());
            self.containers.next_write = next.into_iter().chain([renewal]).min();
            tokens.insert((volume.to_owned(), projection.path.clone()), token);
        }
        Ok(tokens)
    }

    /// A token for the pod, and the time at which to request the next one: after four fifths of its
    /// life, as Kubernetes' kubelet does.
    async fn request_token(
        &self,
        pod: &Pod,
        projection: &ServiceAccountTokenProjection,
    ) -> Result<(String, Timestamp), HeldContainer> {
        let spec = pod.spec.as_ref();
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        let audience = projection.audience.clone();
        let audience = audience.filter(|audience| !audience.is_empty());
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: audience.map(|audience| vec![audience]),
                expiration_seconds: projection.expiration_seconds.or(Some(TOKEN_SECONDS)),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Pod".into()),
                    name: Some(pod.name().into()),
                    uid: Some(pod.uid().into()),
                }),
            }),
            ..TokenRequest::default()
        };
        let account = account.unwrap_or("default");
        let client = &self.node.client;
        let answer = client.create_token(pod.namespace(), account, &request);
        let status = match answer.await {
            Ok(answer) => answer.status.unwrap_or_default(),
            Err(error) => {
                let error = one_line(&error);
                let message = format!("failed to fetch token of account {account}: {error}");
                return Err(HeldContainer::config(message));
            }
        };
        let now = clock::timestamp();
        let expires = status.expiration_timestamp.map_or(now, |time| time.0);
        let life = expires.duration_since(now);
        let wait = SignedDuration::from_secs(life.as_secs() / 5 * 4);
        let renewal = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        match status.token {
            Some(token) => Ok((token, renewal.max(after_retry(now)))),
            None => Err(HeldContainer::config(format!(
                "failed to fetch token of account {account}: the answer has none"
            ))),
        }
    }

    /// Writes the files of volumes with tokens again, if that is due, or not known to be not due.
    pub(super) async fn refresh_files(&mut self, pod: &Arc<Pod>, sandbox: &ReadySandbox) {
        let now = clock::timestamp();
        if self.containers.next_write.is_some_and(|next| now < next) {
            return;
        }
        let all = init_containers(pod).iter().chain(app_containers(pod));
        for container in all {
            if projected_tokens(pod, container).next().is_none() {
                continue;
            }
            if self.write_files(pod, sandbox, container).await.is_err() {
                self.containers.next_write = Some(after_retry(now));
                return;
            }
        }
    }
}

fn facts<'a>(pod: &'a Pod, sandbox: &'a ReadySandbox, host_ips: &'a [IpAddr]) -> PodFacts<'a> {
    let ips = match is_host_network(pod) {
        true => host_ips,
        false => &sandbox.ips,
    };
    PodFacts { pod, ips, host_ips }
}

fn after_retry(now: Timestamp) -> Timestamp {
    now.saturating_add(TOKEN_RETRY).unwrap_or(Timestamp::MAX)
}

/// The tokens that a container's volumes have, with the volumes' names.
fn projected_tokens<'a>(
    pod: &'a Pod,
    container: &'a Container,
) -> impl Iterator<Item = (&'a str, &'a ServiceAccountTokenProjection)> {
    volumes::mounted(pod, container).flat_map(|volume| {
        let projected = volume.projected.as_ref();
        let sources = projected
            .into_iter()
            .flat_map(|p| p.sources.iter().flatten());
        let tokens = sources.filter_map(|source| source.service_account_token.as_ref());
        tokens.map(|token| (volume.name.as_str(), token))
    })
}

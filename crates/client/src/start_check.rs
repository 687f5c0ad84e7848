//! The questions of a process to its API server at the start: the system of the server, and the
//! permissions of the process.

use std::{borrow::Cow, fmt, time::Duration};

use backon::{ExponentialBuilder, Retryable as _};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::Request;
use podplane_api::authorization::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use podplane_proto::error::{ApiError, Reason};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{
    Client,
    api::{
        Transport,
        rest::{RestCalls, path_of, refused},
    },
    deadline::answered,
    endpoint::{EndpointTarget, Uris},
    server::ServerFlags,
};

/// The permissions that are asked for at once.
const CONCURRENCY: usize = 8;
/// The build metadata in the version of podplane's API server.
const PODPLANE: &str = "+podplane";

/// A permission that a process needs: verbs on a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    namespace: Cow<'static, str>,
    name: Cow<'static, str>,
}

impl Permission {
    /// Verbs on all objects of a resource. The core group has an empty name; a subresource stands
    /// behind its resource: `pods/binding`.
    #[must_use]
    pub const fn on(
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            group,
            resource,
            verbs,
            namespace: Cow::Borrowed(""),
            name: Cow::Borrowed(""),
        }
    }

    /// The permission for the objects of one namespace.
    #[must_use]
    pub fn in_namespace(mut self, namespace: impl Into<Cow<'static, str>>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// The permission for the object of one name.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }
}

/// A server, as its `/version` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerIdentity {
    system: ServerSystem,
    /// `gitVersion`, such as `v1.36.2`; empty for a gRPC server without the REST API.
    version: String,
}

/// The system of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerSystem {
    /// podplane.
    Podplane,
    /// Kubernetes, or another server with its REST API.
    Kubernetes,
    /// Neither.
    Other,
}

/// The process cannot work with its server.
#[derive(Debug, thiserror::Error)]
pub enum StartCheckError {
    /// `--server` is for podplane's gRPC.
    #[error(
        "the server at {server} is {found}, which does not speak podplane's gRPC: use --kubeconfig or --in-cluster instead of --server"
    )]
    NotGrpc {
        /// The value of `--server`.
        server: String,
        /// A description of the server.
        found: String,
    },
    /// The kubeconfig names something else.
    #[error("the server of {server} is no API server: its /version has no gitVersion")]
    NotKubernetes {
        /// The flags of the server.
        server: String,
    },
    /// The user lacks permissions.
    #[error("the API server does not permit: {}", .0.join("; "))]
    Forbidden(
        /// The missing rules: `list, watch pods`.
        Vec<String>,
    ),
}

impl fmt::Display for ServerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let system = match self.system {
            ServerSystem::Podplane => "podplane",
            ServerSystem::Kubernetes => "Kubernetes",
            ServerSystem::Other => "neither podplane nor Kubernetes",
        };
        match self.version.as_str() {
            "" => f.write_str(system),
            version => write!(f, "{system} {version}"),
        }
    }
}

/// Waits until the server answers, logs what it is, and checks the permissions if the client is one
/// of the REST API; then waits for `stop`. A task of a process, which ends with it if it fails.
///
/// # Errors
///
/// [`StartCheckError`]: no later attempt would succeed, unless somebody changes the server.
pub async fn start_check(
    client: Client,
    flags: ServerFlags,
    permissions: Vec<Permission>,
    stop: CancellationToken,
) -> Result<(), StartCheckError> {
    let check = client.check(&flags, &permissions);
    stop.run_until_cancelled(check).await.transpose()?;
    stop.cancelled().await;
    Ok(())
}

impl Client {
    /// The rules of these permissions that the user lacks, such as `list pods`; none by gRPC, where
    /// the server's refusals name them.
    ///
    /// # Errors
    ///
    /// The server's, if it does not answer SelfSubjectAccessReviews.
    pub async fn missing_rules(
        &self,
        permissions: &'static [Permission],
    ) -> Result<Vec<String>, ApiError> {
        match self.transport() {
            Transport::Rest(calls) => missing(calls, permissions).await,
            Transport::Grpc(_) => Ok(Vec::new()),
        }
    }

    async fn check(
        &self,
        flags: &ServerFlags,
        permissions: &[Permission],
    ) -> Result<(), StartCheckError> {
        let identity = self.identity_with_retry(flags).await?;
        tracing::info!(server = %flags, found = %identity, "found the API server");
        // By gRPC the narrow writes have rules of their own, which the server's refusals name.
        let Transport::Rest(calls) = self.transport() else {
            return Ok(());
        };
        match missing(calls, permissions).await {
            Ok(missing) if missing.is_empty() => Ok(()),
            Ok(missing) => Err(StartCheckError::Forbidden(missing)),
            Err(error) => {
                tracing::warn!(%error, "failed to check the permissions of this process; going on");
                Ok(())
            }
        }
    }

    async fn identity_with_retry(
        &self,
        flags: &ServerFlags,
    ) -> Result<ServerIdentity, StartCheckError> {
        let waits = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_secs(2))
            .with_jitter()
            .without_max_times();
        let identify = || async {
            match answered(self.identify()).await {
                Ok(identity) => Ok(Ok(identity)),
                Err(error) => match self.over_http(flags).await {
                    Some(found) => Ok(Err(found)),
                    None => Err(error),
                },
            }
        };
        let found = identify.retry(waits).await;
        let not_grpc = |found| StartCheckError::NotGrpc {
            server: flags.to_string(),
            found,
        };
        match found {
            Ok(Ok(identity)) => match (self.transport(), identity.system) {
                (_, ServerSystem::Podplane) | (Transport::Rest(_), ServerSystem::Kubernetes) => {
                    Ok(identity)
                }
                (Transport::Grpc(_), _) => Err(not_grpc(identity.to_string())),
                (Transport::Rest(_), ServerSystem::Other) => Err(StartCheckError::NotKubernetes {
                    server: flags.to_string(),
                }),
            },
            Ok(Err(found)) => Err(not_grpc(found)),
            // There is no last attempt.
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns true if the server is podplane's.
    pub(crate) async fn is_podplane(&self) -> Result<bool, ApiError> {
        let identity = self.identify().await?;
        Ok(identity.system == ServerSystem::Podplane)
    }

    /// Asks the server what it is.
    async fn identify(&self) -> Result<ServerIdentity, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let request = Request::get("/version").body(kube::client::Body::empty());
        let request =
            request.map_err(|error| ApiError::new(Reason::InternalError, error.to_string()))?;
        let response = self.kube().send(request).await.map_err(refused)?;
        let headers = response.headers();
        // A gRPC server without the REST API answers every path like this.
        let media_type = headers.get(http::header::CONTENT_TYPE);
        let is_grpc = media_type
            .is_some_and(|media_type| media_type.as_bytes().starts_with(b"application/grpc"));
        let status = response.status();
        let body = response.into_body().collect_bytes().await;
        let body = body.map_err(refused)?;
        let identity = |system, version| Ok(ServerIdentity { system, version });
        match (serde_json::from_slice::<Version>(&body), self.transport()) {
            (Ok(Version { git_version }), _) if git_version.contains(PODPLANE) => {
                identity(ServerSystem::Podplane, git_version)
            }
            (Ok(Version { git_version }), _) => identity(ServerSystem::Kubernetes, git_version),
            (Err(_), _) if is_grpc => identity(ServerSystem::Podplane, String::new()),
            // It answers nobody without credentials.
            (Err(_), Transport::Grpc(_)) if matches!(status.as_u16(), 401 | 403) => {
                identity(ServerSystem::Podplane, String::new())
            }
            (Err(_), Transport::Rest(_)) if matches!(status.as_u16(), 401 | 403) => {
                identity(ServerSystem::Kubernetes, String::new())
            }
            (Err(_), _) if status.is_server_error() => {
                let why = format!("the server answers /version with {status}");
                Err(ApiError::new(Reason::ServiceUnavailable, why))
            }
            (Err(_), _) => identity(ServerSystem::Other, String::new()),
        }
    }

    /// Describes a server that does not speak HTTP/2, if one answers at the address of the flags.
    async fn over_http(&self, flags: &ServerFlags) -> Option<String> {
        let server = flags.server.as_ref()?;
        let EndpointTarget::Uris(Uris { first: uri, .. }) = &server.target else {
            return None;
        };
        if uri.scheme_str() != Some("http") {
            return None;
        }
        let client = Self::over_rest(kube::Config::new(uri.clone())).ok()?;
        let identity = answered(client.identify()).await.ok()?;
        Some(match identity.system {
            ServerSystem::Podplane => return None,
            ServerSystem::Kubernetes | ServerSystem::Other => identity.to_string(),
        })
    }
}

/// The rules of these permissions that the user lacks.
async fn missing(calls: &RestCalls, permissions: &[Permission]) -> Result<Vec<String>, ApiError> {
    let asked = permissions.iter().cloned().map(|permission| async move {
        let mut lacking = Vec::new();
        for verb in permission.verbs {
            if !answered(is_permitted(calls, &permission, verb)).await? {
                lacking.push(*verb);
            }
        }
        Ok::<_, ApiError>((permission, lacking))
    });
    let asked: Vec<_> = stream::iter(asked)
        .buffered(CONCURRENCY)
        .try_collect()
        .await?;
    let lacking = asked.into_iter().filter(|(_, verbs)| !verbs.is_empty());
    Ok(lacking
        .map(|(permission, verbs)| rule(&permission, &verbs))
        .collect())
}

/// The rule as people say it: `list, watch poddisruptionbudgets of policy`, or
/// `get, update leases of coordination.k8s.io "podplane-scheduler" in kube-system`.
fn rule(permission: &Permission, verbs: &[&str]) -> String {
    let Permission {
        group,
        resource,
        namespace,
        name,
        ..
    } = permission;
    let part = |value: &str, text: String| match value {
        "" => String::new(),
        _ => text,
    };
    let group = part(group, format!(" of {group}"));
    let name = part(name, format!(" {name:?}"));
    let namespace = part(namespace, format!(" in {namespace}"));
    format!("{} {resource}{group}{name}{namespace}", verbs.join(", "))
}

async fn is_permitted(
    calls: &RestCalls,
    permission: &Permission,
    verb: &str,
) -> Result<bool, ApiError> {
    let (resource, subresource) = match permission.resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (permission.resource, None),
    };
    let given = |text: &Cow<'_, str>| Some(text.to_string()).filter(|text| !text.is_empty());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                group: Some(permission.group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource,
                verb: Some(verb.to_owned()),
                namespace: given(&permission.namespace),
                name: given(&permission.name),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let path = path_of::<SelfSubjectAccessReview>();
    let reviewed: SelfSubjectAccessReview = calls.post(&path, &review).await?;
    Ok(reviewed.status.unwrap_or_default().allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_missing_rule() {
        let leases = Permission::on("coordination.k8s.io", "leases", &["get", "update"]);
        for (permission, want) in [
            (Permission::on("", "pods/binding", &[]), "get pods/binding"),
            (leases.clone(), "get leases of coordination.k8s.io"),
            (
                leases
                    .named("podplane-scheduler")
                    .in_namespace("kube-system"),
                "get leases of coordination.k8s.io \"podplane-scheduler\" in kube-system",
            ),
        ] {
            assert_eq!(rule(&permission, &["get"]), want);
        }
    }
}

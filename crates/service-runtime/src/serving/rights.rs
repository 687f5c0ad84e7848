//! The rights at a port. They are fixed: the process asks no API server, so that it can be observed
//! while there is none.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture};
use podplane_access::Attributes;
use tonic::{
    Code,
    body::Body,
    codegen::http::{Method, Response, StatusCode, request::Parts},
};

use crate::{
    authentication::RequestContext,
    boundary::{failure, is_grpc},
    gate::RequestGate,
    identity::{Identity, MASTERS, MONITORING},
};

/// The paths that everyone may get, with those below.
const PROBES: [&str; 3] = ["/healthz", "/livez", "/readyz"];
/// The paths that monitoring systems may get besides, as by Kubernetes' ClusterRole
/// `system:monitoring`.
const METRICS: [&str; 2] = ["/metrics", "/metrics/slis"];
/// The gRPC service that everyone may call.
const HEALTH: &str = "/grpc.health.v1.Health/";

/// A user who may call all methods of a gRPC service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceCaller {
    /// The name of the user.
    pub user: &'static str,
    /// The full name of the service, such as `podplane.cloud.v1.CloudService`.
    pub service: &'static str,
}

impl ServiceCaller {
    fn may(&self, identity: &Identity, path: &str) -> bool {
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        identity.user == self.user && service.is_some_and(|(service, _)| service == self.service)
    }
}

/// The rights at a port besides those of every port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRights {
    /// The users who may call services.
    pub callers: &'static [ServiceCaller],
    /// The paths that everyone may post to, as API servers do that have no credentials for webhooks.
    pub posts: &'static [&'static str],
}

impl PortRights {
    fn allow(&self, identity: &Identity, method: &Method, path: &str) -> bool {
        let is_post = method == Method::POST && self.posts.contains(&path);
        is_post || self.callers.iter().any(|caller| caller.may(identity, path))
    }
}

/// Everything for `system:masters`, metrics for `system:monitoring`, health for everyone, and
/// what the port's own rights allow.
#[derive(Debug)]
pub(super) struct PortGate {
    pub(super) rights: PortRights,
}

impl RequestGate for PortGate {
    fn judge(self: Arc<Self>, parts: Parts) -> BoxFuture<'static, Result<Parts, Response<Body>>> {
        let context = RequestContext::of(&parts.extensions);
        let (identity, path) = (&context.identity, parts.uri.path());
        let (method, rights) = (&parts.method, self.rights);
        let is_allowed = is_allowed(identity, method, path) || rights.allow(identity, method, path);
        let judged = match is_allowed {
            true => Ok(parts),
            false => Err(refusal(&context.identity, &parts)),
        };
        std::future::ready(judged).boxed()
    }
}

fn is_allowed(identity: &Identity, method: &Method, path: &str) -> bool {
    let is_probe = || {
        let below = |probe: &&str| path.strip_prefix(*probe);
        let mut below = PROBES.iter().filter_map(below);
        below.any(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_get = method == Method::GET;
    identity.is_in(MASTERS)
        || (is_get && is_probe())
        || (is_get && METRICS.contains(&path) && identity.is_in(MONITORING))
        || path.starts_with(HEALTH)
}

/// In Kubernetes' words.
fn refusal(identity: &Identity, parts: &Parts) -> Response<Body> {
    let verb = parts.method.as_str().to_ascii_lowercase();
    let attributes = Attributes::path(identity, &verb, parts.uri.path());
    failure(
        (StatusCode::FORBIDDEN, "Forbidden"),
        Code::PermissionDenied,
        &attributes.status_message(""),
        is_grpc(&parts.headers),
    )
}

#[cfg(test)]
mod tests {
    use podplane_access::bootstrap;

    use super::*;

    const OTHERS: [&str; 8] = [
        "/",
        "/metricsx",
        "/metrics/",
        "/debug/log-level",
        "/livezx",
        "//livez",
        "/%6divez",
        "/grpc.health.v1.Healthx/Check",
    ];

    /// The paths that a role allows to get, with one below each that ends in `/*`.
    fn paths_of(role: &str) -> Vec<String> {
        let roles = bootstrap::cluster_roles();
        let role = roles
            .iter()
            .find(|known| known.metadata.name.as_deref() == Some(role));
        let rules = role.and_then(|role| role.rules.clone()).unwrap();
        let paths = rules.into_iter().flat_map(|rule| {
            assert_eq!(rule.verbs, ["get"]);
            rule.non_resource_urls.unwrap()
        });
        paths.map(|path| path.replace('*', "ping")).collect()
    }

    #[test]
    fn monitoring_may_get_what_its_role_has_and_nothing_else() {
        let monitoring = Identity::new("prometheus", [MONITORING]);
        let paths = paths_of("system:monitoring");
        assert!(paths.len() > 6, "{paths:?}");
        for path in &paths {
            assert!(is_allowed(&monitoring, &Method::GET, path), "{path}");
            for method in [Method::PUT, Method::POST, Method::HEAD, Method::DELETE] {
                assert!(!is_allowed(&monitoring, &method, path), "{method} {path}");
            }
        }
        for path in OTHERS {
            assert!(!is_allowed(&monitoring, &Method::GET, path), "{path}");
        }
    }

    #[test]
    fn everyone_else_may_get_probes_alone() {
        for identity in [
            Identity::anonymous(),
            Identity::node("n1"),
            Identity::new("system:masters", ["system:authenticated"]),
        ] {
            let mut allowed = paths_of("system:monitoring");
            allowed.retain(|path| is_allowed(&identity, &Method::GET, path));
            let probes = [
                "/healthz",
                "/healthz/ping",
                "/livez",
                "/livez/ping",
                "/readyz",
                "/readyz/ping",
            ];
            assert_eq!(allowed, probes, "{identity:?}");
            for path in OTHERS {
                assert!(!is_allowed(&identity, &Method::GET, path), "{path}");
            }
        }
    }

    #[test]
    fn callers_may_call_their_service_alone() {
        let caller = ServiceCaller {
            user: "caller",
            service: "a.v1.A",
        };
        let own = Identity::new("caller", ["system:authenticated"]);
        assert!(caller.may(&own, "/a.v1.A/Get"));
        for path in [
            "/a.v1.A",
            "/a.v1.AB/Get",
            "/b.v1.B/Get",
            "a.v1.A/Get",
            "//a.v1.A/Get",
            "/",
        ] {
            assert!(!caller.may(&own, path), "{path}");
        }
        let group = Identity::new("other", ["caller"]);
        let case = Identity::new("Caller", ["system:authenticated"]);
        for other in [Identity::anonymous(), group, case] {
            assert!(!caller.may(&other, "/a.v1.A/Get"), "{other:?}");
        }
    }

    #[test]
    fn everyone_may_post_to_the_named_paths_alone() {
        let rights = PortRights {
            posts: &["/review"],
            ..PortRights::default()
        };
        let anonymous = Identity::anonymous();
        assert!(rights.allow(&anonymous, &Method::POST, "/review"));
        for (method, path) in [
            (Method::GET, "/review"),
            (Method::PUT, "/review"),
            (Method::POST, "/review/"),
            (Method::POST, "/reviews"),
            (Method::POST, "/metrics"),
            (Method::POST, "/"),
        ] {
            assert!(!rights.allow(&anonymous, &method, path), "{method} {path}");
        }
        assert!(!PortRights::default().allow(&anonymous, &Method::POST, "/review"));
    }

    #[test]
    fn masters_may_do_everything() {
        let masters = Identity::new("admin", [MASTERS]);
        for path in OTHERS {
            assert!(is_allowed(&masters, &Method::POST, path), "{path}");
        }
    }
}

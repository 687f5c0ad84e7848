//! The gate of the socket, before all handlers.

use std::{collections::HashMap, sync::Arc};

use futures::{FutureExt as _, future::BoxFuture};
use http::{Response, header, request::Parts};
use podplane_access::{Attributes, Decision, ResourceTarget, Target};
use podplane_proto::error::{ApiError, Reason};
use podplane_service_runtime::{
    authentication::{Impersonated, Impersonation, InvalidImpersonation, RequestContext},
    gate::RequestGate,
    identity::{AUTHENTICATED, Identity},
};
use tonic::body::Body;

use super::{Authorized, Gate, RequestInfo};
use crate::{audit::RequestRecord, rest, service, summary};

/// The rule for the methods of a gRPC service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServiceRule {
    /// Everyone may call them.
    Everyone,
    /// Everyone who is authenticated may call them.
    Authenticated,
    /// Each method has a rule. A method without one is refused.
    Methods(&'static [MethodRule]),
    /// The service judges each call by its message.
    ByMessage,
}

/// The rule for a gRPC method.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MethodRule {
    /// The verb, API group and resource that a call of the method needs.
    Needs(&'static str, &'static str, &'static str, &'static str),
    /// The service judges each call by its message.
    ByMessage(&'static str),
}

/// The services that every socket has.
const COMMON_SERVICES: [(&str, ServiceRule); 3] = [
    ("grpc.health.v1.Health", ServiceRule::Everyone),
    (
        "grpc.reflection.v1.ServerReflection",
        ServiceRule::Authenticated,
    ),
    (
        "grpc.reflection.v1alpha.ServerReflection",
        ServiceRule::Authenticated,
    ),
];

/// Judges requests by their paths.
#[derive(Debug)]
pub(crate) struct RequestJudge {
    gate: Gate,
    services: HashMap<&'static str, ServiceRule>,
}

impl RequestJudge {
    /// A judge of requests to these services, and over HTTP.
    pub(crate) fn new(gate: Gate, mut services: HashMap<&'static str, ServiceRule>) -> Self {
        services.extend(COMMON_SERVICES);
        Self { gate, services }
    }

    async fn pass(&self, parts: &mut Parts) -> Result<(), GateRefusal> {
        let mut context = RequestContext::of(&parts.extensions);
        let record = RequestRecord::of(&parts.extensions);
        let invalid =
            |error: &InvalidImpersonation| ApiError::new(Reason::InternalError, error.to_string());
        if let Some(impersonation) = context.impersonation.as_ref().map_err(invalid)? {
            let sender = &context.identity;
            context.identity = Arc::new(self.gate.impersonated(sender, impersonation).await?);
            record.impersonates(&context.identity);
            parts.extensions.insert(context.clone());
        }
        let identity = &context.identity;
        if let Some(authorized) = self.judge(parts, identity, &record).await? {
            parts.extensions.insert(authorized);
        }
        Ok(())
    }

    /// `None` if the message decides.
    async fn judge(
        &self,
        parts: &Parts,
        identity: &Arc<Identity>,
        record: &RequestRecord,
    ) -> Result<Option<Authorized>, GateRefusal> {
        let path = parts.uri.path();
        let called = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let service = called.and_then(|(service, method)| {
            let rule = self.services.get(service)?;
            Some((*rule, method))
        });
        if summary::judges(path) {
            return Ok(None);
        }
        let Some((rule, method)) = service else {
            let info = RequestInfo::of(&parts.method, &parts.uri);
            let attributes = info.attributes(identity);
            if podplane_ui::is_public(path) {
                record.judged(&attributes, &for_everyone());
                return Ok(Some(Authorized::to(identity, info)));
            }
            self.gate.require(&attributes, record).await?;
            return Ok(Some(Authorized::to(identity, info)));
        };
        let call = Attributes::path(identity, "post", path);
        match rule {
            ServiceRule::ByMessage => return Ok(None),
            ServiceRule::Everyone => record.judged(&call, &for_everyone()),
            ServiceRule::Authenticated
                if !self.gate.has_rules() || identity.is_in(AUTHENTICATED) =>
            {
                record.judged(&call, &for_everyone());
            }
            ServiceRule::Authenticated => return Err(GateRefusal::unruled(&call, record)),
            ServiceRule::Methods(rules) => {
                let found = rules.iter().find(|rule| match rule {
                    MethodRule::Needs(name, ..) | MethodRule::ByMessage(name) => *name == method,
                });
                match found {
                    Some(MethodRule::ByMessage(_)) => return Ok(None),
                    Some(MethodRule::Needs(_, verb, group, resource)) => {
                        let target = ResourceTarget {
                            group,
                            version: "v1",
                            resource,
                            ..ResourceTarget::default()
                        };
                        let attributes = Attributes::resource(identity, verb, target);
                        self.gate.require(&attributes, record).await?;
                    }
                    None if !self.gate.has_rules() => record.judged(&call, &for_everyone()),
                    None => return Err(GateRefusal::unruled(&call, record)),
                }
            }
        }
        Ok(Some(Authorized::to_service(identity)))
    }
}

impl RequestGate for RequestJudge {
    fn judge(
        self: Arc<Self>,
        mut parts: Parts,
    ) -> BoxFuture<'static, Result<Parts, Response<Body>>> {
        async move {
            match self.pass(&mut parts).await {
                Ok(()) => Ok(parts),
                Err(refusal) => {
                    let is_grpc = rest::body::media_type(&parts.headers);
                    Err(refusal.answer(is_grpc.starts_with("application/grpc")))
                }
            }
        }
        .boxed()
    }
}

/// The refusal of a request.
#[derive(Debug)]
pub(crate) struct GateRefusal {
    pub(crate) error: ApiError,
    /// The API group, resource and name; empty for paths.
    about: [String; 3],
}

impl GateRefusal {
    /// Nobody allows the request, for these reasons.
    pub(crate) fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Self {
        let about = match &attributes.target {
            Target::Resource(target) => [target.group, target.resource, target.name],
            Target::Path(_) => [""; 3],
        };
        Self {
            error: ApiError::new(Reason::Forbidden, attributes.status_message(reason)),
            about: about.map(str::to_owned),
        }
    }

    /// No rule allows the call.
    fn unruled(call: &Attributes<'_>, record: &RequestRecord) -> Self {
        let reason = String::new();
        record.judged(call, &Decision::NoOpinion { reason });
        Self::forbidden(call, "")
    }

    fn answer(self, is_grpc: bool) -> Response<Body> {
        if is_grpc {
            return service::refused(self.error);
        }
        let [group, resource, name] = &self.about;
        let mut answer = rest::refused(&self.error, [group, resource, name]);
        answer.headers_mut().insert(
            header::X_CONTENT_TYPE_OPTIONS,
            header::HeaderValue::from_static("nosniff"),
        );
        answer.map(Body::new)
    }
}

impl From<ApiError> for GateRefusal {
    fn from(error: ApiError) -> Self {
        Self {
            error,
            about: Default::default(),
        }
    }
}

/// The decision about calls that nobody needs a right for.
fn for_everyone() -> Decision {
    Decision::Allow {
        reason: String::new(),
    }
}

impl Gate {
    /// Requires that the request is allowed, and records the decision.
    pub(super) async fn require(
        &self,
        attributes: &Attributes<'_>,
        record: &RequestRecord,
    ) -> Result<(), GateRefusal> {
        record.is_about(attributes);
        let verdict = self.decide(attributes).await?;
        record.judged(attributes, &verdict.decision);
        match verdict.is_allowed() {
            true => Ok(()),
            false => Err(GateRefusal::forbidden(
                attributes,
                verdict.decision.reason(),
            )),
        }
    }

    /// The user as whom `sender` wants a request to be carried out.
    async fn impersonated(
        &self,
        sender: &Identity,
        impersonation: &Impersonation,
    ) -> Result<Identity, GateRefusal> {
        for one in impersonation.each() {
            let Impersonated {
                group,
                resource,
                subresource,
                namespace,
                name,
            } = one;
            let target = ResourceTarget {
                group,
                version: "v1",
                resource,
                subresource,
                namespace,
                name,
                ..ResourceTarget::default()
            };
            let attributes = Attributes::resource(sender, "impersonate", target);
            // Without rules everyone is allowed everything but to be someone else, which would only
            // hide who wrote what.
            match self.has_rules() {
                // The log has the decision about the request itself.
                true => self.require(&attributes, &RequestRecord::none()).await?,
                false => return Err(GateRefusal::forbidden(&attributes, "")),
            }
        }
        Ok(impersonation.identity())
    }
}

//! The authorizers of the cluster, as expressions can ask them.

use std::sync::Arc;

use podplane_access::{Attributes as AccessAttributes, ResourceTarget};
use podplane_cel_rules::{Access, AccessDecision, AccessQuestion, Authorizer};
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;

use super::attributes::Attributes;
use crate::authorization::Gate;

/// Answers about whoever sent a request.
#[derive(Debug)]
struct RequestAuthorizer {
    gate: Gate,
    by: Arc<Identity>,
}

impl Authorizer for RequestAuthorizer {
    fn decide(&self, question: &AccessQuestion) -> AccessDecision {
        let AccessQuestion {
            account,
            path,
            group,
            resource,
            subresource,
            namespace,
            name,
            verb,
        } = question;
        let account = account
            .as_ref()
            .map(|(namespace, name)| Identity::service_account(namespace, name));
        let identity = account.as_ref().unwrap_or(&self.by);
        let target = ResourceTarget {
            group,
            // As in the reference, a question is about every version.
            version: "*",
            resource,
            subresource,
            namespace,
            name,
            ..ResourceTarget::default()
        };
        let attributes = match path {
            Some(path) => AccessAttributes::path(identity, verb, path),
            None => AccessAttributes::resource(identity, verb, target),
        };
        let decision = self.gate.decide_now(&attributes);
        AccessDecision {
            is_allowed: decision.is_allowed(),
            reason: decision.reason().to_owned(),
            error: None,
        }
    }
}

/// The values of `authorizer` and `authorizer.requestResource` for a write.
///
/// # Errors
///
/// `ServiceUnavailable` if the server stops.
pub(super) async fn of_request(
    gate: &Gate,
    at: &Attributes<'_>,
) -> Result<[Arc<Access>; 2], ApiError> {
    gate.settled().await?;
    let authorizer: Arc<dyn Authorizer> = Arc::new(RequestAuthorizer {
        gate: gate.clone(),
        by: Arc::clone(at.by),
    });
    let question = AccessQuestion {
        group: at.names.group.clone().into_owned(),
        resource: at.names.plural.clone().into_owned(),
        subresource: at.subresource.to_owned(),
        namespace: at.namespace.clone(),
        name: at.name.clone(),
        ..AccessQuestion::default()
    };
    let asker = Access::authorizer(Arc::clone(&authorizer));
    Ok([
        Arc::new(asker),
        Arc::new(Access::resource(authorizer, question)),
    ])
}

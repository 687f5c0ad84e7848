//! The authorization of requests: the gate.
//!
//! [`RequestJudge`] stands before every handler of the socket, REST and gRPC alike. It replaces the
//! sender by the user that it impersonates, and judges what the path of a request says. What only
//! the message of a gRPC call says, the service judges once it is decoded. Either way a handler
//! gets an [`Authorized`], which only this module makes, and without which it cannot open what it
//! serves ([`Gated`]).
//!
//! The decisions are those of `podplane-access`; this module feeds them from the store ([`state`]).
//! The content of writes is judged in the registry: [`grants`], [`restriction`] and [`signers`].

pub(crate) mod aggregation;
mod authorized;
pub(crate) mod custom_objects;
pub(crate) mod defaults;
mod flags;
mod grants;
mod judge;
mod request;
mod restriction;
mod signers;
mod state;

pub use flags::{AuthorizationFlags, AuthorizationMode};

use std::sync::{Arc, RwLock};

use podplane_access::{
    Attributes, Decision, ResourceTarget, Verdict, authorize, rbac::escalation::Grantor,
    relations::RelationIndex, review_rules,
};
use podplane_api::authorization::SubjectRulesReviewStatus;
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::{Identity, MASTERS};

pub(crate) use self::{
    authorized::{Authorized, Gated},
    grants::GrantCheck,
    judge::{MethodRule, RequestJudge, ServiceRule},
    request::{RequestInfo, ResourceRequest, requirements},
    restriction::NodeRestriction,
    signers::SignerCheck,
};

use self::state::AccessState;
use crate::{
    audit::RequestRecord,
    cache::{Feeder, Position},
    engine::Engine,
};

/// The authorizers of a server. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Option<Arc<Rules>>);

/// The chain of the node authorizer and RBAC, with what they know.
#[derive(Debug)]
struct Rules {
    state: Arc<RwLock<AccessState>>,
    engine: Engine,
    position: Position,
}

impl Gate {
    /// A gate of this mode, whose state `feeder` keeps.
    pub(crate) fn new(mode: AuthorizationMode, engine: &Engine, feeder: &mut Feeder) -> Self {
        match mode {
            AuthorizationMode::AlwaysAllow => Self(None),
            AuthorizationMode::NodeRbac => Self(Some(Arc::new(Rules {
                state: state::follow(feeder),
                engine: engine.clone(),
                position: feeder.position(),
            }))),
        }
    }

    /// A gate that allows everything.
    #[cfg(test)]
    pub(crate) fn open() -> Self {
        Self(None)
    }

    /// True if roles and bindings decide.
    pub(crate) fn has_rules(&self) -> bool {
        self.0.is_some()
    }

    /// The decision about a request. It knows every role and binding whose write was acknowledged
    /// before.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops.
    pub(crate) async fn decide(&self, attributes: &Attributes<'_>) -> Result<Verdict, ApiError> {
        let Some(rules) = &self.0 else {
            return Ok(Verdict {
                decision: Decision::Allow {
                    reason: String::new(),
                },
                by: None,
            });
        };
        // Nothing that is stored counts for these.
        if !attributes.identity.is_in(MASTERS) {
            rules.settled().await?;
        }
        let state = state::read(&rules.state);
        Ok(authorize(attributes, &state.relations, &state.policy))
    }
}

impl Gate {
    /// Waits until the rules are those of every acknowledged write.
    ///
    /// # Errors
    ///
    /// `ServiceUnavailable` if the server stops.
    pub(crate) async fn settled(&self) -> Result<(), ApiError> {
        match &self.0 {
            Some(rules) => rules.settled().await,
            None => Ok(()),
        }
    }

    /// The decision about a request by the rules that are known now.
    pub(crate) fn decide_now(&self, attributes: &Attributes<'_>) -> Decision {
        let Some(rules) = &self.0 else {
            return Decision::Allow {
                reason: String::new(),
            };
        };
        let state = state::read(&rules.state);
        authorize(attributes, &state.relations, &state.policy).decision
    }

    /// Asks about objects that belong to nodes; `None` if no rules decide.
    pub(crate) async fn with_relations<T>(
        &self,
        ask: impl FnOnce(&RelationIndex) -> T,
    ) -> Result<Option<T>, ApiError> {
        let Some(rules) = &self.0 else {
            return Ok(None);
        };
        rules.settled().await?;
        Ok(Some(ask(&state::read(&rules.state).relations)))
    }

    /// Asks what an identity may grant; `None` if no rules decide.
    async fn with_grantor<T>(
        &self,
        identity: &Identity,
        ask: impl FnOnce(&Grantor<'_, &dyn Fn(&Attributes<'_>) -> bool>) -> T,
    ) -> Result<Option<T>, ApiError> {
        let Some(rules) = &self.0 else {
            return Ok(None);
        };
        rules.settled().await?;
        let state = state::read(&rules.state);
        let is_allowed = |attributes: &Attributes<'_>| {
            authorize(attributes, &state.relations, &state.policy).is_allowed()
        };
        let grantor = Grantor::new(
            identity,
            &state.policy,
            &is_allowed as &dyn Fn(&Attributes<'_>) -> bool,
        );
        Ok(Some(ask(&grantor)))
    }

    /// The rules that apply to an identity in a namespace; `None` if no rules decide.
    ///
    /// # Errors
    ///
    /// As [`Self::decide`].
    pub(crate) async fn rules(
        &self,
        identity: &Identity,
        namespace: &str,
    ) -> Result<Option<SubjectRulesReviewStatus>, ApiError> {
        let Some(rules) = &self.0 else {
            return Ok(None);
        };
        rules.settled().await?;
        let state = state::read(&rules.state);
        Ok(Some(review_rules(identity, namespace, &state.policy)))
    }
}

impl Rules {
    /// Waits until the state has every write that this server acknowledged. Those of others come
    /// within milliseconds, as in Kubernetes.
    async fn settled(&self) -> Result<(), ApiError> {
        self.position.reached(self.engine.known()).await
    }
}

impl Gate {
    /// Judges a request for objects that a message describes, and records the decision.
    ///
    /// # Errors
    ///
    /// `Forbidden`, in the reference's words.
    pub(crate) async fn authorize(
        &self,
        identity: &Arc<Identity>,
        verb: &str,
        target: ResourceTarget<'_>,
        record: &RequestRecord,
    ) -> Result<Authorized, ApiError> {
        let target = target.of_request(verb);
        let attributes = Attributes::resource(identity, verb, target);
        let required = self.require(&attributes, record).await;
        required.map_err(|refusal| refusal.error)?;
        Ok(Authorized::to_service(identity))
    }
}

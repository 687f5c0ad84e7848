//! The chain of authorizers.

use podplane_api::authorization::SubjectRulesReviewStatus;

use crate::{
    attributes::Attributes,
    identity::{Identity, MASTERS},
    node,
    rbac::{Policy, aggregated_text},
    relations::Relations,
};

/// An authorizer's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed; no other authorizer is asked.
    Allow {
        /// By what; may be empty.
        reason: String,
    },
    /// The request is refused; no other authorizer is asked.
    Deny {
        /// The reason.
        reason: String,
    },
    /// The authorizer does not allow the request; another one may.
    NoOpinion {
        /// The reason; may be empty.
        reason: String,
    },
}

impl Decision {
    /// An [`Self::Allow`].
    pub(crate) fn allow(reason: impl Into<String>) -> Self {
        Self::Allow {
            reason: reason.into(),
        }
    }

    /// A [`Self::NoOpinion`].
    pub(crate) fn no_opinion(reason: impl Into<String>) -> Self {
        Self::NoOpinion {
            reason: reason.into(),
        }
    }

    /// True for [`Self::Allow`].
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allow { .. })
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        match self {
            Self::Allow { reason } | Self::Deny { reason } | Self::NoOpinion { reason } => reason,
        }
    }
}

/// The authorizers of the chain, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorizer {
    /// Everything for `system:masters`.
    Masters,
    /// The [node authorizer](node).
    Node,
    /// [RBAC](crate::rbac).
    Rbac,
}

/// The chain's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The decision. `NoOpinion` is a refusal, and has all authorizers' reasons, a line each.
    pub decision: Decision,
    /// The authorizer that decided; `None` if none had an opinion.
    pub by: Option<Authorizer>,
}

impl Verdict {
    /// True if the request may be served.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }
}

/// Asks `system:masters`, the node authorizer and RBAC. The first that allows or denies decides;
/// what nobody allows is refused.
pub fn authorize(
    attributes: &Attributes<'_>,
    relations: &impl Relations,
    policy: &Policy,
) -> Verdict {
    if attributes.identity.is_in(MASTERS) {
        return Verdict {
            decision: Decision::allow(""),
            by: Some(Authorizer::Masters),
        };
    }
    let mut reasons = Vec::new();
    let asked: [(Authorizer, &dyn Fn() -> Decision); 2] = [
        (Authorizer::Node, &|| node::authorize(attributes, relations)),
        (Authorizer::Rbac, &|| policy.authorize(attributes)),
    ];
    for (authorizer, decide) in asked {
        match decide() {
            Decision::NoOpinion { reason } => reasons.push(reason),
            decision => {
                return Verdict {
                    decision,
                    by: Some(authorizer),
                };
            }
        }
    }
    reasons.retain(|reason| !reason.is_empty());
    Verdict {
        decision: Decision::no_opinion(reasons.join("\n")),
        by: None,
    }
}

/// The status of a SelfSubjectRulesReview. It is incomplete for a node, whose rights are no rules.
pub fn review_rules(
    identity: &Identity,
    namespace: &str,
    policy: &Policy,
) -> SubjectRulesReviewStatus {
    let resolved = policy.rules_for(identity, namespace);
    let is_node = identity.node_name().is_some();
    let of_node =
        is_node.then(|| "node authorizer does not support user rule resolution".to_owned());
    let of_roles = resolved.errors.iter().map(ToString::to_string);
    let error = aggregated_text(of_node.into_iter().chain(of_roles));
    SubjectRulesReviewStatus {
        evaluation_error: (!error.is_empty()).then_some(error),
        incomplete: is_node,
        non_resource_rules: resolved.non_resource_rules(),
        resource_rules: resolved.resource_rules(),
    }
}

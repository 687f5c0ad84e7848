//! The admission by rules that are objects: webhooks and validating admission policies
//! ([docs/admission.md](../../../../docs/admission.md)).
//!
//! The feeder of the watch cache keeps the rules, compiled ([`state`]); a request reads nothing of
//! them from the store. A write that no rule concerns costs a look at the rules of its operation.

mod attributes;
mod authorizer;
mod check;
mod expressions;
mod matching;
mod metrics;
mod policies;
mod policy;
mod review;
mod state;
mod webhooks;

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::any::{DynObject, KindNames};
use podplane_proto::error::ApiError;
use serde_json::Value;

use self::{attributes::Attributes, state::Rules, webhooks::HookId};
use super::{ConfiguredAdmission, RequestedWrite};
use crate::{authorization::Gate, cache::Feeder, registry::Operation, served::OtherKinds};

pub(crate) use check::ExpressionCheck;
pub(crate) use metrics::AdmissionMetrics;

/// The API group of the kinds whose objects are rules for the writes of others. No rule concerns
/// these kinds: one that refuses its own correction could not be corrected.
pub(crate) const RULES_GROUP: &str = "admissionregistration.k8s.io";

/// Webhooks and policies.
#[derive(Debug)]
pub(crate) struct ConfiguredRules {
    rules: Arc<RwLock<Arc<Rules>>>,
    kinds: OtherKinds,
    gate: Gate,
    metrics: AdmissionMetrics,
}

impl ConfiguredRules {
    /// Rules that `feeder` keeps. Their webhooks and parameters are among `kinds`, and their
    /// expressions can ask `gate`.
    pub(crate) fn new(
        feeder: &mut Feeder,
        kinds: OtherKinds,
        gate: Gate,
        metrics: AdmissionMetrics,
    ) -> Self {
        Self {
            gate,
            rules: state::follow(feeder, &kinds),
            kinds,
            metrics,
        }
    }

    /// The rules of this moment.
    fn rules(&self) -> Arc<Rules> {
        // A panic while the rules change ends the process.
        let rules = self.rules.read();
        Arc::clone(&rules.unwrap_or_else(PoisonError::into_inner))
    }
}

impl ConfiguredAdmission for ConfiguredRules {
    fn concerns(&self, kind: &KindNames, operation: Operation) -> bool {
        if kind.group == RULES_GROUP {
            return false;
        }
        let (operation, subresource) = attributes::verb(operation);
        self.rules().concern(kind, operation, subresource)
    }

    fn mutate<'a>(
        &'a self,
        write: RequestedWrite<'a>,
        rounds: &'a mut Rounds,
    ) -> BoxFuture<'a, Result<Option<Box<DynObject>>, ApiError>> {
        async move {
            let rules = self.rules();
            if rules.mutating.is_empty() {
                return Ok(None);
            }
            self.ask_mutating(&rules, write, rounds).await
        }
        .boxed()
    }

    fn validate<'a>(&'a self, write: RequestedWrite<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let rules = self.rules();
            if rules.validating.is_empty() && rules.bindings.is_empty() {
                return Ok(());
            }
            let at = Attributes::of(write, &self.kinds.now())?;
            self.check_policies(&rules, &at).await?;
            self.ask_validating(&rules, &at).await
        }
        .boxed()
    }
}

/// The rounds in which webhooks may change an object. In the second one those are asked again that
/// want to know of later changes.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    round: u32,
    /// True once a webhook changed the object.
    is_changed: bool,
    /// The webhooks of the first round that want to be asked again.
    asked: Vec<HookId>,
    /// Those of them after which the object was changed.
    required: BTreeSet<HookId>,
    /// The object at the end of the first round.
    output: Option<Value>,
}

impl Rounds {
    /// Begins the second round; false if nothing was changed in the first.
    pub(crate) fn begin_second(&mut self) -> bool {
        self.round = 1;
        self.is_changed
    }

    /// True if the webhook is to be asked in this round.
    fn include(&self, hook: &HookId) -> bool {
        self.round == 0 || self.required.contains(hook)
    }

    /// Notes that a webhook was asked.
    fn asked(&mut self, hook: &HookId, is_changed: bool, asks_again: bool) {
        if is_changed {
            self.is_changed = true;
            self.required.extend(self.asked.drain(..));
        }
        if asks_again && self.round == 0 {
            self.asked.push(hook.clone());
        }
    }

    /// Compares the object with that at the end of the first round: what others changed since
    /// concerns every webhook that wants to know.
    fn meet(&mut self, object: Option<&Value>) {
        if self.round == 1 && self.output.as_ref() != object {
            self.required.extend(self.asked.drain(..));
        }
    }
}

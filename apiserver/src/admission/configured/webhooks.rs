//! Calls of admission webhooks (source: `k8s.io/apiserver/pkg/admission/plugin/webhook`).

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use podplane_api::{any::DynObject, patch};
use podplane_host::{clock::Instant, random};
use podplane_proto::error::{ApiError, Reason};
use serde_json::{Value, json};

use super::{
    ConfiguredRules, Rounds,
    attributes::{Attributes, VersionedDocuments},
    authorizer,
    expressions::{AUTHORIZER, Conditions, Inputs, REQUEST_RESOURCE},
    matching::Matcher,
    metrics::{Call, CallOutcome},
    review::{self, ReviewAnswer},
    state::Rules,
};
use crate::{
    admission::{RequestNotes, RequestedWrite},
    error,
    webhook::WebhookClient,
};

/// A webhook: its configuration, and its place in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HookId {
    pub(super) configuration: String,
    pub(super) index: usize,
}

/// A webhook of a configuration.
#[derive(Debug)]
pub(super) struct Hook {
    pub(super) id: HookId,
    pub(super) name: String,
    pub(super) matcher: Matcher,
    pub(super) conditions: Conditions,
    pub(super) client: WebhookClient,
    pub(super) timeout: Duration,
    pub(super) fails_closed: bool,
    pub(super) has_side_effects: bool,
    /// The version of the reviews that it gets.
    pub(super) version: &'static str,
    /// True to be asked again about changes of later webhooks.
    pub(super) asks_again: bool,
}

/// The kinds of webhooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HookKind {
    Mutating,
    Validating,
}

impl HookKind {
    /// As in the names of annotations.
    fn text(self) -> &'static str {
        match self {
            Self::Mutating => "mutating",
            Self::Validating => "validating",
        }
    }

    /// As in the labels of metrics.
    fn label(self) -> &'static str {
        match self {
            Self::Mutating => "admit",
            Self::Validating => "validating",
        }
    }
}

/// The place of a call among those of a request, for the audit log.
#[derive(Clone, Copy, Debug)]
struct CallPlace {
    kind: HookKind,
    round: u32,
    index: usize,
}

impl CallPlace {
    fn annotate(self, prefix: &str, value: String) {
        let Self { round, index, .. } = self;
        let key = format!("{prefix}.webhook.admission.k8s.io/round_{round}_index_{index}");
        RequestNotes::annotate(key, value);
    }
}

impl ConfiguredRules {
    /// Asks the mutating webhooks, one after the other. Returns the object that they made.
    pub(super) async fn ask_mutating(
        &self,
        rules: &Rules,
        write: RequestedWrite<'_>,
        rounds: &mut Rounds,
    ) -> Result<Option<Box<DynObject>>, ApiError> {
        let mut at = Attributes::of(write, &self.kinds.now())?;
        rounds.meet(at.object.as_ref());
        let mut made = None;
        let hooks = rules.mutating.values().flatten();
        for (index, hook) in hooks.enumerate() {
            if !rounds.include(&hook.id) {
                continue;
            }
            let Some(documents) = self.concerned(hook, &at).await? else {
                continue;
            };
            let place = CallPlace {
                kind: HookKind::Mutating,
                round: rounds.round,
                index,
            };
            let answer = self.call(hook, &at, &documents, place).await?;
            let patch = answer.and_then(|answer| answer.patch);
            let changed = match patch {
                None => None,
                Some(patch) => {
                    let object = self.patched(hook, &at, write, documents, patch).await?;
                    let new = Some(&*object);
                    let next = Attributes::of(RequestedWrite { new, ..write }, &self.kinds.now())?;
                    let document = next.object;
                    (document != at.object).then_some((object, document))
                }
            };
            let is_changed = changed.is_some();
            if let Some((object, document)) = changed {
                at.object = document;
                made = Some(object);
            }
            rounds.asked(&hook.id, is_changed, hook.asks_again);
            let HookId { configuration, .. } = &hook.id;
            let mutation = json!({"configuration": configuration, "webhook": hook.name, "mutated": is_changed});
            place.annotate("mutation", mutation.to_string());
        }
        rounds.output = at.object.take();
        Ok(made)
    }

    /// Asks the validating webhooks at once.
    ///
    /// # Errors
    ///
    /// The refusal of the first of them, in their order.
    pub(super) async fn ask_validating(
        &self,
        rules: &Rules,
        at: &Attributes<'_>,
    ) -> Result<(), ApiError> {
        let mut concerned = Vec::new();
        for hook in rules.validating.values().flatten() {
            if let Some(documents) = self.concerned(hook, at).await? {
                concerned.push((hook, documents));
            }
        }
        let calls = concerned.iter().enumerate();
        let calls = calls.map(|(index, (hook, documents))| {
            let place = CallPlace {
                kind: HookKind::Validating,
                round: 0,
                index,
            };
            self.call(hook, at, documents, place)
        });
        let answers: Result<Vec<_>, _> = join_all(calls).await.into_iter().collect();
        answers.map(drop)
    }

    /// The documents to send to a webhook; `None` if the write does not concern it.
    async fn concerned(
        &self,
        hook: &Arc<Hook>,
        at: &Attributes<'_>,
    ) -> Result<Option<VersionedDocuments>, ApiError> {
        let matcher = &hook.matcher;
        if !matcher.concerns(at.names, at.operation, at.subresource) {
            return Ok(None);
        }
        let Some(version) = matcher.matches(at, &self.kinds).await? else {
            return Ok(None);
        };
        let documents = at.in_version(&version, &self.kinds.now()).await?;
        if hook.conditions.is_empty() {
            return Ok(Some(documents));
        }
        let asks = hook.conditions.read(AUTHORIZER) || hook.conditions.read(REQUEST_RESOURCE);
        let access = match asks {
            true => Some(authorizer::of_request(&self.gate, at).await?),
            false => None,
        };
        let inputs = Inputs {
            access,
            object: documents.object.clone().unwrap_or_default(),
            old: documents.old.clone().unwrap_or_default(),
            request: at.request("", &documents).into(),
            ..Inputs::default()
        };
        match hook.conditions.hold(&inputs) {
            Ok(true) => Ok(Some(documents)),
            Ok(false) => Ok(None),
            Err(_) if !hook.fails_closed => Ok(None),
            Err(why) => Err(error::forbidden_in(at.names, &at.name, &why)),
        }
    }

    /// Calls a webhook. Returns `None` for a failure that is ignored.
    ///
    /// # Errors
    ///
    /// The webhook's refusal, or the reason why it gave no answer.
    async fn call(
        &self,
        hook: &Hook,
        at: &Attributes<'_>,
        documents: &VersionedDocuments,
        place: CallPlace,
    ) -> Result<Option<ReviewAnswer>, ApiError> {
        let name = &hook.name;
        if at.is_dry && hook.has_side_effects {
            let why = format!("admission webhook {name:?} does not support dry run");
            return Err(error::bad_request(why));
        }
        let call = Call {
            name,
            kind: place.kind.label(),
            operation: at.operation,
        };
        let begun = Instant::now();
        let called = |outcome| self.metrics.called(call, outcome, begun.elapsed());
        let answer = match asked(hook, at, documents, place.kind).await {
            Ok(answer) => answer,
            Err(why) => {
                called(CallOutcome::Failed);
                let why = format!("failed calling webhook {name:?}: {why}");
                let HookId { configuration, .. } = &hook.id;
                tracing::warn!(
                    webhook = %name,
                    %configuration,
                    reason = %why,
                    ignored = !hook.fails_closed,
                    "failed to call an admission webhook"
                );
                if hook.fails_closed {
                    return Err(internal(&why));
                }
                self.metrics.failed_open(call);
                let prefix = format!("failed-open.{}", place.kind.text());
                place.annotate(&prefix, name.clone());
                return Ok(None);
            }
        };
        for warning in &answer.warnings {
            RequestNotes::warn(warning);
        }
        for (key, value) in &answer.annotations {
            RequestNotes::annotate(format!("{name}/{key}"), value.clone());
        }
        match &answer.verdict {
            Ok(()) => {
                called(CallOutcome::Allowed);
                Ok(Some(answer))
            }
            Err(status) => {
                let (code, refusal) = review::refusal(name, status);
                called(CallOutcome::Refused(code));
                Err(refusal)
            }
        }
    }

    /// The object that a patch makes, with its defaults.
    async fn patched(
        &self,
        hook: &Hook,
        at: &Attributes<'_>,
        write: RequestedWrite<'_>,
        documents: VersionedDocuments,
        patch: Value,
    ) -> Result<Box<DynObject>, ApiError> {
        let name = &hook.name;
        let (Some(object), Some(new), true) = (documents.object, write.new, at.is_changeable())
        else {
            return Err(internal(&format!(
                "admission webhook {name:?} attempted to modify the object, which is not supported for this operation"
            )));
        };
        let patched = patch::json(object, patch).map_err(|error| internal(&error.to_string()))?;
        let kinds = self.kinds.now();
        let document = match at.is_scale() {
            true => at.scaled(new, patched, &kinds)?,
            false => {
                let version = &documents.resource.version;
                at.in_own_version(version, patched, &kinds).await?
            }
        };
        let mut document = document;
        write.kind.canonicalize(&mut document);
        let decoded = write.kind.decode_noting(document);
        let (mut object, _unknown) = decoded.map_err(|error| {
            internal(&format!(
                "admission webhook {name:?} made an object that cannot be read: {error}"
            ))
        })?;
        object.set_defaults();
        Ok(object)
    }
}

/// The answer of a webhook.
async fn asked(
    hook: &Hook,
    at: &Attributes<'_>,
    documents: &VersionedDocuments,
    kind: HookKind,
) -> Result<ReviewAnswer, String> {
    let uid = random::uuid().to_string();
    let review = review::request(at, documents, hook.version, &uid);
    let answer = hook.client.call(&review, hook.timeout, true).await;
    let answer = answer.map_err(|error| format!("failed to call webhook: {error}"))?;
    let answer = review::answer(answer, hook.version, &uid, kind == HookKind::Mutating);
    answer.map_err(|why| format!("received invalid webhook response: {why}"))
}

/// An error of the server, as the reference words it.
fn internal(why: &str) -> ApiError {
    let message = format!("Internal error occurred: {why}");
    ApiError::new(Reason::InternalError, message)
}

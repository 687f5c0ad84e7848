//! The events of one request.

use std::{collections::BTreeMap, net::IpAddr};

use http::Uri;
use jiff::Timestamp;
use podplane_access::{Attributes, Identity, Target};
use serde_json::Value;

use crate::{
    level::{Level, Stage},
    line::{self, MAX_LINE_BYTES},
    policy::Decision,
    redaction,
};

mod wire;

use self::wire::{ObjectReference, Status, UserInfo, WireEvent};

/// The annotation of an event without its bodies because they are too long.
const TRUNCATED: &str = "audit.k8s.io/truncated";
/// The annotation that has the authorizers' decision: `allow` or `forbid`.
const DECISION: &str = "authorization.k8s.io/decision";
/// The annotation that has the reason for the decision.
const REASON: &str = "authorization.k8s.io/reason";

/// The longest text that is written of a message or reason, in bytes.
const MAX_TEXT: usize = 16 << 10;

/// The facts of an arriving request, besides its attributes.
#[derive(Clone, Debug)]
pub struct ReceivedRequest<'a> {
    /// The id, which the answer has in the header `Audit-Id`.
    pub audit_id: String,
    /// The URI as the client sent it.
    pub uri: &'a Uri,
    /// The addresses that it came by.
    pub source_ips: Vec<IpAddr>,
    /// The client's program.
    pub user_agent: String,
    /// The time of arrival.
    pub received: Timestamp,
}

/// The result of a request: what an answer's `Status` says. A successful answer has the code alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseStatus {
    /// The HTTP code; for gRPC that of the same answer over REST.
    pub code: u16,
    /// `Success` or `Failure`; empty for most successful answers.
    pub status: String,
    /// The message.
    pub message: String,
    /// The reason, such as `NotFound`.
    pub reason: String,
}

/// A request that is written to the log, from its arrival to its end.
#[derive(Clone, Debug)]
pub struct AuditedRequest {
    decision: Decision,
    audit_id: String,
    request_uri: String,
    verb: String,
    user: UserInfo,
    impersonated: Option<UserInfo>,
    source_ips: Vec<IpAddr>,
    user_agent: String,
    object: Option<ObjectReference>,
    status: Option<Status>,
    request_object: Option<Value>,
    response_object: Option<Value>,
    received: Timestamp,
    annotations: BTreeMap<String, String>,
}

impl AuditedRequest {
    /// Begins with a request that has arrived; `None` if the policy does not want it. `attributes`
    /// have the user who sent it, even if it asks for an impersonation.
    pub fn new(
        decision: Decision,
        attributes: &Attributes<'_>,
        request: ReceivedRequest<'_>,
    ) -> Option<Self> {
        if decision.level == Level::None {
            return None;
        }
        let ReceivedRequest {
            audit_id,
            uri,
            source_ips,
            user_agent,
            received,
        } = request;
        let (object, highest) = match &attributes.target {
            Target::Resource(target) => (
                Some(ObjectReference::of(target)),
                redaction::highest_level(target),
            ),
            Target::Path(_) => (None, Level::RequestResponse),
        };
        Some(Self {
            decision: Decision {
                level: decision.level.min(highest),
                ..decision
            },
            audit_id,
            request_uri: redaction::request_uri(uri),
            verb: attributes.verb.to_owned(),
            user: UserInfo::of(attributes.identity),
            impersonated: None,
            source_ips,
            user_agent,
            object,
            status: None,
            request_object: None,
            response_object: None,
            received,
            annotations: BTreeMap::new(),
        })
    }

    /// The id.
    pub fn audit_id(&self) -> &str {
        &self.audit_id
    }

    /// True if the body of the request is written: it need not be read for the log otherwise.
    pub fn wants_request_body(&self) -> bool {
        self.object.is_some() && self.decision.level >= Level::Request
    }

    /// True if the body of the answer is written.
    pub fn wants_response_body(&self) -> bool {
        self.object.is_some() && self.decision.level >= Level::RequestResponse
    }

    /// The user as whom the request is carried out.
    pub fn impersonates(&mut self, identity: &Identity) {
        self.impersonated = Some(UserInfo::of(identity));
    }

    /// The authorizers' decision and its reason.
    pub fn authorized(&mut self, is_allowed: bool, reason: &str) {
        let decision = if is_allowed { "allow" } else { "forbid" };
        self.annotate(DECISION, decision);
        self.annotate(REASON, reason);
    }

    /// Adds an annotation. The first value of a key stays, as in Kubernetes.
    pub fn annotate(&mut self, key: &str, value: &str) {
        let annotation = self.annotations.entry(key.to_owned());
        annotation.or_insert_with(|| shortened(value));
    }

    /// Says that a body is missing since it is too long.
    pub fn truncated(&mut self) {
        self.annotate(TRUNCATED, "true");
    }

    /// The object that the body of the request states: completes the name, the UID and the
    /// revision, and is written if the level asks for it. A patch is not an object, see
    /// [`Self::patch`].
    pub fn request_object(&mut self, object: Value) {
        if let Some(reference) = &mut self.object {
            reference.complete(&object);
        }
        self.patch(object);
    }

    /// The body of a request that is not an object of the requested kind: a patch, or options.
    pub fn patch(&mut self, body: Value) {
        if self.wants_request_body() {
            self.request_object = Some(self.redacted(body));
        }
    }

    /// The answer's code and message.
    pub fn responded(&mut self, status: ResponseStatus) {
        let ResponseStatus {
            code,
            status,
            message,
            reason,
        } = status;
        self.status = Some(Status::new(code, status, shortened(&message), reason));
    }

    /// The object of the answer.
    pub fn response_object(&mut self, object: Value) {
        if self.wants_response_body() {
            self.response_object = Some(self.redacted(object));
        }
    }

    fn redacted(&self, mut body: Value) -> Value {
        if let Some(object) = &self.object {
            let omits = self.decision.omit_managed_fields;
            redaction::body(&object.target(), omits, &mut body);
        }
        body
    }

    /// The line of a stage, with its line end; `None` if the policy omits the stage. The line has
    /// at most [`MAX_LINE_BYTES`]: an event that needs more has no bodies, and an annotation says
    /// so.
    pub fn line(&self, stage: Stage, now: Timestamp) -> Option<Vec<u8>> {
        if self.decision.omit_stages.contains(stage) {
            return None;
        }
        let at = match stage {
            Stage::RequestReceived => self.received,
            _ => now,
        };
        let line = self.written(stage, at, &self.annotations, true)?;
        if line.len() <= MAX_LINE_BYTES {
            return Some(line);
        }
        let mut annotations = self.annotations.clone();
        annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
        self.written(stage, at, &annotations, false)
            .filter(|line| line.len() <= MAX_LINE_BYTES)
    }

    fn written(
        &self,
        stage: Stage,
        at: Timestamp,
        annotations: &BTreeMap<String, String>,
        has_bodies: bool,
    ) -> Option<Vec<u8>> {
        let event = WireEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: self.decision.level,
            audit_id: &self.audit_id,
            stage,
            request_uri: &self.request_uri,
            verb: &self.verb,
            user: &self.user,
            impersonated_user: self.impersonated.as_ref(),
            source_ips: &self.source_ips,
            user_agent: &self.user_agent,
            object_ref: self.object.as_ref(),
            response_status: self.status.as_ref(),
            request_object: self.request_object.as_ref().filter(|_| has_bodies),
            response_object: self.response_object.as_ref().filter(|_| has_bodies),
            request_received_timestamp: self.received,
            stage_timestamp: at,
            annotations,
        };
        // All keys are texts, and a Vec takes every byte: this does not fail.
        line::write(&event).ok()
    }
}

fn shortened(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

#[cfg(test)]
mod tests;

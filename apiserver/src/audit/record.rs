//! The record of a request, from its arrival to its end.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use podplane_access::{Attributes, Decision, Identity, Target};
use podplane_api::jiff::Timestamp;
use podplane_host::clock;
use podplane_proto::calls::CallDescriptor;
use podplane_request_audit::{AuditedRequest, Level, ReceivedRequest, ResponseStatus, Stage};
use tonic::{Status, body::Body};

use super::{
    Auditor,
    bodies::{AnswerBody, ReadBody, RequestBody, RequestEnd},
    messages::{self, BodyContent, BodyForm, RequestedApi},
};
use crate::{authorization::RequestInfo, rest};

/// The facts of an arriving request.
#[derive(Clone, Debug)]
pub(super) struct ArrivedRequest {
    pub(super) audit_id: String,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) source_ips: Vec<IpAddr>,
    pub(super) user_agent: String,
    pub(super) received: Timestamp,
    /// Who sent it, even if it asks for an impersonation.
    pub(super) sender: Arc<Identity>,
}

impl ArrivedRequest {
    /// Begins the event of a request about `target`; `None` if the policy does not want it.
    fn audited(&self, auditor: &Auditor, verb: &str, target: Target<'_>) -> Option<AuditedRequest> {
        let attributes = Attributes {
            identity: &self.sender,
            verb,
            target,
        };
        let decision = auditor.policy.decide(&attributes);
        auditor.metrics.decided(decision.level);
        let received = ReceivedRequest {
            audit_id: self.audit_id.clone(),
            uri: &self.uri,
            source_ips: self.source_ips.clone(),
            user_agent: self.user_agent.clone(),
            received: self.received,
        };
        AuditedRequest::new(decision, &attributes, received)
    }

    /// The same by what the path says.
    pub(super) fn audited_by_path(&self, auditor: &Auditor) -> Option<AuditedRequest> {
        let info = RequestInfo::of(&self.method, &self.uri);
        let Attributes { verb, target, .. } = info.attributes(&self.sender);
        self.audited(auditor, verb, target)
    }
}

/// The progress of a record.
enum Phase {
    /// Nothing is known of the target.
    Arrived,
    /// The policy does not want the request, or its last event is written.
    Ended,
    /// The request is written.
    Open(Box<AuditedRequest>),
}

/// The state of a record.
pub(super) struct RecordState {
    auditor: Arc<Auditor>,
    arrived: ArrivedRequest,
    form: BodyForm,
    phase: Phase,
    verb: String,
    api: RequestedApi,
    /// The requested name, which a creation does not have.
    is_unnamed: bool,
    /// The user as whom a request is carried out whose target is not known yet.
    impersonated: Option<Identity>,
    /// The decision: if the request is allowed, and why.
    decision: Option<(bool, String)>,
    /// The headers that say how the bodies are to be read.
    sent_as: HeaderMap,
    answered_as: HeaderMap,
    pub(super) sent: ReadBody,
    pub(super) answered: ReadBody,
    /// The code of the answer's headers.
    code: StatusCode,
    /// The result of the request, if the headers of the answer do not say it.
    status: Option<ResponseStatus>,
}

/// The shared state of a record.
#[derive(Clone)]
pub(super) struct SharedState(Arc<Mutex<RecordState>>);

impl fmt::Debug for SharedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedState").finish_non_exhaustive()
    }
}

impl SharedState {
    pub(super) fn lock(&self) -> MutexGuard<'_, RecordState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The record of a request, for those who judge it. Clones share it. Without an audit log it is
/// empty.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestRecord(Option<SharedState>);

impl RequestRecord {
    /// A record that nothing is written to.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    /// The record in a request's extensions.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_default()
    }

    /// Begins a record, which reads along with the request's body if it may be needed.
    pub(super) fn begin(
        auditor: Arc<Auditor>,
        arrived: ArrivedRequest,
        request: &mut Request<Body>,
    ) -> Self {
        let headers = request.headers();
        let is_grpc = rest::body::media_type(headers).starts_with("application/grpc");
        let form = match is_grpc {
            true => BodyForm::Grpc(CallDescriptor::at(request.uri().path())),
            false => BodyForm::Rest,
        };
        let mut state = RecordState {
            auditor,
            arrived,
            form,
            phase: Phase::Arrived,
            verb: String::new(),
            api: RequestedApi::default(),
            is_unnamed: false,
            impersonated: None,
            decision: None,
            sent_as: content_type(headers),
            answered_as: HeaderMap::new(),
            sent: ReadBody::default(),
            answered: ReadBody::default(),
            code: StatusCode::OK,
            status: None,
        };
        if !is_grpc {
            state.open_by_path();
        }
        let reads_body = state.may_need_request();
        let shared = SharedState(Arc::new(Mutex::new(state)));
        if reads_body {
            let body = std::mem::take(request.body_mut());
            *request.body_mut() = Body::new(RequestBody {
                body,
                state: shared.clone(),
            });
        }
        Self(Some(shared))
    }

    /// The user as whom the request is carried out.
    pub(crate) fn impersonates(&self, identity: &Identity) {
        self.with(|state| match &mut state.phase {
            Phase::Arrived => state.impersonated = Some(identity.clone()),
            Phase::Open(audited) => audited.impersonates(identity),
            Phase::Ended => {}
        });
    }

    /// States what a request is about, if that is not known yet.
    pub(crate) fn is_about(&self, attributes: &Attributes<'_>) {
        self.with(|state| state.open(attributes.verb, attributes.target));
    }

    /// The decision about a request. One that needs several rights is refused with the first that
    /// its sender does not have.
    pub(crate) fn judged(&self, attributes: &Attributes<'_>, decision: &Decision) {
        self.with(|state| {
            state.open(attributes.verb, attributes.target);
            state.judged(decision);
        });
    }

    /// Adds annotations of rules that judged the request.
    pub(crate) fn annotate(&self, annotations: Vec<(String, String)>) {
        self.with(|state| {
            if let Phase::Open(audited) = &mut state.phase {
                for (key, value) in annotations {
                    audited.annotate(&key, &value);
                }
            }
        });
    }

    fn with(&self, act: impl FnOnce(&mut RecordState)) {
        if let Some(state) = &self.0 {
            act(&mut state.lock());
        }
    }
}

/// The target.
impl RecordState {
    /// Asks the policy about the request, unless that was done, and writes its arrival.
    fn open(&mut self, verb: &str, target: Target<'_>) {
        if !matches!(self.phase, Phase::Arrived) {
            return;
        }
        if let Target::Resource(target) = &target {
            self.api = RequestedApi::of(target);
            self.is_unnamed = target.name.is_empty();
        }
        self.verb = verb.to_owned();
        let Some(mut audited) = self.arrived.audited(&self.auditor, verb, target) else {
            self.phase = Phase::Ended;
            return;
        };
        if let Some(line) = audited.line(Stage::RequestReceived, self.arrived.received) {
            self.auditor.write(line);
        }
        if let Some(identity) = self.impersonated.take() {
            audited.impersonates(&identity);
        }
        self.phase = Phase::Open(Box::new(audited));
    }

    fn open_by_path(&mut self) {
        let info = RequestInfo::of(&self.arrived.method, &self.arrived.uri);
        let sender = Arc::clone(&self.arrived.sender);
        let Attributes { verb, target, .. } = info.attributes(&sender);
        self.open(verb, target);
    }

    fn judged(&mut self, decision: &Decision) {
        let is_first = self.decision.is_none();
        if is_first || !decision.is_allowed() {
            let reason = decision.reason().to_owned();
            self.decision = Some((decision.is_allowed(), reason));
        }
    }

    /// True if the request's body is written, or has the name of a new object.
    fn needs_request(&self, audited: &AuditedRequest) -> bool {
        audited.wants_request_body() || (self.verb == "create" && self.is_unnamed)
    }

    fn may_need_request(&self) -> bool {
        self.form.has_one_request()
            && match &self.phase {
                Phase::Ended => false,
                Phase::Open(audited) => self.needs_request(audited),
                // The message says what it is about once it is there.
                Phase::Arrived => self.auditor.policy.highest_level() > Level::None,
            }
    }
}

/// The answer.
impl RecordState {
    /// Notes the headers of the answer. Returns true if its body is read, too.
    fn answered(&mut self, answer: &Response<Body>) -> bool {
        if matches!(self.phase, Phase::Arrived) {
            // A call whose message nobody could read.
            self.open_by_path();
        }
        let Phase::Open(audited) = &self.phase else {
            return false;
        };
        let wants_body = audited.wants_response_body();
        self.answered_as = content_type(answer.headers());
        self.code = answer.status();
        if let BodyForm::Grpc(_) = self.form {
            // Without a status there are messages, and it comes in the trailers.
            let status = Status::from_header_map(answer.headers());
            self.called(&status.unwrap_or_else(|| Status::ok("")));
        }
        if self.is_long_running() {
            self.write(Stage::ResponseStarted);
            return false;
        }
        // A failure says in its body what failed.
        let is_explained = matches!(self.form, BodyForm::Rest)
            && (self.code.as_u16() >= 400 || self.arrived.method == Method::DELETE);
        is_explained || (wants_body && self.form.has_one_answer())
    }

    /// The result of a gRPC call.
    pub(super) fn called(&mut self, status: &Status) {
        self.status = Some(messages::status_of_call(status, &self.verb));
    }

    /// True for requests with an event before the end of the answer.
    fn is_long_running(&self) -> bool {
        self.verb == "watch" && self.code.is_success()
    }

    /// The request has an answer, or its client left before.
    pub(super) fn complete(&mut self) {
        self.ends(Stage::ResponseComplete);
    }

    /// The client left before there was an answer. The code is that which Kubernetes writes.
    fn abandoned(&mut self) {
        self.status = Some(ResponseStatus {
            code: StatusCode::OK.as_u16(),
            status: "Success".to_owned(),
            message: "Connection closed early".to_owned(),
            reason: String::new(),
        });
        self.ends(Stage::ResponseComplete);
    }

    /// The handler panicked.
    pub(super) fn panicked(&mut self) {
        self.status = Some(ResponseStatus {
            code: StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
            status: "Failure".to_owned(),
            message: "the handler of the request panicked".to_owned(),
            reason: "InternalError".to_owned(),
        });
        self.ends(Stage::Panic);
    }

    fn ends(&mut self, stage: Stage) {
        if matches!(self.phase, Phase::Arrived) {
            self.open_by_path();
        }
        self.write(stage);
        self.phase = Phase::Ended;
    }
}

/// The events.
impl RecordState {
    /// Writes the event of a stage, with what is known by then.
    fn write(&mut self, stage: Stage) {
        let Phase::Open(mut audited) = std::mem::replace(&mut self.phase, Phase::Ended) else {
            return;
        };
        let decision = self.decision.take();
        if let Some((is_allowed, reason)) = &decision {
            audited.authorized(*is_allowed, reason);
        }
        // Nobody has read the body of a request that was refused.
        if decision.is_none_or(|(is_allowed, _)| is_allowed) {
            self.read_request(&mut audited);
        }
        self.read_answer(&mut audited);
        if let Some(line) = audited.line(stage, clock::timestamp()) {
            self.auditor.write(line);
        }
        self.phase = Phase::Open(audited);
    }

    fn read_request(&mut self, audited: &mut AuditedRequest) {
        if self.sent.is_too_long() && audited.wants_request_body() {
            audited.truncated();
        }
        let body = self.sent.whole();
        if body.is_empty() || !self.needs_request(audited) {
            return;
        }
        match self
            .form
            .request(&self.sent_as, &body, &self.api, &self.verb)
        {
            Some(BodyContent::Object(object)) => audited.request_object(object),
            Some(BodyContent::Other(other)) => audited.patch(other),
            None => {}
        }
    }

    fn read_answer(&mut self, audited: &mut AuditedRequest) {
        if self.answered.is_too_long() && audited.wants_response_body() {
            audited.truncated();
        }
        let body = self.answered.whole();
        let document = self.form.answer(&self.answered_as, &body, &self.api);
        let status = self.status.clone();
        let status =
            status.unwrap_or_else(|| messages::status_of_document(self.code, document.as_ref()));
        audited.responded(status);
        if let Some(document) = document {
            audited.response_object(document);
        }
    }
}

/// The record of a request without an answer.
pub(super) struct UnansweredRequest(Option<SharedState>);

impl UnansweredRequest {
    pub(super) fn new(record: RequestRecord) -> Self {
        Self(record.0)
    }

    /// Goes on with the answer.
    pub(super) fn answered(mut self, answer: Response<Body>) -> Response<Body> {
        let Some(state) = self.0.take() else {
            return answer;
        };
        let is_read = state.lock().answered(&answer);
        let mut end = RequestEnd::new(state);
        if http_body::Body::is_end_stream(answer.body()) {
            end.complete();
            return answer;
        }
        answer.map(|body| Body::new(AnswerBody { body, is_read, end }))
    }
}

impl Drop for UnansweredRequest {
    fn drop(&mut self) {
        match self.0.take() {
            Some(state) if std::thread::panicking() => state.lock().panicked(),
            Some(state) => state.lock().abandoned(),
            None => {}
        }
    }
}

fn content_type(headers: &HeaderMap) -> HeaderMap {
    let value = headers.get(header::CONTENT_TYPE).cloned();
    value
        .map(|value| (header::CONTENT_TYPE, value))
        .into_iter()
        .collect()
}

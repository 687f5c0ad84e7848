//! The audit log of requests, by the events and the policy of `podplane-request-audit`.
//!
//! An [`Auditor`] begins a [`RequestRecord`] for each request between its authentication and the
//! gate. The record is in the request's extensions: the gate tells it what was judged and how. A
//! REST request says in its path what it is about. A gRPC call says so in its message, and its
//! record has no event before the gate has judged the message. [`bodies`] read along with both
//! bodies, as far as the policy wants them.

mod bodies;
mod flags;
mod messages;
mod record;
#[cfg(test)]
mod tests;

pub use flags::{AuditFlags, AuditPolicyFileError};

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use http::{HeaderValue, Request, Response};
use podplane_access::Identity;
use podplane_host::{clock, net::RemoteEnd, random, task};
use podplane_request_audit::{
    AUDIT_ID_HEADER, AuditLog, AuditMetrics, LogOptions, LogThread, OpenLogError, Policy,
    ResponseStatus, Stage, audit_id, source_ips, user_agent,
};
use podplane_service_runtime::{
    authentication::{AuthenticationRefusal, RequestContext},
    peer::Peer,
    recorder::{OpenRecord, RequestRecorder},
};
use prometheus_client::registry::Registry;
use tonic::body::Body;

pub(crate) use self::record::RequestRecord;
use self::record::{ArrivedRequest, UnansweredRequest};

/// The time in which the queued lines must reach the file when the server stops.
const FINISH: Duration = Duration::from_secs(2);

/// The policy and the file of the log, before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct AuditSetup {
    pub(crate) policy: Policy,
    pub(crate) log: LogOptions,
}

/// Writes events of requests.
#[derive(Debug)]
pub(crate) struct Auditor {
    policy: Policy,
    metrics: AuditMetrics,
    /// `None` once the log is closed.
    log: RwLock<Option<AuditLog>>,
    thread: Mutex<Option<LogThread>>,
}

impl Auditor {
    /// Opens the log.
    ///
    /// # Errors
    ///
    /// [`OpenLogError`].
    pub(crate) fn open(setup: AuditSetup, registry: &mut Registry) -> Result<Self, OpenLogError> {
        let AuditSetup { policy, log } = setup;
        let metrics = AuditMetrics::new(registry);
        let (log, thread) = AuditLog::open(log, metrics.clone())?;
        Ok(Self {
            policy,
            metrics,
            log: RwLock::new(Some(log)),
            thread: Mutex::new(Some(thread)),
        })
    }

    fn write(&self, line: Vec<u8>) {
        let log = self.log.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = &*log {
            log.write(line);
        }
    }

    /// Closes the log once its queue is written, or after two seconds. Requests that are still open
    /// have no more events.
    pub(crate) async fn finish(&self) {
        let log = self.log.write();
        drop(log.unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.lock();
        let Some(thread) = thread.unwrap_or_else(PoisonError::into_inner).take() else {
            return;
        };
        let finished = task::spawn_blocking(move || thread.finish(FINISH)).await;
        if !finished.unwrap_or(false) {
            tracing::warn!(waited = ?FINISH, "failed to write the rest of the audit log in time");
        }
    }
}

/// Records the requests of a socket. Clones share the log.
#[derive(Clone, Debug)]
pub(crate) struct AuditRecorder(pub(crate) Arc<Auditor>);

impl AuditRecorder {
    /// The request without its bodies, and the peer's identity as far as it is known.
    fn arrived(&self, request: &Request<Body>, context: Option<RequestContext>) -> ArrivedRequest {
        let headers = request.headers();
        let given = audit_id(headers).map(str::to_owned);
        let peer = match &context {
            Some(context) => context.peer.as_ref(),
            None => request.extensions().get(),
        };
        ArrivedRequest {
            audit_id: given.unwrap_or_else(|| random::uuid().to_string()),
            method: request.method().clone(),
            uri: request.uri().clone(),
            source_ips: source_ips(headers, peer.and_then(address)),
            user_agent: user_agent(headers),
            received: clock::timestamp(),
            sender: match context {
                Some(context) => context.identity,
                None => Arc::new(Identity::default()),
            },
        }
    }
}

impl RequestRecorder for AuditRecorder {
    fn begin(&self, request: &mut Request<Body>) -> Box<dyn OpenRecord> {
        let context = RequestContext::of(request.extensions());
        let arrived = self.arrived(request, Some(context));
        let audit_id = arrived.audit_id.clone();
        let record = RequestRecord::begin(Arc::clone(&self.0), arrived, request);
        request.extensions_mut().insert(record.clone());
        Box::new(IdentifiedRecord {
            audit_id,
            request: UnansweredRequest::new(record),
        })
    }

    /// Writes the one event that Kubernetes has for these, of the stage `ResponseStarted`. Its user
    /// is empty: nobody knows who it was.
    fn refused(
        &self,
        request: &Request<Body>,
        refusal: &AuthenticationRefusal,
        answer: &mut Response<Body>,
    ) {
        let arrived = self.arrived(request, None);
        identify(answer, &arrived.audit_id);
        let status = ResponseStatus {
            code: refusal.code().as_u16(),
            status: "Failure".to_owned(),
            message: refusal.to_string(),
            reason: refusal.reason().to_owned(),
        };
        let Some(mut audited) = arrived.audited_by_path(&self.0) else {
            return;
        };
        audited.responded(status);
        if let Some(line) = audited.line(Stage::ResponseStarted, clock::timestamp()) {
            self.0.write(line);
        }
    }
}

/// A record whose answer tells the client its id.
struct IdentifiedRecord {
    audit_id: String,
    request: UnansweredRequest,
}

impl OpenRecord for IdentifiedRecord {
    fn answered(self: Box<Self>, mut answer: Response<Body>) -> Response<Body> {
        identify(&mut answer, &self.audit_id);
        self.request.answered(answer)
    }
}

fn identify(answer: &mut Response<Body>, audit_id: &str) {
    if let Ok(id) = HeaderValue::from_str(audit_id) {
        answer.headers_mut().insert(AUDIT_ID_HEADER, id);
    }
}

/// The address of a peer, if it has one.
fn address(peer: &Peer) -> Option<IpAddr> {
    match peer {
        Peer::Plain(address) => Some(address.ip()),
        Peer::Tls(tls) => match tls.remote() {
            RemoteEnd::Tcp(address) => Some(address.ip()),
            RemoteEnd::Unix(_) | RemoteEnd::Pipe => None,
        },
        Peer::Local(_) | Peer::Simulated => None,
    }
}

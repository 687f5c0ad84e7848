//! Authentication: each request gets a [`RequestContext`] in its extensions, over HTTP and gRPC
//! alike, or is refused before its handler sees it.
//!
//! What a client sent to prove its identity is removed from the request, so that no handler can
//! log it or pass it on.

mod impersonation;

pub use impersonation::{Impersonated, Impersonation, InvalidImpersonation};

use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Either},
};
use tonic::{
    Code,
    body::Body,
    codegen::{
        Service,
        http::{Extensions, HeaderMap, HeaderName, Request, Response, StatusCode, header},
    },
};

use crate::{
    boundary::{failure, is_grpc},
    identity::{AUTHENTICATED, Identity, MASTERS},
    peer::Peer,
    recorder::RequestRecorder,
    refusal,
};

/// The user of a connection to a unix socket from a process of the server's own user, or of root.
pub const LOCAL_USER: &str = "system:podplane:local";

/// The user id that the kernel shows for users that this user namespace does not have: any of them.
const OVERFLOW_UID: u32 = 65534;

/// What is known of a request besides the request itself.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// Who sends the request.
    pub identity: Arc<Identity>,
    /// The other end of its connection; `None` for a request that came by no connection.
    pub peer: Option<Peer>,
    /// The user as whom the sender wants the request to be carried out. The sender of an invalid
    /// one is known, so that it is refused where rights are judged, and not as unauthenticated.
    pub impersonation: Result<Option<Impersonation>, InvalidImpersonation>,
}

impl RequestContext {
    /// The context in a request's extensions. A request that no authenticator has seen is
    /// anonymous.
    pub fn of(extensions: &Extensions) -> Self {
        extensions.get().cloned().unwrap_or_else(|| Self {
            identity: Arc::new(Identity::anonymous()),
            peer: None,
            impersonation: Ok(None),
        })
    }
}

/// The refusal of a request by its sender's identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationRefusal {
    /// The credentials are not valid: 401, or `UNAUTHENTICATED`.
    #[error("Unauthorized: {0}")]
    Unauthorized(String),
    /// The sender may not do that: 403, or `PERMISSION_DENIED`.
    #[error("{0}")]
    Forbidden(String),
}

impl AuthenticationRefusal {
    /// The code of the answer over HTTP.
    pub fn code(&self) -> StatusCode {
        self.codes().0
    }

    fn codes(&self) -> (StatusCode, &'static str, Code) {
        match self {
            Self::Unauthorized(_) => (
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                Code::Unauthenticated,
            ),
            Self::Forbidden(_) => (StatusCode::FORBIDDEN, "Forbidden", Code::PermissionDenied),
        }
    }

    /// The reason of the answer's `Status`.
    pub fn reason(&self) -> &'static str {
        self.codes().1
    }

    fn response(&self, is_grpc: bool) -> Response<Body> {
        let (code, reason, grpc) = self.codes();
        let mut response = failure((code, reason), grpc, &self.to_string(), is_grpc);
        if code == StatusCode::UNAUTHORIZED && !is_grpc {
            // RFC 9110 §15.5.2.
            let bearer = header::HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

/// Tells who sends a request.
pub trait Authenticator: fmt::Debug + Send + Sync {
    /// A future to await before [`authenticate`](Self::authenticate), for credentials that depend
    /// on state which may be older than what the client knows; `None` if there is nothing to wait
    /// for.
    fn ready(&self, _headers: &HeaderMap) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// The context of a request with these headers from this peer.
    ///
    /// # Errors
    ///
    /// The reason why the request is refused.
    fn authenticate(
        &self,
        peer: Option<Peer>,
        headers: &HeaderMap,
    ) -> Result<RequestContext, AuthenticationRefusal>;
}

/// The identities of peers.
#[derive(Debug)]
pub struct PeerAuthenticator {
    own_uid: u32,
    /// True if [`OVERFLOW_UID`] is a user like any other, since this user namespace has all users.
    has_all_users: bool,
    local: Arc<Identity>,
    anonymous: Arc<Identity>,
}

impl Default for PeerAuthenticator {
    fn default() -> Self {
        Self::new()
    }
}

impl PeerAuthenticator {
    /// For a server of the user that this process has now.
    pub fn new() -> Self {
        Self {
            own_uid: rustix::process::geteuid().as_raw(),
            has_all_users: has_all_users(),
            local: Arc::new(Identity::new(LOCAL_USER, [MASTERS, AUTHENTICATED])),
            anonymous: Arc::new(Identity::anonymous()),
        }
    }

    /// The identity of a process of the server's own user, or of root, that is connected to a unix
    /// socket; `None` for all other connections.
    ///
    /// # Errors
    ///
    /// [`AuthenticationRefusal::Unauthorized`] for a process of another user.
    pub fn local(
        &self,
        peer: Option<&Peer>,
    ) -> Result<Option<Arc<Identity>>, AuthenticationRefusal> {
        let refused = |why: String| Err(AuthenticationRefusal::Unauthorized(why));
        match peer {
            Some(Peer::Local(Some(credentials))) => match credentials.uid {
                OVERFLOW_UID if !self.has_all_users => refused(format!(
                    "connections from uid {OVERFLOW_UID}, which stands for any user that has no uid here, are not accepted at this socket"
                )),
                uid if uid == self.own_uid || uid == 0 => Ok(Some(Arc::clone(&self.local))),
                uid => refused(format!(
                    "connections from uid {uid} are not accepted at this socket, only from uid {} and root",
                    self.own_uid
                )),
            },
            Some(Peer::Local(None)) => {
                refused("the kernel does not tell which user is connected to this socket".into())
            }
            Some(Peer::Plain(_) | Peer::Tls(_) | Peer::Simulated) | None => Ok(None),
        }
    }

    /// The user of a request without credentials.
    pub fn anonymous(&self) -> Arc<Identity> {
        Arc::clone(&self.anonymous)
    }
}

/// Returns true if each user id of the machine is one of this user namespace, as in the initial one
/// (user_namespaces(7)).
fn has_all_users() -> bool {
    let map = podplane_host::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Refuses nothing: everyone but local users is anonymous.
impl Authenticator for PeerAuthenticator {
    fn authenticate(
        &self,
        peer: Option<Peer>,
        _headers: &HeaderMap,
    ) -> Result<RequestContext, AuthenticationRefusal> {
        let local = self.local(peer.as_ref()).ok().flatten();
        Ok(RequestContext {
            identity: local.unwrap_or_else(|| self.anonymous()),
            peer,
            impersonation: Ok(None),
        })
    }
}

/// The answer of the service `S`, at once or after a wait, or a refusal.
type Answer<S> = Either<
    <S as Service<Request<Body>>>::Future,
    BoxFuture<'static, Result<Response<Body>, <S as Service<Request<Body>>>::Error>>,
>;

/// A service whose requests are authenticated.
#[derive(Clone, Debug)]
pub(crate) struct AuthenticationService<S> {
    pub(crate) service: S,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    /// Records the refusals.
    pub(crate) recorder: Option<Arc<dyn RequestRecorder>>,
}

impl<S> Service<Request<Body>> for AuthenticationService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answer<S>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(ready) = self.authenticator.ready(request.headers()) else {
            return self.authenticated(request);
        };
        // The clone takes the place of the service that `poll_ready` has made ready.
        let fresh = self.clone();
        let mut service = std::mem::replace(self, fresh);
        let answered = async move {
            ready.await;
            service.authenticated(request).await
        };
        Either::Right(answered.boxed())
    }
}

impl<S> AuthenticationService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
{
    fn authenticated(&mut self, mut request: Request<Body>) -> Answer<S> {
        let peer = request.extensions().get().cloned();
        match self.authenticator.authenticate(peer, request.headers()) {
            Ok(context) => {
                remove_credentials(request.headers_mut());
                request.extensions_mut().insert(context);
                Either::Left(self.service.call(request))
            }
            Err(refusal) => {
                let mut answer = refusal.response(is_grpc(request.headers()));
                if let Some(recorder) = &self.recorder {
                    recorder.refused(&request, &refusal, &mut answer);
                }
                let body = request.into_body();
                Either::Right(async { Ok(refusal::after_body(body, answer).await) }.boxed())
            }
        }
    }
}

fn remove_credentials(headers: &mut HeaderMap) {
    headers.remove(header::AUTHORIZATION);
    let asked: Vec<HeaderName> = headers
        .keys()
        .filter(|name| impersonation::is_header(name))
        .cloned()
        .collect();
    for name in asked {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use podplane_host::net::PeerCredentials;

    use super::*;

    #[test]
    fn only_root_and_the_own_user_are_local() {
        let authenticator = PeerAuthenticator {
            own_uid: 1000,
            has_all_users: false,
            ..PeerAuthenticator::new()
        };
        let of = |uid| Peer::Local(Some(PeerCredentials { uid, pid: Some(7) }));
        for uid in [0, 1000] {
            let local = authenticator.local(Some(&of(uid))).unwrap().unwrap();
            assert_eq!(local.user, LOCAL_USER);
            assert!(local.is_in(MASTERS) && local.is_in(AUTHENTICATED));
        }
        for peer in [of(1001), of(OVERFLOW_UID), Peer::Local(None)] {
            let refused = authenticator.local(Some(&peer)).unwrap_err();
            assert!(matches!(refused, AuthenticationRefusal::Unauthorized(_)));
            let context = authenticator.authenticate(Some(peer), &HeaderMap::new());
            assert_eq!(*context.unwrap().identity, Identity::anonymous());
        }
        let tcp = Peer::Plain(([127, 0, 0, 1], 9).into());
        assert_eq!(authenticator.local(Some(&tcp)), Ok(None));
    }

    #[test]
    fn a_server_of_the_overflow_uid_trusts_only_root() {
        let authenticator = PeerAuthenticator {
            own_uid: OVERFLOW_UID,
            has_all_users: false,
            ..PeerAuthenticator::new()
        };
        let of = |uid| Peer::Local(Some(PeerCredentials { uid, pid: None }));
        authenticator.local(Some(&of(OVERFLOW_UID))).unwrap_err();
        assert!(authenticator.local(Some(&of(0))).unwrap().is_some());
        let in_the_initial_namespace = PeerAuthenticator {
            has_all_users: true,
            ..authenticator
        };
        let nobody = in_the_initial_namespace.local(Some(&of(OVERFLOW_UID)));
        assert!(nobody.unwrap().is_some());
    }

    #[test]
    fn credentials_do_not_reach_handlers() {
        let mut headers = HeaderMap::new();
        for name in [
            "authorization",
            "impersonate-user",
            "impersonate-extra-a",
            "accept",
        ] {
            headers.append(name, "x".parse().unwrap());
            headers.append(name, "y".parse().unwrap());
        }
        remove_credentials(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["accept"]);
    }
}

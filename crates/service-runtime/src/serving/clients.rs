//! The clients of a port.

use tonic::codegen::http::{HeaderMap, header};

use crate::{
    authentication::{
        AuthenticationRefusal, Authenticator, Impersonation, PeerAuthenticator, RequestContext,
    },
    peer::Peer,
};

/// Tells clients apart by their certificates, and by the peers of unix sockets. Whoever shows
/// nothing is anonymous; whoever sends what is not valid here is refused.
#[derive(Debug)]
pub(super) struct ClientAuthenticator {
    peers: PeerAuthenticator,
}

impl ClientAuthenticator {
    pub(super) fn new() -> Self {
        Self {
            peers: PeerAuthenticator::new(),
        }
    }
}

impl Authenticator for ClientAuthenticator {
    fn authenticate(
        &self,
        peer: Option<Peer>,
        headers: &HeaderMap,
    ) -> Result<RequestContext, AuthenticationRefusal> {
        let local = self.peers.local(peer.as_ref())?;
        let certificate = match &peer {
            Some(Peer::Tls(tls)) => tls.client(),
            _ => None,
        };
        let certificate = certificate
            .transpose()
            .map_err(|reason| AuthenticationRefusal::Unauthorized(reason.to_string()))?;
        let known = certificate.or(local);
        if known.is_none() && headers.contains_key(header::AUTHORIZATION) {
            let why = "the header Authorization is not accepted at this port: use a client certificate, or send no credentials";
            return Err(AuthenticationRefusal::Unauthorized(why.to_owned()));
        }
        if !matches!(Impersonation::parse(headers), Ok(None)) {
            let why = "forbidden: impersonation is possible at the API server only";
            return Err(AuthenticationRefusal::Forbidden(why.to_owned()));
        }
        Ok(RequestContext {
            identity: known.unwrap_or_else(|| self.peers.anonymous()),
            peer,
            impersonation: Ok(None),
        })
    }
}

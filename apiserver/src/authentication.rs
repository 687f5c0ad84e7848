//! The authentication of requests: client certificates, bearer tokens from a file and of
//! ServiceAccounts, and peers of unix sockets.

mod account_flags;
mod accounts;
mod flags;
mod own_certificates;
mod tls;
mod tokens;

pub use account_flags::AccountTokenFlags;
pub use flags::{AuthenticationFlags, AuthenticationModeFlag};
pub use own_certificates::OwnCertificateFlags;
pub use podplane_service_runtime::{serving::AuthenticationMode, tls::TlsFlags};
pub use tokens::TokenFileError;

use std::sync::{Arc, LazyLock};

use futures::future::BoxFuture;
use http::{HeaderMap, header};
use podplane_service_runtime::{
    authentication::{
        AuthenticationRefusal, Authenticator, Impersonation, PeerAuthenticator, RequestContext,
    },
    identity::Identity,
    peer::Peer,
};

pub(crate) use self::{
    own_certificates::{Kubeconfig, OwnCertificates},
    tls::secure,
};
pub(crate) use accounts::{AccountTokens, TokenBinding, TokenObjects};
pub(crate) use tokens::TokenFile;

/// The server itself, by which it writes without a request.
pub(crate) fn server_identity() -> &'static Arc<Identity> {
    static SERVER: LazyLock<Arc<Identity>> = LazyLock::new(|| Arc::new(Identity::server()));
    &SERVER
}

/// Authenticates the requests of the API server.
///
/// The sender of a request is, in this order: the user of its client certificate, the user of its
/// bearer token, the local user by its unix socket, or the anonymous user. A credential that is not
/// valid refuses the request; a token makes up for a certificate, as in Kubernetes.
#[derive(Debug)]
pub(crate) struct RequestAuthenticator {
    mode: AuthenticationMode,
    peers: PeerAuthenticator,
    tokens: TokenFile,
    /// `None` if no tokens of ServiceAccounts are issued, so that none can be valid.
    accounts: Option<Arc<AccountTokens>>,
}

impl RequestAuthenticator {
    pub(crate) fn new(mode: AuthenticationMode, tokens: TokenFile) -> Self {
        Self {
            mode,
            peers: PeerAuthenticator::new(),
            tokens,
            accounts: None,
        }
    }

    pub(crate) fn mode(&self) -> AuthenticationMode {
        self.mode
    }

    /// The same with the tokens of ServiceAccounts.
    pub(crate) fn with_accounts(self, accounts: Option<Arc<AccountTokens>>) -> Self {
        Self { accounts, ..self }
    }

    /// The user of a bearer token: of the file, or the ServiceAccount.
    fn user(&self, token: &[u8]) -> Result<Arc<Identity>, AuthenticationRefusal> {
        let refused = |why: String| Err(AuthenticationRefusal::Unauthorized(why));
        if let Some(user) = self.tokens.user(token) {
            return Ok(user);
        }
        match (&self.accounts, account_token(token)) {
            (Some(accounts), Some(token)) => match accounts.user(token, accounts.audiences()) {
                Ok(user) => Ok(Arc::new(user.identity)),
                Err(why) => refused(format!("the bearer token is not valid: {why}")),
            },
            _ => refused("the bearer token is not valid".to_owned()),
        }
    }

    fn identity(
        &self,
        peer: Option<&Peer>,
        headers: &HeaderMap,
    ) -> Result<Arc<Identity>, AuthenticationRefusal> {
        // Another user of the machine is refused even with a token: nobody sends one through a
        // socket that is not theirs.
        let local = self.peers.local(peer)?;
        let certificate = match peer {
            Some(Peer::Tls(tls)) => tls.client(),
            _ => None,
        };
        let rejected = match certificate {
            Some(Ok(user)) => return Ok(user),
            Some(Err(reason)) => Some(reason),
            None => None,
        };
        match bearer_token(headers)? {
            Some(token) => self.user(token),
            None => match rejected {
                Some(reason) => Err(AuthenticationRefusal::Unauthorized(reason.to_string())),
                None => Ok(local.unwrap_or_else(|| self.peers.anonymous())),
            },
        }
    }
}

impl RequestAuthenticator {
    /// Waits until the state on which tokens depend is up to date; `None` if it is.
    pub(crate) fn settled(&self) -> Option<BoxFuture<'static, ()>> {
        self.accounts.as_ref()?.settled()
    }

    /// The user of a token and those of the audiences for which it is; the API server's if none is
    /// given. The tokens of the file are for the API server's alone, as in Kubernetes.
    ///
    /// # Errors
    ///
    /// The reason why it is nobody's.
    pub(crate) fn review(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Result<(Arc<Identity>, Vec<String>), String> {
        let own = self.accounts.as_ref().map(|accounts| accounts.audiences());
        let own = own.unwrap_or_default();
        let asked = match audiences.is_empty() {
            true => own,
            false => audiences,
        };
        let shared = |audiences: &[String]| -> Vec<String> {
            let shared = asked.iter().filter(|asked| audiences.contains(asked));
            shared.cloned().collect()
        };
        if let Some(user) = self.tokens.user(token.as_bytes()) {
            let shared = shared(own);
            return match shared.is_empty() && !asked.is_empty() {
                true => Err("the token is for another audience".to_owned()),
                false => Ok((user, shared)),
            };
        }
        match (&self.accounts, account_token(token.as_bytes())) {
            (Some(accounts), Some(token)) => match accounts.user(token, asked) {
                Ok(user) => Ok((Arc::new(user.identity), shared(&user.audiences))),
                Err(why) => Err(format!("the token is not valid: {why}")),
            },
            _ => Err("the token is not valid".to_owned()),
        }
    }
}

/// The bearer token as one that a ServiceAccount may have.
fn account_token(token: &[u8]) -> Option<&str> {
    let token = str::from_utf8(token).ok()?;
    podplane_tokens::looks_like_token(token).then_some(token)
}

impl Authenticator for RequestAuthenticator {
    fn ready(&self, headers: &HeaderMap) -> Option<BoxFuture<'static, ()>> {
        let accounts = self.accounts.as_ref()?;
        let token = bearer_token(headers).ok().flatten()?;
        // Only these depend on objects: those of an account that was deleted are refused at once.
        account_token(token).and_then(|_| accounts.settled())
    }

    fn authenticate(
        &self,
        peer: Option<Peer>,
        headers: &HeaderMap,
    ) -> Result<RequestContext, AuthenticationRefusal> {
        let mut context = match self.mode {
            AuthenticationMode::None => self.peers.authenticate(peer, headers)?,
            AuthenticationMode::Credentials => RequestContext {
                identity: self.identity(peer.as_ref(), headers)?,
                peer,
                impersonation: Ok(None),
            },
        };
        // The gate judges it.
        context.impersonation = Impersonation::parse(headers);
        Ok(context)
    }
}

/// The bearer token of a request; `None` if it has no `Authorization` header.
///
/// Stricter than Kubernetes, which takes a request with another scheme, or with a second space, for
/// an anonymous one: a client that sent credentials is never anonymous.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&[u8]>, AuthenticationRefusal> {
    let refused = |why: &str| Err(AuthenticationRefusal::Unauthorized(why.to_owned()));
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return refused("the header Authorization is given more than once");
    }
    let value = value.as_bytes();
    let (scheme, token) = match value.iter().position(|byte| *byte == b' ') {
        Some(space) => (&value[..space], &value[space + 1..]),
        None => (value, &[][..]),
    };
    let is_token = |byte: &u8| byte.is_ascii_graphic();
    match scheme.eq_ignore_ascii_case(b"bearer") {
        true if !token.is_empty() && token.iter().all(is_token) => Ok(Some(token)),
        _ => refused("the header Authorization must be: Bearer TOKEN"),
    }
}

#[cfg(test)]
mod tests {
    use podplane_host::net::PeerCredentials;

    use super::*;

    fn authenticator(mode: AuthenticationMode) -> RequestAuthenticator {
        let tokens = TokenFile::parse("tokens.csv".as_ref(), "s3cret,ada,7,dev\n").unwrap();
        RequestAuthenticator::new(mode, tokens)
    }

    fn user(
        peer: Peer,
        mode: AuthenticationMode,
        headers: &[(&'static str, &str)],
    ) -> Result<String, AuthenticationRefusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let context = authenticator(mode).authenticate(Some(peer), &map)?;
        Ok(context.identity.user.clone())
    }

    const TCP: Peer = Peer::Plain(std::net::SocketAddr::new(
        std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST),
        9,
    ));

    fn unix(uid: u32) -> Peer {
        Peer::Local(Some(PeerCredentials { uid, pid: None }))
    }

    #[test]
    fn credentials_that_are_not_understood_are_refused() {
        let credentials = AuthenticationMode::Credentials;
        let sent = |value| user(TCP, credentials, &[("authorization", value)]);
        for value in ["Bearer s3cret", "bearer s3cret", "BEARER s3cret"] {
            assert_eq!(sent(value).unwrap(), "ada", "{value}");
        }
        for value in [
            "",
            " ",
            "Bearer",
            "Bearer ",
            "Bearer  s3cret",
            "Bearer s3cret ",
            "Bearer s3cret,s3cret",
            "Bearer s3cret s3cret",
            "Bearer\ts3cret",
            " Bearer s3cret",
            "Bearer s3cre",
            "Bearer s3cret1",
            "Basic czNjcmV0",
            "Token s3cret",
            "s3cret",
        ] {
            let refused = sent(value).unwrap_err();
            assert!(
                matches!(&refused, AuthenticationRefusal::Unauthorized(why) if !why.contains("s3cre")),
                "{value:?}: {refused}"
            );
        }
        let twice = [
            ("authorization", "Bearer s3cret"),
            ("authorization", "Bearer s3cret"),
        ];
        user(TCP, credentials, &twice).unwrap_err();
    }

    #[test]
    fn a_token_goes_before_the_peer_and_foreign_peers_are_refused() {
        let credentials = AuthenticationMode::Credentials;
        let token = [("authorization", "Bearer s3cret")];
        let local = podplane_service_runtime::authentication::LOCAL_USER;
        assert_eq!(user(unix(0), credentials, &[]).unwrap(), local);
        assert_eq!(user(unix(0), credentials, &token).unwrap(), "ada");
        assert_eq!(user(TCP, credentials, &[]).unwrap(), "system:anonymous");
        let bad = [("authorization", "Bearer other")];
        user(unix(0), credentials, &bad).unwrap_err();
        user(unix(4711), credentials, &token).unwrap_err();
    }

    #[test]
    fn without_authentication_nobody_is_refused() {
        let none = AuthenticationMode::None;
        let bad = [("authorization", "Basic x")];
        assert_eq!(user(TCP, none, &bad).unwrap(), "system:anonymous");
        assert_eq!(user(unix(4711), none, &[]).unwrap(), "system:anonymous");
    }

    #[test]
    fn an_impersonation_is_left_to_the_gate() {
        for mode in [AuthenticationMode::None, AuthenticationMode::Credentials] {
            let mut asked = HeaderMap::new();
            asked.append("impersonate-user", "eve".parse().unwrap());
            let context = authenticator(mode).authenticate(Some(TCP), &asked).unwrap();
            assert_eq!(context.identity.user, "system:anonymous");
            assert_eq!(
                context.impersonation.unwrap().unwrap().identity().user,
                "eve"
            );
            asked.remove("impersonate-user");
            asked.append("impersonate-group", "dev".parse().unwrap());
            let context = authenticator(mode).authenticate(Some(TCP), &asked).unwrap();
            assert_eq!(context.identity.user, "system:anonymous");
            context.impersonation.unwrap_err();
        }
    }
}

use std::path::PathBuf;

use podplane_service_runtime::{server::Listen, serving::AuthenticationMode};

use super::{RequestAuthenticator, TokenFile};
use crate::{ApiserverRunError, AuthorizationMode};

/// The flags of authentication.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AuthenticationFlags {
    #[command(flatten)]
    pub mode: AuthenticationModeFlag,

    /// Accept the bearer tokens of this file, which is read once at the start; needs
    /// --authentication=credentials
    ///
    /// Each line has token,user,uid and, in quotes, groups: t0ken,ada,1001,"dev,ops".
    #[arg(long, env = "PODPLANE_TOKEN_AUTH_FILE", value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
}

/// The flag that says whether there is authentication, which `podplane up` takes too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct AuthenticationModeFlag {
    /// Authenticate requests by their credentials, or not at all: none accepts everyone who reaches
    /// the address, and needs a loopback address or a unix socket
    ///
    /// credentials tells users apart by client certificates (--client-ca-file) and bearer tokens
    /// (--token-auth-file, or a ServiceAccount's), and processes of the server's own user and of
    /// root by a unix socket; a client without credentials is system:anonymous.
    #[arg(
        long,
        env = "PODPLANE_AUTHENTICATION",
        value_enum,
        default_value_t,
        value_name = "MODE"
    )]
    pub authentication: AuthenticationMode,
}

impl AuthenticationFlags {
    /// True if users are told apart.
    pub(crate) fn is_on(&self) -> bool {
        self.mode.authentication == AuthenticationMode::Credentials
    }

    /// The authenticator for a server at `listen`. Logs what the flags mean for who may do what.
    ///
    /// # Errors
    ///
    /// Flags that contradict each other or the address, and a token file that cannot be read.
    pub(crate) fn authenticator(
        &self,
        listen: &Listen,
        authorization: AuthorizationMode,
    ) -> Result<RequestAuthenticator, ApiserverRunError> {
        let Self {
            mode,
            token_auth_file,
        } = self;
        let mode = mode.authentication;
        if mode == AuthenticationMode::None {
            if token_auth_file.is_some() {
                return Err(ApiserverRunError::UnusedTokens);
            }
            let is_near = match listen {
                Listen::Tcp(address) => address.ip().is_loopback(),
                Listen::Unix(_) => true,
            };
            if !is_near {
                return Err(ApiserverRunError::NotLoopback(listen.clone()));
            }
            if !matches!(listen, Listen::Unix(_)) {
                tracing::warn!(
                    %listen,
                    "authentication is off: every client that reaches the address may do everything"
                );
            }
            return Ok(RequestAuthenticator::new(mode, TokenFile::default()));
        }
        if authorization == AuthorizationMode::AlwaysAllow {
            tracing::warn!(
                %listen,
                "there is no authorization: every user, the anonymous one too, may do everything"
            );
        }
        let tokens = match token_auth_file {
            Some(file) => TokenFile::read(file)?,
            None => TokenFile::default(),
        };
        Ok(RequestAuthenticator::new(mode, tokens))
    }
}

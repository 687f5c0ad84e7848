use std::path::PathBuf;

use podplane_service_runtime::server::Listen;

use super::{RequestAuthenticator, TokenFile};
use crate::ApiserverRunError;

/// The flags of authentication.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AuthenticationFlags {
    /// Authenticate requests by their credentials, or not at all: none accepts everyone who reaches
    /// the address, and needs a loopback address or a unix socket [default: none, at any address]
    ///
    /// credentials tells users apart by client certificates (--client-ca-file) and bearer tokens
    /// (--token-auth-file), and processes of the server's own user and of root by a unix socket; a
    /// client without credentials is system:anonymous. There is no authorization yet: every user
    /// may do everything.
    #[arg(long, env = "PODPLANE_AUTHENTICATION", value_enum, value_name = "MODE")]
    pub authentication: Option<AuthenticationMode>,

    /// Accept the bearer tokens of this file, which is read once at the start; needs
    /// --authentication=credentials
    ///
    /// Each line has token,user,uid and, in quotes, groups: t0ken,ada,1001,"dev,ops".
    #[arg(long, env = "PODPLANE_TOKEN_AUTH_FILE", value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
}

/// The ways to tell who sends a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AuthenticationMode {
    /// Everyone over TCP is the same user, and credentials are not looked at.
    #[default]
    None,
    /// By what the client and its connection prove.
    Credentials,
}

impl AuthenticationFlags {
    /// The authenticator for a server at `listen`. Logs what the flags mean for who may do what.
    ///
    /// # Errors
    ///
    /// Flags that contradict each other or the address, and a token file that cannot be read.
    pub(crate) fn authenticator(
        &self,
        listen: &Listen,
    ) -> Result<RequestAuthenticator, ApiserverRunError> {
        let Self {
            authentication,
            token_auth_file,
        } = self;
        let mode = authentication.unwrap_or_default();
        if mode == AuthenticationMode::None {
            if token_auth_file.is_some() {
                return Err(ApiserverRunError::UnusedTokens);
            }
            let is_near = match listen {
                Listen::Tcp(address) => address.ip().is_loopback(),
                Listen::Unix(_) => true,
            };
            // Clusters of several machines listen elsewhere, until they have certificates.
            if authentication.is_some() && !is_near {
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
        tracing::warn!(
            %listen,
            "there is no authorization: every user, the anonymous one too, may do everything"
        );
        let tokens = match token_auth_file {
            Some(file) => TokenFile::read(file)?,
            None => TokenFile::default(),
        };
        Ok(RequestAuthenticator::new(mode, tokens))
    }
}

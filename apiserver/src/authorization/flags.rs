use crate::{ApiserverRunError, AuthenticationFlags, AuthenticationMode};

/// The flags of authorization.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AuthorizationFlags {
    /// Decide by these authorizers who may do what: AlwaysAllow, or Node,RBAC, which needs
    /// --authentication=credentials
    ///
    /// With Node,RBAC the group system:masters may do everything, nodes may do what the node
    /// authorizer and NodeRestriction allow, and everyone else what roles and bindings allow.
    #[arg(
        long,
        env = "PODPLANE_AUTHORIZATION_MODE",
        value_enum,
        default_value_t,
        value_name = "MODE"
    )]
    pub authorization_mode: AuthorizationMode,
}

/// The authorizers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum AuthorizationMode {
    /// Everyone may do everything.
    #[default]
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
    /// `system:masters`, the node authorizer and RBAC.
    #[value(name = "Node,RBAC")]
    NodeRbac,
}

impl AuthorizationFlags {
    /// The mode, which must fit the authentication.
    ///
    /// # Errors
    ///
    /// [`ApiserverRunError::NobodyToAuthorize`] if users are not told apart.
    pub(crate) fn mode(
        &self,
        authentication: &AuthenticationFlags,
    ) -> Result<AuthorizationMode, ApiserverRunError> {
        let mode = self.authorization_mode;
        let credentials = Some(AuthenticationMode::Credentials);
        match mode {
            AuthorizationMode::NodeRbac if authentication.authentication != credentials => {
                Err(ApiserverRunError::NobodyToAuthorize)
            }
            mode => Ok(mode),
        }
    }
}

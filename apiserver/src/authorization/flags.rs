use crate::{ApiserverRunError, AuthenticationFlags};

/// The flags of authorization.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AuthorizationFlags {
    /// Decide by these authorizers who may do what: AlwaysAllow, or Node,RBAC, which needs
    /// --authentication=credentials [default: Node,RBAC, and AlwaysAllow without authentication]
    ///
    /// With Node,RBAC the group system:masters may do everything, nodes may do what the node
    /// authorizer and NodeRestriction allow, and everyone else what roles and bindings allow.
    #[arg(
        long,
        env = "PODPLANE_AUTHORIZATION_MODE",
        value_enum,
        value_name = "MODE"
    )]
    pub authorization_mode: Option<AuthorizationMode>,
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
        match (self.authorization_mode, authentication.is_on()) {
            (Some(AuthorizationMode::NodeRbac), false) => Err(ApiserverRunError::NobodyToAuthorize),
            (Some(mode), _) => Ok(mode),
            (None, true) => Ok(AuthorizationMode::NodeRbac),
            (None, false) => Ok(AuthorizationMode::AlwaysAllow),
        }
    }
}

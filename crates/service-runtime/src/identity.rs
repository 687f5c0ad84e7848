//! The identity of a request's sender.
//!
//! The same type as that of `podplane-access`: once that crate is an allowed dependency, this module
//! becomes `pub use podplane_access::identity;` in `lib.rs`.

use std::collections::BTreeMap;

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of everyone who proved an identity.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everyone who did not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user of a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The API server itself.
pub const API_SERVER: &str = "system:apiserver";
/// An authenticated user, or the anonymous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The UID, which tells users of one name apart; may be empty.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// What else the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl Identity {
    /// A user with groups.
    pub fn new<G: Into<String>>(
        user: impl Into<String>,
        groups: impl IntoIterator<Item = G>,
    ) -> Self {
        Self {
            user: user.into(),
            groups: groups.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// The user of a request without credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, [UNAUTHENTICATED])
    }

    /// The API server, for what it does without a request.
    pub fn server() -> Self {
        Self::new(API_SERVER, [AUTHENTICATED, MASTERS])
    }

    /// True for a member of `group`.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

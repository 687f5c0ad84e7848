//! The identity of a request's sender.

use std::collections::BTreeMap;

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// The group of everyone who proved an identity.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of everyone who did not.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of all nodes.
pub const NODES: &str = "system:nodes";
/// The group of machines that ask for a node's first certificate.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers";
/// The group of monitoring systems.
pub const MONITORING: &str = "system:monitoring";
/// The group of all ServiceAccounts. Those of a namespace also have `system:serviceaccounts:NS`.
pub const SERVICE_ACCOUNTS: &str = "system:serviceaccounts";

/// The user of a request without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The API server itself.
pub const API_SERVER: &str = "system:apiserver";
/// The scheduler.
pub const SCHEDULER: &str = "system:kube-scheduler";
/// The controller-manager.
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// The proxy of Services.
pub const KUBE_PROXY: &str = "system:kube-proxy";

/// The beginning of a node's user name; the rest is the name of the Node.
pub const NODE_PREFIX: &str = "system:node:";

/// An authenticated user, or the anonymous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The user name.
    pub user: String,
    /// The UID, which tells users of one name apart; may be empty.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// Further facts of the authenticator.
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

    /// The node `name`.
    pub fn node(name: &str) -> Self {
        Self::new(format!("{NODE_PREFIX}{name}"), [NODES, AUTHENTICATED])
    }

    /// The ServiceAccount `name` of `namespace`.
    pub fn service_account(namespace: &str, name: &str) -> Self {
        let own = format!("{SERVICE_ACCOUNTS}:{namespace}");
        Self::new(
            service_account_user(namespace, name),
            [SERVICE_ACCOUNTS, &own, AUTHENTICATED],
        )
    }

    /// True for a member of `group`.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The name of the Node that this identity is: a member of [`NODES`] whose user name begins
    /// with [`NODE_PREFIX`]. The name is empty if the user name has nothing more, and such an
    /// identity may do nothing that a node may.
    pub fn node_name(&self) -> Option<&str> {
        let name = self.user.strip_prefix(NODE_PREFIX)?;
        self.is_in(NODES).then_some(name)
    }
}

/// The user name of a ServiceAccount.
pub fn service_account_user(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_needs_the_name_and_the_group() {
        assert_eq!(Identity::node("n1").node_name(), Some("n1"));
        let unnamed = Identity::new(NODE_PREFIX, [NODES]);
        assert_eq!(unnamed.node_name(), Some(""));
        let without_group = Identity::new("system:node:n1", [AUTHENTICATED]);
        assert_eq!(without_group.node_name(), None);
        let other_name = Identity::new("n1", [NODES]);
        assert_eq!(other_name.node_name(), None);
    }

    #[test]
    fn a_service_account_is_in_the_groups_of_its_namespace() {
        let identity = Identity::service_account("prod", "ci");
        assert_eq!(identity.user, "system:serviceaccount:prod:ci");
        assert!(identity.is_in("system:serviceaccounts:prod"));
        assert!(identity.is_in(SERVICE_ACCOUNTS) && identity.is_in(AUTHENTICATED));
    }
}

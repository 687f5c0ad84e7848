//! Nobody grants what they do not have.
//!
//! Who writes a role must have its rules, or may `escalate`; who writes a binding must have the
//! rules of its role, or may `bind` it. A ClusterRole that others are aggregated into may come to
//! have any rule, so that it takes full authority.

use std::fmt;

use podplane_api::{
    meta::ObjectMeta,
    rbac::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef},
};

use super::{
    ALL, GROUP, Policy, RoleNotFound,
    cover::{describe, missing, quoted_list},
};
use crate::{
    attributes::{Attributes, ResourceTarget},
    identity::{Identity, MASTERS},
};

/// The reason why a role or binding may not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EscalationError {
    /// The user lacks rules that would be granted. The answer is 403.
    #[error("{0}")]
    Forbidden(String),
    /// The binding's role does not exist, and the user may not bind it unseen. The answer is 404.
    #[error(transparent)]
    RoleNotFound(#[from] RoleNotFound),
}

/// A user who writes roles and bindings.
#[derive(Clone, Copy)]
pub struct Grantor<'a, F> {
    identity: &'a Identity,
    policy: &'a Policy,
    /// The chain of authorizers.
    is_allowed: F,
}

impl<F> fmt::Debug for Grantor<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grantor")
            .field("identity", self.identity)
            .finish_non_exhaustive()
    }
}

impl<'a, F: Fn(&Attributes<'_>) -> bool> Grantor<'a, F> {
    /// A user; `is_allowed` asks all authorizers.
    pub fn new(identity: &'a Identity, policy: &'a Policy, is_allowed: F) -> Self {
        Self {
            identity,
            policy,
            is_allowed,
        }
    }

    /// Judges a new or changed Role. `requested_name` is the name in the request, which a creation
    /// does not have, so that `escalate` for one name does not allow to create that role.
    ///
    /// # Errors
    ///
    /// [`EscalationError::Forbidden`] if the user lacks a rule of the role.
    pub fn check_role(
        &self,
        requested_name: &str,
        new: &Role,
        old: Option<&Role>,
    ) -> Result<(), EscalationError> {
        if old.is_some_and(|old| keeps_all_but_references(new, old)) {
            return Ok(());
        }
        let namespace = crate::namespace(&new.metadata);
        if self.is_trusted("escalate", "roles", namespace, requested_name) {
            return Ok(());
        }
        self.check_rules(namespace, new.rules.as_deref().unwrap_or_default())
    }

    /// Judges a new or changed ClusterRole; `requested_name` as in [`Self::check_role`].
    ///
    /// # Errors
    ///
    /// [`EscalationError::Forbidden`] if the user lacks a rule of the role, or full authority for
    /// one with an aggregation rule.
    pub fn check_cluster_role(
        &self,
        requested_name: &str,
        new: &ClusterRole,
        old: Option<&ClusterRole>,
    ) -> Result<(), EscalationError> {
        if old.is_some_and(|old| keeps_all_but_references(new, old)) {
            return Ok(());
        }
        if self.is_trusted("escalate", "clusterroles", "", requested_name) {
            return Ok(());
        }
        self.check_rules("", new.rules.as_deref().unwrap_or_default())?;
        let aggregates = |role: &ClusterRole| {
            let rule = role.aggregation_rule.as_ref();
            rule.and_then(|rule| rule.cluster_role_selectors.as_ref())
                .is_some_and(|selectors| !selectors.is_empty())
        };
        if (aggregates(new) || old.is_some_and(aggregates))
            && self.check_rules("", &full_authority()).is_err()
        {
            return Err(EscalationError::Forbidden(
                "must have cluster-admin privileges to use the aggregationRule".to_owned(),
            ));
        }
        Ok(())
    }

    /// Judges a new or changed RoleBinding.
    ///
    /// # Errors
    ///
    /// [`EscalationError::Forbidden`] if the user lacks a rule of the role,
    /// [`EscalationError::RoleNotFound`] if there is no such role.
    pub fn check_role_binding(
        &self,
        new: &RoleBinding,
        old: Option<&RoleBinding>,
    ) -> Result<(), EscalationError> {
        if old.is_some_and(|old| keeps_all_but_references(new, old)) {
            return Ok(());
        }
        self.check_reference(&new.role_ref, crate::namespace(&new.metadata))
    }

    /// Judges a new or changed ClusterRoleBinding.
    ///
    /// # Errors
    ///
    /// As [`Self::check_role_binding`].
    pub fn check_cluster_role_binding(
        &self,
        new: &ClusterRoleBinding,
        old: Option<&ClusterRoleBinding>,
    ) -> Result<(), EscalationError> {
        if old.is_some_and(|old| keeps_all_but_references(new, old)) {
            return Ok(());
        }
        self.check_reference(&new.role_ref, "")
    }

    fn check_reference(&self, role: &RoleRef, namespace: &str) -> Result<(), EscalationError> {
        let resource = match &*role.kind {
            "ClusterRole" => "clusterroles",
            "Role" => "roles",
            kind => return Err(RoleNotFound::Kind(kind.to_owned()).into()),
        };
        if self.is_trusted("bind", resource, namespace, &role.name) {
            return Ok(());
        }
        let rules = self.policy.rules_of(role, namespace)?;
        self.check_rules(namespace, rules)
    }

    /// True for `system:masters`, and for who may use the verb on the role.
    fn is_trusted(&self, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let target = ResourceTarget {
            group: GROUP,
            version: "v1",
            resource,
            namespace,
            name,
            ..ResourceTarget::default()
        };
        self.identity.is_in(MASTERS)
            || (self.is_allowed)(&Attributes::resource(self.identity, verb, target))
    }

    /// Refuses rules that the user does not have in the scope.
    fn check_rules(&self, namespace: &str, wanted: &[PolicyRule]) -> Result<(), EscalationError> {
        let owned = self.policy.rules_for(self.identity, namespace);
        let missing = missing(&owned.rules, wanted);
        if missing.is_empty() {
            return Ok(());
        }
        let (user, groups) = (&self.identity.user, quoted_list(&self.identity.groups));
        let lines = describe(&missing).join("\n");
        let mut message = format!(
            "user {user:?} (groups={groups}) is attempting to grant RBAC permissions not currently \
             held:\n{lines}"
        );
        if !owned.errors.is_empty() {
            let errors: Vec<String> = owned.errors.iter().map(ToString::to_string).collect();
            message = format!("{message}; resolution errors: [{}]", errors.join(" "));
        }
        Err(EscalationError::Forbidden(message))
    }
}

fn full_authority() -> [PolicyRule; 2] {
    let all = || Some(vec![ALL.to_owned()]);
    let verbs = || vec![ALL.to_owned()];
    [
        PolicyRule {
            api_groups: all(),
            resources: all(),
            verbs: verbs(),
            ..PolicyRule::default()
        },
        PolicyRule {
            non_resource_urls: all(),
            verbs: verbs(),
            ..PolicyRule::default()
        },
    ]
}

/// An object of RBAC, for [`keeps_all_but_references`].
trait Granting: Clone + PartialEq {
    fn metadata_mut(&mut self) -> &mut ObjectMeta;
}

macro_rules! granting {
    ($($kind:ident),*) => {$(
        impl Granting for $kind {
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}

granting!(Role, ClusterRole, RoleBinding, ClusterRoleBinding);

/// True if the change is one that the garbage collector makes, which need not have the rules: of
/// owner references and finalizers alone.
fn keeps_all_but_references<K: Granting>(new: &K, old: &K) -> bool {
    let mut new = new.clone();
    let mut old = old.clone();
    for object in [&mut new, &mut old] {
        let metadata = object.metadata_mut();
        metadata.owner_references = None;
        metadata.finalizers = None;
        metadata.managed_fields = None;
        metadata.resource_version = None;
    }
    new == old
}

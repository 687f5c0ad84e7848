//! Writes of roles and bindings: nobody grants what they do not have.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_access::Attributes;
use podplane_access::rbac::escalation::{EscalationError, Grantor};
use podplane_api::{
    Object,
    rbac::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use podplane_proto::error::{ApiError, Reason};

use super::Gate;
use crate::{
    admission::{ProposedChange, WriteCheck},
    error,
    registry::Operation,
};

/// The check of what a role or binding would grant.
#[derive(Debug)]
pub(crate) struct GrantCheck(Gate);

impl GrantCheck {
    pub(crate) fn new(gate: &Gate) -> Self {
        Self(gate.clone())
    }
}

/// A kind whose objects grant rights.
pub(super) trait Granting: Object {
    /// Judges a new or changed object. `requested_name` is the name in the request, which a
    /// creation does not have.
    fn granted<F: Fn(&Attributes<'_>) -> bool>(
        &self,
        old: Option<&Self>,
        requested_name: &str,
        grantor: &Grantor<'_, F>,
    ) -> Result<(), EscalationError>;
}

macro_rules! granting {
    ($kind:ident, |$grantor:ident, $name:ident, $new:ident, $old:ident| $check:expr) => {
        impl Granting for $kind {
            fn granted<F: Fn(&Attributes<'_>) -> bool>(
                &self,
                $old: Option<&Self>,
                $name: &str,
                $grantor: &Grantor<'_, F>,
            ) -> Result<(), EscalationError> {
                let $new = self;
                $check
            }
        }
    };
}

granting!(Role, |grantor, name, new, old| grantor
    .check_role(name, new, old));
granting!(ClusterRole, |grantor, name, new, old| grantor
    .check_cluster_role(name, new, old));
granting!(RoleBinding, |grantor, _name, new, old| grantor
    .check_role_binding(new, old));
granting!(ClusterRoleBinding, |grantor, _name, new, old| grantor
    .check_cluster_role_binding(new, old));

impl<K: Granting> WriteCheck<K> for GrantCheck {
    fn check<'a>(&'a self, change: ProposedChange<'a, K>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            // To take rights away, one needs none of them.
            let (Operation::Create | Operation::Update(_), Some(new)) =
                (change.operation, change.new)
            else {
                return Ok(());
            };
            let name = match change.operation {
                Operation::Create => "",
                _ => new.name(),
            };
            let granted = self
                .0
                .with_grantor(change.by, |grantor| new.granted(change.old, name, grantor));
            let Some(granted) = granted.await? else {
                return Ok(());
            };
            granted.map_err(|refused| match refused {
                EscalationError::Forbidden(why) => error::forbidden::<K>(new.name(), &why),
                EscalationError::RoleNotFound(missing) => {
                    ApiError::new(Reason::NotFound, missing.to_string())
                }
            })
        }
        .boxed()
    }
}

//! The check of rules when they are written: their expressions must compile.

use std::sync::Arc;

use futures::{FutureExt as _, future::BoxFuture, future::ready};
use podplane_api::{
    Object,
    admissionregistration::{
        MatchCondition, MutatingWebhookConfiguration, ValidatingAdmissionPolicy,
        ValidatingWebhookConfiguration,
    },
    validation::{ErrorList, FieldPath},
};
use podplane_cel_rules::Type;
use podplane_proto::error::ApiError;

use super::{
    expressions::{Scope, compile},
    policy::Policy,
};
use crate::{
    admission::{ProposedChange, WriteCheck},
    error,
    registry::{ObjectPart, Operation},
};

/// Refuses rules with expressions that do not compile. What an update leaves as it is was checked
/// before.
#[derive(Debug)]
pub(crate) struct ExpressionCheck;

impl ExpressionCheck {
    pub(crate) fn shared() -> Arc<Self> {
        Arc::new(Self)
    }
}

/// A kind that has expressions.
trait Expressive: Object {
    fn is_same(&self, old: &Self) -> bool;

    fn errors(&self) -> ErrorList;
}

impl Expressive for ValidatingAdmissionPolicy {
    fn is_same(&self, old: &Self) -> bool {
        self.spec == old.spec
    }

    fn errors(&self) -> ErrorList {
        Policy::new(self).err().unwrap_or_default()
    }
}

macro_rules! webhooks {
    ($($kind:ident),*) => {$(
        impl Expressive for $kind {
            fn is_same(&self, old: &Self) -> bool {
                self.webhooks == old.webhooks
            }

            fn errors(&self) -> ErrorList {
                let mut errors = ErrorList::new();
                for (index, hook) in self.webhooks.iter().flatten().enumerate() {
                    let path = FieldPath::new("webhooks").index(index).child("matchConditions");
                    conditions(&path, hook.match_conditions.as_deref(), &mut errors);
                }
                errors
            }
        }
    )*};
}

webhooks!(MutatingWebhookConfiguration, ValidatingWebhookConfiguration);

fn conditions(path: &FieldPath, conditions: Option<&[MatchCondition]>, errors: &mut ErrorList) {
    let environment = Scope::Webhook.environment();
    for (index, condition) in conditions.unwrap_or_default().iter().enumerate() {
        let text = condition.expression.as_str();
        if let Err(why) = compile(&environment, text, &[Type::Bool]) {
            let path = path.index(index).child("expression");
            errors.invalid(&path, text, &why);
        }
    }
}

impl<K: Expressive> WriteCheck<K> for ExpressionCheck {
    fn check<'a>(&'a self, change: ProposedChange<'a, K>) -> BoxFuture<'a, Result<(), ApiError>> {
        let is_written = matches!(
            change.operation,
            Operation::Create | Operation::Update(ObjectPart::Main)
        );
        let same = |new: &K| change.old.is_some_and(|old| new.is_same(old));
        let judged = match change.new.filter(|new| is_written && !same(new)) {
            None => Ok(()),
            Some(new) => {
                let errors = new.errors();
                match errors.is_empty() {
                    true => Ok(()),
                    false => Err(error::invalid::<K>(new.name(), &errors)),
                }
            }
        };
        ready(judged).boxed()
    }
}

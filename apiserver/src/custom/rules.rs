//! The admission of definitions: the rules that are more than those of their fields.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{Object as _, apiextensions::CustomResourceDefinition};
use podplane_custom_resources::validate_definition;
use podplane_proto::error::ApiError;

use crate::{
    admission::{ProposedChange, WriteCheck},
    error,
    registry::{ObjectPart, Operation},
};

/// Refuses definitions that cannot be served.
#[derive(Debug)]
pub(crate) struct DefinitionRules;

impl WriteCheck<CustomResourceDefinition> for DefinitionRules {
    fn check<'a>(
        &'a self,
        change: ProposedChange<'a, CustomResourceDefinition>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let judged = match (change.operation, change.new) {
            (Operation::Create | Operation::Update(ObjectPart::Main), Some(new)) => {
                let errors = validate_definition(new, change.old);
                match errors.is_empty() {
                    true => Ok(()),
                    false => Err(error::invalid::<CustomResourceDefinition>(
                        new.name(),
                        &errors,
                    )),
                }
            }
            _ => Ok(()),
        };
        async { judged }.boxed()
    }
}

//! The admission of Namespaces: each begins with its default ServiceAccount.

use futures::{FutureExt as _, future::BoxFuture, future::ready};
use podplane_api::{
    Object as _,
    core::{Namespace, ServiceAccount},
    kinds::service_account::default_account,
};
use podplane_host::random;
use podplane_proto::error::ApiError;
use podplane_store::{Guard, Write};

use super::{Admission, CommitAdditions, ProposedChange};
use crate::{engine::Engine, error, storage};

/// Creates the default account in the commit that creates the namespace, so that a pod which is
/// created right after its namespace finds it.
#[derive(Debug)]
pub(crate) struct DefaultAccounts(Engine);

impl DefaultAccounts {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(engine)
    }

    async fn of_new(&self, namespace: &Namespace) -> Result<CommitAdditions, ApiError> {
        let mut account = default_account(namespace.name());
        account.metadata.uid = Some(random::uuid().to_string());
        account
            .metadata
            .creation_timestamp
            .clone_from(&namespace.metadata.creation_timestamp);
        let key = storage::key::<ServiceAccount>(&account.key())?;
        let found = self.0.get(&key).await.map_err(error::store)?;
        if found.is_some() {
            return Ok(CommitAdditions::default());
        }
        let value = storage::encode(&mut account)?;
        Ok(CommitAdditions {
            guards: vec![Guard::Absent(key.clone())],
            writes: vec![Write::Put { key, value }],
        })
    }
}

impl Admission<Namespace> for DefaultAccounts {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Namespace>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        async move {
            match (change.old, change.new) {
                (None, Some(namespace)) => self.of_new(namespace).await,
                _ => Ok(CommitAdditions::default()),
            }
        }
        .boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, Namespace>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        // If the account exists by now, the next attempt leaves it.
        ready(Ok(())).boxed()
    }
}

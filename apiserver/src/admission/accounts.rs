//! The admission of Namespaces, each of which begins with its default ServiceAccount, and of new
//! pods, each of which has an account (source: Kubernetes' admission plugin `ServiceAccount`).

use futures::{FutureExt as _, future::BoxFuture, future::ready};
use podplane_api::{
    Object as _, ObjectKey,
    core::{Namespace, Pod, ServiceAccount},
    kinds::{
        pod::{account_name, mount_token, set_account},
        service_account::default_account,
    },
    names, pod_ips,
};
use podplane_host::random;
use podplane_proto::error::ApiError;
use podplane_store::{Guard, Write};

use super::{Admission, CommitAdditions, MutatingAdmission, ProposedChange};
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

/// Gives each new pod its account, which must exist. Mirror pods have none: a kubelet makes them of
/// files, and cannot know the accounts.
#[derive(Debug)]
pub(crate) struct PodAccount(Engine);

impl PodAccount {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(engine)
    }

    async fn account(&self, pod: &Pod) -> Result<ServiceAccount, ApiError> {
        let (namespace, name) = (pod.namespace(), account_name(pod));
        let missing = || {
            let why = format!(
                "error looking up service account {namespace}/{name}: serviceaccount \"{name}\" not found"
            );
            error::forbidden::<Pod>(pod.name(), &why)
        };
        // A slash would make the key of another object.
        if name.contains('/') {
            return Err(missing());
        }
        let key = storage::key::<ServiceAccount>(&ObjectKey::new(namespace, name));
        let key = key.map_err(|_too_long| missing())?;
        let found = storage::get::<ServiceAccount>(&self.0, &key).await?;
        let (account, _revision) = found.ok_or_else(missing)?;
        Ok(account)
    }
}

impl MutatingAdmission<Pod> for PodAccount {
    fn complete<'a>(&'a self, pod: &'a mut Pod) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            if pod_ips::is_mirror(pod) {
                let spec = pod.spec.as_ref();
                let name = spec.and_then(|spec| spec.service_account_name.as_deref());
                return match name {
                    None | Some("") => Ok(()),
                    Some(_) => {
                        let why = "a mirror pod may not reference service accounts";
                        Err(error::forbidden::<Pod>(pod.name(), why))
                    }
                };
            }
            let account = self.account(pod).await?;
            set_account(pod, &account);
            mount_token(pod, &account, || names::generated("", random::value()));
            Ok(())
        }
        .boxed()
    }
}

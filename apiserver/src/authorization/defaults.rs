//! The default roles and bindings, which are completed at each start, as in Kubernetes.

use futures::future;
use podplane_access::bootstrap::{self, Reconciliation, reconcile_binding, reconcile_role};
use podplane_api::{
    ObjectKey,
    rbac::{ClusterRole, ClusterRoleBinding},
    strategy::Strategy,
};
use podplane_proto::error::ApiError;

use crate::{
    engine::Engine,
    registry::{DeleteOptions, ObjectPart, Registry, WriteParams},
    storage,
};

/// Completes the stored default roles and bindings, concurrently, so that they share syncs of the
/// disk.
///
/// # Errors
///
/// The first write that failed.
pub(crate) async fn reconcile(
    engine: &Engine,
    roles: &Registry<ClusterRole>,
    bindings: &Registry<ClusterRoleBinding>,
) -> Result<(), ApiError> {
    let wanted_roles = bootstrap::cluster_roles();
    let each = wanted_roles.iter();
    future::try_join_all(each.map(|role| complete(engine, roles, role, reconcile_role))).await?;
    let wanted_bindings = bootstrap::cluster_role_bindings();
    let each = wanted_bindings.iter();
    let completed = each.map(|binding| complete(engine, bindings, binding, reconcile_binding));
    future::try_join_all(completed).await?;
    Ok(())
}

async fn complete<K: Strategy>(
    engine: &Engine,
    registry: &Registry<K>,
    wanted: &K,
    reconcile: impl Fn(&K, Option<&K>) -> Reconciliation<K>,
) -> Result<(), ApiError> {
    let key = ObjectKey::new("", wanted.name());
    let write = WriteParams::by_server();
    let create = async |object: K| match registry.create(object, &write).await {
        Err(error) if error.is_already_exists() => Ok(false),
        created => created.map(|_| true),
    };
    // Again, if another write comes between.
    loop {
        let stored = storage::get::<K>(engine, &storage::key::<K>(&key)?).await?;
        let stored = stored.as_ref().map(|(object, _)| object);
        let is_done = match reconcile(wanted, stored) {
            Reconciliation::Keep => true,
            Reconciliation::Create(object) => create(object).await?,
            Reconciliation::Update(object) => {
                match registry.update(object, ObjectPart::Main, &write).await {
                    Err(error) if error.is_conflict() || error.is_not_found() => false,
                    updated => updated.map(|_| true)?,
                }
            }
            Reconciliation::Recreate(object) => {
                match registry.delete(&key, &DeleteOptions::by_server()).await {
                    Err(error) if !error.is_not_found() => return Err(error),
                    _ => create(object).await?,
                }
            }
        };
        if is_done {
            return Ok(());
        }
    }
}

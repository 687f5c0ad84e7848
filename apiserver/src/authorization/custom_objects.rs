//! The garbage collector's right to custom objects: the rules of one ClusterRole, which follow the
//! kinds that are served.
//!
//! Kubernetes gives its collector all kinds, subresources included.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use podplane_access::bootstrap::CUSTOM_OBJECTS;
use podplane_api::{
    ObjectKey,
    rbac::{ClusterRole, PolicyRule},
};
use podplane_host::clock;
use podplane_proto::error::ApiError;
use tokio::sync::watch;

use crate::{
    registry::{ChangeTerms, ObjectPart, Operation, Registry},
    served::KindList,
};

/// The verbs that the collector needs for an object. Its other role lets it list and watch.
const VERBS: [&str; 3] = ["delete", "get", "patch"];
/// The pause after a write that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// Keeps the rules of the role. Completes when no kinds are served any more: the server ends.
pub(crate) async fn keep(
    mut lists: watch::Receiver<Arc<KindList>>,
    roles: Registry<ClusterRole>,
) -> Result<(), ApiError> {
    loop {
        let rules = rules(&lists.borrow_and_update());
        match write(&roles, &rules).await {
            // Somebody deleted the role: the collector does without, until the next start.
            Err(error) if !error.is_not_found() => {
                tracing::warn!(%error, retry_in = ?PAUSE, "failed to grant access to custom objects; trying again");
                clock::sleep(PAUSE).await;
            }
            _ => {
                if lists.changed().await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

async fn write(roles: &Registry<ClusterRole>, rules: &[PolicyRule]) -> Result<(), ApiError> {
    let key = ObjectKey::new("", CUSTOM_OBJECTS);
    let operation = Operation::Update(ObjectPart::Main);
    let set = |role: &mut ClusterRole| {
        role.rules = Some(rules.to_vec());
        Ok(())
    };
    let written = roles.modify(&key, operation, ChangeTerms::by_server(), set);
    written.await.map(drop)
}

/// A rule for each group.
fn rules(kinds: &KindList) -> Vec<PolicyRule> {
    let mut groups = BTreeMap::<String, BTreeSet<String>>::new();
    for resource in kinds.custom() {
        let names = resource.names();
        let plurals = groups.entry(names.group.to_string()).or_default();
        plurals.insert(names.plural.to_string());
    }
    let rules = groups.into_iter().map(|(group, plurals)| PolicyRule {
        api_groups: Some(vec![group]),
        resources: Some(plurals.into_iter().collect()),
        verbs: VERBS.map(str::to_owned).to_vec(),
        ..PolicyRule::default()
    });
    rules.collect()
}

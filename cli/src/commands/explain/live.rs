//! `explain` for any cluster: lists its objects, and asks the scheduler's own rules.

use podplane_api::{
    Object as _, ObjectKey, core::Pod, pod_ips::PodIpResource, policy::PodDisruptionBudget,
    scheduling::PriorityClass,
};
use podplane_client::{ApiError, Client, Permission};
use podplane_scheduler::{
    PlacementPolicy,
    pod::PodInfo,
    service::{
        hypothetical,
        snapshot::{ClusterSnapshot, SnapshotExplanation},
    },
};

use crate::{
    any_cluster::{AnyClusterFlags, list},
    commands::capacity::source::{self, ClusterObjects},
};

/// The rights that it needs.
const NEEDED: &[Permission] = &[
    list("", "nodes"),
    list("", "pods"),
    list("", "namespaces"),
    list("", "services"),
    list("apps", "replicasets"),
    list("policy", "poddisruptionbudgets"),
    list("scheduling.k8s.io", "priorityclasses"),
];

/// The pod of an explanation.
pub(super) enum Subject {
    Existing(ObjectKey),
    Hypothetical(Box<Pod>),
}

pub(super) async fn explain(
    flags: &AnyClusterFlags,
    policy: PlacementPolicy,
    subject: Subject,
) -> anyhow::Result<SnapshotExplanation> {
    let resource = &policy.pod_ip_resource.clone();
    let (client, _) = flags.client().await?;
    let (snapshot, classes) = match listed(&client, resource).await {
        Ok(listed) => listed,
        Err(error) => return Err(flags.name_missing_rules(error, NEEDED).await),
    };
    match subject {
        Subject::Existing(key) => snapshot
            .explain(&key, policy)
            .ok_or_else(|| ApiError::not_found(Pod::PLURAL, &key.name).into()),
        Subject::Hypothetical(pod) => {
            let mut pod = hypothetical::complete(*pod)
                .map_err(|errors| anyhow::anyhow!("invalid pod: {errors}"))?;
            hypothetical::prioritise(&mut pod, classes).map_err(anyhow::Error::msg)?;
            Ok(snapshot.explain_hypothetical(PodInfo::new(&pod, resource), policy))
        }
    }
}

/// Lists the objects that decide on the place of a pod.
pub(in crate::commands) async fn snapshot(
    client: &Client,
    resource: &PodIpResource,
) -> anyhow::Result<ClusterSnapshot> {
    let (snapshot, _) = listed(client, resource).await?;
    Ok(snapshot)
}

async fn listed(
    client: &Client,
    resource: &PodIpResource,
) -> anyhow::Result<(ClusterSnapshot, Vec<PriorityClass>)> {
    let ClusterObjects {
        nodes,
        pods,
        namespaces,
        services,
        replica_sets,
        classes,
        ..
    } = source::list(client, resource).await?;
    let budgets = source::all(client, |budget: PodDisruptionBudget| budget).await?;
    let snapshot = ClusterSnapshot {
        nodes,
        pods,
        namespaces,
        services,
        replica_sets,
        budgets,
    };
    Ok((snapshot, classes))
}

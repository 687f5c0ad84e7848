//! The admission of pods: the indexes of what they hold, and the check that a node has the
//! addresses for a pod that is placed on it (ADR 0039).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use podplane_api::{
    Object as _, ObjectKey, Quantity,
    core::{Container, Node, Pod, PodCondition, PodIP, PodSpec, PodStatus, ResourceRequirements},
    pod_ips::{self, AddressShortage, PodIpResource, no_address_on},
};
use podplane_ipam::IpPolicy;
use podplane_proto::error::{ApiError, FieldViolation, Reason};
use podplane_store::{Guard, Item, Key, KeyError, ListQuery, Prefix, StoreError, Write};
use serde::Deserialize;

use super::{
    Admission, CommitAdditions, ProposedChange, addresses,
    holders::{self, NodeHolders},
    repair::{self, RepairWrite},
};
use crate::{engine::Engine, error, parallel, storage};

/// The rules for the addresses of pods.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodIpRules {
    /// With [`IpPolicy::Resource`] a pod is placed only on a node that has addresses for it.
    pub(crate) policy: IpPolicy,
    /// The resource that counts addresses.
    pub(crate) resource: PodIpResource,
}

/// Maintains the indexes as pods change, and checks each placement on a node.
#[derive(Debug)]
pub(crate) struct PodAdmission {
    engine: Engine,
    rules: PodIpRules,
}

impl PodAdmission {
    /// Makes the indexes agree with the pods, in case a version without them wrote the store.
    pub(crate) async fn open(engine: Engine, rules: PodIpRules) -> Result<Self, StoreError> {
        let this = Self { engine, rules };
        repair::repair(&this.engine, || this.repairs().boxed()).await?;
        Ok(this)
    }

    async fn repairs(&self) -> Result<Vec<RepairWrite>, StoreError> {
        // Before the pods: what another server adds meanwhile is not taken for an entry without a
        // pod.
        let mut found = items_under(&self.engine, Prefix::from(addresses::ADDRESSES)).await?;
        found.extend(items_under(&self.engine, Prefix::from(holders::HOLDERS)).await?);
        let mut wanted = BTreeMap::new();
        let pods = items_under(&self.engine, storage::prefix::<Pod>()).await?;
        let keys = parallel::map(&pods, |item| {
            let pod = StoredPod::read(item)?;
            // A pod whose name is too long for a key was never stored.
            index_keys(&pod, &self.rules.resource).ok()
        });
        for (item, keys) in pods.iter().zip(keys) {
            wanted.extend(keys.into_iter().flatten().map(|key| (key, item)));
        }
        let mut repairs = Vec::new();
        for item in found {
            if wanted.remove(&item.key).is_none() {
                let key = item.key.clone();
                repairs.push(RepairWrite::over(Some(&item), Write::Delete { key }));
            }
        }
        let missing = wanted.into_iter();
        repairs.extend(missing.map(|(key, pod)| RepairWrite::over(None, put(key)).from(pod)));
        Ok(repairs)
    }

    /// The writes that keep the indexes in agreement with the pod.
    fn index_writes(&self, change: ProposedChange<'_, Pod>) -> Result<Vec<Write>, KeyError> {
        let keys = |pod: Option<&Pod>| {
            pod.map_or_else(
                || Ok(BTreeSet::new()),
                |pod| index_keys(pod, &self.rules.resource),
            )
        };
        let (before, after) = (keys(change.old)?, keys(change.new)?);
        let freed = before.difference(&after);
        let freed = freed.map(|key| Write::Delete { key: key.clone() });
        let held = after.difference(&before).cloned().map(put);
        Ok(freed.chain(held).collect())
    }

    /// The placement to check, if the change makes one.
    fn placement<'a>(&self, change: ProposedChange<'a, Pod>) -> Option<Placement<'a>> {
        if self.rules.policy != IpPolicy::Resource {
            return None;
        }
        let pod = change.new?;
        let node = node_of(pod)?;
        if change.old.and_then(node_of) == Some(node) || pod_ips::is_mirror(pod) {
            return None;
        }
        let needed = self.rules.resource.addresses_needed(pod);
        let is_bind = change.old.is_some();
        (needed > 0).then_some(Placement {
            pod,
            node,
            needed,
            is_bind,
        })
    }

    /// The guards that hold while the node has the addresses.
    ///
    /// # Errors
    ///
    /// The refusal, if the node cannot have them whatever the other pods on it are.
    async fn guards(&self, placement: &Placement<'_>) -> Result<[Guard; 2], ApiError> {
        let key = placement.node_key()?;
        let Some((node, revision)) = storage::get::<Node>(&self.engine, &key).await? else {
            return Err(placement.refusal("it does not exist"));
        };
        let most = self.rules.resource.most_held(&node, placement.needed);
        let most = most.filter(|_| placement.needed <= holders::MAX_ADDRESSES);
        let Some(most) = most else {
            let holders = self.holders(placement).await?;
            return Err(self.shortage(placement, &node, &holders));
        };
        Ok([
            Guard::At { key, revision },
            Guard::AtMostUnder {
                prefix: holders::on_node(placement.node),
                items: usize::try_from(most).unwrap_or(usize::MAX),
            },
        ])
    }

    /// Refuses the placement if the node does not have the addresses now.
    async fn check(&self, placement: &Placement<'_>) -> Result<(), ApiError> {
        let node = storage::get::<Node>(&self.engine, &placement.node_key()?).await?;
        let Some((node, _)) = node else {
            return Err(placement.refusal("it does not exist"));
        };
        let holders = self.holders(placement).await?;
        let most = self.rules.resource.most_held(&node, placement.needed);
        match most.is_some_and(|most| holders.held <= most) {
            true => Ok(()),
            false => Err(self.shortage(placement, &node, &holders)),
        }
    }

    async fn holders(&self, placement: &Placement<'_>) -> Result<NodeHolders, ApiError> {
        let holders = holders::read(&self.engine, placement.node).await;
        holders.map_err(error::store)
    }

    /// The refusal with the node's counts and the pods that hold its addresses.
    fn shortage(&self, placement: &Placement<'_>, node: &Node, holders: &NodeHolders) -> ApiError {
        if placement.needed > holders::MAX_ADDRESSES {
            let needed = placement.needed;
            let most = holders::MAX_ADDRESSES;
            let why = format!("the pod requests {needed} addresses, and can have at most {most}");
            return placement.refusal(&why);
        }
        let shortage = AddressShortage {
            counts: self.rules.resource.addresses(node, holders.held),
            needed: placement.needed,
            holders: &holders.pods,
        };
        placement.refusal(&shortage.to_string())
    }
}

impl Admission<Pod> for PodAdmission {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Pod>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        async move {
            let writes = self.index_writes(change);
            let writes = writes.map_err(|error| error::internal(&error))?;
            let guards = match self.placement(change) {
                Some(placement) => self.guards(&placement).await?.to_vec(),
                None => Vec::new(),
            };
            Ok(CommitAdditions { guards, writes })
        }
        .boxed()
    }

    fn check_guards<'a>(
        &'a self,
        change: ProposedChange<'a, Pod>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            match self.placement(change) {
                Some(placement) => self.check(&placement).await,
                None => Ok(()),
            }
        }
        .boxed()
    }
}

/// A pod that is being placed on a node.
#[derive(Debug)]
struct Placement<'a> {
    pod: &'a Pod,
    node: &'a str,
    /// The number of addresses that the pod needs, at least 1.
    needed: u64,
    /// The pod exists and is being bound; otherwise it is created with `spec.nodeName`.
    is_bind: bool,
}

impl Placement<'_> {
    fn node_key(&self) -> Result<Key, ApiError> {
        storage::key::<Node>(&ObjectKey::new("", self.node))
    }

    fn refusal(&self, why: &str) -> ApiError {
        let resource = match self.is_bind {
            true => "pods/binding",
            false => "pods",
        };
        let why = no_address_on(self.node, why);
        let violation = FieldViolation {
            field: "spec.nodeName".to_owned(),
            description: why.clone(),
        };
        let error = error::conflict(resource, self.pod.name(), &why);
        ApiError {
            reason: Reason::InsufficientPodIps,
            ..error.with_fields(vec![violation])
        }
    }
}

fn node_of(pod: &Pod) -> Option<&str> {
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    (!node.is_empty()).then_some(node)
}

fn index_keys(pod: &Pod, resource: &PodIpResource) -> Result<BTreeSet<Key>, KeyError> {
    let mut keys = addresses::keys(pod)?;
    keys.extend(holders::keys(pod, resource)?);
    Ok(keys)
}

fn put(key: Key) -> Write {
    Write::Put {
        key,
        value: Bytes::new(),
    }
}

async fn items_under(engine: &Engine, prefix: Prefix) -> Result<Vec<Arc<Item>>, StoreError> {
    let query = ListQuery {
        prefix,
        ..ListQuery::default()
    };
    Ok(engine.list(query).await?.items)
}

/// The fields of a stored pod that the indexes need, without decoding the rest.
#[derive(Deserialize)]
struct StoredPod {
    metadata: PodMetadata,
    #[serde(default)]
    spec: PodSpecFields,
    #[serde(default)]
    status: PodStatusFields,
}

#[derive(Deserialize)]
struct PodMetadata {
    name: String,
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpecFields {
    node_name: Option<String>,
    host_network: Option<bool>,
    #[serde(default)]
    containers: Vec<ContainerFields>,
    init_containers: Option<Vec<ContainerFields>>,
    resources: Option<ResourceRequirements>,
    overhead: Option<std::collections::BTreeMap<String, Quantity>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerFields {
    resources: Option<ResourceRequirements>,
    restart_policy: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatusFields {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Option<Vec<PodIP>>,
    conditions: Option<Vec<PodCondition>>,
}

impl StoredPod {
    fn read(item: &Item) -> Option<Pod> {
        let Self {
            metadata,
            spec,
            status,
        } = serde_json::from_slice(&item.value()).ok()?;
        let containers = |list: Vec<ContainerFields>| list.into_iter().map(Into::into).collect();
        let mut pod = Pod::default();
        pod.metadata.name = Some(metadata.name);
        pod.metadata.namespace = Some(metadata.namespace);
        pod.spec = Some(PodSpec {
            node_name: spec.node_name,
            host_network: spec.host_network,
            containers: containers(spec.containers),
            init_containers: spec.init_containers.map(containers),
            resources: spec.resources,
            overhead: spec.overhead,
            ..PodSpec::default()
        });
        pod.status = Some(PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            pod_ips: status.pod_ips,
            conditions: status.conditions,
            ..PodStatus::default()
        });
        Some(pod)
    }
}

impl From<ContainerFields> for Container {
    fn from(fields: ContainerFields) -> Self {
        Self {
            resources: fields.resources,
            restart_policy: fields.restart_policy,
            ..Self::default()
        }
    }
}

//! ServiceCIDRs: the ranges from which Services get their addresses, and which no node's block
//! overlaps.

use futures::{FutureExt as _, future::BoxFuture};
use ipnet::IpNet;
use podplane_api::{
    Object as _, ObjectKey,
    meta::{Condition, Time},
    networking::{ServiceCIDR, ServiceCIDRSpec},
    validation::{ErrorList, FieldPath},
};
use podplane_host::clock;
use podplane_ipam::{ServiceRange, ServiceRanges, parse_cidr};
use podplane_proto::error::ApiError;
use podplane_store::{Guard, Key, Revision};
use std::sync::Arc;

use super::{Admission, Allocation, CommitAdditions, ProposedChange, ServiceIndex};
use crate::{admission::NodeBlockAdmission, cache::Position, engine::Engine, error, storage};

/// The finalizer of a range while addresses of it are in use.
pub(crate) const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// The name of the range of the flag.
const DEFAULT: &str = "kubernetes";
const READY: &str = "Ready";

/// A range from which Services may get addresses.
#[derive(Debug)]
pub(super) struct ReadyRange {
    pub(super) range: ServiceRange,
    /// The key of its ServiceCIDR, and the revision at which it was ready.
    pub(super) key: Key,
    pub(super) revision: Revision,
}

/// The ranges that are ready, that of the flag first.
pub(super) async fn ready(engine: &Engine) -> Result<Vec<ReadyRange>, ApiError> {
    let mut all: Vec<ServiceCIDR> = storage::list(engine, storage::prefix::<ServiceCIDR>()).await?;
    all.sort_by_key(|cidr| cidr.name() != DEFAULT);
    let mut ready = Vec::new();
    for cidr in all.iter().filter(|cidr| is_ready(cidr)) {
        let key = storage::key::<ServiceCIDR>(&cidr.key())?;
        let Ok(revision) = cidr.resource_version().parse::<Revision>() else {
            continue;
        };
        for range in ranges(cidr) {
            ready.push(ReadyRange {
                range,
                key: key.clone(),
                revision,
            });
        }
    }
    Ok(ready)
}

fn is_ready(cidr: &ServiceCIDR) -> bool {
    let conditions = cidr.status.iter().flat_map(|status| &status.conditions);
    let mut of_type = conditions.flatten().filter(|one| one.type_ == READY);
    !cidr.is_deleting() && of_type.any(|condition| condition.status == "True")
}

fn nets(cidr: &ServiceCIDR) -> Vec<IpNet> {
    let texts = cidr
        .spec
        .iter()
        .flat_map(|spec| spec.cidrs.iter().flatten());
    let nets = texts.filter_map(|text| parse_cidr(text).ok());
    nets.map(|net| net.trunc()).collect()
}

fn ranges(cidr: &ServiceCIDR) -> Vec<ServiceRange> {
    let nets = nets(cidr).into_iter();
    nets.filter_map(ServiceRange::new).collect()
}

/// The ServiceCIDR of the flag; `None` without it.
pub(crate) fn default_service_cidr(ranges: &ServiceRanges) -> Option<ServiceCIDR> {
    let cidrs: Vec<_> = ranges.as_slice().iter().map(ToString::to_string).collect();
    let mut cidr = ServiceCIDR {
        spec: Some(ServiceCIDRSpec { cidrs: Some(cidrs) }),
        ..ServiceCIDR::default()
    };
    cidr.metadata.name = Some(DEFAULT.to_owned());
    (!ranges.as_slice().is_empty()).then_some(cidr)
}

fn condition(status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(storage::whole_seconds(clock::timestamp())),
        observed_generation: None,
    }
}

fn set_condition(cidr: &mut ServiceCIDR, new: Condition) {
    let status = cidr.status.get_or_insert_default();
    let conditions = status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|one| one.type_ == new.type_) {
        Some(old) if old.status == new.status && old.reason == new.reason => {}
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// Says in the status that the range is deleted, and waits for its addresses.
pub(crate) fn not_ready(cidr: &mut ServiceCIDR) {
    let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
    set_condition(cidr, condition("False", "Terminating", message));
}

/// Keeps the ranges apart from the blocks of nodes, and those that are in use.
#[derive(Debug)]
pub(crate) struct ServiceCidrAdmission {
    engine: Engine,
    position: Position,
    index: ServiceIndex,
    blocks: Arc<NodeBlockAdmission>,
}

impl ServiceCidrAdmission {
    pub(crate) fn new(
        engine: Engine,
        position: Position,
        index: ServiceIndex,
        blocks: Arc<NodeBlockAdmission>,
    ) -> Self {
        Self {
            engine,
            position,
            index,
            blocks,
        }
    }

    /// Checks that no address is in use that no other range has; the guards ensure that these
    /// remain.
    async fn check_unused(&self, cidr: &ServiceCIDR) -> Result<Vec<Guard>, ApiError> {
        // Since the deletion began, no Service has got an address by this range.
        let acknowledged = self.engine.acknowledged().await.map_err(error::store)?;
        self.position.reached(acknowledged).await?;
        let others: Vec<ServiceCIDR> =
            storage::list(&self.engine, storage::prefix::<ServiceCIDR>()).await?;
        let mut guards = Vec::new();
        let mut remaining = Vec::new();
        for other in &others {
            if other.name() == cidr.name() || other.is_deleting() {
                continue;
            }
            if let Ok(revision) = other.resource_version().parse() {
                let key = storage::key::<ServiceCIDR>(&other.key())?;
                guards.push(Guard::At { key, revision });
                remaining.extend(ranges(other));
            }
        }
        for range in ranges(cidr) {
            let used = self
                .index
                .look(|taken| taken.addresses.only_in(&range, &remaining));
            if let Some(address) = used {
                let resource = error::resource::<ServiceCIDR>();
                let why = format!("{address} of {} is in use", range.net());
                return Err(error::conflict(&resource, cidr.name(), &why));
            }
        }
        Ok(guards)
    }

    async fn commit_of(
        &self,
        change: ProposedChange<'_, ServiceCIDR>,
    ) -> Result<CommitAdditions, ApiError> {
        let mut additions = CommitAdditions::default();
        let before = change.old.map(nets).unwrap_or_default();
        let after = change.new.map(nets).unwrap_or_default();
        let Some(cidr) = change.new.or(change.old) else {
            return Ok(additions);
        };
        if change.new.is_none() {
            additions.guards = self.check_unused(cidr).await?;
        }
        if before == after {
            return Ok(additions);
        }
        let given: Vec<_> = after
            .iter()
            .filter(|net| !before.contains(net))
            .copied()
            .collect();
        let separate = self.blocks.outside_of_blocks(&given).await;
        additions.guards.extend(separate.map_err(error::store)?);
        let recorded = self.blocks.record_services(cidr.name(), &after).await?;
        additions.guards.extend(recorded.guards);
        additions.writes.extend(recorded.writes);
        Ok(additions)
    }
}

impl Allocation<ServiceCIDR> for ServiceCidrAdmission {
    fn allocate<'a>(
        &'a self,
        old: Option<&'a ServiceCIDR>,
        new: &'a mut ServiceCIDR,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        if !new.is_deleting() {
            let finalizers = new.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|finalizer| finalizer == FINALIZER) {
                finalizers.push(FINALIZER.to_owned());
            }
            if old.is_none() {
                let message = "Kubernetes Service CIDR is ready";
                set_condition(new, condition("True", "", message));
            }
        }
        futures::future::ready(Ok(())).boxed()
    }
}

impl Admission<ServiceCIDR> for ServiceCidrAdmission {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, ServiceCIDR>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        self.commit_of(change).boxed()
    }

    fn check_guards<'a>(
        &'a self,
        change: ProposedChange<'a, ServiceCIDR>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let before = change.old.map(nets).unwrap_or_default();
            let Some(cidr) = change.new else {
                return Ok(());
            };
            let nets = nets(cidr);
            let given: Vec<_> = nets
                .iter()
                .filter(|net| !before.contains(net))
                .copied()
                .collect();
            match self.blocks.overlapped_by(&given).await? {
                None => Ok(()),
                Some((net, whose)) => {
                    let mut errors = ErrorList::new();
                    let path = FieldPath::new("spec").child("cidrs");
                    errors.invalid(&path, net.to_string(), &format!("overlaps {whose}"));
                    Err(error::invalid::<ServiceCIDR>(cidr.name(), &errors))
                }
            }
        }
        .boxed()
    }
}

/// The names and prefixes of all stored ServiceCIDRs.
pub(super) async fn all(engine: &Engine) -> Result<Vec<(ObjectKey, Vec<IpNet>)>, ApiError> {
    let all: Vec<ServiceCIDR> = storage::list(engine, storage::prefix::<ServiceCIDR>()).await?;
    Ok(all.iter().map(|cidr| (cidr.key(), nets(cidr))).collect())
}

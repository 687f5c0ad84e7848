//! The admission of Services: their addresses and node ports, each of which one Service has
//! (ADR 0058).
//!
//! An address is reserved by its IPAddress, and a node port by a record
//! `/podplane/node-ports/<port>`, written in the commit of the Service under the guard that it is
//! absent. So no two Services get the same, whoever writes them, and what a Service does not hold
//! any more is free from the commit that changed it. The choice is made from an index in memory,
//! which only has to be nearly right.

mod index;
mod open;
mod ranges;

use std::{collections::BTreeMap, net::IpAddr};

use futures::{FutureExt as _, future::BoxFuture, future::ready};
use podplane_api::{
    Object as _, ObjectKey,
    core::Service,
    kinds::service::allocation::{
        self as fields, ServiceHoldings, add_address, add_node_ports, init_families,
        missing_addresses, named_node_ports, set_any_families,
    },
    meta::{ObjectMeta, Time},
    networking::{IPAddress, IPAddressSpec, ParentReference},
    validation::{ErrorList, FieldPath},
};
use podplane_host::{clock, random};
use podplane_ipam::{Family, NodePortRange, ServiceRanges};
use podplane_proto::error::{ApiError, Reason};
use podplane_store::{Guard, Key, KeyError, Write};
use serde_json::json;

use self::ranges::ReadyRange;
pub(crate) use self::{
    index::ServiceIndex,
    ranges::{FINALIZER, ServiceCidrAdmission, default_service_cidr, not_ready},
};
use super::{Admission, Allocation, CommitAdditions, ProposedChange};
use crate::{cache::Position, engine::Engine, error, storage};

/// The labels of an IPAddress that belongs to a Service.
const FAMILY_LABEL: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY_LABEL: &str = "ipaddress.kubernetes.io/managed-by";
const MANAGER: &str = "ipallocator.k8s.io";

const NODE_PORTS: &str = "/podplane/node-ports/";

/// Gives Services their addresses and node ports.
#[derive(Debug)]
pub(crate) struct ServiceAdmission {
    engine: Engine,
    position: Position,
    index: ServiceIndex,
    /// The families of the cluster's Services, the default first. Without any, Services are stored
    /// as they are.
    families: Vec<Family>,
    node_ports: NodePortRange,
}

impl ServiceAdmission {
    pub(crate) fn new(
        engine: Engine,
        position: Position,
        index: ServiceIndex,
        ranges: &ServiceRanges,
        node_ports: NodePortRange,
    ) -> Self {
        Self {
            engine,
            position,
            index,
            families: ranges.as_slice().iter().map(Family::of).collect(),
            node_ports,
        }
    }

    /// Waits until the index has every write that refused one of this server's commits.
    async fn caught_up(&self) -> Result<(), ApiError> {
        self.position.reached(self.engine.known()).await
    }

    async fn give(&self, old: Option<&Service>, new: &mut Service) -> Result<(), ApiError> {
        if self.families.is_empty() {
            set_any_families(new);
            return Ok(());
        }
        // What is changed about it besides, its end included, must not fail because the cluster has
        // other families now.
        let has_all = |old: &Service| old.spec == new.spec && !fields::is_incomplete(new);
        if old.is_some_and(has_all) {
            return Ok(());
        }
        let before = old.map(ServiceHoldings::of).unwrap_or_default();
        if new.is_deleting() {
            // It gets nothing, and what it asks for is checked as ever.
            self.check_addresses(new, &before).await?;
            return self.check_node_ports(new, &before).await;
        }
        let families = init_families(new, old, &self.families);
        families.map_err(|errors| error::invalid::<Service>(new.name(), &errors))?;
        self.check_addresses(new, &before).await?;
        self.check_node_ports(new, &before).await?;
        let missing = missing_addresses(new);
        if !missing.is_empty() {
            self.caught_up().await?;
            let ranges = ranges::ready(&self.engine).await?;
            for (_, family) in missing {
                let address = self.pick(&ranges, family)?;
                add_address(new, address);
            }
        }
        self.give_node_ports(new).await
    }

    fn pick(&self, ranges: &[ReadyRange], family: Family) -> Result<IpAddr, ApiError> {
        let mut of_family = ranges
            .iter()
            .filter(|range| range.range.family() == family)
            .map(|range| &range.range);
        let picked = self.index.look(|taken| {
            of_family.find_map(|range| range.pick(&taken.addresses, random::value()))
        });
        picked.ok_or_else(|| {
            let message =
                format!("failed to allocate a serviceIP: no {family} range has a free address");
            ApiError::new(Reason::InternalError, message)
        })
    }

    async fn give_node_ports(&self, service: &mut Service) -> Result<(), ApiError> {
        if !fields::lacks_node_ports(service) {
            return Ok(());
        }
        self.caught_up().await?;
        let mut taken = self.index.look(|taken| taken.node_ports.clone());
        for port in ServiceHoldings::of(service).node_ports {
            taken.insert(u128::from(port));
        }
        add_node_ports(service, || {
            let port = self.node_ports.pick(&taken, random::value());
            let port = port.ok_or_else(|| {
                let message = format!(
                    "failed to allocate a nodePort: range {} is full",
                    self.node_ports
                );
                ApiError::new(Reason::InternalError, message)
            })?;
            taken.insert(u128::from(port));
            Ok(port)
        })
    }

    /// Checks the addresses that the Service asks for.
    async fn check_addresses(
        &self,
        service: &Service,
        before: &ServiceHoldings,
    ) -> Result<(), ApiError> {
        let asked = ServiceHoldings::of(service).addresses;
        let mut asked = asked.difference(&before.addresses).peekable();
        if asked.peek().is_none() {
            return Ok(());
        }
        let ranges = ranges::ready(&self.engine).await?;
        for address in asked {
            if !ranges.iter().any(|range| range.range.contains(*address)) {
                let why = out_of_range(*address, &ranges);
                return Err(refused_address(service, *address, &why));
            }
            let key = address_key(*address)?;
            if self.engine.get(&key).await.map_err(error::store)?.is_some() {
                let why = "provided IP is already allocated";
                return Err(refused_address(service, *address, why));
            }
        }
        Ok(())
    }

    /// Checks the node ports that the Service asks for.
    async fn check_node_ports(
        &self,
        service: &Service,
        before: &ServiceHoldings,
    ) -> Result<(), ApiError> {
        for (path, port) in named_node_ports(service) {
            let number = u16::try_from(port).ok();
            if number.is_some_and(|number| before.node_ports.contains(&number)) {
                continue;
            }
            let why = match number.filter(|number| self.node_ports.contains(*number)) {
                None => format!(
                    "provided port is not in the valid range. The range of valid ports is {}",
                    self.node_ports
                ),
                Some(number) => {
                    let key = node_port_key(number).map_err(|error| error::internal(&error))?;
                    match self.engine.get(&key).await.map_err(error::store)? {
                        None => continue,
                        Some(_) => "provided port is already allocated".to_owned(),
                    }
                }
            };
            let mut errors = ErrorList::new();
            errors.invalid(&path, port, &why);
            return Err(error::invalid::<Service>(service.name(), &errors));
        }
        Ok(())
    }

    /// The guards and writes by which the holdings of a Service follow it.
    async fn commit_of(
        &self,
        change: ProposedChange<'_, Service>,
    ) -> Result<CommitAdditions, ApiError> {
        let mut additions = CommitAdditions::default();
        let Some(service) = change.new.or(change.old) else {
            return Ok(additions);
        };
        let before = change.old.map(ServiceHoldings::of).unwrap_or_default();
        let after = change.new.map(ServiceHoldings::of).unwrap_or_default();
        if before == after {
            return Ok(additions);
        }
        if !self.families.is_empty() {
            self.take(service, &before, &after, &mut additions).await?;
        }
        self.give_back(service, &before, &after, &mut additions)
            .await?;
        Ok(additions)
    }

    async fn take(
        &self,
        service: &Service,
        before: &ServiceHoldings,
        after: &ServiceHoldings,
        additions: &mut CommitAdditions,
    ) -> Result<(), ApiError> {
        let mut given = after.addresses.difference(&before.addresses).peekable();
        let ranges = match given.peek() {
            Some(_) => ranges::ready(&self.engine).await?,
            None => Vec::new(),
        };
        let mut in_use = BTreeMap::new();
        for address in given {
            let Some(range) = ranges.iter().find(|one| one.range.contains(*address)) else {
                let why = out_of_range(*address, &ranges);
                return Err(refused_address(service, *address, &why));
            };
            in_use.insert(range.key.clone(), range.revision);
            let key = address_key(*address)?;
            let value = storage::encode(&mut ip_address(*address, &service.key()))?;
            additions.guards.push(Guard::Absent(key.clone()));
            additions.writes.push(Write::Put { key, value });
        }
        // An address of a range that is being deleted would keep it for ever.
        let in_use = in_use.into_iter();
        additions
            .guards
            .extend(in_use.map(|(key, revision)| Guard::At { key, revision }));
        for port in after.node_ports.difference(&before.node_ports) {
            let key = node_port_key(*port).map_err(|error| error::internal(&error))?;
            additions.guards.push(Guard::Absent(key.clone()));
            let value = service.key().to_string().into();
            additions.writes.push(Write::Put { key, value });
        }
        Ok(())
    }

    /// Gives back what the Service holds no longer, as far as it was reserved for it.
    async fn give_back(
        &self,
        service: &Service,
        before: &ServiceHoldings,
        after: &ServiceHoldings,
        additions: &mut CommitAdditions,
    ) -> Result<(), ApiError> {
        let mut free = |key: Key, revision| {
            let guard = Guard::At {
                key: key.clone(),
                revision,
            };
            additions.guards.push(guard);
            additions.writes.push(Write::Delete { key });
        };
        for address in before.addresses.difference(&after.addresses) {
            let key = address_key(*address)?;
            if let Some((found, revision)) = storage::get::<IPAddress>(&self.engine, &key).await?
                && parent(&found).as_ref() == Some(&service.key())
            {
                free(key, revision);
            }
        }
        for port in before.node_ports.difference(&after.node_ports) {
            let key = node_port_key(*port).map_err(|error| error::internal(&error))?;
            if let Some(item) = self.engine.get(&key).await.map_err(error::store)?
                && *item.value() == *service.key().to_string().as_bytes()
            {
                free(key, item.modified);
            }
        }
        Ok(())
    }
}

impl Allocation<Service> for ServiceAdmission {
    fn allocate<'a>(
        &'a self,
        old: Option<&'a Service>,
        new: &'a mut Service,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        self.give(old, new).boxed()
    }
}

impl Admission<Service> for ServiceAdmission {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, Service>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        self.commit_of(change).boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, Service>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        // The next allocation refuses what was asked for and is taken by now, and chooses anew what
        // was not.
        ready(Ok(())).boxed()
    }
}

/// Keeps the IPAddresses of Services: one that is deleted alone could be given again.
#[derive(Debug)]
pub(crate) struct HeldAddresses(Engine);

impl HeldAddresses {
    pub(crate) fn new(engine: Engine) -> Self {
        Self(engine)
    }

    async fn check(&self, change: ProposedChange<'_, IPAddress>) -> Result<(), ApiError> {
        let is_kept = change.new.is_some_and(|new| !new.is_deleting());
        let Some(old) = change.old.filter(|_| !is_kept) else {
            return Ok(());
        };
        let (Some(parent), Ok(address)) = (parent(old), old.name().parse::<IpAddr>()) else {
            return Ok(());
        };
        let Ok(key) = storage::key::<Service>(&parent) else {
            return Ok(());
        };
        let found = storage::get::<Service>(&self.0, &key).await?;
        let holds = found
            .is_some_and(|(service, _)| ServiceHoldings::of(&service).addresses.contains(&address));
        match holds {
            true => {
                let why = format!("the Service {parent} has the address: delete the Service");
                Err(error::forbidden::<IPAddress>(old.name(), &why))
            }
            false => Ok(()),
        }
    }
}

impl Admission<IPAddress> for HeldAddresses {
    fn additions<'a>(
        &'a self,
        change: ProposedChange<'a, IPAddress>,
    ) -> BoxFuture<'a, Result<CommitAdditions, ApiError>> {
        // A Service that takes the address at the same moment needs it to be absent, and finds it.
        async move {
            self.check(change)
                .await
                .map(|()| CommitAdditions::default())
        }
        .boxed()
    }

    fn check_guards<'a>(
        &'a self,
        _change: ProposedChange<'a, IPAddress>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        // There are no guards.
        ready(Ok(())).boxed()
    }
}

/// The key of the IPAddress of an address.
fn address_key(address: IpAddr) -> Result<Key, ApiError> {
    storage::key::<IPAddress>(&ObjectKey::new("", address.to_string()))
}

fn node_port_key(port: u16) -> Result<Key, KeyError> {
    Key::try_from(format!("{NODE_PORTS}{port}"))
}

/// The port of a record's key.
fn node_port_of(key: &Key) -> Option<u16> {
    key.as_str()?.strip_prefix(NODE_PORTS)?.parse().ok()
}

/// The address of the key of an IPAddress.
fn address_of(key: &Key) -> Option<IpAddr> {
    key.as_str()?.rsplit('/').next()?.parse().ok()
}

/// The IPAddress by which a Service has an address.
fn ip_address(address: IpAddr, service: &ObjectKey) -> IPAddress {
    let labels = [
        (FAMILY_LABEL, Family::of_address(address).to_string()),
        (MANAGED_BY_LABEL, MANAGER.to_owned()),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value));
    IPAddress {
        metadata: ObjectMeta {
            name: Some(address.to_string()),
            uid: Some(random::uuid().to_string()),
            creation_timestamp: Some(Time(storage::whole_seconds(clock::timestamp()))),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        spec: IPAddressSpec {
            parent_ref: ParentReference {
                group: None,
                resource: "services".to_owned(),
                namespace: Some(service.namespace.clone()),
                name: service.name.clone(),
            },
        },
    }
}

/// The Service that has an address.
fn parent(address: &IPAddress) -> Option<ObjectKey> {
    let ParentReference {
        group,
        resource,
        namespace,
        name,
    } = &address.spec.parent_ref;
    let is_service = group.as_deref().unwrap_or_default().is_empty() && resource == "services";
    let namespace = namespace.as_deref().filter(|_| is_service)?;
    Some(ObjectKey::new(namespace, name.as_str()))
}

/// True if the IPAddress was made for a Service by an API server.
fn is_managed(address: &IPAddress) -> bool {
    let labels = address.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY_LABEL).map(String::as_str)) == Some(MANAGER)
}

fn out_of_range(address: IpAddr, ranges: &[ReadyRange]) -> String {
    let family = Family::of_address(address);
    let ranges = ranges.iter().map(|range| &range.range);
    let ranges = ranges.filter(|range| range.family() == family);
    let ranges: Vec<_> = ranges.map(|range| range.net().to_string()).collect();
    format!(
        "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
        ranges.join(",")
    )
}

fn refused_address(service: &Service, address: IpAddr, why: &str) -> ApiError {
    let all = service.spec.as_ref().map(|spec| json!(spec.cluster_ips));
    let mut errors = ErrorList::new();
    errors.invalid(
        &FieldPath::new("spec").child("clusterIPs"),
        all.unwrap_or_default(),
        &format!("failed to allocate IP {address}: {why}"),
    );
    error::invalid::<Service>(service.name(), &errors)
}

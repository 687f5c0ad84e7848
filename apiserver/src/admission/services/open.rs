//! Makes the reservations and the Services agree when the server starts.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Display,
    net::IpAddr,
    sync::Arc,
};

use futures::FutureExt as _;
use podplane_api::{
    Object, ObjectKey, core::Service, kinds::service::allocation::ServiceHoldings,
    networking::IPAddress,
};
use podplane_proto::error::ApiError;
use podplane_store::{Guard, Item, ListQuery, Prefix, StoreError, Write};

use super::{
    NODE_PORTS, ServiceAdmission, address_key, address_of, ip_address, is_managed, node_port_key,
    node_port_of, parent, ranges,
};
use crate::{
    admission::{
        NodeBlockAdmission,
        repair::{self, RepairWrite},
    },
    engine::Engine,
    error, storage,
};

impl ServiceAdmission {
    /// Reserves what Services hold, in case a version without reservations wrote the store, and
    /// frees what no Service holds any more. Of several Services with one address or port, the
    /// oldest has it; the others are logged and stay as they are. Without ranges nothing changes.
    pub(crate) async fn repair(&self, blocks: &NodeBlockAdmission) -> Result<(), ApiError> {
        let repaired = repair::repair(&self.engine, || self.repairs(blocks).boxed()).await;
        repaired.map_err(|RepairError(error)| error)
    }

    async fn repairs(&self, blocks: &NodeBlockAdmission) -> Result<Vec<RepairWrite>, RepairError> {
        let mut repairs = Vec::new();
        let recorded = blocks.recorded_services().await?;
        let ranges = ranges::all(&self.engine).await?;
        let ranges = ranges.into_iter().map(|(key, nets)| (key.name, nets));
        let record = recorded.repaired(ranges);
        repairs.extend(record.map(|(guard, put)| RepairWrite::new(put).while_holds(guard)));
        if !self.families.is_empty() {
            // Before the Services: what another server adds meanwhile is not taken for a
            // reservation without a Service.
            let reserved = items(&self.engine, storage::prefix::<IPAddress>()).await?;
            let reserved_ports = items(&self.engine, Prefix::from(NODE_PORTS)).await?;
            let mut services: Vec<Service> = self.all(storage::prefix::<Service>()).await?;
            services.sort_by_cached_key(|service| {
                let created = service.metadata.creation_timestamp.clone();
                (created.map(|time| time.0), service.key())
            });
            let (mut addresses, mut ports) = (Holders::new("address"), Holders::new("node port"));
            for service in &services {
                let Some(holder) = Holder::of(service) else {
                    continue;
                };
                let held = ServiceHoldings::of(service);
                for address in held.addresses {
                    addresses.add(address, holder.clone());
                }
                for port in held.node_ports {
                    ports.add(port, holder.clone());
                }
            }
            repair_addresses(&reserved, addresses, &mut repairs)?;
            repair_ports(&reserved_ports, ports, &mut repairs)?;
        }
        Ok(repairs)
    }

    async fn all<K: Object>(&self, prefix: Prefix) -> Result<Vec<K>, ApiError> {
        let all = items(&self.engine, prefix).await?;
        // One that cannot be read is logged by the cache of its kind.
        Ok(all
            .iter()
            .filter_map(|item| storage::decode(item).ok())
            .collect())
    }
}

fn repair_addresses(
    reserved: &[Arc<Item>],
    mut wanted: Holders<IpAddr>,
    repairs: &mut Vec<RepairWrite>,
) -> Result<(), ApiError> {
    for item in reserved {
        let (Some(address), Ok(found)) = (address_of(&item.key), storage::decode(item)) else {
            continue;
        };
        let parent: Option<ObjectKey> = parent(&found);
        let over = |write| RepairWrite::over(Some(item), write);
        let key = item.key.clone();
        match wanted.0.remove(&address) {
            Some(holder) if parent.as_ref() == Some(&holder.service) => {}
            Some(Holder { service, unchanged }) if is_managed(&found) => {
                // The former holder does not have it: each address has one here.
                tracing::warn!(%address, %service, "IPAddress named another service; repaired");
                let value = storage::encode(&mut ip_address(address, &service))?;
                repairs.push(over(Write::Put { key, value }).while_holds(unchanged));
            }
            Some(Holder { service, .. }) => {
                tracing::warn!(%address, %service, "service has an address that an IPAddress reserves for another object; recreate the service");
            }
            None if is_managed(&found) && parent.is_some() => {
                repairs.push(over(Write::Delete { key }));
            }
            None => {}
        }
    }
    for (address, Holder { service, unchanged }) in wanted.0 {
        let value = storage::encode(&mut ip_address(address, &service))?;
        let key = address_key(address)?;
        let put = RepairWrite::over(None, Write::Put { key, value });
        repairs.push(put.while_holds(unchanged));
    }
    Ok(())
}

fn repair_ports(
    reserved: &[Arc<Item>],
    mut wanted: Holders<u16>,
    repairs: &mut Vec<RepairWrite>,
) -> Result<(), ApiError> {
    for item in reserved {
        let key = item.key.clone();
        let holder = node_port_of(&key).and_then(|port| wanted.0.remove(&port));
        let write = match holder {
            Some(holder) if *holder.service.to_string().as_bytes() == *item.value() => continue,
            Some(Holder { service, unchanged }) => {
                let value = service.to_string().into();
                RepairWrite::over(Some(item), Write::Put { key, value }).while_holds(unchanged)
            }
            None => RepairWrite::over(Some(item), Write::Delete { key }),
        };
        repairs.push(write);
    }
    for (port, Holder { service, unchanged }) in wanted.0 {
        let key = node_port_key(port).map_err(|error| error::internal(&error))?;
        let value = service.to_string().into();
        let put = RepairWrite::over(None, Write::Put { key, value });
        repairs.push(put.while_holds(unchanged));
    }
    Ok(())
}

/// An error of a repair, of the store or of an object.
struct RepairError(ApiError);

impl From<StoreError> for RepairError {
    fn from(error: StoreError) -> Self {
        Self(error::store(error))
    }
}

impl From<ApiError> for RepairError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

/// A Service with an address or port, and the guard that it does not change.
#[derive(Clone)]
struct Holder {
    service: ObjectKey,
    unchanged: Guard,
}

impl Holder {
    fn of(service: &Service) -> Option<Self> {
        let revision = service.metadata.resource_version.as_deref();
        Some(Self {
            unchanged: Guard::At {
                key: storage::key::<Service>(&service.key()).ok()?,
                revision: revision?.parse().ok()?,
            },
            service: service.key(),
        })
    }
}

/// The Service that has each address or port.
struct Holders<T>(BTreeMap<T, Holder>, &'static str);

impl<T: Ord + Display> Holders<T> {
    fn new(what: &'static str) -> Self {
        Self(BTreeMap::new(), what)
    }

    fn add(&mut self, held: T, holder: Holder) {
        let what = self.1;
        match self.0.entry(held) {
            Entry::Vacant(free) => {
                free.insert(holder);
            }
            Entry::Occupied(taken) => {
                let (number, holder, service) = (taken.key(), &taken.get().service, holder.service);
                tracing::warn!(%number, %service, %holder, what, "two services have the same address or node port; recreate the service");
            }
        }
    }
}

async fn items(engine: &Engine, prefix: Prefix) -> Result<Vec<Arc<Item>>, ApiError> {
    let query = ListQuery {
        prefix,
        ..ListQuery::default()
    };
    let listed: Result<_, StoreError> = engine.list(query).await;
    Ok(listed.map_err(error::store)?.items)
}

//! Makes the reservations and the Services agree when the server starts.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Display,
    net::IpAddr,
};

use podplane_api::{
    Object, ObjectKey, core::Service, kinds::service::allocation::ServiceHoldings,
    networking::IPAddress,
};
use podplane_proto::error::ApiError;
use podplane_store::{Item, ListQuery, MAX_WRITES, Prefix, StoreError, Txn, Write};

use super::{
    NODE_PORTS, ServiceAdmission, address_key, address_of, ip_address, is_managed, node_port_key,
    node_port_of, parent, ranges,
};
use crate::{admission::NodeBlockAdmission, engine::Engine, error, storage};

impl ServiceAdmission {
    /// Reserves what Services hold, in case a version without reservations wrote the store, and
    /// frees what no Service holds any more. Of several Services with one address or port, the
    /// oldest has it; the others are logged and stay as they are. Without ranges nothing changes.
    pub(crate) async fn repair(&self, blocks: &NodeBlockAdmission) -> Result<(), ApiError> {
        let mut writes = Vec::new();
        let ranges = ranges::all(&self.engine).await?;
        let ranges = ranges.into_iter().map(|(key, nets)| (key.name, nets));
        let record = blocks.set_services(ranges).await.map_err(error::store)?;
        writes.extend(record);
        if !self.families.is_empty() {
            let mut services: Vec<Service> = self.all(storage::prefix::<Service>()).await?;
            services.sort_by_cached_key(|service| {
                let created = service.metadata.creation_timestamp.clone();
                (created.map(|time| time.0), service.key())
            });
            let (mut addresses, mut ports) = (Holders::new("address"), Holders::new("node port"));
            for service in &services {
                let held = ServiceHoldings::of(service);
                for address in held.addresses {
                    addresses.add(address, service.key());
                }
                for port in held.node_ports {
                    ports.add(port, service.key());
                }
            }
            self.repair_addresses(addresses, &mut writes).await?;
            self.repair_ports(ports, &mut writes).await?;
        }
        for writes in writes.chunks(MAX_WRITES) {
            let txn = Txn {
                guards: Vec::new(),
                writes: writes.to_vec(),
                reclaims: false,
            };
            self.engine.commit(txn).await.map_err(error::store)?;
        }
        Ok(())
    }

    async fn repair_addresses(
        &self,
        mut wanted: Holders<IpAddr>,
        writes: &mut Vec<Write>,
    ) -> Result<(), ApiError> {
        for item in items(&self.engine, storage::prefix::<IPAddress>()).await? {
            let (Some(address), Ok(found)) = (address_of(&item.key), storage::decode(&item)) else {
                continue;
            };
            let holder: Option<ObjectKey> = parent(&found);
            match wanted.0.get(&address) {
                Some(service) if holder.as_ref() == Some(service) => {
                    wanted.0.remove(&address);
                }
                Some(service) if is_managed(&found) => {
                    // The former holder does not have it: each address has one here.
                    tracing::warn!(%address, %service, "IPAddress named another service; repaired");
                    let value = storage::encode(&mut ip_address(address, service))?;
                    let key = item.key.clone();
                    writes.push(Write::Put { key, value });
                    wanted.0.remove(&address);
                }
                Some(service) => {
                    tracing::warn!(%address, %service, "service has an address that an IPAddress reserves for another object; recreate the service");
                    wanted.0.remove(&address);
                }
                None if is_managed(&found) && holder.is_some() => {
                    writes.push(Write::Delete {
                        key: item.key.clone(),
                    });
                }
                None => {}
            }
        }
        for (address, service) in wanted.0 {
            let value = storage::encode(&mut ip_address(address, &service))?;
            let key = address_key(address)?;
            writes.push(Write::Put { key, value });
        }
        Ok(())
    }

    async fn repair_ports(
        &self,
        mut wanted: Holders<u16>,
        writes: &mut Vec<Write>,
    ) -> Result<(), ApiError> {
        for item in items(&self.engine, Prefix::from(NODE_PORTS)).await? {
            let holder = node_port_of(&item.key).and_then(|port| wanted.0.remove_entry(&port));
            match holder {
                Some((_, service)) if *service.to_string().as_bytes() == *item.value => {}
                Some((port, service)) => {
                    wanted.0.insert(port, service);
                }
                None => writes.push(Write::Delete {
                    key: item.key.clone(),
                }),
            }
        }
        for (port, service) in wanted.0 {
            let key = node_port_key(port).map_err(|error| error::internal(&error))?;
            let value = service.to_string().into();
            writes.push(Write::Put { key, value });
        }
        Ok(())
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

/// The Service that has each address or port.
struct Holders<T>(BTreeMap<T, ObjectKey>, &'static str);

impl<T: Ord + Display> Holders<T> {
    fn new(what: &'static str) -> Self {
        Self(BTreeMap::new(), what)
    }

    fn add(&mut self, held: T, service: ObjectKey) {
        let what = self.1;
        match self.0.entry(held) {
            Entry::Vacant(free) => {
                free.insert(service);
            }
            Entry::Occupied(taken) => {
                let (number, holder) = (taken.key(), taken.get());
                tracing::warn!(%number, %service, %holder, what, "two services have the same address or node port; recreate the service");
            }
        }
    }
}

async fn items(engine: &Engine, prefix: Prefix) -> Result<Vec<Item>, ApiError> {
    let query = ListQuery {
        prefix,
        ..ListQuery::default()
    };
    let listed: Result<_, StoreError> = engine.list(query).await;
    Ok(listed.map_err(error::store)?.items)
}

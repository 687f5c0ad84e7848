//! The endpoints of the Service `kubernetes`: the addresses of the API servers of this store.
//!
//! Servers that share a store tell each other that they run by renewing a Lease each, as those of
//! Kubernetes do; each of them removes the addresses of the others that do not.

use std::{
    collections::{BTreeMap, BTreeSet},
    future,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use podplane_api::{
    Object as _, ObjectKey,
    coordination::{Lease, LeaseSpec},
    core::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints},
    discovery::{Endpoint, EndpointConditions, EndpointPort as SlicePort, EndpointSlice},
    meta::{MicroTime, ObjectMeta},
    strategy::Strategy,
};
use podplane_host::clock::{self, Instant};
use podplane_ipam::Family;
use podplane_proto::{error::ApiError, wire::Preconditions};

use super::services::{NAME, NAMESPACE, PORT_NAME, named};
use crate::{
    cache::Query,
    engine::Engine,
    registry::{ChangeTerms, DeleteOptions, ObjectPart, Operation, Registry, WriteParams},
};

/// The namespace of the Leases of servers.
const LEASES: &str = "kube-system";
/// The label of the Leases of servers, as Kubernetes has it, and its value for ours.
const IDENTITY: (&str, &str) = ("apiserver.kubernetes.io/identity", "podplane-apiserver");
/// The interval at which a server renews its Lease.
const RENEW_EVERY: Duration = Duration::from_secs(5);
/// The time after the last renewal, by the clock of the one who watches it, at which a server is
/// taken for gone: Kubernetes' for its endpoints.
const GONE_AFTER: Duration = Duration::from_secs(15);

/// Publishes the addresses of the servers of this store.
pub(crate) struct ServerEndpoints {
    engine: Engine,
    leases: Registry<Lease>,
    endpoints: Registry<Endpoints>,
    slices: Registry<EndpointSlice>,
    /// The Leases of the servers, by name: the last renewal of each, and when it was seen.
    renewals: Mutex<BTreeMap<String, (Option<MicroTime>, Instant)>>,
}

impl ServerEndpoints {
    pub(crate) fn new(
        engine: Engine,
        leases: Registry<Lease>,
        endpoints: Registry<Endpoints>,
        slices: Registry<EndpointSlice>,
    ) -> Self {
        Self {
            engine,
            leases,
            endpoints,
            slices,
            renewals: Mutex::default(),
        }
    }

    /// Publishes the address of this server, if others can reach it, and those of the others that
    /// run.
    pub(super) async fn publish(&self, own: Option<SocketAddr>) -> Result<(), ApiError> {
        if !self.engine.is_shared() {
            return self.write(&own.into_iter().collect()).await;
        }
        if let Some(own) = own {
            self.renew(own).await?;
        }
        let running = self.running().await?;
        self.write(&running).await
    }

    /// Renews the Lease of this server, and publishes what has changed; does nothing for a store
    /// that is this server's alone. Never completes.
    pub(super) async fn keep(&self, own: Option<SocketAddr>) -> Result<(), ApiError> {
        if !self.engine.is_shared() {
            return future::pending().await;
        }
        loop {
            clock::sleep(RENEW_EVERY).await;
            if let Err(error) = self.publish(own).await {
                tracing::warn!(%error, retry_in = ?RENEW_EVERY, "failed to publish the addresses of the API servers; trying again");
            }
        }
    }

    async fn renew(&self, own: SocketAddr) -> Result<(), ApiError> {
        let lease = lease(own);
        let key = lease.key();
        let renew = |renewed: &mut Lease| {
            renewed.spec.clone_from(&lease.spec);
            Ok(())
        };
        let (part, terms) = (
            Operation::Update(ObjectPart::Main),
            ChangeTerms::by_server(),
        );
        match self.leases.modify(&key, part, terms, renew).await {
            Err(error) if error.is_not_found() => {
                let write = WriteParams::by_server();
                self.leases.create(lease, &write).await.map(drop)
            }
            done => done.map(drop),
        }
    }

    /// The addresses of the servers that run. Deletes the Leases of the others.
    async fn running(&self) -> Result<BTreeSet<SocketAddr>, ApiError> {
        let now = Instant::now();
        let mut running = BTreeSet::new();
        let mut gone = Vec::new();
        let leases = self.leases.keys(&Query::namespace(LEASES)).await?;
        let leases: Vec<_> = leases
            .iter()
            .filter_map(|key| self.leases.cached(key))
            .collect();
        {
            // Consistent whenever the lock is free, so that a poisoned one can be used.
            let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::take(&mut *renewals);
            for lease in leases {
                let spec = lease.spec.clone().unwrap_or_default();
                let labels = lease.metadata.labels.iter().flatten();
                let is_ours = labels
                    .into_iter()
                    .any(|(name, value)| (name.as_str(), value.as_str()) == IDENTITY);
                let address = spec.holder_identity.and_then(|holder| holder.parse().ok());
                let Some(address) = address.filter(|_| is_ours) else {
                    continue;
                };
                let seen = match before.get(lease.name()) {
                    Some((renewal, seen)) if *renewal == spec.renew_time => *seen,
                    _ => now,
                };
                if now.duration_since(seen) > GONE_AFTER {
                    gone.push(lease);
                } else {
                    renewals.insert(lease.name().to_owned(), (spec.renew_time, seen));
                    running.insert(address);
                }
            }
        }
        for lease in gone {
            // Only as it is now: it may be renewed in this moment.
            let options = DeleteOptions {
                preconditions: Preconditions {
                    uid: lease.metadata.uid.clone(),
                    resource_version: lease.metadata.resource_version.clone(),
                },
                ..DeleteOptions::by_server()
            };
            match self.leases.delete(&lease.key(), &options).await {
                Err(error) if error.is_conflict() || error.is_not_found() => {}
                deleted => {
                    deleted?;
                    tracing::info!(
                        lease = lease.name(),
                        "API server is gone; removed its endpoint"
                    );
                }
            }
        }
        Ok(running)
    }

    async fn write(&self, addresses: &BTreeSet<SocketAddr>) -> Result<(), ApiError> {
        let mut by_port = BTreeMap::<u16, Vec<SocketAddr>>::new();
        for address in addresses {
            by_port.entry(address.port()).or_default().push(*address);
        }
        // A slice has one set of ports and one family: that of the first address.
        let first = addresses.first().copied();
        let of_slice = addresses.iter().filter(|address| {
            first.is_some_and(|first| {
                address.port() == first.port() && address.is_ipv4() == first.is_ipv4()
            })
        });
        let slice = first.map(|first| slice(first, of_slice));
        let endpoints = first.map(|_| endpoints(&by_port));
        put(&self.endpoints, endpoints, |old, new| {
            old.subsets == new.subsets
        })
        .await?;
        put(&self.slices, slice, |old, new| {
            old.endpoints == new.endpoints && old.ports == new.ports
        })
        .await
    }
}

/// Creates or replaces the object of the Service, or deletes it, if it has to be another one.
async fn put<K: Strategy>(
    registry: &Registry<K>,
    wanted: Option<K>,
    is_same: impl Fn(&K, &K) -> bool,
) -> Result<(), ApiError> {
    let key = ObjectKey::new(NAMESPACE, NAME);
    let write = WriteParams::by_server();
    match (registry.cached(&key), wanted) {
        (None, None) => Ok(()),
        (Some(old), Some(new)) if is_same(&old, &new) => Ok(()),
        (None, Some(new)) => registry.create(new, &write).await.map(drop),
        (Some(_), Some(new)) => registry
            .update(new, ObjectPart::Main, &write)
            .await
            .map(drop),
        (Some(_), None) => {
            let deleted = registry.delete(&key, &DeleteOptions::by_server()).await;
            super::unless_gone(deleted)
        }
    }
}

fn lease(own: SocketAddr) -> Lease {
    let name = own.ip().to_string().replace([':', '.'], "-");
    let seconds = i32::try_from(GONE_AFTER.as_secs()).unwrap_or(i32::MAX);
    Lease {
        metadata: ObjectMeta {
            name: Some(format!("podplane-apiserver-{name}-{}", own.port())),
            namespace: Some(LEASES.to_owned()),
            labels: Some([(IDENTITY.0.to_owned(), IDENTITY.1.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(own.to_string()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(MicroTime(clock::timestamp())),
            ..LeaseSpec::default()
        }),
    }
}

fn endpoints(by_port: &BTreeMap<u16, Vec<SocketAddr>>) -> Endpoints {
    let subsets = by_port.iter().map(|(port, servers)| EndpointSubset {
        addresses: Some(
            servers
                .iter()
                .map(|server| EndpointAddress {
                    ip: server.ip().to_string(),
                    ..EndpointAddress::default()
                })
                .collect(),
        ),
        ports: Some(vec![EndpointPort {
            name: Some(PORT_NAME.to_owned()),
            port: i32::from(*port),
            protocol: Some("TCP".to_owned()),
            ..EndpointPort::default()
        }]),
        ..EndpointSubset::default()
    });
    Endpoints {
        metadata: named(&[("endpointslice.kubernetes.io/skip-mirror", "true")]),
        subsets: Some(subsets.collect()),
    }
}

fn slice<'a>(first: SocketAddr, servers: impl Iterator<Item = &'a SocketAddr>) -> EndpointSlice {
    let endpoints = servers.map(|server| Endpoint {
        addresses: vec![server.ip().to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(true),
            ..EndpointConditions::default()
        }),
        ..Endpoint::default()
    });
    EndpointSlice {
        metadata: named(&[("kubernetes.io/service-name", NAME)]),
        address_type: Family::of_address(first.ip()).to_string(),
        endpoints: Some(endpoints.collect()),
        ports: Some(vec![SlicePort {
            name: Some(PORT_NAME.to_owned()),
            port: Some(first.port().into()),
            protocol: Some("TCP".to_owned()),
            ..SlicePort::default()
        }]),
    }
}

//! The ranges of Services and the Service of the API server itself, as Kubernetes' control plane
//! keeps them.

use std::{
    future,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use podplane_api::{
    IntOrString, Object as _, ObjectKey,
    core::{Service, ServicePort, ServiceSpec},
    kinds::service::allocation::is_incomplete,
    meta::ObjectMeta,
    networking::ServiceCIDR,
};
use podplane_host::clock;
use podplane_ipam::{ServiceRange, ServiceRanges};
use podplane_proto::error::{ApiError, Reason};

use super::{SWEEP_EVERY, create_missing, endpoints::ServerEndpoints};
use crate::{
    admission::{SERVICE_CIDR_FINALIZER, ServiceIndex, default_service_cidr, not_ready},
    cache::Query,
    registry::{ChangeTerms, ObjectPart, Operation, Registry},
};

/// The namespace of the Service of the API server, and the name of the Service and its endpoints.
pub(super) const NAMESPACE: &str = "default";
pub(super) const NAME: &str = "kubernetes";
pub(super) const PORT_NAME: &str = "https";

/// The state of the server that the upkeep of Services needs.
pub(crate) struct ServiceUpkeep {
    pub(crate) services: Registry<Service>,
    pub(crate) ranges: Registry<ServiceCIDR>,
    pub(crate) endpoints: ServerEndpoints,
    pub(crate) index: ServiceIndex,
    /// The ranges of the flag.
    pub(crate) flag: ServiceRanges,
}

impl ServiceUpkeep {
    /// Creates the ServiceCIDR of the flag and the Service of the API server, and gives addresses
    /// to Services that were stored without. Without the flag nothing is done. Failures are logged:
    /// a server whose disk is full still starts.
    pub(crate) async fn begin(&self, address: Option<SocketAddr>) {
        if self.flag.as_slice().is_empty() {
            return;
        }
        if let Err(error) = self.complete_range().await {
            tracing::warn!(%error, "failed to keep the ServiceCIDR of --service-cluster-ip-range");
        }
        self.create_own(address).await;
        self.complete_services().await;
        if let Err(error) = self.publish(address).await {
            tracing::warn!(%error, "failed to publish the address of the API server");
        }
    }

    /// Creates the Service of the API server unless it is there.
    async fn create_own(&self, address: Option<SocketAddr>) {
        let range = self.flag.as_slice().first();
        let Some(range) = range.and_then(|range| ServiceRange::new(*range)) else {
            return;
        };
        let port = address.map_or(443, |address| address.port());
        let service = own_service(range.first(), port);
        if let Err(error) = create_missing(&self.services, service).await {
            tracing::warn!(%error, "failed to create the service of the API server");
        }
    }

    /// Creates the ServiceCIDR of the flag, or adds a second family to it.
    async fn complete_range(&self) -> Result<(), ApiError> {
        let Some(wanted) = default_service_cidr(&self.flag) else {
            return Ok(());
        };
        create_missing(&self.ranges, wanted.clone()).await?;
        let key = wanted.key();
        let Some(found) = self.ranges.cached(&key) else {
            return Ok(());
        };
        let cidrs = |cidr: &ServiceCIDR| {
            let spec = cidr.spec.as_ref();
            spec.and_then(|spec| spec.cidrs.clone()).unwrap_or_default()
        };
        let (found, wanted) = (cidrs(&found), cidrs(&wanted));
        match (found.as_slice(), wanted.as_slice()) {
            (found, wanted) if found == wanted => {}
            ([only], [first, _]) if only == first => {
                let widen = |cidr: &mut ServiceCIDR| {
                    cidr.spec.get_or_insert_default().cidrs = Some(wanted.to_vec());
                    Ok(())
                };
                let part = Operation::Update(ObjectPart::Main);
                let terms = ChangeTerms::by_server();
                self.ranges.modify(&key, part, terms, widen).await?;
            }
            (found, wanted) => tracing::warn!(
                ?found,
                ?wanted,
                "the ServiceCIDR kubernetes is not that of --service-cluster-ip-range; services get addresses of the ServiceCIDR"
            ),
        }
        Ok(())
    }

    /// Gives addresses and node ports to Services that a server without a range stored.
    async fn complete_services(&self) {
        let keys = self.services.keys(&Query::default()).await;
        let lacking = keys.into_iter().flatten().filter(|key| {
            let service = self.services.cached(key);
            service.is_some_and(|service| is_incomplete(&service))
        });
        for key in lacking.collect::<Vec<_>>() {
            let part = Operation::Update(ObjectPart::Main);
            let terms = ChangeTerms::by_server();
            let given = self.services.modify(&key, part, terms, |_| Ok(())).await;
            if let Err(error) = given {
                tracing::warn!(service = %key, %error, "failed to give the service an address");
            }
        }
    }

    /// Publishes the address of the API server as an endpoint of its Service, if others can reach
    /// it.
    async fn publish(&self, address: Option<SocketAddr>) -> Result<(), ApiError> {
        let address = reachable(address);
        if address.is_none() {
            tracing::info!(
                "this server is no endpoint of the service kubernetes: others cannot reach its address, or it is not known (--advertise-address)"
            );
        }
        self.endpoints.publish(address).await
    }

    /// Keeps the endpoints of the Service, also those of other servers. Never completes.
    pub(crate) async fn keep_endpoints(
        self: Arc<Self>,
        address: Option<SocketAddr>,
    ) -> Result<(), ApiError> {
        if self.flag.as_slice().is_empty() {
            return future::pending().await;
        }
        self.endpoints.keep(reachable(address)).await
    }

    /// Completes the deletion of ServiceCIDRs once their addresses are free, and creates the
    /// Service of the API server again if it is deleted. Never completes.
    pub(crate) async fn keep(self: Arc<Self>, address: Option<SocketAddr>) -> Result<(), ApiError> {
        let mut changes = self.index.changes();
        loop {
            changes.borrow_and_update();
            self.create_own(address).await;
            let failed = match self.end_all().await {
                Ok(()) => false,
                Err(error) => {
                    tracing::warn!(%error, retry_in = ?SWEEP_EVERY, "failed to end deleted ServiceCIDRs; trying again");
                    true
                }
            };
            let changed = changes.changed();
            if failed {
                // The time or a change, whichever comes first.
                let _ = clock::timeout(SWEEP_EVERY, changed).await;
            } else if changed.await.is_err() {
                // Only the end of the server ends the index.
                return Ok(());
            }
        }
    }

    async fn end_all(&self) -> Result<(), ApiError> {
        for key in self.ranges.keys(&Query::default()).await? {
            let found = self.ranges.cached(&key);
            if found.is_some_and(|range| range.is_deleting()) {
                self.end(&key).await?;
            }
        }
        Ok(())
    }

    async fn end(&self, key: &ObjectKey) -> Result<(), ApiError> {
        let release = |range: &mut ServiceCIDR| {
            if range.is_deleting() {
                let finalizers = range.metadata.finalizers.take().unwrap_or_default();
                let others = finalizers
                    .into_iter()
                    .filter(|one| one != SERVICE_CIDR_FINALIZER);
                let others: Vec<_> = others.collect();
                range.metadata.finalizers = Some(others).filter(|others| !others.is_empty());
            }
            Ok(())
        };
        let terms = ChangeTerms::by_server();
        let part = Operation::Update(ObjectPart::Main);
        let released = self.ranges.modify(key, part, terms, release).await;
        let refused = match released {
            Ok(_) => {
                tracing::info!(range = key.name, "ServiceCIDR ended");
                return Ok(());
            }
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) if error.reason == Reason::Conflict => error,
            Err(error) => return Err(error),
        };
        tracing::debug!(range = key.name, why = %refused, "ServiceCIDR stays while it is in use");
        let part = Operation::Update(ObjectPart::Status);
        let wait = |range: &mut ServiceCIDR| {
            not_ready(range);
            Ok(())
        };
        match self.ranges.modify(key, part, terms, wait).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }
}

/// The address, if others can reach it.
fn reachable(address: Option<SocketAddr>) -> Option<SocketAddr> {
    address.filter(|address| {
        let ip = address.ip();
        !ip.is_loopback() && !ip.is_unspecified()
    })
}

/// The metadata of the Service, or of its endpoints.
pub(super) fn named(labels: &[(&str, &str)]) -> ObjectMeta {
    let labels = labels.iter();
    let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    ObjectMeta {
        name: Some(NAME.to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        labels: Some(labels.collect()),
        ..ObjectMeta::default()
    }
}

fn own_service(address: IpAddr, port: u16) -> Service {
    Service {
        metadata: named(&[("component", "apiserver"), ("provider", "kubernetes")]),
        spec: Some(ServiceSpec {
            cluster_ip: Some(address.to_string()),
            ip_family_policy: Some("SingleStack".to_owned()),
            ports: Some(vec![ServicePort {
                name: Some(PORT_NAME.to_owned()),
                port: 443,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::Int(port.into())),
                ..ServicePort::default()
            }]),
            session_affinity: Some("None".to_owned()),
            type_: Some("ClusterIP".to_owned()),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

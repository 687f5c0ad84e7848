//! `grpc.health.v1` for each service of a process.

use std::{collections::BTreeSet, pin::Pin};

use futures::{Stream, StreamExt as _, stream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::{
    ServingStatus,
    pb::{
        HealthCheckRequest, HealthCheckResponse,
        health_server::{self, HealthServer},
    },
    server::{HealthReporter, HealthService},
};

/// The status of each service. All services become ready together.
#[derive(Clone, Debug)]
pub(crate) struct Statuses {
    names: BTreeSet<&'static str>,
    reporter: HealthReporter,
    over: CancellationToken,
}

impl Statuses {
    /// Creates statuses that are not serving yet.
    pub(crate) async fn new(mut names: BTreeSet<&'static str>) -> Self {
        // The empty name is the process as a whole.
        names.insert("");
        let statuses = Self {
            names,
            reporter: HealthReporter::new(),
            over: CancellationToken::new(),
        };
        statuses.set(ServingStatus::NotServing).await;
        statuses
    }

    pub(crate) async fn serving(&self) {
        self.set(ServingStatus::Serving).await;
    }

    /// Sets all to not serving, and ends the watches after that: a graceful shutdown waits for open
    /// streams.
    pub(crate) async fn over(&self) {
        self.set(ServingStatus::NotServing).await;
        self.over.cancel();
    }

    async fn set(&self, status: ServingStatus) {
        for name in &self.names {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

/// The health service. Clones share the statuses.
#[derive(Debug)]
pub(crate) struct Health {
    service: HealthService,
    over: CancellationToken,
}

impl Health {
    pub(crate) fn new(statuses: &Statuses) -> HealthServer<Self> {
        let service = HealthService::from_health_reporter(statuses.reporter.clone());
        HealthServer::new(Self {
            service,
            over: statuses.over.clone(),
        })
    }
}

#[tonic::async_trait]
impl health_server::Health for Health {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.service.check(request).await
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let statuses = self.service.watch(request).await?.into_inner();
        let watch = stream::unfold(
            (statuses, self.over.clone()),
            async |(mut statuses, over)| {
                // In this order, so that the last status is delivered. Cancelling either wait loses
                // nothing.
                let status = tokio::select! {
                    biased;
                    status = statuses.next() => status?,
                    () = over.cancelled() => return None,
                };
                Some((status, (statuses, over)))
            },
        );
        Ok(Response::new(Box::pin(watch)))
    }
}

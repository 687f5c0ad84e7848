//! `podplane.cloud.v1` over a file, with simulated faults.

use std::sync::{Mutex, PoisonError};

use podplane_host::clock::{self, Instant};
use podplane_proto::cloud::{
    GetInstanceRequest, GetInstanceResponse, Instance, cloud_service_server::CloudService,
};
use rand::{SeedableRng as _, rngs::StdRng};
use tonic::{Request, Response, Status};

use crate::{
    instances::InstancesFile,
    troubles::{CallHistory, CallResult, Troubles},
};

/// The service.
#[derive(Debug)]
pub(crate) struct RangeService {
    troubles: Troubles,
    /// Locked for a decision and the reading of the file, never across an await.
    state: Mutex<ServiceState>,
}

#[derive(Debug)]
struct ServiceState {
    instances: InstancesFile,
    past: CallHistory,
    random: StdRng,
}

impl RangeService {
    pub(crate) fn new(instances: InstancesFile, troubles: Troubles, seed: u64) -> Self {
        let state = ServiceState {
            instances,
            past: CallHistory::default(),
            random: StdRng::seed_from_u64(seed),
        };
        Self {
            troubles,
            state: Mutex::new(state),
        }
    }

    fn answer(&self, provider_id: &str) -> Result<Instance, Status> {
        // The state is consistent whenever the lock is free, so a poisoned lock can be used.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ServiceState {
            instances,
            past,
            random,
        } = &mut *state;
        let fate = self
            .troubles
            .fate(past, provider_id, Instant::now(), random);
        tracing::debug!(provider_id, ?fate, "instance requested");
        match fate {
            CallResult::Throttled => {
                return Err(Status::resource_exhausted(
                    "too many requests: try again later",
                ));
            }
            CallResult::Failed => return Err(Status::unavailable("the cloud is unavailable")),
            CallResult::Answered | CallResult::WithoutRanges => {}
        }
        let found = instances.get(provider_id).cloned();
        let mut found = found
            .ok_or_else(|| Status::not_found(format!("instance {provider_id:?} not found")))?;
        if fate == CallResult::WithoutRanges {
            for interface in &mut found.network_interfaces {
                interface.alias_ip_ranges.clear();
                interface.ipv6_cidr_range.clear();
            }
        }
        Ok(found)
    }
}

#[tonic::async_trait]
impl CloudService for RangeService {
    async fn get_instance(
        &self,
        request: Request<GetInstanceRequest>,
    ) -> Result<Response<GetInstanceResponse>, Status> {
        let GetInstanceRequest { provider_id } = request.into_inner();
        let delay = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            self.troubles.delay(&mut state.random)
        };
        clock::sleep(delay).await;
        let instance = Some(self.answer(&provider_id)?);
        Ok(Response::new(GetInstanceResponse { instance }))
    }
}

//! The writes of a preemption.

use podplane_api::{
    Object as _,
    core::Pod,
    kinds::pod::{DisruptionSource, set_disruption_target},
};
use podplane_client::{ApiError, Client, DeleteParams};
use podplane_host::clock;

use super::Preemption;
use crate::pod::PodInfo;

/// The most attempts to write the condition of a victim that is written meanwhile.
const TRIES: usize = 4;

/// Deletes the victims with their grace period, each with the condition DisruptionTarget first. A
/// victim that is gone is no error.
///
/// # Errors
///
/// The first error; the victims after it stay.
pub async fn evict(client: &Client, preemption: &Preemption) -> Result<(), ApiError> {
    for victim in &preemption.victims {
        match evict_one(client, victim).await {
            Err(error) if !error.is_not_found() => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

async fn evict_one(client: &Client, victim: &PodInfo) -> Result<(), ApiError> {
    let pods = client.namespaced::<Pod>(victim.key.namespace.as_str());
    let mut tries = 0;
    loop {
        let mut pod = pods.get(&victim.key.name).await?;
        if pod.uid() != victim.uid.as_str() || pod.is_deleting() {
            return Ok(());
        }
        set_disruption_target(&mut pod, DisruptionSource::PREEMPTION, clock::timestamp());
        tries += 1;
        match pods.update_status(&pod).await {
            Ok(_) => break,
            Err(error) if error.is_conflict() && tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
    let params = DeleteParams {
        uid: Some(victim.uid.to_string()),
        ..DeleteParams::default()
    };
    pods.delete(&victim.key.name, &params).await.map(drop)
}

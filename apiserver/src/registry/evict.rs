//! Evictions: deletions of pods that a PodDisruptionBudget may refuse (source: `EvictionREST` of
//! Kubernetes' `pkg/registry/core/pod/storage`).

use podplane_api::{
    Object as _, ObjectKey,
    any::DynObject,
    core::Pod,
    kinds::{
        pod::{self, is_ready},
        pod_disruption_budget::{
            ALWAYS_ALLOW, DisruptionState, selects_labels, set_disruption_allowed, sync_failure,
        },
    },
    pod_ips::is_terminal,
    policy::PodDisruptionBudget,
};
use podplane_proto::error::{ApiError, Reason};

use super::{
    ChangeDecision, ChangeTerms, DeleteOptions, ObjectPart, Operation, Registry,
    delete::{expect, plan},
    now,
    typed::typed,
};
use crate::{authentication::server_identity, error, storage};

/// The most evictions that the controller has not confirmed yet, as in Kubernetes.
const MAX_DISRUPTED_PODS: usize = 2000;
/// The time after which a budget that is being processed can be asked again.
const PROCESSED_AFTER_SECONDS: u32 = 10;

/// The reason why an eviction is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EvictionGrounds {
    /// No budget protects the pod, or it has ended, or a disruption was granted.
    Certain,
    /// The pod has not started, or is not ready and its budget does not count it. This may change
    /// with the pod.
    PodState,
}

impl Registry<Pod> {
    /// Deletes a pod, unless a budget forbids it; returns its last or its new state. The pod's
    /// condition `DisruptionTarget` is set by the commit that deletes it or marks it as deleted.
    ///
    /// # Errors
    ///
    /// `TooManyRequests` if the budget allows no disruption now; `InternalError` if several budgets
    /// select the pod; `Conflict` if the preconditions do not hold.
    pub(crate) async fn evict(
        &self,
        budgets: &Registry<PodDisruptionBudget>,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Pod, ApiError> {
        self.scoped(key)?;
        self.engine.catch_up().await.map_err(error::store)?;
        loop {
            let found = storage::get::<Pod>(&self.engine, &storage::key::<Pod>(key)?).await?;
            let (pod, _) = found.ok_or_else(|| error::not_found::<Pod>(&key.name))?;
            // Before a disruption is taken for a pod that is not the one meant, or may not be evicted.
            expect(self.names(), &pod, &options.preconditions)?;
            let any = self.any();
            any.asked_to_evict(key, &pod, options.terms()).await?;
            let Some(grounds) = budgets.grounds(&pod, options).await? else {
                continue;
            };
            let mut options = options.clone();
            let revision = &mut options.preconditions.resource_version;
            let is_ours = grounds == EvictionGrounds::PodState && revision.is_none();
            if is_ours {
                *revision = Some(pod.resource_version().to_owned());
            }
            match self.delete_evicted(key, &options).await {
                // The pod has changed and may be protected now.
                Err(error) if is_ours && error.is_conflict() => {}
                done => return done,
            }
        }
    }

    async fn delete_evicted(
        &self,
        key: &ObjectKey,
        options: &DeleteOptions,
    ) -> Result<Pod, ApiError> {
        let delete = |pod: &DynObject| {
            let mut pod = pod.boxed();
            if let Some(pod) = pod.typed_mut() {
                pod::set_disruption_target(pod, pod::DisruptionSource::EVICTION, now().0);
            }
            Ok(match plan(self.names(), pod, options)? {
                // Already being deleted; the condition is new.
                ChangeDecision::Keep(pod) => ChangeDecision::Put(pod),
                decision => decision,
            })
        };
        let deleted = self
            .any()
            .change(key, Operation::Evict, options.terms(), &delete);
        typed(deleted.await?)
    }
}

impl Registry<PodDisruptionBudget> {
    /// Decides if the pod may be evicted, and records it in the budget if that counts it. `None` if
    /// the budget was deleted meanwhile.
    async fn grounds(
        &self,
        pod: &Pod,
        options: &DeleteOptions,
    ) -> Result<Option<EvictionGrounds>, ApiError> {
        if is_terminal(pod) || pod.is_deleting() {
            return Ok(Some(EvictionGrounds::Certain));
        }
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        if phase == Some("Pending") {
            return Ok(Some(EvictionGrounds::PodState));
        }
        let prefix = storage::namespace_prefix::<PodDisruptionBudget>(pod.namespace());
        let mut protecting: Vec<PodDisruptionBudget> = storage::list(&self.engine, prefix).await?;
        protecting.retain(|budget| selects_labels(budget, pod.metadata.labels.as_ref()));
        let budget = match &protecting[..] {
            [] => return Ok(Some(EvictionGrounds::Certain)),
            [budget] => budget,
            _ => {
                let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(ApiError::new(Reason::InternalError, why));
            }
        };
        if !is_ready(pod) && allows_unready(budget) {
            return Ok(Some(EvictionGrounds::PodState));
        }
        let take = |budget: &mut PodDisruptionBudget| take_disruption(budget, pod.name());
        let operation = Operation::Update(ObjectPart::Status);
        let key = budget.key();
        // A consequence of the eviction, and no request of its own.
        let terms = ChangeTerms {
            by: server_identity(),
            ..options.terms()
        };
        let taken = self.modify(&key, operation, terms, take);
        match taken.await {
            Ok(_) => Ok(Some(EvictionGrounds::Certain)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns true if pods that are not ready can be evicted without a disruption.
fn allows_unready(budget: &PodDisruptionBudget) -> bool {
    let spec = budget.spec.as_ref();
    let policy = spec.and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let status = budget.status.clone().unwrap_or_default();
    policy == Some(ALWAYS_ALLOW)
        || (status.desired_healthy > Some(0) && status.current_healthy >= status.desired_healthy)
}

/// Takes one of the allowed disruptions, for the pod of that name.
fn take_disruption(budget: &mut PodDisruptionBudget, pod: &str) -> Result<(), ApiError> {
    let name = budget.name().to_owned();
    let generation = budget.metadata.generation;
    let status = budget.status.get_or_insert_default();
    if status.observed_generation.unwrap_or_default() < generation.unwrap_or_default() {
        let state = "is still being processed by the server.";
        return Err(error::protected(
            &name,
            state,
            Some(PROCESSED_AFTER_SECONDS),
        ));
    }
    let forbidden = |why| Err(error::forbidden::<PodDisruptionBudget>(&name, why));
    let allowed = status.disruptions_allowed.unwrap_or_default();
    if allowed < 0 {
        return forbidden("pdb disruptions allowed is negative");
    }
    let unconfirmed = status.disrupted_pods.as_ref().map_or(0, |pods| pods.len());
    if unconfirmed > MAX_DISRUPTED_PODS {
        return forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        );
    }
    if allowed == 0 {
        let state = match sync_failure(status) {
            Some(why) => {
                format!("does not allow evicting pods currently because it failed sync: {why}")
            }
            None => format!(
                "needs {} healthy pods and has {} currently",
                status.desired_healthy.unwrap_or_default(),
                status.current_healthy.unwrap_or_default()
            ),
        };
        return Err(error::protected(&name, &state, None));
    }
    let now = now();
    let allowed = allowed - 1;
    status.disruptions_allowed = Some(allowed);
    if allowed == 0 {
        set_disruption_allowed(status, &DisruptionState::Counted, now.0);
    }
    let disrupted = status.disrupted_pods.get_or_insert_default();
    disrupted.insert(pod.to_owned(), now);
    Ok(())
}

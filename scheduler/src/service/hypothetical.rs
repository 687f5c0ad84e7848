//! The explanation of a pod that need not exist.

use podplane_api::{
    Object as _,
    core::Pod,
    kinds::{pod::set_priority, priority_class::class_of},
    scheduling::PriorityClass,
    strategy::Strategy as _,
    validation::{ErrorList, Validate as _},
};
use podplane_client::{ApiError, Reason};
use podplane_proto::{
    codec,
    scheduler::{ExplainPodResponse, PodState},
};

use super::{reason, scores, suggestions, verdicts};
use crate::{
    plan::Choice,
    pod::PodInfo,
    preemption::Preemption,
    scheduler::{HypotheticalPlacement, Scheduler},
};

/// The name and UID of a pod that has none.
const NAME: &str = "hypothetical";

/// Decodes the pod, and completes and validates it as a new one of a cluster with these classes.
pub(super) fn admitted(message: &[u8], classes: Vec<PriorityClass>) -> Result<Pod, ApiError> {
    let pod = codec::decode::<Pod>(message).map_err(|error| {
        let field = match error.path() {
            "" => "pod".to_owned(),
            path => format!("pod.{path}"),
        };
        ApiError::bad_field(&field, error.to_string())
    })?;
    let mut pod = complete(pod)
        .map_err(|errors| ApiError::new(Reason::Invalid, format!("invalid pod: {errors}")))?;
    prioritise(&mut pod, classes).map_err(|why| ApiError::new(Reason::Forbidden, why))?;
    Ok(pod)
}

/// Sets the priority of the pod by its class, of those of the cluster.
///
/// # Errors
///
/// The API server's message, if it would refuse the pod for its class or priority.
pub fn prioritise(
    pod: &mut Pod,
    classes: impl IntoIterator<Item = PriorityClass>,
) -> Result<(), String> {
    let class = class_of(pod, classes);
    let set = class.and_then(|class| set_priority(pod, class.as_ref()));
    set.map_err(|why| format!("pods {:?} is forbidden: {why}", pod.name()))
}

/// Completes a pod as the API server completes a new one, except its priority, which
/// [`prioritise`] sets: name, namespace and UID if they are missing, and the defaults. A pod that
/// was read from a cluster is completed as if it had no node yet.
///
/// # Errors
///
/// The fields with which the API server would refuse the pod.
pub fn complete(mut pod: Pod) -> Result<Pod, ErrorList> {
    let fill = |field: &mut Option<String>, value: &str| {
        if field.as_deref().is_none_or(str::is_empty) {
            *field = Some(value.to_owned());
        }
    };
    fill(&mut pod.metadata.namespace, "default");
    fill(&mut pod.metadata.name, NAME);
    let was_created = pod.metadata.uid.replace(NAME.to_owned()).is_some();
    if was_created && let Some(spec) = &mut pod.spec {
        spec.node_name = None;
    }
    pod.metadata.deletion_timestamp = None;
    pod.set_defaults();
    pod.prepare_for_create();
    let errors = pod.validate();
    match errors.is_empty() {
        true => Ok(pod),
        false => Err(errors),
    }
}

pub(super) fn response(pod: &PodInfo, scheduler: &mut Scheduler) -> ExplainPodResponse {
    let HypotheticalPlacement {
        node,
        preemption,
        examination,
        suggestions: found,
    } = scheduler.place_hypothetically(pod);
    let mut response = ExplainPodResponse {
        verdicts: verdicts(&examination),
        scores: scores(&examination),
        suggestions: suggestions(found),
        ..ExplainPodResponse::default()
    };
    response.set_state(PodState::Hypothetical);
    match node {
        Ok(choice) => {
            let Choice { node, .. } = &choice;
            response.message = format!("it would be placed on {node}, {}", reason(&choice));
            response.node_name = node.to_string();
        }
        Err(error) => {
            response.message = error.to_string();
            if let Some(Preemption { node, victims, .. }) = preemption {
                let victims: Vec<_> = victims.iter().map(|pod| pod.key.to_string()).collect();
                let victims = victims.join(", ");
                let preemption = format!(" It would preempt {victims} on {node}.");
                response.message.push_str(&preemption);
            }
            response.rejected_by = error.rejected_by.into_iter().map(str::to_owned).collect();
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use podplane_api::kinds::priority_class::system_priority_classes;

    use super::*;
    use crate::testing::PodBuilder;

    #[test]
    fn a_pod_of_a_cluster_is_placed_anew() {
        let known = PodBuilder::new("p").on("n");
        let known = known.set("/spec/containers/0/image", "i".into()).pod();
        let pod = complete((*known).clone()).unwrap();
        let spec = pod.spec.unwrap();
        assert_eq!(spec.node_name, None);
        assert_eq!(spec.tolerations.unwrap().len(), 2, "as every new pod has");
    }

    #[test]
    fn an_invalid_pod_is_refused_with_its_fields() {
        let message = codec::encode(&*PodBuilder::new("p").pod()).unwrap();
        let error = admitted(&message, Vec::new()).unwrap_err();
        assert_eq!(error.reason, Reason::Invalid);
        let want = "spec.containers[0].image: Required value";
        assert!(error.message.contains(want), "{}", error.message);
    }

    #[test]
    fn a_hypothetical_pod_has_the_priority_of_its_class() {
        let of_class = |name: &str| {
            let pod = PodBuilder::new("p").set("/spec/priorityClassName", name.into());
            let pod = pod.set("/spec/containers/0/image", "i".into()).pod();
            codec::encode(&*pod).unwrap()
        };
        let classes = || system_priority_classes().collect::<Vec<_>>();
        let pod = admitted(&of_class("system-cluster-critical"), classes()).unwrap();
        assert_eq!(
            pod.spec.as_ref().and_then(|spec| spec.priority),
            Some(2_000_000_000)
        );
        let default = PriorityClass {
            value: Some(7),
            global_default: Some(true),
            ..PriorityClass::default()
        };
        let pod = admitted(&of_class(""), vec![default]).unwrap();
        assert_eq!(pod.spec.as_ref().and_then(|spec| spec.priority), Some(7));
        let error = admitted(&of_class("vip"), classes()).unwrap_err();
        assert_eq!(error.reason, Reason::Forbidden);
        assert_eq!(
            error.message,
            "pods \"p\" is forbidden: no PriorityClass with name vip was found"
        );
    }
}

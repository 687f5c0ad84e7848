//! The narrow writes of controllers: each sets one thing, once.

use podplane_api::{
    Object as _, ObjectKey,
    core::{Node, Pod},
    kinds::pod,
};
use podplane_proto::{
    error::ApiError,
    wire::{AssignPodCidrsRequest, BindPodRequest},
};

use super::{ChangeTerms, ObjectPart, Operation, Registry, now};
use crate::error;

impl Registry<Pod> {
    /// Binds a pod to a node.
    pub(crate) async fn bind(
        &self,
        request: &BindPodRequest,
        terms: ChangeTerms<'_>,
    ) -> Result<Pod, ApiError> {
        const RESOURCE: &str = "pods/binding";
        let BindPodRequest {
            namespace,
            name,
            uid,
            node_name,
            resource_version,
        } = request;
        if node_name.is_empty() {
            return Err(error::bad_request("node_name is required"));
        }
        let bind = |pod: &Pod| {
            if !uid.is_empty() && uid != pod.uid() {
                return Err(error::other_uid(RESOURCE, name, uid, pod.uid()));
            }
            let mut bound = pod.clone();
            pod::bind(&mut bound, node_name, now().0)
                .map_err(|why| error::conflict(RESOURCE, name, &why))?;
            if !resource_version.is_empty() && resource_version != pod.resource_version() {
                return Err(error::modified::<Pod>(name));
            }
            let errors = podplane_api::validation::Validate::validate(&bound);
            if !errors.is_empty() {
                return Err(error::invalid::<Pod>(name, &errors));
            }
            Ok(super::ChangeDecision::Put(bound))
        };
        let key = ObjectKey::new(namespace.as_str(), name.as_str());
        self.change_typed(&key, Vec::new(), Operation::Bind, terms, bind)
            .await
    }
}

impl Registry<Node> {
    /// Assigns a node its blocks. A repeated call with the same blocks succeeds.
    pub(crate) async fn assign_pod_cidrs(
        &self,
        request: &AssignPodCidrsRequest,
        terms: ChangeTerms<'_>,
    ) -> Result<Node, ApiError> {
        let AssignPodCidrsRequest {
            name,
            uid,
            resource_version,
            pod_cidrs,
        } = request;
        if pod_cidrs.is_empty() {
            return Err(error::bad_request("pod_cidrs is required"));
        }
        let assign = |node: &mut Node| {
            let resource = error::resource::<Node>();
            if !uid.is_empty() && uid != node.uid() {
                return Err(error::other_uid(&resource, name, uid, node.uid()));
            }
            match podplane_api::pod_ips::pod_cidrs(node) {
                [] => {}
                same if same == pod_cidrs => return Ok(()),
                other => {
                    let why = format!("node {name} already has podCIDRs {}", other.join(","));
                    return Err(error::conflict(&resource, name, &why));
                }
            }
            if !resource_version.is_empty() && resource_version != node.resource_version() {
                return Err(error::modified::<Node>(name));
            }
            let spec = node.spec.get_or_insert_default();
            spec.pod_cidr = pod_cidrs.first().cloned();
            spec.pod_cidrs = Some(pod_cidrs.clone());
            Ok(())
        };
        let key = ObjectKey::new("", name.as_str());
        let operation = Operation::Update(ObjectPart::Main);
        self.modify(&key, operation, terms, assign).await
    }
}

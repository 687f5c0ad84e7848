//! NodeRestriction: what a node may write.
//!
//! The [node authorizer](crate::node) allows a node to write kinds; this judges the objects. It
//! must run where the write is committed, against the stored object. Whoever is not a node may
//! write anything here.
//!
//! Beyond the reference, a node may not set or change its podCIDRs, which are the
//! ipam-controller's, nor labels of `podplane.io`.

mod node;
mod pod;

use podplane_api::{
    authentication::TokenRequest,
    core::{Node, PersistentVolumeClaim, Pod},
};

use crate::{identity::Identity, node::LEASE_NAMESPACE, relations::Relations};

pub use node::is_restricted_label;

/// A write that NodeRestriction judges. Other writes are [`Self::Other`].
#[derive(Clone, Copy, Debug)]
pub enum NodeWrite<'a> {
    /// Create a Node.
    CreateNode(&'a Node),
    /// Change a Node, through any subresource.
    UpdateNode {
        /// The stored Node.
        old: &'a Node,
        /// The Node as it would be stored.
        new: &'a Node,
    },
    /// Delete a Node.
    DeleteNode {
        /// The Node's name.
        name: &'a str,
    },
    /// Create a pod.
    CreatePod(&'a Pod),
    /// Change a pod, not through a subresource.
    UpdatePod,
    /// Change a pod's status.
    UpdatePodStatus {
        /// The stored pod.
        old: &'a Pod,
        /// The pod as it would be stored.
        new: &'a Pod,
    },
    /// Delete a pod, alone or in a collection.
    DeletePod(&'a Pod),
    /// Evict a pod.
    EvictPod(&'a Pod),
    /// Write another subresource of a pod.
    OtherOfPod {
        /// The subresource.
        subresource: &'a str,
    },
    /// Write or delete a Lease.
    Lease {
        /// The Lease's namespace.
        namespace: &'a str,
        /// The Lease's name, from the object for a creation.
        name: &'a str,
    },
    /// Request a token of a ServiceAccount.
    RequestToken {
        /// The ServiceAccount's namespace.
        namespace: &'a str,
        /// The request.
        request: &'a TokenRequest,
    },
    /// Create a CertificateSigningRequest.
    CreateSigningRequest {
        /// The signer.
        signer: &'a str,
        /// The requested subject's common name, or why it cannot be read.
        common_name: Result<&'a str, &'a str>,
    },
    /// Change the status of a PersistentVolumeClaim.
    UpdateClaimStatus {
        /// The stored claim.
        old: &'a PersistentVolumeClaim,
        /// The claim as it would be stored.
        new: &'a PersistentVolumeClaim,
    },
    /// Another write of a PersistentVolumeClaim.
    OtherOfClaim,
    /// Write or delete a CSINode.
    CsiNode {
        /// The CSINode's name, from the object for a creation.
        name: &'a str,
    },
    /// Create a ResourceSlice.
    CreateSlice {
        /// The node whose devices it describes; empty for none.
        node: &'a str,
    },
    /// Delete a ResourceSlice, alone or in a collection.
    DeleteSlice {
        /// The node whose devices it describes; empty for none.
        node: &'a str,
    },
    /// A write of another kind.
    Other,
}

/// The reason why a node may not do a write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestrictionError {
    /// The answer is 403.
    #[error("{0}")]
    Forbidden(String),
    /// An object that the write refers to does not exist. The answer is 404.
    #[error("{resource} {name:?} not found")]
    NotFound {
        /// The plural name of the kind.
        resource: &'static str,
        /// The name.
        name: String,
    },
}

/// A refusal.
fn forbidden<T>(why: impl Into<String>) -> Result<T, RestrictionError> {
    Err(RestrictionError::Forbidden(why.into()))
}

/// Judges a write.
///
/// # Errors
///
/// [`RestrictionError`] if the identity is a node and may not do the write.
pub fn admit(
    identity: &Identity,
    write: &NodeWrite<'_>,
    relations: &impl Relations,
) -> Result<(), RestrictionError> {
    let Some(node) = identity.node_name() else {
        return Ok(());
    };
    if node.is_empty() {
        let user = &identity.user;
        return forbidden(format!("could not determine node from user {user:?}"));
    }
    match *write {
        NodeWrite::CreateNode(new) => node::admit_create(node, new),
        NodeWrite::UpdateNode { old, new } => node::admit_update(node, old, new),
        NodeWrite::DeleteNode { name } => node::admit_name(node, name),
        NodeWrite::CreatePod(pod) => pod::admit_create(node, pod, relations),
        NodeWrite::UpdatePod => forbidden(format!(
            "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
        )),
        NodeWrite::UpdatePodStatus { old, new } => pod::admit_status(node, old, new),
        NodeWrite::DeletePod(pod) => pod::admit_delete(node, pod),
        NodeWrite::EvictPod(pod) => pod::admit_eviction(node, pod),
        NodeWrite::OtherOfPod { subresource } => forbidden(format!(
            "unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed"
        )),
        NodeWrite::Lease { namespace, name } => admit_lease(node, namespace, name),
        NodeWrite::RequestToken { namespace, request } => {
            pod::admit_token(node, namespace, request, relations)
        }
        NodeWrite::CreateSigningRequest {
            signer,
            common_name,
        } => admit_signing_request(node, signer, common_name),
        NodeWrite::UpdateClaimStatus { old, new } => admit_claim_status(node, old, new),
        NodeWrite::OtherOfClaim => forbidden("may only update PVC status"),
        NodeWrite::CsiNode { name } if name != node => {
            forbidden("can only access CSINode with the same name as the requesting node")
        }
        NodeWrite::CreateSlice { node: of } if of != node => {
            forbidden("can only create ResourceSlice with the same NodeName as the requesting node")
        }
        NodeWrite::DeleteSlice { node: of } if of != node => {
            forbidden("can only delete ResourceSlice with the same NodeName as the requesting node")
        }
        NodeWrite::CsiNode { .. }
        | NodeWrite::CreateSlice { .. }
        | NodeWrite::DeleteSlice { .. }
        | NodeWrite::Other => Ok(()),
    }
}

fn admit_lease(node: &str, namespace: &str, name: &str) -> Result<(), RestrictionError> {
    if namespace != LEASE_NAMESPACE {
        return forbidden(format!(
            "can only access leases in the {LEASE_NAMESPACE:?} system namespace"
        ));
    }
    if name != node {
        return forbidden("can only access node lease with the same name as the requesting node");
    }
    Ok(())
}

/// Admits changes of the size and the conditions of a claim's volume.
fn admit_claim_status(
    node: &str,
    old: &PersistentVolumeClaim,
    new: &PersistentVolumeClaim,
) -> Result<(), RestrictionError> {
    let rest = |claim: &PersistentVolumeClaim| {
        let mut claim = claim.clone();
        claim.metadata.resource_version = None;
        claim.metadata.managed_fields = None;
        let status = claim.status.get_or_insert_default();
        status.capacity = None;
        status.conditions = None;
        status.allocated_resource_statuses = None;
        status.allocated_resources = None;
        claim
    };
    match rest(old) == rest(new) {
        true => Ok(()),
        false => forbidden(format!(
            "node {node:?} is not allowed to update fields other than status.quantity and \
             status.conditions"
        )),
    }
}

/// The signers of nodes' certificates. What else a request must have, they judge themselves.
const NODE_SIGNERS: [&str; 2] = [
    "kubernetes.io/kubelet-serving",
    "kubernetes.io/kube-apiserver-client-kubelet",
];

fn admit_signing_request(
    node: &str,
    signer: &str,
    common_name: Result<&str, &str>,
) -> Result<(), RestrictionError> {
    if !NODE_SIGNERS.contains(&signer) {
        return Ok(());
    }
    match common_name {
        Err(why) => forbidden(format!("unable to parse csr: {why}")),
        Ok(name) if name.strip_prefix(crate::identity::NODE_PREFIX) == Some(node) => Ok(()),
        Ok(_) => forbidden(format!(
            "can only create a node CSR with CN=system:node:{node}"
        )),
    }
}

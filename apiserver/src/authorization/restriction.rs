//! NodeRestriction where writes are committed, against the stored object.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_access::restriction::{NodeWrite, RestrictionError, admit};
use podplane_api::{
    Object, ObjectKey,
    authentication::TokenRequest,
    certificates::CertificateSigningRequest,
    coordination::Lease,
    core::{Node, PersistentVolumeClaim, Pod, ServiceAccount},
    resource::ResourceSlice,
    storage::CSINode,
};
use podplane_pki::CertificateRequest;
use podplane_proto::error::ApiError;
use podplane_service_runtime::identity::Identity;

use super::Gate;
use crate::{
    admission::{ProposedChange, WriteCheck},
    error,
    registry::{ObjectPart, Operation},
};

/// The limits of what a node may write of a kind.
#[derive(Debug)]
pub(crate) struct NodeRestriction(Gate);

impl NodeRestriction {
    pub(crate) fn new(gate: &Gate) -> Self {
        Self(gate.clone())
    }
}

/// A kind of which nodes may write some objects.
trait Restricted: Object {
    /// Describes a change to `admit`.
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError>;
}

type Judge<'a> = &'a dyn Fn(&NodeWrite<'_>) -> Result<(), RestrictionError>;

impl Restricted for Node {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        match (change.operation, change.old, change.new) {
            (Operation::Delete | Operation::Evict, Some(old), _) | (_, Some(old), None) => {
                admit(&NodeWrite::DeleteNode { name: old.name() })
            }
            (_, Some(old), Some(new)) => admit(&NodeWrite::UpdateNode { old, new }),
            (_, None, Some(new)) => admit(&NodeWrite::CreateNode(new)),
            (_, None, None) => Ok(()),
        }
    }
}

impl Restricted for Pod {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        let write = match (change.operation, change.old, change.new) {
            (Operation::Create, _, Some(new)) => NodeWrite::CreatePod(new),
            (Operation::Update(ObjectPart::Status), Some(old), Some(new)) => {
                NodeWrite::UpdatePodStatus { old, new }
            }
            (Operation::Delete, Some(old), _) => NodeWrite::DeletePod(old),
            (Operation::Evict, Some(old), _) => NodeWrite::EvictPod(old),
            (Operation::Bind, ..) => NodeWrite::OtherOfPod {
                subresource: "binding",
            },
            (Operation::Create | Operation::Update(_) | Operation::Delete, ..)
            | (Operation::Evict, None, _) => NodeWrite::UpdatePod,
        };
        admit(&write)
    }
}

impl Restricted for Lease {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        match change.new.or(change.old) {
            Some(lease) => admit(&NodeWrite::Lease {
                namespace: lease.namespace(),
                name: lease.name(),
            }),
            None => Ok(()),
        }
    }
}

impl Restricted for CertificateSigningRequest {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        let (Operation::Create, Some(new)) = (change.operation, change.new) else {
            return admit(&NodeWrite::Other);
        };
        let request = CertificateRequest::from_pem(&new.spec.request.0);
        let request = request.map_err(|error| error.to_string());
        let name = request.as_ref().map(|request| &*request.common_name);
        admit(&NodeWrite::CreateSigningRequest {
            signer: &new.spec.signer_name,
            common_name: name.map_err(|why| &**why),
        })
    }
}

impl Restricted for PersistentVolumeClaim {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        admit(&match (change.operation, change.old, change.new) {
            (Operation::Update(ObjectPart::Status), Some(old), Some(new)) => {
                NodeWrite::UpdateClaimStatus { old, new }
            }
            _ => NodeWrite::OtherOfClaim,
        })
    }
}

impl Restricted for CSINode {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        match change.new.or(change.old) {
            Some(node) => admit(&NodeWrite::CsiNode { name: node.name() }),
            None => Ok(()),
        }
    }
}

impl Restricted for ResourceSlice {
    fn judge(change: ProposedChange<'_, Self>, admit: Judge<'_>) -> Result<(), RestrictionError> {
        fn node(slice: &ResourceSlice) -> &str {
            slice.spec.node_name.as_deref().unwrap_or_default()
        }
        match (change.operation, change.old, change.new) {
            (Operation::Create, _, Some(new)) => admit(&NodeWrite::CreateSlice { node: node(new) }),
            (Operation::Delete, Some(old), _) => admit(&NodeWrite::DeleteSlice { node: node(old) }),
            // The node authorizer has compared the node, which cannot change.
            _ => Ok(()),
        }
    }
}

impl<K: Restricted> WriteCheck<K> for NodeRestriction {
    fn check<'a>(&'a self, change: ProposedChange<'a, K>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let name = change.new.or(change.old).map_or("", Object::name);
            let judge = |admit: Judge<'_>| K::judge(change, admit);
            self.judged::<K>(change.by, name, judge).await
        }
        .boxed()
    }
}

impl NodeRestriction {
    /// Judges a request for a token of this account.
    ///
    /// # Errors
    ///
    /// `Forbidden` if a node asks for what is not its pod's, and `NotFound` without that pod.
    pub(crate) async fn check_token(
        &self,
        by: &Identity,
        account: &ObjectKey,
        request: &TokenRequest,
    ) -> Result<(), ApiError> {
        let write = NodeWrite::RequestToken {
            namespace: &account.namespace,
            request,
        };
        let judge = |admit: Judge<'_>| admit(&write);
        self.judged::<ServiceAccount>(by, &account.name, judge)
            .await
    }

    /// Refuses a write of an object that a node may not do. Whoever is not a node may write
    /// anything here.
    async fn judged<K: Object>(
        &self,
        by: &Identity,
        name: &str,
        judge: impl FnOnce(Judge<'_>) -> Result<(), RestrictionError>,
    ) -> Result<(), ApiError> {
        if by.node_name().is_none() {
            return Ok(());
        }
        let asked = self
            .0
            .with_relations(|relations| judge(&|write| admit(by, write, relations)));
        let judged = asked.await?.unwrap_or(Ok(()));
        judged.map_err(|refused| match refused {
            RestrictionError::Forbidden(why) => error::forbidden::<K>(name, &why),
            RestrictionError::NotFound { resource, name } => ApiError::not_found(resource, &name),
        })
    }
}

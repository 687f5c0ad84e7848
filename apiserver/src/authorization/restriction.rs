//! NodeRestriction where writes are committed, against the stored object.

use futures::{FutureExt as _, future::BoxFuture};
use podplane_access::restriction::{NodeWrite, RestrictionError, admit};
use podplane_api::{
    Object,
    certificates::CertificateSigningRequest,
    coordination::Lease,
    core::{Node, Pod},
};
use podplane_proto::error::ApiError;
use x509_parser::{
    certification_request::X509CertificationRequest, pem::parse_x509_pem, prelude::FromDer as _,
};

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
        let name = common_name(&new.spec.request.0);
        admit(&NodeWrite::CreateSigningRequest {
            signer: &new.spec.signer_name,
            common_name: name.as_deref().map_err(|why| &**why),
        })
    }
}

/// The common name of the subject of a request in PEM.
fn common_name(request: &[u8]) -> Result<String, String> {
    let (_, pem) = parse_x509_pem(request).map_err(|error| error.to_string())?;
    if pem.label != "CERTIFICATE REQUEST" {
        return Err("PEM block type must be CERTIFICATE REQUEST".to_owned());
    }
    let parsed = X509CertificationRequest::from_der(&pem.contents);
    let (_, request) = parsed.map_err(|error| error.to_string())?;
    let subject = request.certification_request_info.subject;
    let mut names = subject.iter_common_name();
    match (names.next().map(|name| name.as_str()), names.next()) {
        (Some(Ok(name)), None) => Ok(name.to_owned()),
        _ => Err("the subject must have one common name".to_owned()),
    }
}

impl<K: Restricted> WriteCheck<K> for NodeRestriction {
    fn check<'a>(&'a self, change: ProposedChange<'a, K>) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            // Whoever is not a node may write anything here.
            if change.by.node_name().is_none() {
                return Ok(());
            }
            let judged = self.0.with_relations(|relations| {
                K::judge(change, &|write| admit(change.by, write, relations))
            });
            let Some(judged) = judged.await? else {
                return Ok(());
            };
            let name = change.new.or(change.old).map_or("", Object::name);
            judged.map_err(|refused| match refused {
                RestrictionError::Forbidden(why) => error::forbidden::<K>(name, &why),
                RestrictionError::NotFound { resource, name } => {
                    ApiError::not_found(resource, &name)
                }
            })
        }
        .boxed()
    }
}

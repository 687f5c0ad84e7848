//! Decisions on requests for certificates, and their answers: who may approve for a signer, and who
//! may sign for it (source: Kubernetes' admission plugins `CertificateApproval` and
//! `CertificateSigning`).

use futures::{FutureExt as _, future::BoxFuture};
use podplane_access::{Attributes, ResourceTarget};
use podplane_api::{
    Object as _,
    certificates::CertificateSigningRequest,
    kinds::certificate_signing_request::{certificate, conditions},
};
use podplane_proto::error::ApiError;

use super::Gate;
use crate::{
    admission::{ProposedChange, WriteCheck},
    error,
    registry::{ObjectPart, Operation},
};

/// The check of the rights to a signer: the verbs `approve` and `sign` on the resource `signers`,
/// by the signer's name or by `DOMAIN/*`.
#[derive(Debug)]
pub(crate) struct SignerCheck(Gate);

impl SignerCheck {
    pub(crate) fn new(gate: &Gate) -> Self {
        Self(gate.clone())
    }
}

/// The verb that a change needs, if any.
fn needed(change: &ProposedChange<'_, CertificateSigningRequest>) -> Option<&'static str> {
    let (old, new) = (change.old?, change.new?);
    match change.operation {
        Operation::Update(ObjectPart::Approval) => Some("approve"),
        Operation::Update(ObjectPart::Status)
            if certificate(old) != certificate(new) || conditions(old) != conditions(new) =>
        {
            Some("sign")
        }
        _ => None,
    }
}

impl WriteCheck<CertificateSigningRequest> for SignerCheck {
    fn check<'a>(
        &'a self,
        change: ProposedChange<'a, CertificateSigningRequest>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        async move {
            let (Some(verb), Some(old)) = (needed(&change), change.old) else {
                return Ok(());
            };
            let signer = old.spec.signer_name.as_str();
            let domain = signer.split('/').next().unwrap_or_default();
            for name in [signer, &format!("{domain}/*")] {
                let target = ResourceTarget {
                    group: "certificates.k8s.io",
                    version: "*",
                    resource: "signers",
                    name,
                    ..ResourceTarget::default()
                };
                let attributes = Attributes::resource(change.by, verb, target);
                if self.0.decide(&attributes).await?.is_allowed() {
                    return Ok(());
                }
            }
            let why = format!("user not permitted to {verb} requests with signerName {signer:?}");
            Err(error::forbidden::<CertificateSigningRequest>(
                old.name(),
                &why,
            ))
        }
        .boxed()
    }
}

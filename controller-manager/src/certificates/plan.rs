//! The decisions on a request for a certificate (source: Kubernetes' `pkg/controller/certificates`,
//! the packages `approver`, `signer` and `cleaner`). A function of the request and the time.

use std::time::Duration;

use podplane_api::{
    Object as _,
    certificates::{CertificateSigningRequest, CertificateSigningRequestCondition},
    jiff::{SignedDuration, Timestamp},
    kinds::certificate_signing_request::{APPROVED, DENIED, FAILED, certificate, condition},
};
use podplane_pki::{CertificateRequest, RequestedName, RequestedUsage, certificate_end};
use podplane_proto::authorization::{
    CreateSubjectAccessReviewRequest, ExtraValue, ResourceAttributes,
};

const GROUP: &str = "certificates.k8s.io";

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";
const NODE_CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const NODE_SERVER_SIGNER: &str = "kubernetes.io/kubelet-serving";

const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";
const MASTERS: &str = "system:masters";

/// The shortest life of a certificate.
const SHORTEST: Duration = Duration::from_secs(600);
/// The age at which a request is deleted that was answered, denied or failed, and of one that
/// nobody decided on.
const DECIDED_AGE: SignedDuration = SignedDuration::from_hours(1);
const PENDING_AGE: SignedDuration = SignedDuration::from_hours(24);

/// The longest time between two looks at a request.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);

/// The shortest and the longest wait for a further look at a request whose requestor lacks the
/// permission. Kubernetes waits from 200 ms up to 1,000 s.
const SHORTEST_REVIEW_WAIT: Duration = Duration::from_secs(1);
const LONGEST_REVIEW_WAIT: Duration = Duration::from_secs(60);

/// A permission by which a node's client certificate needs no person: `create` on this subresource
/// of `certificatesigningrequests`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodePermission {
    /// A node renews its own certificate.
    SelfNodeClient,
    /// Somebody asks for a node's certificate.
    NodeClient,
}

impl NodePermission {
    pub(super) fn subresource(self) -> &'static str {
        match self {
            Self::SelfNodeClient => "selfnodeclient",
            Self::NodeClient => "nodeclient",
        }
    }

    /// The message of the approval.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::SelfNodeClient => "renewal of the node's own client certificate",
            Self::NodeClient => "client certificate of a node that joins",
        }
    }
}

/// The next step for a request.
#[derive(Debug)]
pub(super) enum CertificateStep {
    /// Approve it if the requestor has one of these permissions, or look again after this time.
    Review(&'static [NodePermission], Duration),
    /// Issue a certificate.
    Sign(Box<SigningTerms>),
    /// Say that its signer cannot answer it.
    Fail(String),
    /// Delete it.
    Delete(&'static str),
    /// Look again after this time, at the latest.
    Wait(Duration),
}

/// The certificate to issue.
#[derive(Debug)]
pub(super) struct SigningTerms {
    pub(super) request: CertificateRequest,
    pub(super) usages: Vec<RequestedUsage>,
    pub(super) lifetime: Duration,
}

/// Decides on a request. `longest` is the longest life of a certificate.
pub(super) fn plan(
    request: &CertificateSigningRequest,
    longest: Duration,
    now: Timestamp,
) -> CertificateStep {
    let (ends, why) = deletion(request);
    if ends <= now {
        return CertificateStep::Delete(why);
    }
    let has = |type_| condition(request, type_).is_some();
    let is_open = !has(DENIED) && !has(FAILED) && certificate(request).is_empty();
    let left = ends.duration_since(now).unsigned_abs();
    match (is_open, has(APPROVED)) {
        (true, false) => {
            let permissions = permissions(request);
            if !permissions.is_empty() {
                // As long again as the request is old: the wait doubles.
                let created = request.metadata.creation_timestamp.as_ref();
                let age = created.map(|time| now.duration_since(time.0));
                let age = age.and_then(|age| age.try_into().ok()).unwrap_or_default();
                let wait = Duration::clamp(age, SHORTEST_REVIEW_WAIT, LONGEST_REVIEW_WAIT);
                return CertificateStep::Review(permissions, wait.min(left));
            }
        }
        (true, true) => match signing(request, longest) {
            Some(Ok(terms)) => return CertificateStep::Sign(Box::new(terms)),
            Some(Err(why)) => return CertificateStep::Fail(why),
            // Another signer's.
            None => {}
        },
        (false, _) => {}
    }
    CertificateStep::Wait(left.min(LONGEST_WAIT))
}

/// The time at which the request is deleted, and the reason.
fn deletion(request: &CertificateSigningRequest) -> (Timestamp, &'static str) {
    let created = request.metadata.creation_timestamp.as_ref();
    let created = created.map_or(Timestamp::MAX, |time| time.0);
    let after = |from: Timestamp, age| from.checked_add(age).unwrap_or(Timestamp::MAX);
    let decided = |condition: &CertificateSigningRequestCondition| {
        let since = condition.last_update_time.as_ref();
        after(since.map_or(created, |time| time.0), DECIDED_AGE)
    };
    let issued = certificate_end(certificate(request));
    if let Some(denied) = condition(request, DENIED) {
        return (decided(denied), "denied");
    }
    if let Some(failed) = condition(request, FAILED) {
        return (decided(failed), "failed");
    }
    match condition(request, APPROVED) {
        Some(approved) => {
            let ends = decided(approved);
            (issued.map_or(ends, |expires| ends.min(expires)), "answered")
        }
        None => (after(created, PENDING_AGE), "pending"),
    }
}

/// The permissions of which one approves the request; none if only a person may.
fn permissions(request: &CertificateSigningRequest) -> &'static [NodePermission] {
    use NodePermission::{NodeClient, SelfNodeClient};
    if request.spec.signer_name != NODE_CLIENT_SIGNER {
        return &[];
    }
    let Some(Ok(terms)) = signing(request, Duration::MAX) else {
        return &[];
    };
    let is_own = request.spec.username.as_deref() == Some(terms.request.common_name.as_str());
    match is_own {
        true => &[SelfNodeClient, NodeClient],
        false => &[NodeClient],
    }
}

/// The review of the requestor's permission.
pub(super) fn review(
    request: &CertificateSigningRequest,
    permission: NodePermission,
) -> CreateSubjectAccessReviewRequest {
    let spec = &request.spec;
    let extra = spec.extra.iter().flatten().map(|(key, values)| {
        let items = values.clone();
        (key.clone(), ExtraValue { items })
    });
    CreateSubjectAccessReviewRequest {
        resource_attributes: Some(ResourceAttributes {
            verb: "create".to_owned(),
            group: GROUP.to_owned(),
            resource: CertificateSigningRequest::PLURAL.to_owned(),
            subresource: permission.subresource().to_owned(),
            ..ResourceAttributes::default()
        }),
        non_resource_attributes: None,
        user: spec.username.clone().unwrap_or_default(),
        uid: spec.uid.clone().unwrap_or_default(),
        groups: spec.groups.clone().unwrap_or_default(),
        extra: extra.collect(),
    }
}

/// The certificate to issue, or the reason why the signer cannot; `None` for other signers.
fn signing(
    request: &CertificateSigningRequest,
    longest: Duration,
) -> Option<Result<SigningTerms, String>> {
    let signer = request.spec.signer_name.as_str();
    let known = [CLIENT_SIGNER, NODE_CLIENT_SIGNER, NODE_SERVER_SIGNER];
    if !known.contains(&signer) {
        return None;
    }
    let spec = &request.spec;
    let parsed = CertificateRequest::from_pem(&spec.request.0);
    let parsed = parsed.map_err(|error| error.to_string());
    Some(parsed.and_then(|parsed| {
        let usages = usages(spec.usages.as_deref().unwrap_or_default(), signer)?;
        check_subject(&parsed, signer)?;
        check_names(&parsed.names(), signer)?;
        let asked = spec.expiration_seconds.map_or(longest, |seconds| {
            Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
        });
        Ok(SigningTerms {
            request: parsed,
            usages,
            lifetime: asked.max(SHORTEST).min(longest),
        })
    }))
}

fn usages(names: &[String], signer: &str) -> Result<Vec<RequestedUsage>, String> {
    let side = match signer {
        NODE_SERVER_SIGNER => RequestedUsage::ServerAuth,
        _ => RequestedUsage::ClientAuth,
    };
    let permitted = [
        side,
        RequestedUsage::DigitalSignature,
        RequestedUsage::KeyEncipherment,
    ];
    let parsed: Option<Vec<_>> = names
        .iter()
        .map(|name| RequestedUsage::parse(name))
        .collect();
    let mut usages = parsed
        .filter(|usages| usages.iter().all(|usage| permitted.contains(usage)))
        .ok_or_else(|| {
            format!("usages did not match: {signer} permits digital signature, key encipherment, and client auth or server auth")
        })?;
    let mut needed = vec![side];
    if signer != CLIENT_SIGNER {
        needed.push(RequestedUsage::DigitalSignature);
    }
    if !needed.iter().all(|usage| usages.contains(usage)) {
        return Err(format!("usages did not match: {signer} needs {needed:?}"));
    }
    usages.dedup();
    Ok(usages)
}

fn check_subject(request: &CertificateRequest, signer: &str) -> Result<(), String> {
    let CertificateRequest {
        common_name,
        organizations,
        ..
    } = request;
    if signer == CLIENT_SIGNER {
        // As Kubernetes' admission plugin CertificateSubjectRestriction has it.
        return match organizations.iter().any(|own| own == MASTERS) {
            true => Err(format!(
                "use of {CLIENT_SIGNER} signer with {MASTERS} group is not allowed"
            )),
            false if common_name.is_empty() => Err("subject has no common name".to_owned()),
            false => Ok(()),
        };
    }
    if organizations.as_slice() != [NODES] {
        return Err("subject organization is not system:nodes".to_owned());
    }
    let node = common_name.strip_prefix(NODE_PREFIX);
    match node.is_some_and(|node| !node.is_empty()) {
        true => Ok(()),
        false => Err("subject common name does not begin with system:node:".to_owned()),
    }
}

fn check_names(names: &[RequestedName], signer: &str) -> Result<(), String> {
    let refused = |why: &str| Err(why.to_owned());
    let is_address =
        |name: &RequestedName| matches!(name, RequestedName::Dns(_) | RequestedName::Ip(_));
    match signer {
        NODE_CLIENT_SIGNER if !names.is_empty() => refused("subjectAltNames are not allowed"),
        NODE_SERVER_SIGNER if !names.iter().any(is_address) => {
            refused("DNS or IP subjectAltName is required")
        }
        NODE_SERVER_SIGNER if !names.iter().all(is_address) => {
            refused("only DNS and IP subjectAltNames are allowed")
        }
        _ => Ok(()),
    }
}

/// The name for logs.
pub(super) fn requester(request: &CertificateSigningRequest) -> &str {
    let user = request.spec.username.as_deref();
    user.unwrap_or_else(|| request.name())
}

#[cfg(test)]
mod tests;

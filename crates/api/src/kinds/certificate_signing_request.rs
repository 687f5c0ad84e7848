//! CertificateSigningRequests: requests for certificates, which a signer answers in their status.

use std::{borrow::Cow, collections::BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::{
    certificates::{
        CertificateSigningRequest, CertificateSigningRequestCondition,
        CertificateSigningRequestSpec, CertificateSigningRequestStatus,
    },
    meta::Time,
    names,
    object::{Object, Scope, json_conversions},
    selector::{FieldSelectable, SelectableField},
    strategy::{Requester, Strategy, Subresource},
    table::{Column, NONE, TableRow, age, always, created},
    validation::{ErrorList, FieldPath, Validate, metadata, pem},
};

/// The condition of an approved request.
pub const APPROVED: &str = "Approved";
/// The condition of a denied request.
pub const DENIED: &str = "Denied";
/// The condition of a request that its signer cannot answer.
pub const FAILED: &str = "Failed";
/// The requester of an object that no request made.
const ANYBODY: (&str, &str) = ("system:anonymous", "system:unauthenticated");
/// The signer of requests of the API version v1beta1.
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
/// The shortest life of a certificate that may be requested.
const LEAST_SECONDS: i32 = 600;
/// The usages of keys, in the order in which errors list them.
const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

impl Object for CertificateSigningRequest {
    const SCOPE: Scope = Scope::Cluster;
    const SINGULAR: &'static str = "certificatesigningrequest";
    const SHORT_NAMES: &'static [&'static str] = &["csr"];

    json_conversions!();
}

impl FieldSelectable for CertificateSigningRequest {
    const FIELDS: &'static [SelectableField<Self>] = &[("spec.signerName", |request| {
        Cow::Borrowed(&request.spec.signer_name)
    })];
}

impl Validate for CertificateSigningRequest {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::path_segment);
        validate_spec(&FieldPath::new("spec"), &self.spec, &mut errors);
        let path = FieldPath::new("status").child("conditions");
        validate_conditions(&path, conditions(self), &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        validate_new_conditions(self, old, Decision::Kept, &mut errors);
        validate_certificate(certificate(self), certificate(old), &mut errors);
        errors
    }
}

/// The conditions in the status.
pub fn conditions(request: &CertificateSigningRequest) -> &[CertificateSigningRequestCondition] {
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default()
}

/// The condition of that type, if the request has it.
pub fn condition<'a>(
    request: &'a CertificateSigningRequest,
    type_: &'a str,
) -> Option<&'a CertificateSigningRequestCondition> {
    of_type(request, type_).next()
}

fn of_type<'a>(
    request: &'a CertificateSigningRequest,
    type_: &'a str,
) -> impl Iterator<Item = &'a CertificateSigningRequestCondition> {
    let conditions = conditions(request).iter();
    conditions.filter(move |condition| condition.type_ == type_)
}

/// The certificate in the status, empty if it was not issued.
pub fn certificate(request: &CertificateSigningRequest) -> &[u8] {
    let status = request.status.as_ref();
    let certificate = status.and_then(|status| status.certificate.as_ref());
    certificate.map_or(&[], |certificate| certificate.0.as_slice())
}

/// Checks the spec; of the request only the PEM frame, as the signer parses it.
fn validate_spec(path: &FieldPath, spec: &CertificateSigningRequestSpec, errors: &mut ErrorList) {
    let CertificateSigningRequestSpec {
        expiration_seconds,
        request,
        signer_name,
        usages,
        // The server sets the fields of the requester.
        extra: _,
        groups: _,
        uid: _,
        username: _,
    } = spec;
    let labels = pem::labels(&request.0);
    if labels.first().map(String::as_str) != Some("CERTIFICATE REQUEST") {
        let detail = "PEM block type must be CERTIFICATE REQUEST";
        errors.invalid(&path.child("request"), json!(request), detail);
    }
    let usages_path = path.child("usages");
    let usages = usages.as_deref().unwrap_or_default();
    if usages.is_empty() {
        errors.required(&usages_path, "");
    }
    for (index, usage) in usages.iter().enumerate() {
        if !USAGES.contains(&usage.as_str()) {
            errors.not_supported(&usages_path.index(index), usage, &USAGES);
        }
    }
    let mut seen = BTreeSet::new();
    for (index, usage) in usages.iter().enumerate() {
        if !seen.insert(usage) {
            errors.duplicate(&usages_path.index(index), usage.as_str());
        }
    }
    validate_signer_name(&path.child("signerName"), signer_name, errors);
    if let Some(seconds) = expiration_seconds.filter(|seconds| *seconds < LEAST_SECONDS) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.invalid(&path.child("expirationSeconds"), seconds, detail);
    }
}

/// Checks the name of a signer: `example.com/signer-name` (source: `ValidateSignerName` of
/// `pkg/apis/core/validation`).
fn validate_signer_name(path: &FieldPath, name: &str, errors: &mut ErrorList) {
    /// The longest last part: a namespace, a dot and the name of a resource.
    const LONGEST_PATH: usize = names::DNS1123_LABEL_MAX + 1 + names::DNS1123_SUBDOMAIN_MAX;
    const LONGEST: usize = names::DNS1123_SUBDOMAIN_MAX + 1 + LONGEST_PATH;

    if name.is_empty() {
        return errors.required(path, "");
    }
    if name == LEGACY_SIGNER {
        let detail = "the legacy signerName is not allowed via this API version";
        return errors.invalid(path, name, detail);
    }
    let parts = name.split_once('/');
    let Some((domain, last)) = parts.filter(|(_, last)| !last.contains('/')) else {
        let detail =
            "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return errors.invalid(path, name, detail);
    };
    if domain.len() > names::DNS1123_SUBDOMAIN_MAX {
        errors.too_long(path, names::DNS1123_SUBDOMAIN_MAX);
    }
    // Of several invalid labels the first is reported.
    let mut first_invalid = |text: &str, rules: fn(&str) -> Vec<String>| {
        let labels = text.split('.').map(|label| (label, rules(label)));
        for (label, broken) in labels.filter(|(_, broken)| !broken.is_empty()).take(1) {
            for rule in broken {
                errors.invalid(path, text, &format!("validating label {label:?}: {rule}"));
            }
        }
    };
    first_invalid(domain, names::dns1123_label);
    first_invalid(last, names::dns1123_subdomain);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.invalid(path, domain, detail);
    }
    if name.len() > LONGEST {
        errors.too_long(path, LONGEST);
    }
}

fn validate_conditions(
    path: &FieldPath,
    conditions: &[CertificateSigningRequestCondition],
    errors: &mut ErrorList,
) {
    let mut seen = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (type_, item) = (condition.type_.as_str(), path.index(index));
        if type_.is_empty() {
            errors.required(&item.child("type"), "");
        }
        let supported: &[&str] = match type_ {
            APPROVED | DENIED | FAILED => &["True"],
            _ => &["False", "True", "Unknown"],
        };
        match condition.status.as_str() {
            "" => errors.required(&item.child("status"), ""),
            status if !supported.contains(&status) => {
                errors.not_supported(&item.child("status"), status, supported);
            }
            _ => {}
        }
        let excluded = match type_ {
            APPROVED => seen.contains(DENIED),
            DENIED => seen.contains(APPROVED),
            _ => false,
        };
        if excluded {
            let detail = "Approved and Denied conditions are mutually exclusive";
            errors.invalid(path, type_, detail);
        }
        if !seen.insert(type_) {
            errors.duplicate(&item.child("type"), type_);
        }
    }
}

/// The part of a write in the decision.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// It may add none.
    Kept,
    /// It is one through the subresource `approval`.
    Made,
}

/// Checks that no decision is removed, and that none is made except through the subresource
/// `approval`.
fn validate_new_conditions(
    new: &CertificateSigningRequest,
    old: &CertificateSigningRequest,
    decision: Decision,
    errors: &mut ErrorList,
) {
    let path = FieldPath::new("status").child("conditions");
    for type_ in [APPROVED, DENIED, FAILED] {
        let (now, before) = (of_type(new, type_).count(), of_type(old, type_).count());
        if now < before {
            let detail = format!("updates may not remove a condition of type {type_:?}");
            errors.forbidden(&path, &detail);
        }
        if now > before && type_ != FAILED && decision == Decision::Kept {
            let detail = format!("updates may not add a condition of type {type_:?}");
            errors.forbidden(&path, &detail);
        }
    }
}

/// Checks that a certificate is set once, and that it has the form of one.
fn validate_certificate(new: &[u8], old: &[u8], errors: &mut ErrorList) {
    if new == old {
        return;
    }
    let path = FieldPath::new("status").child("certificate");
    if !old.is_empty() {
        errors.forbidden(&path, "updates may not modify existing certificate content");
    }
    let labels = pem::labels(new);
    let other = labels.iter().find(|label| *label != "CERTIFICATE");
    let detail = match other {
        Some(other) => format!("only CERTIFICATE PEM blocks are allowed, found {other:?}"),
        None if labels.is_empty() && !new.is_empty() => {
            "must contain at least one CERTIFICATE PEM block".to_owned()
        }
        None => return,
    };
    errors.invalid(&path, "<certificate data>", &detail);
}

impl TableRow for CertificateSigningRequest {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("AGE"),
        always("SIGNERNAME"),
        always("REQUESTOR"),
        always("REQUESTEDDURATION"),
        always("CONDITION"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let spec = &self.spec;
        let signer = match spec.signer_name.as_str() {
            "" => NONE,
            name => name,
        };
        let duration = spec.expiration_seconds.map(|seconds| {
            let duration = SignedDuration::from_secs(seconds.into());
            age::between(Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH + duration)
        });
        vec![
            self.name().into(),
            created(self, now),
            signer.into(),
            spec.username.clone().unwrap_or_default(),
            duration.unwrap_or_else(|| NONE.into()),
            shown_condition(self),
        ]
    }
}

fn shown_condition(request: &CertificateSigningRequest) -> String {
    let has = |type_| of_type(request, type_).next().is_some();
    let decision = match (has(DENIED), has(APPROVED)) {
        (true, _) => "Denied",
        (false, true) => "Approved",
        (false, false) => "Pending",
    };
    let failed = if has(FAILED) { ",Failed" } else { "" };
    let issued = if certificate(request).is_empty() {
        ""
    } else {
        ",Issued"
    };
    format!("{decision}{failed}{issued}")
}

impl Strategy for CertificateSigningRequest {
    const SERVICE: &'static str = "podplane.certificates.v1.CertificateSigningRequestService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Approval, Subresource::Status];

    fn prepare_for_create(&mut self) {
        let spec = &mut self.spec;
        let (user, group) = ANYBODY;
        spec.username = Some(user.to_owned());
        spec.groups = Some(vec![group.to_owned()]);
        spec.uid = None;
        spec.extra = None;
        self.status = Some(CertificateSigningRequestStatus::default());
    }

    fn set_requester(&mut self, by: Requester<'_>) {
        let Requester {
            user,
            uid,
            groups,
            extra,
        } = by;
        let spec = &mut self.spec;
        spec.username = Some(user.to_owned());
        spec.uid = Some(uid.to_owned()).filter(|uid| !uid.is_empty());
        spec.groups = Some(groups.to_vec()).filter(|groups| !groups.is_empty());
        spec.extra = Some(extra.clone()).filter(|extra| !extra.is_empty());
    }

    /// The spec is immutable: an update that changes it changes nothing, as in Kubernetes.
    fn prepare_for_update(&mut self, old: &Self) {
        self.spec.clone_from(&old.spec);
        self.status.clone_from(&old.status);
    }

    /// Takes the status, except the decisions.
    fn set_status(&mut self, update: &Self) {
        let mut status = update.status.clone();
        for type_ in [APPROVED, DENIED] {
            let conditions = status.iter_mut().flat_map(|status| &mut status.conditions);
            let new = conditions
                .flatten()
                .filter(|condition| condition.type_ == type_);
            // If their numbers differ, validation refuses the update.
            for (new, old) in new.zip(of_type(self, type_)) {
                new.clone_from(old);
            }
        }
        self.status = status;
    }

    /// Takes the conditions alone, and dates those that are not.
    fn set_approval(&mut self, update: &Self, now: Timestamp) {
        let mut new = conditions(update).to_vec();
        for condition in &mut new {
            let old = of_type(self, &condition.type_).find(|old| old.status == condition.status);
            let since = old.and_then(|old| old.last_transition_time.clone());
            if condition.last_transition_time.is_none() {
                condition.last_transition_time = Some(since.unwrap_or(Time(now)));
            }
            condition.last_update_time.get_or_insert(Time(now));
        }
        let status = self.status.get_or_insert_default();
        status.conditions = Some(new).filter(|new| !new.is_empty());
    }

    fn validate_approval(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        errors.append(self.validate());
        validate_new_conditions(self, old, Decision::Made, &mut errors);
        errors
    }
}

#[cfg(test)]
mod tests;

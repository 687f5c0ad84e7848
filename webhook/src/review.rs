//! `AdmissionReview` of `admission.k8s.io/v1`, as far as the webhooks need it.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use json_patch::Patch;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// The version of reviews.
pub const API_VERSION: &str = "admission.k8s.io/v1";
/// The kind of reviews.
pub const KIND: &str = "AdmissionReview";

/// The reason why a document is not a review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The document is not JSON, or fields have other types.
    #[error("invalid {KIND}")]
    Json(#[from] serde_json::Error),
    /// The document is something else.
    #[error(
        "invalid {KIND}: want apiVersion {API_VERSION:?} and kind {KIND:?}, found {0:?} and {1:?}"
    )]
    Type(String, String),
    /// The review has no request.
    #[error("invalid {KIND}: missing request")]
    NoRequest,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<T> {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<ReviewRequest<T>>,
}

/// The request to judge, with its object.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewRequest<T> {
    /// The identity of the review, which the answer repeats.
    pub uid: String,
    /// The resource: its group, version and plural name.
    pub resource: ResourceName,
    /// The subresource, such as `binding`.
    #[serde(default)]
    pub sub_resource: String,
    /// The name of the object; empty if it has none yet.
    #[serde(default)]
    pub name: String,
    /// The namespace of the object.
    #[serde(default)]
    pub namespace: String,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: String,
    /// True if the request will not be carried out.
    #[serde(default)]
    pub dry_run: Option<bool>,
    /// The new object.
    pub object: Option<T>,
}

/// A group, version and plural name.
#[derive(Clone, Debug, Deserialize)]
pub struct ResourceName {
    #[serde(default)]
    group: String,
    version: String,
    resource: String,
}

impl<T> ReviewRequest<T> {
    /// Returns true if the request creates a pod.
    pub fn creates_pod(&self) -> bool {
        self.creates("pods", "")
    }

    /// Returns true if the request binds a pod: by its subresource, or by the older resource
    /// `bindings`, where the object alone names the pod.
    pub fn creates_binding(&self) -> bool {
        self.creates("pods", "binding") || self.creates("bindings", "")
    }

    fn creates(&self, resource: &str, sub_resource: &str) -> bool {
        let of = &self.resource;
        let found = [&of.group, &of.version, &of.resource, &self.sub_resource];
        self.operation == "CREATE"
            && found.map(String::as_str) == ["", "v1", resource, sub_resource]
    }

    /// Returns true if the request will not be carried out.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.unwrap_or_default()
    }
}

/// Reads a review.
///
/// # Errors
///
/// [`ReviewError`].
pub fn read<T: DeserializeOwned>(document: &[u8]) -> Result<ReviewRequest<T>, ReviewError> {
    let review: Review<T> = serde_json::from_slice(document)?;
    match [review.api_version.as_str(), review.kind.as_str()] {
        [API_VERSION, KIND] => review.request.ok_or(ReviewError::NoRequest),
        _ => Err(ReviewError::Type(review.api_version, review.kind)),
    }
}

/// An answer.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReviewAnswer {
    uid: String,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<RefusalStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'static str>,
    /// In base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: BTreeMap<&'static str, String>,
}

/// The part of a `Status` that a refusal has.
#[derive(Clone, Debug, Serialize)]
pub struct RefusalStatus {
    /// HTTP's status code.
    pub code: u16,
    /// The reason for programs.
    pub reason: &'static str,
    /// The message for people.
    pub message: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnsweredReview {
    api_version: &'static str,
    kind: &'static str,
    response: ReviewAnswer,
}

impl ReviewAnswer {
    /// An answer that allows the request.
    pub fn allowed(uid: impl Into<String>) -> Self {
        Self {
            uid: uid.into(),
            allowed: true,
            status: None,
            patch_type: None,
            patch: None,
            audit_annotations: BTreeMap::new(),
        }
    }

    /// An answer that refuses the request.
    pub fn refused(uid: impl Into<String>, status: RefusalStatus) -> Self {
        Self {
            allowed: false,
            status: Some(status),
            ..Self::allowed(uid)
        }
    }

    /// The same answer with a change of the object.
    ///
    /// # Errors
    ///
    /// If the patch cannot be written as JSON.
    pub fn patched(self, patch: &Patch) -> Result<Self, serde_json::Error> {
        Ok(Self {
            patch_type: Some("JSONPatch"),
            patch: Some(BASE64.encode(serde_json::to_vec(patch)?)),
            ..self
        })
    }

    /// The same answer with a note for the audit log of the API server.
    #[must_use]
    pub fn noted(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.audit_annotations.insert(key, value.into());
        self
    }

    /// The review with the answer, as JSON.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn document(self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&AnsweredReview {
            api_version: API_VERSION,
            kind: KIND,
            response: self,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_text(text: &str) -> Result<ReviewRequest<Value>, String> {
        read(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn refuses_documents_that_are_not_reviews_of_v1() {
        for (text, why) in [
            ("", "invalid AdmissionReview"),
            ("[]", "invalid AdmissionReview"),
            ("{}", "found \"\" and \"\""),
            (
                r#"{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview"}"#,
                "found \"admission.k8s.io/v1beta1\"",
            ),
            (
                r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
                "missing request",
            ),
            (
                r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}"#,
                "invalid AdmissionReview",
            ),
        ] {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn only_creations_in_the_core_group_are_judged() {
        for (operation, group, resource, sub, is_pod, is_binding) in [
            ("CREATE", "", "pods", "", true, false),
            ("CREATE", "", "pods", "binding", false, true),
            ("CREATE", "", "bindings", "", false, true),
            ("CREATE", "", "pods", "eviction", false, false),
            ("CREATE", "", "nodes", "", false, false),
            ("CREATE", "metrics.k8s.io", "pods", "", false, false),
            ("UPDATE", "", "pods", "", false, false),
            ("UPDATE", "", "pods", "status", false, false),
        ] {
            let review = json!({"apiVersion": API_VERSION, "kind": KIND, "request": {
                "uid": "u", "operation": operation, "subResource": sub,
                "resource": {"group": group, "version": "v1", "resource": resource}}});
            let request = read_text(&review.to_string()).unwrap();
            let found = (request.creates_pod(), request.creates_binding());
            assert_eq!(found, (is_pod, is_binding), "{request:?}");
        }
    }

    #[test]
    fn answers_have_the_fields_of_kubernetes() {
        let document = |answer: ReviewAnswer| -> Value {
            serde_json::from_slice(&answer.document().unwrap()).unwrap()
        };
        let all = document(ReviewAnswer::allowed("u"));
        assert_eq!(
            all,
            json!({"apiVersion": API_VERSION, "kind": KIND, "response": {"uid": "u", "allowed": true}})
        );
        let patch: Patch =
            serde_json::from_value(json!([{"op": "add", "path": "/a~1b", "value": 1}])).unwrap();
        let answer = ReviewAnswer::allowed("u").patched(&patch).unwrap();
        let answer = &document(answer.noted("k", "v"))["response"];
        assert_eq!(answer["patchType"], "JSONPatch");
        assert_eq!(answer["auditAnnotations"], json!({"k": "v"}));
        let patch = BASE64.decode(answer["patch"].as_str().unwrap()).unwrap();
        assert_eq!(patch, br#"[{"op":"add","path":"/a~1b","value":1}]"#);
        let status = RefusalStatus {
            code: 409,
            reason: "R",
            message: "m".into(),
        };
        let refused = document(ReviewAnswer::refused("u", status));
        assert_eq!(
            refused["response"],
            json!({"uid": "u", "allowed": false,
                "status": {"code": 409, "reason": "R", "message": "m"}})
        );
    }
}

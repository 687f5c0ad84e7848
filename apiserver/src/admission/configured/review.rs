//! `AdmissionReview`: what a webhook is sent, and what its answer must be (source:
//! `k8s.io/apiserver/pkg/admission/plugin/webhook/request`).

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use podplane_proto::error::{ApiError, Reason};
use serde_json::{Value, json};

use super::attributes::{Attributes, VersionedDocuments};

/// The review of a write.
pub(super) fn request(
    at: &Attributes<'_>,
    documents: &VersionedDocuments,
    api_version: &str,
    uid: &str,
) -> Value {
    let mut request = at.request(uid, documents);
    request.insert("object".to_owned(), json!(documents.object));
    request.insert("oldObject".to_owned(), json!(documents.old));
    json!({"kind": "AdmissionReview", "apiVersion": api_version, "request": request})
}

/// A valid answer.
#[derive(Debug)]
pub(super) struct ReviewAnswer {
    /// `Err`: the `Status` of a refusal.
    pub(super) verdict: Result<(), Value>,
    /// A JSON patch.
    pub(super) patch: Option<Value>,
    pub(super) warnings: Vec<String>,
    pub(super) annotations: Vec<(String, String)>,
}

/// Checks an answer. A validating webhook has no patches.
pub(super) fn answer(
    mut review: Value,
    api_version: &str,
    uid: &str,
    is_mutating: bool,
) -> Result<ReviewAnswer, String> {
    let found = [&review["apiVersion"], &review["kind"]].map(|text| text.as_str());
    // The older version need not say what it answers.
    let is_strict = api_version == V1;
    if is_strict && found != [Some(api_version), Some("AdmissionReview")] {
        let [version, kind] = found.map(Option::unwrap_or_default);
        return Err(format!(
            "expected webhook response of {api_version}, Kind=AdmissionReview, got {version}, Kind={kind}"
        ));
    }
    let mut response = review["response"].take();
    if !response.is_object() {
        return Err("webhook response was absent".to_owned());
    }
    let answered = response["uid"].as_str().unwrap_or_default();
    if is_strict && answered != uid {
        return Err(format!("expected response.uid={uid:?}, got {answered:?}"));
    }
    let Some(is_allowed) = response["allowed"].as_bool() else {
        return Err("response.allowed is not a boolean".to_owned());
    };
    let patch = match is_mutating {
        true => patch(&response, is_strict)?,
        false => None,
    };
    let warnings = response["warnings"].as_array();
    let warnings = warnings.into_iter().flatten().filter_map(Value::as_str);
    let warnings = warnings.map(str::to_owned).collect();
    let annotations = response["auditAnnotations"].as_object();
    let annotations = annotations.into_iter().flatten();
    let annotations =
        annotations.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let annotations = annotations.collect();
    Ok(ReviewAnswer {
        verdict: match is_allowed {
            true => Ok(()),
            false => Err(response["status"].take()),
        },
        patch,
        warnings,
        annotations,
    })
}

/// The version of reviews; the older one differs in what an answer must have.
pub(super) const V1: &str = "admission.k8s.io/v1";
pub(super) const V1_BETA1: &str = "admission.k8s.io/v1beta1";

fn patch(response: &Value, is_strict: bool) -> Result<Option<Value>, String> {
    let text = response["patch"].as_str().unwrap_or_default();
    let patch_type = response["patchType"].as_str();
    match (text, patch_type) {
        ("", None) => return Ok(None),
        ("", Some(_)) if !is_strict => return Ok(None),
        ("", Some(_)) => {
            return Err("webhook returned response.patchType but not response.patch".to_owned());
        }
        (_, None) if is_strict => {
            return Err("webhook returned response.patch but not response.patchType".to_owned());
        }
        (_, Some(other)) if other != "JSONPatch" => {
            return Err(format!(
                "webhook returned invalid response.patchType of {other:?}: only \"JSONPatch\" is supported"
            ));
        }
        _ => {}
    }
    let bytes = BASE64.decode(text);
    let bytes = bytes.map_err(|error| format!("response.patch is not base64: {error}"))?;
    let patch = serde_json::from_slice(&bytes);
    let patch: Value = patch.map_err(|error| format!("response.patch is not JSON: {error}"))?;
    match patch.as_array().is_some_and(Vec::is_empty) || patch.is_null() {
        true => Ok(None),
        false => Ok(Some(patch)),
    }
}

/// The error of a refusal: its code, reason and message are those that the webhook chose.
pub(super) fn refusal(webhook: &str, status: &Value) -> (u16, ApiError) {
    let text = |field: &str| status[field].as_str().unwrap_or_default();
    let code = status["code"]
        .as_u64()
        .and_then(|code| u16::try_from(code).ok());
    // No refusal looks like a success.
    let code = code.filter(|code| (400..600).contains(code)).unwrap_or(400);
    let denied = format!("admission webhook {webhook:?} denied the request");
    let message = match (text("message"), text("reason")) {
        ("", "") => format!("{denied} without explanation"),
        ("", reason) => format!("{denied}: {reason}"),
        (message, _) => format!("{denied}: {message}"),
    };
    let error = ApiError::new(reason(code), message);
    (code, error.with_status(code, text("reason")))
}

/// The reason of a code, for gRPC. It is never one after which the registry would try another way:
/// the webhook's word is final.
fn reason(code: u16) -> Reason {
    match code {
        403 => Reason::Forbidden,
        413 => Reason::RequestEntityTooLarge,
        422 => Reason::Invalid,
        429 => Reason::TooManyRequests,
        500.. => Reason::InternalError,
        _ => Reason::BadRequest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(response: Value) -> Value {
        json!({"apiVersion": V1, "kind": "AdmissionReview", "response": response})
    }

    #[test]
    fn answers_are_what_was_asked_for() {
        let patch = |patch: &str| BASE64.encode(patch);
        let good =
            json!({"uid": "u", "allowed": true, "warnings": ["w"], "auditAnnotations": {"k": "v"}});
        let answered = answer(review(good), V1, "u", true).unwrap();
        assert_eq!(answered.warnings, ["w"]);
        assert_eq!(answered.annotations, [("k".to_owned(), "v".to_owned())]);
        assert!(answered.verdict.is_ok() && answered.patch.is_none());
        let patched = json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": patch("[{\"op\": \"remove\", \"path\": \"/a\"}]")});
        let answered = answer(review(patched.clone()), V1, "u", true).unwrap();
        assert_eq!(answered.patch.unwrap()[0]["op"], "remove");
        let answered = answer(review(patched), V1, "u", false).unwrap();
        assert!(answered.patch.is_none());
        for (wrong, why) in [
            (
                json!({"apiVersion": V1, "kind": "AdmissionReview"}),
                "webhook response was absent",
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod"}),
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got v1, Kind=Pod",
            ),
            (json!("x"), "expected webhook response of"),
            (
                review(json!({"uid": "v", "allowed": true})),
                "expected response.uid=\"u\", got \"v\"",
            ),
            (
                review(json!({"uid": "u"})),
                "response.allowed is not a boolean",
            ),
            (
                review(json!({"uid": "u", "allowed": true, "patch": "W10="})),
                "response.patch but not response.patchType",
            ),
            (
                review(json!({"uid": "u", "allowed": true, "patchType": "JSONPatch"})),
                "response.patchType but not response.patch",
            ),
            (
                review(json!({"uid": "u", "allowed": true, "patch": "W10=", "patchType": "Merge"})),
                "invalid response.patchType of \"Merge\"",
            ),
            (
                review(
                    json!({"uid": "u", "allowed": true, "patch": "!", "patchType": "JSONPatch"}),
                ),
                "is not base64",
            ),
            (
                review(
                    json!({"uid": "u", "allowed": true, "patch": patch("{"), "patchType": "JSONPatch"}),
                ),
                "is not JSON",
            ),
        ] {
            let refused = answer(wrong.clone(), V1, "u", true).unwrap_err();
            assert!(refused.contains(why), "{wrong}: {refused}");
        }
        let older = json!({"response": {"allowed": true, "patch": patch("[]")}});
        let answered = answer(older, V1_BETA1, "u", true).unwrap();
        assert!(answered.verdict.is_ok() && answered.patch.is_none());
    }

    #[test]
    fn refusals_keep_their_status() {
        for (status, code, reason, message) in [
            (
                json!(null),
                400,
                "",
                "denied the request without explanation",
            ),
            (
                json!({"reason": "Late"}),
                400,
                "Late",
                "denied the request: Late",
            ),
            (
                json!({"message": "no", "code": 418, "reason": "Teapot"}),
                418,
                "Teapot",
                "denied the request: no",
            ),
            (
                json!({"message": "no", "code": 200}),
                400,
                "",
                "denied the request: no",
            ),
            (
                json!({"message": "no", "code": 404, "reason": "NotFound"}),
                404,
                "NotFound",
                "denied the request: no",
            ),
        ] {
            let (refused, error) = refusal("a.b.c", &status);
            assert_eq!(refused, code);
            assert_eq!(
                error.message,
                format!("admission webhook \"a.b.c\" {message}")
            );
            let chosen = error.chosen_status.unwrap();
            assert_eq!((chosen.code, &*chosen.reason), (code, reason));
            // The registry must not take it for its own finding.
            assert!(!matches!(
                error.reason,
                Reason::NotFound | Reason::AlreadyExists | Reason::Conflict
            ));
        }
    }
}

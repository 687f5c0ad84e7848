//! Secrets: keys and values that only some may read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    ByteString,
    core::Secret,
    names,
    object::{Object, Scope},
    selector::{FieldSelectable, SelectableField, field::text},
    strategy::Strategy,
    strict::{self, StrictError},
    table::{Column, TableRow, always, created},
    validation::{ErrorList, FieldPath, Validate, data, metadata},
};

/// The annotation with the name of the account of a token.
const ACCOUNT: &str = "kubernetes.io/service-account.name";

/// The error of a value that cannot be read.
const MALFORMED: &str = "wrong type, or not base64; the value is not shown";

impl Object for Secret {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "secret";

    fn from_json_noting(document: Value) -> Result<(Self, Vec<String>), StrictError> {
        strict::decode_noting(document).map_err(|error| match error {
            // Its text quotes the value.
            StrictError::Malformed { path, .. } => StrictError::Malformed {
                path,
                message: MALFORMED.to_owned(),
            },
            error => error,
        })
    }

    fn from_slice(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        let decoded = Self::from_json_noting(serde_json::from_slice(bytes)?);
        let decoded = decoded.map_err(<serde_json::Error as serde::de::Error>::custom);
        decoded.map(|(object, _unknown)| object)
    }

    fn to_json(&self) -> Result<Value, serde_json::Error> {
        serde_json::to_value(self)
    }

    fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&self.to_json()?)
    }
}

impl FieldSelectable for Secret {
    const FIELDS: &'static [SelectableField<Self>] =
        &[("type", |secret| text(secret.type_.as_deref()))];
}

impl Validate for Secret {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        let path = FieldPath::new("data");
        let mut bytes = 0;
        for (key, value) in self.data.iter().flatten() {
            data::key(&path, key, &mut errors);
            bytes += value.0.len();
        }
        if bytes > data::MAX_BYTES {
            errors.too_long(&path, data::MAX_BYTES);
        }
        validate_type(self, &path, &mut errors);
        errors
    }

    fn validate_update(&self, old: &Self) -> ErrorList {
        let mut errors = metadata::validate_update(self, old);
        if self.type_ != old.type_ {
            let path = FieldPath::new("type");
            errors.invalid(&path, json!(self.type_), "field is immutable");
        }
        let parts = [("data", self.data == old.data)];
        data::immutable(old.immutable, self.immutable, &parts, &mut errors);
        errors.append(self.validate());
        errors
    }
}

impl TableRow for Secret {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("TYPE"),
        always("DATA"),
        always("AGE"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        vec![
            self.name().into(),
            self.type_.clone().unwrap_or_default(),
            self.data.as_ref().map_or(0, BTreeMap::len).to_string(),
            created(self, now),
        ]
    }
}

/// Checks the rules of the types that Kubernetes knows.
fn validate_type(secret: &Secret, path: &FieldPath, errors: &mut ErrorList) {
    let value = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let mut required = |key: &str| errors.required(&path.key(key), "");
    match secret.type_.as_deref().unwrap_or_default() {
        "kubernetes.io/service-account-token" => {
            let annotations = secret.metadata.annotations.as_ref();
            let account = annotations.and_then(|all| all.get(ACCOUNT));
            if account.is_none_or(String::is_empty) {
                let annotations = FieldPath::new("metadata").child("annotations");
                errors.required(&annotations.key(ACCOUNT), "");
            }
        }
        "kubernetes.io/dockercfg" => validate_json(secret, path, ".dockercfg", errors),
        "kubernetes.io/dockerconfigjson" => {
            validate_json(secret, path, ".dockerconfigjson", errors);
        }
        "kubernetes.io/basic-auth"
            if value("username").is_none() && value("password").is_none() =>
        {
            required("username");
            required("password");
        }
        "kubernetes.io/ssh-auth" if value("ssh-privatekey").is_none_or(|key| key.0.is_empty()) => {
            required("ssh-privatekey");
        }
        "kubernetes.io/tls" => {
            for key in ["tls.crt", "tls.key"] {
                if value(key).is_none() {
                    required(key);
                }
            }
        }
        _ => {}
    }
}

/// Checks a value that has to be JSON.
fn validate_json(secret: &Secret, path: &FieldPath, key: &str, errors: &mut ErrorList) {
    let path = path.key(key);
    let Some(value) = secret.data.as_ref().and_then(|data| data.get(key)) else {
        return errors.required(&path, "");
    };
    let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(&value.0);
    if let Err(error) = parsed {
        // Only the place of the error: its text could quote the secret.
        let place = format!("not JSON at byte {}", error.column());
        errors.invalid(&path, "<secret contents redacted>", &place);
    }
}

impl Strategy for Secret {
    const SERVICE: &'static str = "podplane.core.v1.SecretService";

    /// Also moves `stringData`, which is only written, into `data`.
    fn set_defaults(&mut self) {
        for (key, text) in self.string_data.take().into_iter().flatten() {
            let data = self.data.get_or_insert_default();
            data.insert(key, ByteString(text.into_bytes()));
        }
        if self.type_.as_deref().is_none_or(str::is_empty) {
            self.type_ = Some("Opaque".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(document: serde_json::Value) -> Secret {
        let mut secret = Secret::from_json(document).unwrap();
        secret.metadata.name = Some("a".into());
        secret.metadata.namespace = Some("default".into());
        secret.set_defaults();
        secret
    }

    #[test]
    fn text_becomes_data_and_the_type_is_opaque() {
        let document =
            json!({"data": {"a": "MQ==", "b": "Mg=="}, "stringData": {"b": "3", "c": ""}});
        let written = secret(document);
        assert!(written.validate().is_empty());
        let stored = written.to_json().unwrap();
        assert_eq!(stored["data"], json!({"a": "MQ==", "b": "Mw==", "c": ""}));
        assert_eq!(stored.get("stringData"), None);
        assert_eq!(
            written.cells(Timestamp::UNIX_EPOCH),
            ["a", "Opaque", "3", "<unknown>"]
        );
    }

    #[test]
    fn an_error_of_decoding_does_not_quote_the_value() {
        for (document, path) in [
            (json!({"data": {"a": "pass word"}}), "data.a"),
            (json!({"data": {"a": 4711}}), "data.a"),
            (json!({"data": "pass word"}), "data"),
            (json!({"stringData": {"a": 4711}}), "stringData.a"),
            (json!({"stringData": ["pass word"]}), "stringData"),
            (json!({"immutable": "pass word"}), "immutable"),
        ] {
            let bytes = serde_json::to_vec(&document).unwrap();
            let error = Secret::from_json(document).unwrap_err().to_string();
            assert_eq!(error, format!("{path}: {MALFORMED}"));
            let error = Secret::from_slice(&bytes).unwrap_err().to_string();
            assert_eq!(error, format!("{path}: {MALFORMED}"));
        }
    }

    #[test]
    fn types_require_their_keys() {
        for (kind, data, refused) in [
            (
                "kubernetes.io/tls",
                json!({"tls.crt": ""}),
                "data[tls.key]: Required value",
            ),
            (
                "kubernetes.io/tls",
                json!({"tls.crt": "", "tls.key": ""}),
                "[]",
            ),
            (
                "kubernetes.io/basic-auth",
                json!({}),
                "[data[username]: Required value, data[password]: Required value]",
            ),
            ("kubernetes.io/basic-auth", json!({"password": ""}), "[]"),
            (
                "kubernetes.io/ssh-auth",
                json!({"ssh-privatekey": ""}),
                "data[ssh-privatekey]: Required value",
            ),
            (
                "kubernetes.io/dockerconfigjson",
                json!({}),
                "data[.dockerconfigjson]: Required value",
            ),
            (
                "kubernetes.io/dockerconfigjson",
                json!({".dockerconfigjson": "c2VjcmV0"}),
                r#"data[.dockerconfigjson]: Invalid value: "<secret contents redacted>": not JSON at byte 1"#,
            ),
            (
                "kubernetes.io/dockercfg",
                json!({".dockercfg": "e30="}),
                "[]",
            ),
            (
                "kubernetes.io/service-account-token",
                json!({}),
                "metadata.annotations[kubernetes.io/service-account.name]: Required value",
            ),
            ("example.com/own", json!({}), "[]"),
        ] {
            let errors = secret(json!({"type": kind, "data": data})).validate();
            assert_eq!(errors.to_string(), refused, "{kind}");
        }
    }

    #[test]
    fn type_and_immutable_data_stay() {
        let old = secret(json!({"immutable": true, "data": {"a": "MQ=="}}));
        let new = secret(json!({"immutable": true, "type": "other", "data": {"a": "Mg=="}}));
        assert_eq!(
            new.validate_update(&old).to_string(),
            r#"[type: Invalid value: "other": field is immutable, data: Forbidden: field is immutable when `immutable` is set]"#
        );
    }
}

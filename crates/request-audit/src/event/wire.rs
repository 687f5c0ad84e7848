//! The fields of an event as `audit.k8s.io/v1` has them, in the order in which Kubernetes writes
//! them.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::{Timestamp, tz::TimeZone};
use podplane_access::{Identity, ResourceTarget};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::level::{Level, Stage};

/// An event.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WireEvent<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    pub(super) level: Level,
    #[serde(rename = "auditID")]
    pub(super) audit_id: &'a str,
    pub(super) stage: Stage,
    #[serde(rename = "requestURI")]
    pub(super) request_uri: &'a str,
    pub(super) verb: &'a str,
    pub(super) user: &'a UserInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) impersonated_user: Option<&'a UserInfo>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[_]>::is_empty")]
    pub(super) source_ips: &'a [IpAddr],
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object_ref: Option<&'a ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_status: Option<&'a Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) request_object: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_object: Option<&'a Value>,
    #[serde(serialize_with = "micro_time")]
    pub(super) request_received_timestamp: Timestamp,
    #[serde(serialize_with = "micro_time")]
    pub(super) stage_timestamp: Timestamp,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: &'a BTreeMap<String, String>,
}

/// Kubernetes' `MicroTime`: UTC, always with six digits.
fn micro_time<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    let utc = time.to_zoned(TimeZone::UTC);
    serializer.collect_str(&utc.strftime("%Y-%m-%dT%H:%M:%S.%6fZ"))
}

/// Kubernetes' `authentication.k8s.io/v1` `UserInfo`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UserInfo {
    #[serde(skip_serializing_if = "String::is_empty")]
    username: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub(super) fn of(identity: &Identity) -> Self {
        let Identity {
            user,
            uid,
            groups,
            extra,
        } = identity.clone();
        Self {
            username: user,
            uid,
            groups,
            extra,
        }
    }
}

/// The object that a request is about.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

impl ObjectReference {
    pub(super) fn of(target: &ResourceTarget<'_>) -> Self {
        Self {
            resource: target.resource.to_owned(),
            namespace: target.namespace.to_owned(),
            name: target.name.to_owned(),
            uid: String::new(),
            api_group: target.group.to_owned(),
            api_version: target.version.to_owned(),
            resource_version: String::new(),
            subresource: target.subresource.to_owned(),
        }
    }

    pub(super) fn target(&self) -> ResourceTarget<'_> {
        ResourceTarget {
            group: &self.api_group,
            version: &self.api_version,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
            ..ResourceTarget::default()
        }
    }

    /// Fills empty fields from an object's metadata.
    pub(super) fn complete(&mut self, object: &Value) {
        let metadata = object.get("metadata");
        let stated = |field: &str| {
            let text = metadata.and_then(|metadata| metadata.get(field)?.as_str());
            super::shortened(text.unwrap_or_default())
        };
        for (own, field) in [
            (&mut self.namespace, "namespace"),
            (&mut self.name, "name"),
            (&mut self.uid, "uid"),
            (&mut self.resource_version, "resourceVersion"),
        ] {
            if own.is_empty() {
                *own = stated(field);
            }
        }
    }
}

/// Kubernetes' `Status`, without the fields that no answer has in the log.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Status {
    /// Always empty, and always there.
    metadata: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    code: u16,
}

impl Status {
    pub(super) fn new(code: u16, status: String, message: String, reason: String) -> Self {
        Self {
            metadata: BTreeMap::new(),
            status,
            message,
            reason,
            code,
        }
    }
}

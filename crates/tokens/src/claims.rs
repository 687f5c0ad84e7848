//! The claims of a token, with the names that Kubernetes gives them.

use serde::{Deserialize, Serialize};

/// The claims of a ServiceAccount's token. Times are in whole seconds since 1970.
///
/// Fields that are not known are refused: they may restrict a token in a way that would not be
/// checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// The audiences that may accept the token, at least one.
    pub aud: Vec<String>,
    /// The time from which it is refused.
    pub exp: i64,
    /// The time of its issue.
    pub iat: i64,
    /// The issuer.
    pub iss: String,
    /// The identity of the token itself.
    pub jti: String,
    /// The objects to which it is bound.
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: KubernetesClaims,
    /// The time before which it is refused.
    pub nbf: i64,
    /// The user: `system:serviceaccount:NAMESPACE:NAME`.
    pub sub: String,
}

/// The objects to which a token is bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubernetesClaims {
    /// The namespace of the account, and of the pod.
    pub namespace: String,
    /// The node, or that of the pod at the time of issue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<BoundReference>,
    /// The pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<BoundReference>,
    /// The account.
    pub serviceaccount: BoundReference,
    /// The time from which the holder should have a newer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnafter: Option<i64>,
}

/// One object, and no other of that name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundReference {
    /// Its name.
    pub name: String,
    /// Its UID.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

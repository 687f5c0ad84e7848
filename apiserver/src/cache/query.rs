use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use podplane_api::{
    ObjectKey,
    any::AnyKind,
    selector::{FieldSelector, LabelSelector},
};
use podplane_proto::error::ApiError;
use podplane_store::{Prefix, Revision};
use serde::{Deserialize, Serialize};

use super::CachedObject;
use crate::{error, storage};

/// The selection of a list or watch.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    /// The namespace; empty: all.
    pub(crate) namespace: String,
    labels: LabelSelector,
    fields: FieldSelector,
}

impl Query {
    /// Parses a query for objects of a kind.
    pub(crate) fn parse(
        kind: &dyn AnyKind,
        namespace: String,
        labels: &str,
        fields: &str,
    ) -> Result<Self, ApiError> {
        Ok(Self {
            namespace,
            labels: labels
                .parse()
                .map_err(|error| error::unselectable(&error))?,
            fields: FieldSelector::parse_over(&kind.selectable_fields(), fields)
                .map_err(|error| error::unselectable(&error))?,
        })
    }

    /// A query for all objects of a namespace.
    pub(crate) fn namespace(namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..Self::default()
        }
    }

    /// The key prefix of the selected namespace.
    pub(crate) fn prefix(&self, kind: &dyn AnyKind) -> Prefix {
        match self.namespace.as_str() {
            "" => storage::prefix_of(kind),
            namespace => storage::namespace_prefix_of(kind, namespace),
        }
    }

    /// Returns true if it selects by labels or fields.
    pub(crate) fn selects(&self) -> bool {
        !self.labels.is_empty() || !self.fields.is_empty()
    }

    pub(crate) fn matches(&self, entry: &CachedObject) -> bool {
        (self.namespace.is_empty() || self.namespace == entry.fields.namespace())
            && self.labels.matches_by(|key| entry.labels.get(key))
            && self.fields.matches(&entry.fields)
    }
}

/// The position of the next page of a list. Opaque on the wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Continue {
    /// The revision of the whole list; negative: the current one.
    #[serde(rename = "rv")]
    pub(crate) revision: i64,
    /// The key of the last returned object.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Continue {
    pub(crate) fn after(key: ObjectKey, revision: Revision) -> Self {
        let ObjectKey { namespace, name } = key;
        Self {
            revision: i64::try_from(revision.number()).unwrap_or(i64::MAX),
            namespace,
            name,
        }
    }

    /// The token for the rest of the list at the current revision, after its own revision has
    /// expired.
    pub(crate) fn inconsistent(self) -> Self {
        Self {
            revision: -1,
            ..self
        }
    }

    pub(crate) fn encode(&self) -> Result<String, ApiError> {
        let json = serde_json::to_vec(self).map_err(|error| error::internal(&error))?;
        Ok(BASE64.encode(json))
    }

    pub(crate) fn decode(token: &str) -> Result<Self, ApiError> {
        let invalid = |why: &dyn std::fmt::Display| {
            error::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let json = BASE64.decode(token).map_err(|error| invalid(&error))?;
        serde_json::from_slice(&json).map_err(|error| invalid(&error))
    }
}

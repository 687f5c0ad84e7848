//! Objects as rows of a `Table`, which kubectl prints (source: `meta.k8s.io/v1.Table`).

use podplane_api::{any::ColumnDefinition, jiff::Timestamp};
use podplane_host::clock;
use podplane_proto::{error::ApiError, wire::ListMeta};
use serde_json::{Value, json};

use super::resource::Resource;
use crate::error;

/// The part of each object that its row includes (`includeObject`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowInclusion {
    Nothing,
    Metadata,
    Object,
}

impl RowInclusion {
    pub(super) fn parse(text: &str) -> Result<Self, ApiError> {
        match text {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::Nothing),
            "Object" => Ok(Self::Object),
            other => Err(error::bad_request(format!(
                "includeObject: Unsupported value: {other:?}: supported values: \"Metadata\", \"None\", \"Object\""
            ))),
        }
    }
}

/// Tables of one version of meta.k8s.io.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableForm {
    pub(super) version: &'static str,
    pub(super) include: RowInclusion,
}

impl TableForm {
    pub(super) fn of(
        self,
        resource: &dyn Resource,
        metadata: &ListMeta,
        documents: Vec<Value>,
    ) -> Result<Value, ApiError> {
        let rows = self.rows(resource, documents.into_iter().map(Ok))?;
        Ok(self.table(resource, metadata, rows))
    }

    /// The rows of objects.
    pub(super) fn rows(
        self,
        resource: &dyn Resource,
        documents: impl Iterator<Item = Result<Value, ApiError>>,
    ) -> Result<Vec<Value>, ApiError> {
        let now = clock::timestamp();
        documents
            .map(|document| self.row(resource, document?, now))
            .collect()
    }

    /// The table of these rows.
    pub(super) fn table(
        self,
        resource: &dyn Resource,
        metadata: &ListMeta,
        rows: Vec<Value>,
    ) -> Value {
        let columns: Vec<_> = resource.columns().iter().map(column).collect();
        json!({
            "kind": "Table",
            "apiVersion": self.version,
            "metadata": list_meta(metadata),
            "columnDefinitions": columns,
            "rows": rows,
        })
    }

    fn row(
        self,
        resource: &dyn Resource,
        document: Value,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        let object = match self.include {
            RowInclusion::Nothing => Value::Null,
            RowInclusion::Metadata => metadata_only(&document, self.version),
            RowInclusion::Object => document.clone(),
        };
        let cells = resource.cells(document, now)?;
        let mut row = json!({"cells": cells});
        if !object.is_null() {
            row["object"] = object;
        }
        Ok(row)
    }
}

fn column(column: &ColumnDefinition) -> Value {
    let ColumnDefinition {
        name,
        column_type,
        format,
        description,
        priority,
    } = column;
    json!({
        "name": name,
        "type": column_type,
        "format": format,
        "description": description,
        "priority": priority,
    })
}

/// A `PartialObjectMetadata` of an object.
pub(super) fn metadata_only(document: &Value, version: &str) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": document["metadata"]})
}

/// metav1.ListMeta.
pub(super) fn list_meta(metadata: &ListMeta) -> Value {
    let ListMeta {
        r#continue,
        remaining_item_count,
        resource_version,
    } = metadata;
    let mut meta = json!({"resourceVersion": resource_version.as_deref().unwrap_or_default()});
    if let Some(token) = r#continue {
        meta["continue"] = token.as_str().into();
    }
    if let Some(count) = remaining_item_count {
        meta["remainingItemCount"] = (*count).into();
    }
    meta
}

//! A version of a custom kind, and what is done with its objects.

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceSubresourceScale,
};
use podplane_api::{
    Scope,
    autoscaling::Scale,
    schema::{OwnedType, TypeRef},
    validation::{ErrorList, FieldPath},
};
use serde_json::{Map, Value, json};

use crate::{
    MetadataError, ScaleError,
    columns::{PrinterColumn, field_of},
    metadata,
    place::Place,
    prune,
    publish::{self, Names},
    rules::{self, RuleRun},
    scale,
    schema::Schema,
    validate,
};

/// A definition without such a version, or whose schema cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KindError {
    /// There is no such version.
    #[error("the definition of {kind} has no version {version:?}")]
    Version {
        /// The kind.
        kind: String,
        /// The version.
        version: String,
    },
    /// The schema has no meaning.
    #[error("the schema of {kind} {version}: {reason}")]
    Schema {
        /// The kind.
        kind: String,
        /// The version.
        version: String,
        /// The rule that it breaks.
        reason: String,
    },
}

/// A version of a custom kind.
#[derive(Debug)]
pub struct CustomKind {
    group: String,
    version: String,
    kind: String,
    list_kind: String,
    scope: Scope,
    schema: Schema,
    /// The schema as it is published.
    published: Value,
    ty: OwnedType,
    preserve: bool,
    has_status: bool,
    scale: Option<CustomResourceSubresourceScale>,
    columns: Vec<PrinterColumn>,
    selectable: Vec<String>,
    warning: Option<String>,
}

impl CustomKind {
    /// A version of a definition, which was validated before.
    ///
    /// # Errors
    ///
    /// [`KindError`] if there is no such version, or its schema cannot be read.
    pub fn new(crd: &CustomResourceDefinition, version: &str) -> Result<Self, KindError> {
        let spec = &crd.spec;
        let kind = spec.names.kind.clone();
        let found = spec
            .versions
            .iter()
            .find(|candidate| candidate.name == version);
        let found = found.ok_or_else(|| KindError::Version {
            kind: kind.clone(),
            version: version.to_owned(),
        })?;
        let refused = |reason: String| KindError::Schema {
            kind: kind.clone(),
            version: version.to_owned(),
            reason,
        };
        let props = found
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref());
        let schema = match props {
            None => Schema {
                preserve: true,
                ..Schema::default()
            },
            Some(props) => {
                let mut schema = Schema::read(props).map_err(&refused)?;
                rules::attach(&mut schema, props, true);
                schema
            }
        };
        let published = match props {
            None => json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            Some(props) => {
                serde_json::to_value(props).map_err(|error| refused(error.to_string()))?
            }
        };
        let ty = OwnedType::read(&publish::typed(&published));
        let subresources = found.subresources.as_ref();
        let columns = found
            .additional_printer_columns
            .as_deref()
            .unwrap_or_default();
        let columns = match columns {
            [] => vec![PrinterColumn::age()],
            columns => columns.iter().map(PrinterColumn::new).collect(),
        };
        let selectable = found.selectable_fields.iter().flatten();
        let selectable = selectable.map(|field| field.json_path.trim_start_matches('.').to_owned());
        let warning = (found.deprecated == Some(true)).then(|| match &found.deprecation_warning {
            Some(warning) => warning.clone(),
            None => format!("{}/{version} {kind} is deprecated", spec.group),
        });
        Ok(Self {
            group: spec.group.clone(),
            version: version.to_owned(),
            list_kind: spec
                .names
                .list_kind
                .clone()
                .unwrap_or_else(|| format!("{kind}List")),
            scope: if spec.scope == "Cluster" {
                Scope::Cluster
            } else {
                Scope::Namespaced
            },
            preserve: spec.preserve_unknown_fields == Some(true),
            has_status: subresources.is_some_and(|all| all.status.is_some()),
            scale: subresources.and_then(|all| all.scale.clone()),
            selectable: selectable.collect(),
            schema,
            published,
            ty,
            columns,
            warning,
            kind,
        })
    }

    /// The API group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The kind.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The kind of lists.
    pub fn list_kind(&self) -> &str {
        &self.list_kind
    }

    /// The scope of the names of objects.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    /// True if there is a subresource `status`.
    pub fn has_status(&self) -> bool {
        self.has_status
    }

    /// True if there is a subresource `scale`.
    pub fn has_scale(&self) -> bool {
        self.scale.is_some()
    }

    /// The warning for clients of a deprecated version.
    pub fn deprecation_warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// Drops unknown fields and returns their paths. Those of `metadata` are
    /// [`CustomKind::coerce_metadata`]'s.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        let mut dropped = Vec::new();
        if !self.preserve {
            prune::prune(&self.schema, object, true, &Place::default(), &mut dropped);
        }
        dropped
    }

    /// Decodes the metadata of the object and of embedded ones. Drops unknown fields of metadata
    /// and returns their paths.
    ///
    /// # Errors
    ///
    /// [`MetadataError`] if metadata cannot be decoded.
    pub fn coerce_metadata(&self, object: &mut Value) -> Result<Vec<String>, MetadataError> {
        metadata::coerce(&self.schema, object, true)
    }

    /// Fills absent fields with their defaults.
    pub fn default(&self, object: &mut Value) {
        prune::default(&self.schema, object);
    }

    /// Validates an object: its schema, lists, embedded metadata, scale and rules. The rules of the
    /// object's own metadata are those of every kind, and not among these.
    pub fn validate(&self, object: &Value) -> ErrorList {
        self.check(object, None)
    }

    /// Validates an object as the successor of `old`: what stays as it was is not checked again,
    /// and rules see what was before.
    pub fn validate_update(&self, new: &Value, old: &Value) -> ErrorList {
        self.check(new, Some(old))
    }

    fn check(&self, object: &Value, old: Option<&Value>) -> ErrorList {
        let mut errors = self.type_errors(object);
        if !errors.is_empty() {
            return errors;
        }
        let root = Place::default();
        self.contents(object, old, &mut errors);
        let is_valid = errors.is_empty();
        if let Some(paths) = &self.scale {
            scale::validate(paths, object, true, &mut errors);
        }
        metadata_below(&self.schema, object, &mut errors);
        // Rules may rely on the schema.
        if is_valid {
            RuleRun::new(&mut errors).validate(&self.schema, object, old, false, &root);
        }
        errors
    }

    fn contents(&self, object: &Value, old: Option<&Value>, errors: &mut ErrorList) {
        let root = Place::default();
        validate::validate(&self.schema, object, old, &root, errors);
        validate::unique(&self.schema, object, old, &root, errors);
    }

    /// Validates an update of the status.
    pub fn validate_status_update(&self, new: &Value, old: &Value) -> ErrorList {
        let mut errors = self.type_errors(new);
        if !errors.is_empty() {
            return errors;
        }
        let at = Place::default().child("status");
        let (status, before) = (new.get("status"), old.get("status"));
        if let (Some(schema), Some(status)) = (self.schema.properties.get("status"), status) {
            validate::validate(schema, status, before, &at, &mut errors);
            validate::unique(schema, status, before, &at, &mut errors);
        }
        let is_valid = errors.is_empty();
        if let Some(paths) = &self.scale {
            scale::validate(paths, new, false, &mut errors);
        }
        if is_valid {
            RuleRun::new(&mut errors).validate(
                &self.schema,
                new,
                Some(old),
                false,
                &Place::default(),
            );
        }
        errors
    }

    fn type_errors(&self, object: &Value) -> ErrorList {
        let mut errors = ErrorList::new();
        let api_version = format!("{}/{}", self.group, self.version);
        for (name, want) in [("kind", &self.kind), ("apiVersion", &api_version)] {
            let got = object.get(name).and_then(Value::as_str).unwrap_or_default();
            if got != want {
                errors.invalid(&FieldPath::new(name), got, &format!("must be {want}"));
            }
        }
        errors
    }

    /// The columns of tables, after the name.
    pub fn columns(&self) -> &[PrinterColumn] {
        &self.columns
    }

    /// The cells of an object, one for each column; `null` for what it does not have.
    pub fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        self.columns
            .iter()
            .map(|column| column.cell(object, now))
            .collect()
    }

    /// The fields that field selectors may name, besides the name and namespace: `spec.color`.
    pub fn selectable_fields(&self) -> impl Iterator<Item = &str> {
        self.selectable.iter().map(String::as_str)
    }

    /// The value of a selectable field, empty if it is absent; `None` if it is not selectable.
    pub fn selectable_value(&self, fields: &Map<String, Value>, name: &str) -> Option<String> {
        self.selectable.iter().find(|field| *field == name)?;
        Some(match field_of(fields, name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        })
    }

    /// The scale of an object.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if the kind has none, or a field has another type.
    pub fn scale(&self, object: &Value) -> Result<Scale, ScaleError> {
        scale::read(self.scale.as_ref().ok_or(ScaleError::None)?, object)
    }

    /// Sets the replicas of an object by its scale.
    ///
    /// # Errors
    ///
    /// [`ScaleError`] if the kind has none, or the path leads through something that is no object.
    pub fn apply_scale(&self, object: &mut Value, scale: &Scale) -> Result<(), ScaleError> {
        scale::write(self.scale.as_ref().ok_or(ScaleError::None)?, object, scale)
    }

    /// The type of the objects, for patches.
    pub fn patch_type(&self) -> TypeRef<'_> {
        self.ty.get()
    }

    /// The definitions of the kind and its list in OpenAPI v3's form, by name.
    pub fn openapi_v3(&self) -> Map<String, Value> {
        publish::definitions(&self.published, &self.names())
    }

    fn names(&self) -> Names<'_> {
        Names {
            group: &self.group,
            version: &self.version,
            kind: &self.kind,
            list_kind: &self.list_kind,
        }
    }
}

/// Checks the embedded resources below the object itself.
fn metadata_below(schema: &Schema, object: &Value, errors: &mut ErrorList) {
    for (name, value) in object.as_object().into_iter().flatten() {
        if let Some(below) = schema.properties.get(name)
            && !matches!(name.as_str(), "apiVersion" | "kind" | "metadata")
        {
            metadata::validate(
                below,
                value,
                below.embedded,
                &Place::default().child(name),
                errors,
            );
        }
    }
}

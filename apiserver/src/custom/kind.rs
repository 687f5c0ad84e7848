//! A served version of a custom kind, and its objects, for the registry.

use std::{borrow::Cow, fmt, sync::Arc};

use podplane_api::{
    any::{AnyKind, AnyObject, ColumnDefinition, DynObject, KindNames, WriteRules},
    jiff::Timestamp,
    meta::ObjectMeta,
    names,
    schema::TypeRef,
    selector::FieldSet,
    strategy::{JourneyState, Requester},
    strict::StrictError,
    validation::{ErrorList, validate_metadata, validate_metadata_update},
};
use podplane_custom_resources::CustomKind;
use serde::{Deserialize as _, Serialize as _, de::Error as _};
use serde_json::{Map, Value};

/// The verbs of every custom kind.
pub(super) const VERBS: [&str; 8] = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// A served version of a custom kind.
pub(crate) struct VersionKind {
    pub(super) names: KindNames,
    /// The API version of the names: `example.com/v1`.
    pub(super) api_version: String,
    /// The API version in which objects are stored.
    pub(super) stored_version: String,
    /// `example.com/widgets`
    pub(super) root: String,
    pub(super) columns: Vec<ColumnDefinition>,
    /// The selectable fields of all versions, in which an object's [`FieldSet`] is ordered; a field
    /// that this version does not select by is empty.
    pub(super) fields: Vec<String>,
    pub(super) rules: Arc<VersionRules>,
    /// True if other versions differ only in their names.
    pub(super) is_same_in_all_versions: bool,
}

/// The rules of a version, which its objects need too.
pub(super) struct VersionRules {
    pub(super) kind: Arc<CustomKind>,
    /// The selectable fields of all versions.
    pub(super) fields: Vec<String>,
    /// The kinds that may select by one of them.
    pub(super) others: Vec<Arc<CustomKind>>,
}

impl fmt::Debug for VersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.api_version, self.names.kind)
    }
}

/// An object of a custom kind.
#[derive(Clone)]
pub(super) struct CustomObject {
    metadata: ObjectMeta,
    /// Everything else.
    fields: Map<String, Value>,
    rules: Arc<VersionRules>,
}

impl fmt::Debug for CustomObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.metadata.name.as_deref().unwrap_or_default();
        write!(f, "{} {name}", self.rules.kind.kind())
    }
}

impl VersionKind {
    /// The object of a document, which is completed and pruned as the schema says.
    fn object(&self, document: Value) -> Result<CustomObject, serde_json::Error> {
        let Value::Object(mut fields) = document else {
            return Err(serde_json::Error::custom("not an object"));
        };
        let metadata = fields.remove("metadata").unwrap_or_default();
        let metadata = Option::<ObjectMeta>::deserialize(metadata)?;
        Ok(CustomObject {
            metadata: metadata.unwrap_or_default(),
            fields,
            rules: Arc::clone(&self.rules),
        })
    }

    /// A stored document, of whatever version, as clients of this version see it.
    pub(super) fn shown(&self, mut document: Value) -> Value {
        if !document.is_object() {
            return document;
        }
        document["apiVersion"] = self.api_version.as_str().into();
        let kind = &self.rules.kind;
        kind.prune(&mut document);
        // What is stored was valid once; what is not any more is dropped.
        _ = kind.coerce_metadata(&mut document);
        kind.default(&mut document);
        document
    }
}

impl AnyKind for VersionKind {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn storage_root(&self) -> &str {
        &self.root
    }

    fn rules(&self) -> WriteRules {
        WriteRules {
            unconditional_update: false,
            create_on_update: false,
            status_has_metadata: false,
            first_generation: Some(1),
        }
    }

    fn patch_type(&self) -> Option<TypeRef<'_>> {
        Some(self.rules.kind.patch_type())
    }

    fn stored(&self, object: &DynObject) -> Result<Vec<u8>, serde_json::Error> {
        let mut document = object.to_json()?;
        if self.is_same_in_all_versions {
            document["apiVersion"] = self.stored_version.as_str().into();
        }
        serde_json::to_vec(&document)
    }

    fn empty(&self) -> Box<DynObject> {
        let kind = [
            ("apiVersion".to_owned(), self.api_version.as_str().into()),
            ("kind".to_owned(), (&*self.names.kind).into()),
        ];
        Box::new(CustomObject {
            metadata: ObjectMeta::default(),
            fields: Map::from_iter(kind),
            rules: Arc::clone(&self.rules),
        })
    }

    fn decode_noting(
        &self,
        mut document: Value,
    ) -> Result<(Box<DynObject>, Vec<String>), StrictError> {
        let kind = &self.rules.kind;
        let mut unknown = kind.prune(&mut document);
        let malformed = |path: &str, message: String| StrictError::Malformed {
            path: path.to_owned(),
            message,
        };
        let of_metadata = kind.coerce_metadata(&mut document);
        unknown.extend(of_metadata.map_err(|error| malformed("", error.to_string()))?);
        let object = self.object(document);
        let object = object.map_err(|error| malformed("metadata", error.to_string()))?;
        Ok((Box::new(object), unknown))
    }

    fn read(&self, bytes: &[u8]) -> Result<Box<DynObject>, serde_json::Error> {
        let document = self.shown(serde_json::from_slice(bytes)?);
        Ok(Box::new(self.object(document)?))
    }

    fn selectable_fields(&self) -> Vec<&str> {
        self.fields.iter().map(String::as_str).collect()
    }

    fn columns(&self) -> &[ColumnDefinition] {
        &self.columns
    }

    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<Value>, StrictError> {
        let name = document["metadata"]["name"].clone();
        let cells = self.rules.kind.cells(&document, now);
        Ok(std::iter::once(name).chain(cells).collect())
    }
}

/// The other object of a method, which the registry of a kind takes from its own objects.
fn same(object: &DynObject) -> &CustomObject {
    object.typed().expect("a registry has objects of one kind")
}

impl CustomObject {
    fn document(&self) -> Result<Value, serde_json::Error> {
        let mut fields = self.fields.clone();
        let metadata = self.metadata.serialize(serde_json::value::Serializer)?;
        fields.insert("metadata".to_owned(), metadata);
        Ok(fields.into())
    }

    /// Takes the status of another object.
    fn take_status(&mut self, other: &Self) {
        match other.fields.get("status") {
            Some(status) => _ = self.fields.insert("status".to_owned(), status.clone()),
            None => _ = self.fields.remove("status"),
        }
    }

    /// Compares the documents by a rule of the schema.
    fn judge(
        &self,
        old: &DynObject,
        rule: impl FnOnce(&CustomKind, &Value, &Value) -> ErrorList,
    ) -> ErrorList {
        let old = same(old);
        let mut errors = validate_metadata_update(&self.metadata, &old.metadata);
        errors.append(self.own_metadata());
        // Objects that were decoded have documents.
        if let (Ok(new), Ok(old)) = (self.document(), old.document()) {
            errors.append(rule(&self.rules.kind, &new, &old));
        }
        errors
    }

    fn own_metadata(&self) -> ErrorList {
        let scope = self.rules.kind.scope();
        validate_metadata(&self.metadata, scope, names::dns1123_subdomain)
    }
}

impl AnyObject for CustomObject {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn boxed(&self) -> Box<DynObject> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Result<Value, serde_json::Error> {
        self.document()
    }

    fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&self.document()?)
    }

    fn field_set(&self) -> FieldSet {
        let rules = &self.rules;
        let value = |field: &String| {
            let mut kinds = std::iter::once(&rules.kind).chain(&rules.others);
            let found = kinds.find_map(|kind| kind.selectable_value(&self.fields, field));
            Cow::from(found.unwrap_or_default())
        };
        let object: &DynObject = self;
        FieldSet::new(&object.key(), rules.fields.iter().map(value))
    }

    fn set_defaults(&mut self) {
        let mut document = Value::Object(std::mem::take(&mut self.fields));
        self.rules.kind.default(&mut document);
        if let Value::Object(fields) = document {
            self.fields = fields;
        }
    }

    fn prepare_for_create(&mut self, _by: Requester<'_>) {
        if self.rules.kind.has_status() {
            self.fields.remove("status");
        }
    }

    fn prepare_for_update(&mut self, old: &DynObject) {
        if self.rules.kind.has_status() {
            self.take_status(same(old));
        }
    }

    fn set_status(&mut self, update: &DynObject) {
        self.take_status(same(update));
    }

    fn set_approval(&mut self, _update: &DynObject, _now: Timestamp) {}

    fn validate(&self) -> ErrorList {
        let mut errors = self.own_metadata();
        if let Ok(document) = self.document() {
            errors.append(self.rules.kind.validate(&document));
        }
        errors
    }

    fn validate_update(&self, old: &DynObject) -> ErrorList {
        self.judge(old, |kind, new, old| kind.validate_update(new, old))
    }

    fn validate_status(&self, old: &DynObject) -> ErrorList {
        self.judge(old, |kind, new, old| kind.validate_status_update(new, old))
    }

    fn validate_approval(&self, old: &DynObject) -> ErrorList {
        self.validate_update(old)
    }

    fn spec_differs(&self, old: &DynObject) -> bool {
        let has_status = self.rules.kind.has_status();
        let counts = |(name, _): &(&String, &Value)| !(has_status && *name == "status");
        let (new, old) = (self.fields.iter(), same(old).fields.iter());
        !new.filter(counts).eq(old.filter(counts))
    }

    fn delete_refusal(&self) -> Option<&'static str> {
        None
    }

    fn grace_period(&self, _asked: Option<i64>) -> Option<i64> {
        None
    }

    fn has_finalizers(&self) -> bool {
        self.metadata.finalizers.iter().flatten().next().is_some()
    }

    fn begin_deletion(&mut self) {}

    fn journey_state(&self) -> Option<JourneyState> {
        None
    }

    fn last_happened(&self) -> Option<Timestamp> {
        None
    }
}

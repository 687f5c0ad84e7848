//! Kinds and objects without their Rust types, for code that is the same for all kinds and compiled
//! once (ADR 0055).
//!
//! [`AnyObject`] is an object, and [`AnyKind`] its kind. Both are implemented for each type that
//! implements [`Strategy`], by [`kind_of`]; a kind that is known only at run time implements them
//! itself.

use std::{any::Any, borrow::Cow, fmt, marker::PhantomData, sync::Arc};

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    Object, ObjectKey, Scope,
    canonical::canonicalize,
    meta::ObjectMeta,
    object::camel_plural,
    printable,
    schema::{Type, TypeRef},
    selector::FieldSet,
    strategy::{JourneyState, Requester, Strategy, Subresource},
    strict::StrictError,
    table::Column,
    validation::ErrorList,
};

/// An object of any kind.
pub type DynObject = dyn AnyObject;

/// The names of a kind, its verbs and its subresources.
#[derive(Clone, Debug)]
pub struct KindNames {
    /// The API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// The version.
    pub version: Cow<'static, str>,
    /// The kind: `Pod`.
    pub kind: Cow<'static, str>,
    /// The kind of lists: `PodList`.
    pub list_kind: Cow<'static, str>,
    /// The plural in lower case: `pods`.
    pub plural: Cow<'static, str>,
    /// The singular in lower case: `pod`.
    pub singular: Cow<'static, str>,
    /// The short names.
    pub short: Vec<Cow<'static, str>>,
    /// The categories.
    pub categories: Vec<Cow<'static, str>>,
    /// The scope of the names of objects.
    pub scope: Scope,
    /// The verbs, in alphabetical order.
    pub verbs: &'static [&'static str],
    /// The subresources, in alphabetical order.
    pub subresources: Cow<'static, [Subresource]>,
    /// True if a deletion returns the object and not only a `Status` (`ReturnDeletedObject` of
    /// Kubernetes' storage).
    pub returns_deleted: bool,
}

impl KindNames {
    /// A kind without short names and categories that only the verbs `create` of its own.
    pub fn new(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
        singular: &'static str,
    ) -> Self {
        Self {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            list_kind: format!("{kind}List").into(),
            plural: plural.into(),
            singular: singular.into(),
            short: Vec::new(),
            categories: Vec::new(),
            scope: Scope::Cluster,
            verbs: &["create"],
            subresources: Cow::Borrowed(&[]),
            returns_deleted: false,
        }
    }

    /// The names of a kind that has a Rust type.
    pub fn of<K: Strategy>() -> Self {
        let each = |names: &'static [&'static str]| names.iter().map(|name| (*name).into());
        Self {
            short: each(K::SHORT_NAMES).collect(),
            categories: each(K::CATEGORIES).collect(),
            scope: K::SCOPE,
            verbs: K::VERBS,
            subresources: Cow::Borrowed(K::SUBRESOURCES),
            returns_deleted: K::RETURNS_DELETED,
            ..Self::new(K::GROUP, K::VERSION, K::KIND, K::PLURAL, K::SINGULAR)
        }
    }

    /// `v1`, `apps/v1`
    pub fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.clone().into_owned(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The plural with the capitals of the kind, as in the names of methods: `NetworkPolicies`.
    pub fn camel_plural(&self) -> String {
        camel_plural(&self.kind, &self.plural)
    }

    /// True if these are the names of the resource in that group.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        (&*self.group, &*self.plural) == (group, plural)
    }
}

/// A column of a kind's table, as clients of the REST API see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnDefinition {
    /// The heading.
    pub name: String,
    /// The OpenAPI type of the cells.
    pub column_type: String,
    /// The OpenAPI format; `name` marks the column of the names.
    pub format: String,
    /// The description.
    pub description: String,
    /// 0 for columns that are always shown, more for those of `-o wide`.
    pub priority: i32,
}

impl From<&Column> for ColumnDefinition {
    fn from(column: &Column) -> Self {
        let name = column.name;
        Self {
            name: title(name),
            column_type: if column.integer { "integer" } else { "string" }.to_owned(),
            format: if name == "NAME" { "name" } else { "" }.to_owned(),
            description: String::new(),
            priority: i32::from(column.wide),
        }
    }
}

/// `INTERNAL-IP` in Kubernetes' notation for columns: `Internal-IP`; kubectl prints them in upper
/// case.
fn title(name: &str) -> String {
    const SHORT: [&str; 3] = ["IP", "OS", "CIDR"];
    let words = name.split_inclusive(|c: char| !c.is_ascii_alphanumeric());
    let each = words.map(|word| {
        let letters = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        if SHORT.contains(&letters) {
            return word.to_owned();
        }
        let (first, rest) = word.split_at_checked(1).unwrap_or((word, ""));
        format!("{first}{}", rest.to_ascii_lowercase())
    });
    each.collect()
}

/// The rules of a kind's writes that do not depend on an object. See [`Strategy`].
#[derive(Clone, Copy, Debug)]
pub struct WriteRules {
    /// [`Strategy::UNCONDITIONAL_UPDATE`]
    pub unconditional_update: bool,
    /// [`Strategy::CREATE_ON_UPDATE`]
    pub create_on_update: bool,
    /// [`Strategy::STATUS_HAS_METADATA`]
    pub status_has_metadata: bool,
    /// [`Strategy::first_generation`]
    pub first_generation: Option<i64>,
}

/// A kind of objects, which may be known only at run time.
pub trait AnyKind: fmt::Debug + Send + Sync {
    /// The names.
    fn names(&self) -> &KindNames;

    /// The part of the keys of stored objects between `/registry/` and the namespace: `pods`.
    fn storage_root(&self) -> &str;

    /// The rules of writes.
    fn rules(&self) -> WriteRules;

    /// The name of the gRPC service, `podplane.core.v1.PodService`, if the kind has one.
    fn service(&self) -> Option<&'static str> {
        None
    }

    /// The published definition, by which patches and applies merge; `None` if there is none.
    fn patch_type(&self) -> Option<TypeRef<'_>>;

    /// Writes the values of a document in their canonical form; returns warnings.
    fn canonicalize(&self, _document: &mut Value) -> Vec<String> {
        Vec::new()
    }

    /// The value of the store for an object without its revision.
    ///
    /// # Errors
    ///
    /// As [`AnyObject::to_vec`].
    fn stored(&self, object: &DynObject) -> Result<Vec<u8>, serde_json::Error> {
        object.to_vec()
    }

    /// An object without content.
    fn empty(&self) -> Box<dyn AnyObject>;

    /// Decodes a document, and returns the paths of unknown fields, which are dropped.
    ///
    /// # Errors
    ///
    /// See [`decode_noting`](crate::strict::decode_noting).
    fn decode_noting(
        &self,
        document: Value,
    ) -> Result<(Box<dyn AnyObject>, Vec<String>), StrictError>;

    /// Decodes a stored object: unknown fields are ignored.
    ///
    /// # Errors
    ///
    /// serde's, if the bytes are not an object of this kind.
    fn read(&self, bytes: &[u8]) -> Result<Box<dyn AnyObject>, serde_json::Error>;

    /// The labels of the fields that selectors may name, besides `metadata.name` and
    /// `metadata.namespace`; a [`FieldSet`] has their values in this order.
    fn selectable_fields(&self) -> Vec<&str>;

    /// The columns of the table.
    fn columns(&self) -> &[ColumnDefinition];

    /// The cells of an object's row, one for each column.
    ///
    /// # Errors
    ///
    /// As [`decode_noting`](Self::decode_noting).
    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<Value>, StrictError>;
}

/// An object of a kind that may be known only at run time.
///
/// The methods with an old object take one of the same kind; see [`Strategy`] and
/// [`Validate`](crate::validation::Validate) for all of them.
pub trait AnyObject: Any + fmt::Debug + Send + Sync {
    /// The metadata.
    fn metadata(&self) -> &ObjectMeta;

    /// The metadata, to change it.
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    /// A copy.
    fn boxed(&self) -> Box<dyn AnyObject>;

    /// The object as a JSON document.
    ///
    /// # Errors
    ///
    /// serde's, for a value that JSON cannot hold.
    fn to_json(&self) -> Result<Value, serde_json::Error>;

    /// The object as the bytes of its JSON.
    ///
    /// # Errors
    ///
    /// serde's, for a value that JSON cannot hold.
    fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error>;

    /// The values of the fields that selectors may name.
    fn field_set(&self) -> FieldSet;

    /// See [`Strategy::set_defaults`].
    fn set_defaults(&mut self);

    /// See [`Strategy::prepare_for_create`] and [`Strategy::set_requester`].
    fn prepare_for_create(&mut self, by: Requester<'_>);

    /// See [`Strategy::prepare_for_update`].
    fn prepare_for_update(&mut self, old: &dyn AnyObject);

    /// See [`Strategy::set_status`].
    fn set_status(&mut self, update: &dyn AnyObject);

    /// See [`Strategy::set_approval`].
    fn set_approval(&mut self, update: &dyn AnyObject, now: Timestamp);

    /// See [`Validate::validate`](crate::validation::Validate::validate).
    fn validate(&self) -> ErrorList;

    /// See [`Validate::validate_update`](crate::validation::Validate::validate_update).
    fn validate_update(&self, old: &dyn AnyObject) -> ErrorList;

    /// Checks an object whose status has been taken from an update.
    fn validate_status(&self, old: &dyn AnyObject) -> ErrorList {
        self.validate_update(old)
    }

    /// See [`Strategy::validate_approval`].
    fn validate_approval(&self, old: &dyn AnyObject) -> ErrorList;

    /// See [`Strategy::spec_differs`].
    fn spec_differs(&self, old: &dyn AnyObject) -> bool;

    /// See [`Strategy::delete_refusal`].
    fn delete_refusal(&self) -> Option<&'static str>;

    /// See [`Strategy::grace_period`].
    fn grace_period(&self, asked: Option<i64>) -> Option<i64>;

    /// See [`Strategy::has_finalizers`].
    fn has_finalizers(&self) -> bool;

    /// See [`Strategy::begin_deletion`].
    fn begin_deletion(&mut self);

    /// See [`Strategy::journey_state`].
    fn journey_state(&self) -> Option<JourneyState>;

    /// See [`Strategy::last_happened`].
    fn last_happened(&self) -> Option<Timestamp>;
}

impl dyn AnyObject {
    /// `metadata.name`, empty if absent.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`, empty if absent.
    pub fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    /// `metadata.uid`, empty if absent.
    pub fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    /// `metadata.resourceVersion`, empty if absent.
    pub fn resource_version(&self) -> &str {
        let version = self.metadata().resource_version.as_deref();
        version.unwrap_or_default()
    }

    /// The namespace and name.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(self.namespace(), self.name())
    }

    /// True if deletion has begun.
    pub fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    /// The object, if it is of that type.
    pub fn typed<T: Any>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }

    /// The same, to change it.
    pub fn typed_mut<T: Any>(&mut self) -> Option<&mut T> {
        let any: &mut dyn Any = self;
        any.downcast_mut()
    }

    /// The object itself, if it is of that type.
    pub fn into_typed<T: Any>(self: Box<Self>) -> Option<T> {
        let any: Box<dyn Any> = self;
        any.downcast().ok().map(|object| *object)
    }
}

impl Clone for Box<dyn AnyObject> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

/// The other object of a method, which the registry of a kind takes from its own objects.
fn same<K: Any>(object: &dyn AnyObject) -> &K {
    object.typed().expect("a registry has objects of one kind")
}

impl<K: Strategy> AnyObject for K {
    fn metadata(&self) -> &ObjectMeta {
        k8s_openapi::Metadata::metadata(self)
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        k8s_openapi::Metadata::metadata_mut(self)
    }

    fn boxed(&self) -> Box<dyn AnyObject> {
        Box::new(self.clone())
    }

    fn to_json(&self) -> Result<Value, serde_json::Error> {
        Object::to_json(self)
    }

    fn to_vec(&self) -> Result<Vec<u8>, serde_json::Error> {
        Object::to_vec(self)
    }

    fn field_set(&self) -> FieldSet {
        FieldSet::of(self)
    }

    fn set_defaults(&mut self) {
        Strategy::set_defaults(self);
    }

    fn prepare_for_create(&mut self, by: Requester<'_>) {
        Strategy::prepare_for_create(self);
        Strategy::set_requester(self, by);
    }

    fn prepare_for_update(&mut self, old: &dyn AnyObject) {
        Strategy::prepare_for_update(self, same(old));
    }

    fn set_status(&mut self, update: &dyn AnyObject) {
        Strategy::set_status(self, same(update));
    }

    fn set_approval(&mut self, update: &dyn AnyObject, now: Timestamp) {
        Strategy::set_approval(self, same(update), now);
    }

    fn validate(&self) -> ErrorList {
        crate::validation::Validate::validate(self)
    }

    fn validate_update(&self, old: &dyn AnyObject) -> ErrorList {
        crate::validation::Validate::validate_update(self, same(old))
    }

    fn validate_approval(&self, old: &dyn AnyObject) -> ErrorList {
        Strategy::validate_approval(self, same(old))
    }

    fn spec_differs(&self, old: &dyn AnyObject) -> bool {
        Strategy::spec_differs(self, same(old))
    }

    fn delete_refusal(&self) -> Option<&'static str> {
        Strategy::delete_refusal(self)
    }

    fn grace_period(&self, asked: Option<i64>) -> Option<i64> {
        Strategy::grace_period(self, asked)
    }

    fn has_finalizers(&self) -> bool {
        Strategy::has_finalizers(self)
    }

    fn begin_deletion(&mut self) {
        Strategy::begin_deletion(self);
    }

    fn journey_state(&self) -> Option<JourneyState> {
        Strategy::journey_state(self)
    }

    fn last_happened(&self) -> Option<Timestamp> {
        Strategy::last_happened(self)
    }
}

/// A kind that has a Rust type.
struct TypedKind<K> {
    names: KindNames,
    columns: Vec<ColumnDefinition>,
    kind: PhantomData<fn() -> K>,
}

impl<K> fmt::Debug for TypedKind<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.kind)
    }
}

/// The kind of that type.
pub fn kind_of<K: Strategy>() -> Arc<dyn AnyKind> {
    Arc::new(TypedKind::<K> {
        names: KindNames::of::<K>(),
        columns: K::COLUMNS.iter().map(ColumnDefinition::from).collect(),
        kind: PhantomData,
    })
}

impl<K: Strategy> AnyKind for TypedKind<K> {
    fn names(&self) -> &KindNames {
        &self.names
    }

    fn storage_root(&self) -> &str {
        K::PLURAL
    }

    fn rules(&self) -> WriteRules {
        WriteRules {
            unconditional_update: K::UNCONDITIONAL_UPDATE,
            create_on_update: K::CREATE_ON_UPDATE,
            status_has_metadata: K::STATUS_HAS_METADATA,
            first_generation: K::first_generation(),
        }
    }

    fn service(&self) -> Option<&'static str> {
        Some(K::SERVICE)
    }

    fn patch_type(&self) -> Option<TypeRef<'_>> {
        Type::of::<K>()
    }

    fn canonicalize(&self, document: &mut Value) -> Vec<String> {
        Type::of::<K>().map_or_else(Vec::new, |ty| canonicalize(ty, document))
    }

    fn empty(&self) -> Box<dyn AnyObject> {
        Box::new(K::default())
    }

    fn decode_noting(
        &self,
        document: Value,
    ) -> Result<(Box<dyn AnyObject>, Vec<String>), StrictError> {
        let (object, unknown) = K::from_json_noting(document)?;
        Ok((Box::new(object), unknown))
    }

    fn read(&self, bytes: &[u8]) -> Result<Box<dyn AnyObject>, serde_json::Error> {
        Ok(Box::new(K::from_slice(bytes)?))
    }

    fn selectable_fields(&self) -> Vec<&str> {
        K::FIELDS.iter().map(|(label, _)| *label).collect()
    }

    fn columns(&self) -> &[ColumnDefinition] {
        &self.columns
    }

    fn cells(&self, document: Value, now: Timestamp) -> Result<Vec<Value>, StrictError> {
        let (object, _unknown) = K::from_json_noting(document)?;
        Ok(shown(K::COLUMNS, object.cells(now)))
    }
}

/// The values of cells.
fn shown(columns: &[Column], cells: Vec<String>) -> Vec<Value> {
    let cells = columns.iter().zip(cells);
    let cells = cells.map(|(column, text)| match text.parse::<i64>() {
        Ok(number) if column.integer => number.into(),
        _ => printable::line(&text).into(),
    });
    cells.collect()
}
